"""Credgate: resolver."""
