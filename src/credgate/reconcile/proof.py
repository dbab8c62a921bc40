"""What the ledger's verification proves, in one line: it is the first of every report."""

from enum import StrEnum

from credgate.ledger.report import SELF_ATTESTED, Report, Status

GIVEN, INSTALL = "the key given", "the install's own key"  # as `verify` says it
UNSIGNED = "no_checkpoint"


class Signature(StrEnum):
    """Whose key signed, as far as the reader can tell."""

    GIVEN_KEY = "given-key"
    INSTALL_KEY = "install-key"
    OWN_KEY = "own-key"
    NONE = "none"


def signature(report: Report) -> Signature:
    """Whose key signed what is there."""
    if report.status is not Status.SOUND or not report.signed:
        return Signature.NONE
    return {GIVEN: Signature.GIVEN_KEY, INSTALL: Signature.INSTALL_KEY}.get(report.trust, Signature.OWN_KEY)


def words(report: Report) -> str:
    """The line. An unverified ledger is in capitals: nobody may read over it."""
    if report.status is not Status.SOUND:
        state = "UNSIGNED" if report.kind == UNSIGNED else "UNVERIFIED"
        return f"{state} ledger: {report.status.name.lower()}: {report.detail or report.kind}"
    match signature(report):
        case Signature.GIVEN_KEY:
            by = "signed by the key given"
        case Signature.INSTALL_KEY:
            by = "signed by the key of this install"
        case Signature.OWN_KEY:
            by = "signed by the key that the ledger itself names: compare it, or give --pubkey"
        case Signature.NONE:
            return "UNSIGNED ledger: a writer holds it, and has signed nothing yet"
    behind = report.records - report.signed
    tail = f", but for its last {behind} records" if behind else ""
    return f"verified ledger: {by}{tail}; {report.witness}"


def attested(report: Report) -> bool:
    """Whether somebody besides its owner has kept a checkpoint of it."""
    return report.status is Status.SOUND and not report.witness.startswith(SELF_ATTESTED)
