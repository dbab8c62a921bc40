"""What the daemon answers a worker that may not, or can't have: as messages."""

from credgate.errors import CredgateError
from credgate.ledger.record import LedgerError
from credgate.workers import messages as m
from rules.verdict import Deny


def refused(ask: int, denied: Deny) -> m.Refused:
    """A verdict of the rules, or of what counts."""
    return m.Refused(denied.reason.value, denied.message, denied.status, denied.rule, denied.hint, ask=ask)


def failed(ask: int, error: CredgateError) -> m.Failed:
    """A ledger that can't be written, or a secret that can't be had."""
    return m.Failed(isinstance(error, LedgerError), error.code, error.detail, error.hint, ask=ask)
