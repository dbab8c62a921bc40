"""Hold a ledger against its chain, its tree and its signed checkpoints. Reads only, shares no state with the writer.

The chain says that no line was changed, removed from the middle, doubled or moved. The checkpoints say that it was the
key's holder who wrote it, and how long it was. Neither says that the key's holder didn't write all of it anew: for that
it takes checkpoints that somebody else kept, given as `against`.
"""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from credgate.ledger import keys
from credgate.ledger.attest import (
    begin_behind_removed,
    change_key,
    check_kept,
    check_key,
    check_notes,
    first_key,
    nothing_promised,
    read_notes,
)
from credgate.ledger.chain import LineFault, follow
from credgate.ledger.checkpoints import EXPORT
from credgate.ledger.files import (
    MAX_TAIL,
    PACKED,
    PackError,
    lines,
    notes_files,
    packed_lines,
    segment_name,
    segments,
    torn_files,
    whole_length,
)
from credgate.ledger.note import origin_of
from credgate.ledger.recover import has_writer
from credgate.ledger.report import Kept, Report, Status
from credgate.ledger.scan import Header, read_header
from credgate.ledger.tree import leaf_hash
from credgate.ledger.walk import SETTLE, Stop, Walk, open_file

_TRIES = 3


def verify(
    directory: Path, *, pubkey: bytes | None = None, against: Sequence[Kept] = (), leaves: list[bytes] | None = None
) -> Report:
    """Check every line and every checkpoint. Raises nothing: what can't be read is status UNREADABLE.

    `pubkey`: the key that must have signed; `against`: checkpoints kept elsewhere that this ledger must go on from;
    `leaves`: filled with the leaf hashes, for proofs.
    """
    for _ in range(_TRIES):
        report, gone = _verify(directory, pubkey, against, leaves)
        if not gone:
            break
    return report


def _verify(
    directory: Path, pubkey: bytes | None, against: Sequence[Kept], leaves: list[bytes] | None
) -> tuple[Report, bool]:
    """The report, and whether a segment was packed or removed while we looked: then it is worth another look."""
    if leaves is not None:
        leaves.clear()
    walk = Walk(directory, leaves=leaves)
    walk.wanted = {note.checkpoint.size: b"" for kept in against for note in kept.notes}
    notes: list[str] = []
    try:
        walk.live = has_writer(directory)
        _check_segments(directory, walk)
        notes += _check_torn(directory, walk)
        walk.trust = check_key(walk, pubkey)
        walk.witness = check_kept(walk, against)
        _check_end(walk, notes)
    except Stop as bad:
        return _report(walk, bad.status, notes, bad), False
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        stop = Stop(Status.UNREADABLE, "", f"can't read {error.filename or directory}: {why}")
        return _report(walk, stop.status, notes, stop), walk.live and isinstance(error, FileNotFoundError)
    return _report(walk, Status.SOUND, [*notes, *_told(walk)]), False


def _report(walk: Walk, status: Status, notes: Sequence[str], stop: Stop | None = None) -> Report:
    return Report(
        status=status,
        records=walk.head.seq,
        first=walk.first,
        last_sha256=walk.head.sha256 if walk.head.seq else "",
        root=walk.tree.root(),
        origin=walk.origin,
        signed=walk.last.checkpoint.size if walk.last else 0,
        checkpoints=walk.met,
        pubkey=keys.fingerprint(walk.key) if walk.key else "",
        trust=walk.trust,
        kind=stop.kind if stop else "",
        seq=(stop.seq or walk.head.seq + 1) if stop and status is not Status.UNREADABLE else None,
        segment=stop.segment if stop else "",
        detail=stop.detail if stop else "",
        notes=tuple(notes),
        witness=walk.witness,
        live=walk.live,
    )


# --- lines


def _check_segments(directory: Path, walk: Walk) -> None:
    signed = dict(notes_files(directory))  # before the lines: what these promise must be there then
    promised = {number: read_notes(path, walk) for number, path in signed.items()}
    known = segments(directory)
    walk.key = first_key(directory, bool(signed))
    walk.chain += [walk.key] if walk.key else []
    if not known:
        nothing_promised(walk, [note for found in promised.values() for note in found])
        raise Stop(Status.UNREADABLE, "", f"no ledger in {directory}: expected {segment_name(1)}")
    start = known[0][0]
    if start > 1:
        begin_behind_removed(directory, walk, known[0], promised.get(start - 1, []))
        walk.old_notes = [note for number in promised if number < start for note in promised[number]]
    for want, (number, path) in enumerate(known, start=start):
        if number != want:
            raise Stop(Status.TAMPERED, "segment_missing", f"{segment_name(want)} is missing", segment_name(want))
        walk.notes = promised.get(number, [])
        _check_segment(path, walk, last=number == known[-1][0])
    nothing_promised(walk, [note for number in promised if number > known[-1][0] for note in promised[number]])
    if start > 1 and walk.pruned < start - 1:
        detail = (
            f"{segment_name(1)} to {segment_name(start - 1)} are missing, and no record says that they were removed"
        )
        raise Stop(Status.TAMPERED, "segment_missing", detail, segment_name(1), seq=1)


def _check_segment(path: Path, walk: Walk, last: bool) -> None:
    fd = open_file(path)
    try:
        if path.name.endswith(PACKED):
            _check_packed(path, fd, walk)
        else:
            _check_plain(path, fd, walk, last)
    finally:
        os.close(fd)
    if not last and walk.notes:
        size = walk.notes[0].checkpoint.size
        detail = f"checkpoint of {size} lines, where the segment ends at {walk.head.seq}"
        raise Stop(Status.TAMPERED, "checkpoint_order", detail, path.name)


def _check_packed(path: Path, fd: int, walk: Walk) -> None:
    try:
        for number, line in enumerate(packed_lines(fd)):
            _check_line(path, line, walk, first=number == 0)
    except PackError as error:
        raise Stop(Status.TAMPERED, "pack_damaged", str(error), path.name) from error


def _check_plain(path: Path, fd: int, walk: Walk, last: bool) -> None:
    end = _settled_end(fd) if last else whole_length(fd)
    at = 0
    for line in lines(fd):
        if at >= end:
            break  # begun after we looked, or torn: told apart below
        _check_line(path, line, walk, first=at == 0)
        at += len(line)
    size = os.fstat(fd).st_size
    if end < size and not (last and _settled_end(fd) > end):  # else a live writer has added whole lines
        detail = f"{size - end} bytes without a newline at the end"
        if not last:
            raise Stop(Status.TAMPERED, "torn_tail", detail, path.name)
        walk.tail = detail


def _settled_end(fd: int) -> int:
    """Offset behind the last whole line; a tail is looked at twice, as a reader may see half of a live write."""
    end = whole_length(fd)
    if end < os.fstat(fd).st_size:
        time.sleep(SETTLE)
        end = whole_length(fd)
    return end


def _check_line(path: Path, line: bytes, walk: Walk, *, first: bool) -> None:
    header = read_header(line) if first and walk.tree.size else None
    if header is not None:
        _check_header(path, header, walk)
    try:
        record, walk.head = follow(walk.head, line)
    except LineFault as fault:
        raise Stop(Status.TAMPERED, fault.fault, fault.detail, path.name) from fault
    leaf = leaf_hash(line)
    if not walk.tree.size:
        walk.origin = origin_of(line)
    walk.tree.push(leaf)
    if walk.leaves is not None:
        walk.leaves.append(leaf)
    walk.last_ev = str(record["ev"])
    _note_record(path, record, walk)
    check_notes(path, walk)


def _check_header(path: Path, header: Header, walk: Walk) -> None:
    right = (walk.tree.size, walk.tree.nodes, walk.origin)
    if (header.tree.size, header.tree.nodes, header.origin) != right or header.key != walk.key:
        raise Stop(Status.TAMPERED, "header_mismatch", "the segment begins with another tree, name or key", path.name)


def _note_record(path: Path, record: Mapping[str, object], walk: Walk) -> None:
    """What a record says of the ledger itself."""
    seq = walk.head.seq
    match record["ev"]:
        case "recovered" if "torn" in record:
            walk.torn[str(record["torn"])] = (seq, str(record.get("sha256", "")))
        case "key_change":
            change_key(path, record, walk)
        case "pruned":
            number = record.get("segment")
            walk.pruned = max(walk.pruned, number if isinstance(number, int) else 0)
        case "checkpoint" if "witness" in record:
            walk.told[str(record["witness"])] = (seq, str(record.get("reason")), str(record.get("detail", "")))
        case _:
            pass


def _check_end(walk: Walk, notes: list[str]) -> None:
    """Whether the end is the one that the writer made."""
    if not walk.head.seq:
        raise Stop(Status.INCOMPLETE, "empty", "the ledger holds no record")
    if walk.tail:
        raise Stop(Status.INCOMPLETE, "torn_tail", walk.tail)
    if walk.first > 1:
        notes.append(f"records 1 to {walk.first - 1} were removed; the signed root over them is kept")
    signed = walk.last.checkpoint.size if walk.last else 0
    if walk.live:
        notes.append("a writer holds the ledger: it goes on")
        if signed < walk.head.seq:
            notes.append(f"{walk.head.seq - signed} records are not signed yet")
        return
    _check_signed_end(walk, signed)
    if walk.last_ev == "final":
        return
    if walk.last is None or EXPORT not in walk.last.checkpoint.extra:
        detail = "no final record: the writer was stopped hard, or the end was cut off"
        raise Stop(Status.INCOMPLETE, "no_final", detail)
    notes.append("a copy of a ledger that goes on, cut here and signed when it was exported")


def _check_signed_end(walk: Walk, signed: int) -> None:
    torn = next((said for number, said in walk.torn.values() if number == 0), "")
    if torn:
        raise Stop(Status.INCOMPLETE, "torn_checkpoint", torn)
    if not signed:
        raise Stop(Status.INCOMPLETE, "no_checkpoint", "no checkpoint: nobody signed this", seq=1)
    if signed < walk.head.seq:
        count = walk.head.seq - signed
        detail = f"{count} records at the end are not signed: the writer was stopped hard, or they are another's"
        raise Stop(Status.INCOMPLETE, "unsigned_tail", detail, seq=signed + 1)


def _told(walk: Walk) -> list[str]:
    """What the ledger itself says of its witnesses: which to ask, and which failed."""
    said = []
    for name, (seq, reason, detail) in walk.told.items():
        words = "has taken checkpoints" if reason == "witness_taking" else "FAILED"
        said.append(f"witness {name} {words} since record {seq}{f' ({detail})' if detail else ''}")
    return said


def _check_torn(directory: Path, walk: Walk) -> tuple[str, ...]:
    """Hold the torn tails that were moved away against the records that name them."""
    found = {path.name: path for _, path in torn_files(directory)}
    notes = [f"{name}: no record names it" for name in found if name not in walk.torn]
    for name, (seq, digest) in walk.torn.items():
        if not seq:
            continue
        if name not in found:
            notes.append(f"{name}, named by record {seq}, isn't here")
        elif _digest(found[name]) != digest:
            raise Stop(Status.TAMPERED, "torn_file_changed", f"{name} isn't what record {seq} says", name, seq=seq)
        else:
            notes.append(f"record {seq}: a crash left a torn line, kept in {name}")
    return tuple(notes)


def _digest(path: Path) -> str:
    """The file's digest; "" for one that is longer than any torn tail."""
    with os.fdopen(open_file(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_TAIL:
            return ""
        return hashlib.file_digest(file, "sha256").hexdigest()
