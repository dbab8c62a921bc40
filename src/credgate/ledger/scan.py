"""What a writer must know of a ledger before it goes on: its tree, its name, the key in force, its last segment's day.

The tree is built from the frontier that the last segment begins with, so that one segment is read and not all. The last
checkpoint is held against it: a ledger that was cut or written anew since is not gone on with, for the next checkpoint
would sign what was done to it.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from credgate.ledger.chain import LineFault, parse_line
from credgate.ledger.files import PackError, notes_files, notes_name, read_file, segment_lines, segment_name
from credgate.ledger.keys import PUBLIC, parse_public
from credgate.ledger.note import Checkpoint, Note, NoteError, origin_of, parse_notes
from credgate.ledger.record import LedgerError
from credgate.ledger.tree import Tree, leaf_hash

_VERIFY = "see `credgate log verify`; to go on with a new ledger, move this directory away"
_KEY_CHANGE = b'"ev":"key_change"'


@dataclass(slots=True, kw_only=True)
class Tail:
    """The end of a ledger. `key`: public half of the one in force, None before the first. `day`: of its segment."""

    tree: Tree
    origin: str = ""
    key: bytes | None = None
    day: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """First line of a segment: what lies before it."""

    tree: Tree
    root: bytes
    origin: str
    key: bytes


def scan(directory: Path, known: Sequence[tuple[int, Path]], length: int) -> Tail:
    """Read as much as the tree takes; of the last segment `length` bytes. Raises LedgerError, OSError."""
    try:
        return _scan(directory, known, length)
    except PackError as error:
        raise LedgerError("ledger_damaged", f"{directory}: a segment {error}", _VERIFY) from error


def _scan(directory: Path, known: Sequence[tuple[int, Path]], length: int) -> Tail:
    tail, start = _start(directory, known)
    note = last_note(directory)
    if note is not None and note.checkpoint.size == tail.tree.size:
        _hold(directory, note, tail)
        note = None
    for number, path in known[start:]:
        read = 0
        for line in segment_lines(path):
            if number == known[-1][0] and read >= length:
                break
            tail.day = tail.day if read else day_of(line)
            read += len(line)
            _take(directory, line, tail)
            if note is not None and note.checkpoint.size == tail.tree.size:
                _hold(directory, note, tail)
    if note is not None and note.checkpoint.size > tail.tree.size:
        detail = f"{directory}: the last checkpoint is of {note.checkpoint.size} lines, there are {tail.tree.size}"
        raise LedgerError("ledger_truncated", detail, _VERIFY)
    return tail


def _start(directory: Path, known: Sequence[tuple[int, Path]]) -> tuple[Tail, int]:
    """The last segment that begins with a header, and what it says; else the first of all."""
    for index in range(len(known) - 1, -1, -1):
        first = next(segment_lines(known[index][1]), b"")
        header = read_header(first)
        if header is not None:
            return Tail(tree=header.tree, origin=header.origin, key=header.key), index
    if known and known[0][0] != 1:
        raise LedgerError("ledger_damaged", f"{directory}: {segment_name(1)} is missing", _VERIFY)
    return Tail(tree=Tree(), key=first_key(directory)), 0


def _take(directory: Path, line: bytes, tail: Tail) -> None:
    if not tail.tree.size:
        tail.origin = origin_of(line)
    tail.tree.push(leaf_hash(line))
    if _KEY_CHANGE in line:
        try:
            tail.key = _bytes(parse_line(line), "pubkey") or tail.key
        except LineFault as fault:
            raise LedgerError("ledger_damaged", f"{directory}: {fault.detail}", _VERIFY) from fault


def _hold(directory: Path, note: Note, tail: Tail) -> None:
    if note.checkpoint.origin != tail.origin or note.checkpoint.root != tail.tree.root():
        detail = f"{directory}: the last checkpoint, of {note.checkpoint.size} lines, is of other lines than these"
        raise LedgerError("ledger_damaged", detail, _VERIFY)
    if tail.key is None or not note.signed_by(tail.key):
        detail = f"{directory}: the last checkpoint isn't signed by this ledger's key"
        raise LedgerError("ledger_damaged", detail, _VERIFY)


def first_key(directory: Path) -> bytes | None:
    """The ledger's first key as it names it itself. Raises LedgerError where it is none; OSError comes through."""
    try:
        return parse_public(read_file(directory / PUBLIC).decode("ascii", "strict"))
    except FileNotFoundError:
        if notes_files(directory):
            raise LedgerError("ledger_damaged", f"{directory}: {PUBLIC} is missing", _VERIFY) from None
        return None
    except ValueError as error:
        raise LedgerError("ledger_damaged", f"{directory / PUBLIC}: {error}", _VERIFY) from error


def notes_of(directory: Path, number: int) -> tuple[list[Note], int, int]:
    """The notes of a segment, the offset behind the last whole one, and the file's size. Raises NoteError, OSError."""
    try:
        data = read_file(directory / notes_name(number))
    except FileNotFoundError:
        return [], 0, 0
    notes, end = parse_notes(data)
    return notes, end, len(data)


def last_note(directory: Path) -> Note | None:
    """The youngest checkpoint. Raises LedgerError for one that is none; OSError comes through."""
    for number, path in reversed(notes_files(directory)):
        try:
            notes, _, _ = notes_of(directory, number)
        except NoteError as error:
            raise LedgerError("ledger_damaged", f"{path}: {error}", _VERIFY) from error
        if notes:
            return notes[-1]
    return None


def header_fields(*, origin: str, segment: int, tree: Tree, public: bytes) -> dict[str, object]:
    """What a segment's first line says, for `read_header`."""
    return {
        "origin": origin,
        "segment": segment,
        "tree_size": tree.size,
        "root": text_of(tree.root()),
        "frontier": [text_of(node) for node in tree.nodes],
        "pubkey": text_of(public),
    }


def root_fields(checkpoint: Checkpoint) -> dict[str, object]:
    """What a line says of a checkpoint that somebody else has."""
    return {"tree_size": checkpoint.size, "root": text_of(checkpoint.root)}


def text_of(data: bytes) -> str:
    """A hash or a key as a record says it: base64."""
    return base64.b64encode(data).decode()


def read_header(line: bytes) -> Header | None:
    """What a segment's first line says of the lines before it; None for a line that is no header."""
    try:
        record = parse_line(line)
        if record["ev"] != "checkpoint" or "frontier" not in record:
            return None
        tree = Tree(_number(record, "tree_size"), list(_nodes(record)))
    except (LineFault, ValueError):
        return None
    root, key = _bytes(record, "root"), _bytes(record, "pubkey")
    if root is None or key is None or tree.size + 1 != record["seq"] or tree.root() != root:
        return None
    return Header(tree=tree, root=root, origin=str(record.get("origin", "")), key=key)


def _nodes(record: Mapping[str, object]) -> Iterator[bytes]:
    frontier = record["frontier"]
    if not isinstance(frontier, list):
        raise ValueError("frontier is no list")
    for item in frontier:
        yield decode_hash(item)


def _number(record: Mapping[str, object], name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int):
        raise ValueError(f"{name} is no number")
    return value


def _bytes(record: Mapping[str, object], name: str) -> bytes | None:
    try:
        return decode_hash(record.get(name))
    except ValueError:
        return None


def decode_hash(text: object) -> bytes:
    """The 32 bytes of a hash or a key in a record. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError("not text")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    if len(data) != 32:
        raise ValueError(f"{len(data)} bytes, expected 32")
    return data


def day_of(line: bytes) -> str:
    """The UTC date of a line, "" for one that is none."""
    try:
        return str(parse_line(line)["ts"])[:10]
    except LineFault:
        return ""
