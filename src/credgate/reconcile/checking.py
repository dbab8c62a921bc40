"""Verification of the ledger. That of a large one runs in a process of its own, while the exports are read."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from credgate.ledger import keys
from credgate.ledger.files import segments
from credgate.ledger.kept import kept
from credgate.ledger.report import Report, Status, from_json
from credgate.ledger.verify import verify
from credgate.reconcile.model import ReconcileError

_HINT = "credgate log verify; or --allow-unverified"
_COPIED = "of a ledger that is being written take a bundle: credgate log export --bundle FILE; or --allow-unverified"
_HINTS = {"no_final": _COPIED, "unsigned_tail": _COPIED}
LARGE = 32 * 1024 * 1024  # bytes: below it a process costs more than it saves


@contextmanager
def checking(
    directory: Path, pubkey: bytes | None = None, noted: Sequence[Path] = (), *, large: int = LARGE
) -> Iterator[Callable[[], Report]]:
    """Begin to verify; what it gives waits for the report. A process that isn't waited for is ended.

    `pubkey`: the key that must have signed; `noted`: files of checkpoints that the ledger must go on from.
    Raises ReconcileError where there is nothing to verify, LedgerError for a file that holds no checkpoint.
    """
    against = [kept(path) for path in noted]
    if _size(directory) < large:
        yield lambda: _named(verify(directory, pubkey=pubkey, against=against), noted)
        return
    command = [sys.executable, "-I", "-m", "credgate", "log", "verify", "--json", "--ledger", str(directory)]
    command += ["--pubkey", keys.fingerprint(pubkey)] if pubkey else []
    command += [word for path in noted for word in ("--checkpoint", str(path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            yield lambda: _named(_report(process), noted)
        finally:
            if process.poll() is None:
                process.kill()


def _named(report: Report, noted: Sequence[Path]) -> Report:
    """With names in place of paths: reports hold none of this machine."""
    witness, detail = report.witness, report.detail
    for path in noted:
        witness, detail = witness.replace(f"{path}:", f"{path.name}:"), detail.replace(f"{path}:", f"{path.name}:")
    return replace(report, witness=witness, detail=detail)


def _size(directory: Path) -> int:
    try:
        return sum(path.stat().st_size for _, path in segments(directory))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ReconcileError("ledger_unreadable", f"can't read {directory}: {why}", "--ledger DIR", 2) from error


def _report(process: subprocess.Popen[bytes]) -> Report:
    """The report as `log verify --json` prints it. No report is an unreadable ledger, never a sound one."""
    out, _ = process.communicate()
    try:
        said = json.loads(out)
        report = from_json(said)
        if process.returncode != int(report.status):
            raise ValueError("exit status")
    except (ValueError, KeyError, TypeError) as error:
        detail = f"its verification ended with {process.returncode} and no report"
        raise ReconcileError("ledger_unreadable", detail, "credgate log verify", 2) from error
    return report


def accepted(report: Report, directory: Path, *, allow_unverified: bool) -> Report:
    """The report of a ledger that may be joined. Raises ReconcileError unless it is sound, or taken as it is."""
    if report.status is Status.UNREADABLE:
        raise ReconcileError("ledger_unreadable", report.detail or f"no ledger in {directory}", "--ledger DIR", 2)
    if report.status is not Status.SOUND and not allow_unverified:
        state = report.status.name.lower()
        at = f" at record {report.seq} ({report.kind})" if report.seq else ""
        detail = f"the ledger doesn't verify: {state}{at}: {report.detail}"
        raise ReconcileError("ledger_unverified", detail, _HINTS.get(report.kind, _HINT), 3)
    return report
