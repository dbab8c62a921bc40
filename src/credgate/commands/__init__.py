"""Credgate: commands."""
