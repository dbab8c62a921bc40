"""Credgate: reconciliation of the ledger with the targets' own records."""
