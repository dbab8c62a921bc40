"""Opening a ledger for writing: the lock, the torn tail of a crash, the reserve.

A tail without a newline is what a kill or a power cut leaves; glued to the next line it would cost both. It is moved to
`torn-N.bin` before it is cut off, and the writer records its length and digest.
"""

import fcntl
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from credgate.ledger.chain import Head, LineFault, parse_line
from credgate.ledger.files import RESERVE, last_line, segment_name, segments, torn_files, whole_length
from credgate.ledger.record import LedgerError
from credgate.paths import open_private, private_dir, sync_dir

RESERVE_BYTES = 64 * 1024
_VERIFY = "see `credgate log verify`; to go on with a new ledger, move this directory away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A ledger ready for its next line. `recovered`: the fields of the records that must come first."""

    directory: Path
    lock_fd: int
    fd: int
    length: int  # bytes of the segment
    head: Head
    recovered: tuple[Mapping[str, object], ...]


def open_tail(directory: Path) -> Opened:
    """Lock the ledger, mend its tail and open its last segment. Raises LedgerError and PlaceError."""
    private_dir(directory)
    lock_fd = _lock(directory)
    try:
        return _open_locked(directory, lock_fd)
    except OSError as error:
        os.close(lock_fd)
        why = (error.strerror or str(error)).lower()
        hint = "free the disk or mend it, then start again"
        raise LedgerError("ledger_unavailable", f"can't open ledger {directory}: {why}", hint) from error
    except BaseException:
        os.close(lock_fd)
        raise


def _lock(directory: Path) -> int:
    # on the directory itself: a lock file could be deleted and made anew beside the locked one
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        detail = f"ledger {directory} has a writer already, expected none"
        raise LedgerError("ledger_locked", detail, "see `credgate gateway status`") from error
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_locked(directory: Path, lock_fd: int) -> Opened:
    put_reserve(directory)
    known = segments(directory)
    path = known[-1][1] if known else directory / segment_name(1)
    fd = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        recovered = _mend(directory, fd)
        length = os.fstat(fd).st_size
        head, clean = _head(path, fd, length) if length else _head_before(known[:-1])
        if not clean and not recovered:
            recovered = ({"length": 0, "detail": "the writer before ended without a final record"},)
        os.fsync(fd)
        sync_dir(directory)
    except BaseException:
        os.close(fd)
        raise
    return Opened(directory=directory, lock_fd=lock_fd, fd=fd, length=length, head=head, recovered=recovered)


def put_reserve(directory: Path) -> None:
    """Make sure that the reserve's blocks are there. OSError (disk full) comes through."""
    fd = open_private(directory / RESERVE, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
    finally:
        os.close(fd)


def _mend(directory: Path, fd: int) -> tuple[Mapping[str, object], ...]:
    """Move away what follows the last whole line; a last line that is none counts as torn too."""
    size = os.fstat(fd).st_size
    end = whole_length(fd)
    line = last_line(fd, end)
    why = "no newline at the end"
    if end == size and line:
        try:
            parse_line(line)
        except LineFault as fault:
            end -= len(line)
            why = fault.detail
    if end == size:
        return ()
    torn = os.pread(fd, size - end, end)
    if len(torn) != size - end:  # one read(2) takes 2 GiB at most; cutting off more than was kept would lose it
        raise LedgerError("ledger_damaged", f"{directory}: {size - end} bytes without a newline at the end", _VERIFY)
    name = _keep(directory, torn)
    os.ftruncate(fd, end)
    digest = hashlib.sha256(torn).hexdigest()
    return ({"length": len(torn), "sha256": digest, "torn": name, "detail": f"torn tail moved away: {why}"},)


def _keep(directory: Path, torn: bytes) -> str:
    taken = torn_files(directory)
    path = directory / f"torn-{taken[-1][0] + 1 if taken else 1}.bin"
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(torn)
        file.flush()
        os.fsync(file.fileno())
    sync_dir(directory)
    return path.name


def _head(path: Path, fd: int, length: int) -> tuple[Head, bool]:
    """The chain's end as the last line has it, and whether that line is a `final`."""
    line = last_line(fd, length)
    try:
        record = parse_line(line)
    except LineFault as fault:
        raise LedgerError("ledger_damaged", f"last line of {path}: {fault.detail}", _VERIFY) from fault
    seq = record["seq"]
    assert isinstance(seq, int)  # parse_line has checked it
    return Head(seq=seq, sha256=hashlib.sha256(line).hexdigest()), record["ev"] == "final"


def _head_before(known: list[tuple[int, Path]]) -> tuple[Head, bool]:
    """The chain's end where the last segment is new and empty."""
    if not known:
        return Head(), True
    path = known[-1][1]
    fd = open_private(path, os.O_RDONLY)
    try:
        length = os.fstat(fd).st_size
        return _head(path, fd, length)
    finally:
        os.close(fd)
