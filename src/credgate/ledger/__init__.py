"""Credgate: ledger."""
