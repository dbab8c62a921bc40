"""Credgate: credgate."""
