"""Hold a ledger against its own chain. Reads only, shares no state with the writer, needs no key.

What the chain can say: that no line was changed, removed from the middle, doubled or moved since it was written. What
it can't: that nobody wrote the whole file anew, or cut lines off the end. For that it takes a witness.
"""

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from credgate.ledger.chain import Head, LineFault, follow
from credgate.ledger.files import lines, segment_name, segments, torn_files, whole_length

WITNESS = "self-attested: no witness"
SEGMENT_MISSING = "segment_missing"
TORN_CHANGED = "torn_file_changed"
TORN_TAIL = "torn_tail"
EMPTY = "empty"
_SETTLE = 0.05  # seconds in which a live writer ends the line that it has begun


class Status(IntEnum):
    """Exit codes of `log verify`. 2 (cut off against a witness) needs a witness."""

    SOUND = 0
    TAMPERED = 1
    TRUNCATED = 2
    INCOMPLETE = 3
    UNREADABLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome. `seq` is the first bad place (the number that belongs there), `kind` a Fault or a word of above."""

    status: Status
    records: int = 0  # sound ones, from the beginning
    last_sha256: str = ""
    kind: str = ""
    seq: int | None = None
    segment: str = ""
    detail: str = ""
    notes: tuple[str, ...] = ()
    witness: str = WITNESS


@dataclass(slots=True)
class _Walk:
    head: Head
    torn: dict[str, tuple[int, str]]  # file -> seq and digest of the record that names it
    last_ev: str = ""


class _Stop(Exception):
    def __init__(self, status: Status, kind: str, detail: str, segment: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.segment = segment


def verify(directory: Path) -> Report:
    """Check every line of every segment. Raises nothing: what can't be read is status UNREADABLE."""
    walk = _Walk(Head(), {})
    try:
        _check_segments(directory, walk)
        notes = _check_torn(directory, walk)
    except _Stop as stop:
        bad = None if stop.status is Status.UNREADABLE else walk.head.seq + 1
        return _report(walk, stop.status, kind=stop.kind, seq=bad, segment=stop.segment, detail=stop.detail)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return _report(walk, Status.UNREADABLE, detail=f"can't read {error.filename or directory}: {why}")
    if walk.last_ev != "final":
        notes = (*notes, "no final record: the writer is running, or it was stopped hard")
    return _report(walk, Status.SOUND, notes=notes)


def _report(
    walk: _Walk,
    status: Status,
    *,
    kind: str = "",
    seq: int | None = None,
    segment: str = "",
    detail: str = "",
    notes: tuple[str, ...] = (),
) -> Report:
    return Report(
        status=status,
        records=walk.head.seq,
        last_sha256=walk.head.sha256 if walk.head.seq else "",
        kind=kind,
        seq=seq,
        segment=segment,
        detail=detail,
        notes=notes,
    )


def _check_segments(directory: Path, walk: _Walk) -> None:
    known = segments(directory)
    if not known:
        raise _Stop(Status.UNREADABLE, "", f"no ledger in {directory}: expected {segment_name(1)}")
    for want, (number, path) in enumerate(known, start=1):
        if number != want:
            raise _Stop(Status.TAMPERED, SEGMENT_MISSING, f"{segment_name(want)} is missing", segment_name(want))
        _check_segment(path, walk, last=want == len(known))
    if not walk.head.seq:
        raise _Stop(Status.INCOMPLETE, EMPTY, "the ledger holds no record", known[0][1].name)


def _check_segment(path: Path, walk: _Walk, last: bool) -> None:
    fd = _open(path)
    try:
        end = _settled_end(fd) if last else whole_length(fd)
        at = 0
        for line in lines(fd):
            if at >= end:
                break  # begun after we looked, or torn: told apart below
            at += len(line)
            _check_line(path, line, walk)
        size = os.fstat(fd).st_size
        if end < size and not (last and _grew_whole(fd, end)):
            kind = Status.INCOMPLETE if last else Status.TAMPERED
            raise _Stop(kind, TORN_TAIL, f"{size - end} bytes without a newline at the end", path.name)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _Stop(Status.UNREADABLE, "", f"{path} is not a regular file", path.name)
    return fd


def _settled_end(fd: int) -> int:
    """Offset behind the last whole line; a tail is looked at twice, as a reader may see half of a live write."""
    end = whole_length(fd)
    if end < os.fstat(fd).st_size:
        time.sleep(_SETTLE)
        end = whole_length(fd)
    return end


def _grew_whole(fd: int, end: int) -> bool:
    """Whether what follows `end` is lines that a live writer added meanwhile, and no torn tail."""
    return _settled_end(fd) > end


def _check_line(path: Path, line: bytes, walk: _Walk) -> None:
    try:
        record, walk.head = follow(walk.head, line)
    except LineFault as fault:
        raise _Stop(Status.TAMPERED, fault.fault, fault.detail, path.name) from fault
    walk.last_ev = str(record["ev"])
    if record["ev"] == "recovered" and "torn" in record:
        walk.torn[str(record["torn"])] = (walk.head.seq, str(record.get("sha256", "")))


def _check_torn(directory: Path, walk: _Walk) -> tuple[str, ...]:
    """Hold the torn tails that were moved away against the records that name them."""
    found = {path.name: path for _, path in torn_files(directory)}
    notes = [f"{name}: no record names it" for name in found if name not in walk.torn]
    for name, (seq, digest) in walk.torn.items():
        if name not in found:
            notes.append(f"{name}, named by record {seq}, isn't here")
        elif _digest(found[name]) != digest:
            raise _Stop(Status.TAMPERED, TORN_CHANGED, f"{name} isn't what record {seq} says", name)
        else:
            notes.append(f"record {seq}: a crash left a torn line, kept in {name}")
    return tuple(notes)


def _digest(path: Path) -> str:
    fd = _open(path)
    with os.fdopen(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_json(report: Report) -> Mapping[str, object]:
    """The report as `log verify --json` prints it."""
    return {
        "state": report.status.name.lower(),
        "exit": int(report.status),
        "records": report.records,
        "last_sha256": report.last_sha256,
        "kind": report.kind,
        "seq": report.seq,
        "segment": report.segment,
        "detail": report.detail,
        "witness": report.witness,
        "notes": list(report.notes),
    }
