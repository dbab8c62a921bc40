"""Checkpoints that somebody noted down, from the files in which they keep them."""

from pathlib import Path

from credgate.ledger.note import NoteError, parse_note
from credgate.ledger.record import LedgerError
from credgate.ledger.report import Kept

MAX_NOTES = 64 * 1024 * 1024  # bytes


def head_of(path: Path) -> bytes:
    """What such a file holds, as far as it is read. OSError comes through."""
    with path.open("rb") as file:
        return file.read(MAX_NOTES)


def kept(path: Path) -> Kept:
    """The checkpoints of a file, under its path. Raises LedgerError (exit_status 4)."""
    hint = "give a file with a checkpoint as `credgate log checkpoint` prints it"
    try:
        return Kept(who=str(path), notes=parse_note(head_of(path)))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise LedgerError("bad_checkpoint", f"can't read {path}: {why}", hint, exit_status=4) from error
    except NoteError as error:
        raise LedgerError("bad_checkpoint", f"{path}: {error}", hint, exit_status=4) from error
