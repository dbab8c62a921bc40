"""Opening a ledger for writing: the lock, the torn tail of a crash, the reserve.

A tail without a newline is what a kill or a power cut leaves; glued to the next line it would cost both. It is copied
to `torn-N.new` before it is cut off, the writer records its length and digest, and then the file becomes `torn-N.bin`:
a crash at any of these steps leaves the next writer what it needs to end the work.
"""

import fcntl
import hashlib
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from credgate.ledger.chain import Head, LineFault, parse_line
from credgate.ledger.files import (
    PACKED,
    RESERVE,
    last_line,
    notes_files,
    pending_files,
    segment_lines,
    segment_name,
    segments,
    torn_files,
    whole_length,
)
from credgate.ledger.note import NoteError
from credgate.ledger.record import LedgerError
from credgate.ledger.scan import Tail, notes_of, scan
from credgate.paths import open_private, private_dir, sync_dir

RESERVE_BYTES = 64 * 1024
_LOCK_TRIES, _LOCK_PAUSE = 3, 0.02  # seconds: a verifier asks by a shared lock, see has_writer
_VERIFY = "see `credgate log verify`; to go on with a new ledger, move this directory away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A ledger ready for its next line.

    `recovered`: the fields of the records that must come first; after each with a `torn`, settle() is due.
    """

    directory: Path
    lock_fd: int
    number: int  # of the segment
    fd: int
    length: int  # bytes of the segment
    head: Head
    tail: Tail
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
        for _ in range(_LOCK_TRIES):
            if _lock_now(fd):
                return fd
            time.sleep(_LOCK_PAUSE)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        detail = f"ledger {directory} has a writer already, expected none"
        raise LedgerError("ledger_locked", detail, "see `credgate gateway status`") from error
    except OSError:
        os.close(fd)
        raise
    return fd


def _lock_now(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_writer(directory: Path) -> bool:
    """Whether a writer holds the ledger. Asked with a shared lock that is let go at once. OSError comes through."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _open_locked(directory: Path, lock_fd: int) -> Opened:
    put_reserve(directory)
    known = segments(directory)
    number = known[-1][0] if known else 1
    if known and known[-1][1].name.endswith(PACKED):  # somebody packed it by hand
        number += 1
        known.append((number, directory / segment_name(number)))
    path = directory / segment_name(number)
    fd = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        length = _sound_length(fd)
        # before the tail is touched: in a ledger that no crash has damaged nothing is changed
        head, last = _head(path, fd, length) if length else _head_before(known[:-1])
        tail = scan(directory, known, length)
        notes = _cut_notes(directory)
        _move_tail(directory, fd, length)
        recovered = _unrecorded(directory, last)
        if last.get("ev", "final") != "final" and not recovered:
            recovered = ({"length": 0, "detail": "the writer before ended without a final record"},)
        recovered = (*recovered, *notes)
        os.fsync(fd)
        sync_dir(directory)
    except BaseException:
        os.close(fd)
        raise
    return Opened(
        directory=directory,
        lock_fd=lock_fd,
        number=number,
        fd=fd,
        length=length,
        head=head,
        tail=tail,
        recovered=recovered,
    )


def _cut_notes(directory: Path) -> list[Mapping[str, object]]:
    """Cut torn checkpoints off. The signer may have been some segments behind the writer when a crash came."""
    cut: list[Mapping[str, object]] = []
    for number, path in notes_files(directory):
        if _ends_whole(path):
            continue
        try:
            _, end, size = notes_of(directory, number)
        except NoteError as error:
            raise LedgerError("ledger_damaged", f"{path}: {error}", _VERIFY) from error
        if end < size:
            fd = open_private(path, os.O_RDWR)
            try:
                os.ftruncate(fd, end)
                os.fsync(fd)
            finally:
                os.close(fd)
            cut.append({"length": size - end, "detail": f"torn checkpoint cut off {path.name}"})
    return cut


def _ends_whole(path: Path) -> bool:
    fd = open_private(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return size == 0 or os.pread(fd, 2, max(0, size - 2)) == b"\n\n"
    finally:
        os.close(fd)


def put_reserve(directory: Path) -> None:
    """Make sure that the reserve's blocks are there. OSError (disk full) comes through."""
    fd = open_private(directory / RESERVE, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
    finally:
        os.close(fd)


def _sound_length(fd: int) -> int:
    """Offset behind the last whole line; a last line that is none counts as torn too."""
    end = whole_length(fd)
    line = last_line(fd, end)
    if end == os.fstat(fd).st_size and line:
        try:
            parse_line(line)
        except LineFault:
            end -= len(line)
    return end


def _move_tail(directory: Path, fd: int, end: int) -> None:
    size = os.fstat(fd).st_size
    if end == size:
        return
    torn = os.pread(fd, size - end, end)
    if len(torn) != size - end:  # one read(2) takes 2 GiB at most; cutting off more than was kept would lose it
        raise LedgerError("ledger_damaged", f"{directory}: {size - end} bytes without a newline at the end", _VERIFY)
    _keep(directory, torn)
    os.ftruncate(fd, end)


def _keep(directory: Path, torn: bytes) -> None:
    pending = pending_files(directory)
    # a copy that a crash cut short, or came right after, is the one of this tail; another one is of an earlier tail
    path = next((path for _, path in pending if torn.startswith(_content(path))), None)
    if path is None:
        number = max((number for number, _ in (*pending, *torn_files(directory))), default=0) + 1
        path = directory / f"torn-{number}.new"
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(torn)
        file.flush()
        os.fsync(file.fileno())
    sync_dir(directory)


def _content(path: Path) -> bytes:
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read()


def _unrecorded(directory: Path, last: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    """The fields of the records that torn tails still lack; the one that `last` is for is settled."""
    missing = []
    for number, path in pending_files(directory):
        name = f"torn-{number}.bin"
        if last.get("ev") == "recovered" and last.get("torn") == name:
            settle(directory, name)
            continue
        torn = _content(path)
        digest = hashlib.sha256(torn).hexdigest()
        missing.append({"length": len(torn), "sha256": digest, "torn": name, "detail": "torn tail moved away"})
    return tuple(missing)


def settle(directory: Path, name: str) -> None:
    """Give a torn tail its final name, once its record is on the disk. OSError comes through."""
    (directory / name).with_suffix(".new").rename(directory / name)
    sync_dir(directory)


def _head(path: Path, fd: int, length: int) -> tuple[Head, Mapping[str, object]]:
    """The chain's end as the last line has it, and that line's record."""
    return _head_of(path, last_line(fd, length))


def _head_of(path: Path, line: bytes) -> tuple[Head, Mapping[str, object]]:
    try:
        record = parse_line(line)
    except LineFault as fault:
        raise LedgerError("ledger_damaged", f"last line of {path}: {fault.detail}", _VERIFY) from fault
    seq = record["seq"]
    assert isinstance(seq, int)  # parse_line has checked it
    return Head(seq=seq, sha256=hashlib.sha256(line).hexdigest()), record


def _head_before(known: list[tuple[int, Path]]) -> tuple[Head, Mapping[str, object]]:
    """The chain's end where the last segment is new and empty."""
    if not known:
        return Head(), {}
    path = known[-1][1]
    last = deque(segment_lines(path), 1)  # a packed segment has no end to read from
    return _head_of(path, last[0] if last else b"")
