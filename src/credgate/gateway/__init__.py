"""Credgate: gateway."""
