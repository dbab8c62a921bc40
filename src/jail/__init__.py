"""Credgate: jail."""
