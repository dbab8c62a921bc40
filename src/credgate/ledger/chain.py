"""The hash chain: how a line is bound to the one before, and how a line is checked. Pure.

`hash` is SHA-256 over the line's canonical JSON without `hash`: it guards the last line, which nothing follows yet.
`prev` is SHA-256 over the whole previous line with its newline, so that `sed -n Np FILE | sha256sum` shows it.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import NoReturn

import msgspec

from credgate.ledger.record import MAX_INT, MAX_LINE, OWN_FIELDS, VERSION, Stamp, canonical

GENESIS = "0" * 64


class Fault(StrEnum):
    """What is wrong with a line."""

    TOO_LONG = "too_long"
    UNPARSABLE = "unparsable"
    NOT_CANONICAL = "not_canonical"
    HASH = "hash_mismatch"  # the line itself was changed
    SEQ = "seq_mismatch"  # a line is missing, doubled or moved
    PREV = "prev_mismatch"  # this line doesn't follow the one before


class LineFault(Exception):
    """The only thing that parse_line and follow raise."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault
        self.detail = detail


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The chain's end: sequence number and SHA-256 of the last line (hex)."""

    seq: int = 0
    sha256: str = GENESIS

    @classmethod
    def of(cls, end: tuple[int, str]) -> "Head":
        """The same, of its two parts."""
        return cls(seq=end[0], sha256=end[1])


def link(head: Head, ev: str, fields: Mapping[str, object], stamp: Stamp) -> tuple[bytes, Head]:
    """Return the next line, newline included, and the chain's new end. `fields` come from clean_fields."""
    record = {
        **fields,
        "v": VERSION,
        "seq": head.seq + 1,
        "ts": stamp.ts,
        "boot": stamp.boot,
        "mono_ns": stamp.mono_ns,
        "ev": ev,
        "prev": head.sha256,
    }
    record["hash"] = hashlib.sha256(canonical(record)).hexdigest()
    return ended(canonical(record) + b"\n", head.seq + 1)


def ended(line: bytes, seq: int) -> tuple[bytes, Head]:
    """A whole line, and the chain's end behind it."""
    if len(line) > MAX_LINE:  # the table of record.py rules it out; a test holds it to that
        raise TypeError(f"ledger: line has {len(line)} bytes, at most {MAX_LINE}")
    return line, Head(seq=seq, sha256=hashlib.sha256(line).hexdigest())


def parse_line(line: bytes) -> dict[str, object]:
    """Check one line (newline included) for itself and return its record. Raises LineFault."""
    if len(line) > MAX_LINE:
        raise LineFault(Fault.TOO_LONG, f"line has {len(line)} bytes, at most {MAX_LINE}")
    record = _parse(line)
    if canonical(record) + b"\n" != line:
        raise LineFault(Fault.NOT_CANONICAL, "line is not in its canonical form")
    _check_shape(record)
    body = {name: value for name, value in record.items() if name != "hash"}
    want = hashlib.sha256(canonical(body)).hexdigest()
    if record["hash"] != want:
        raise LineFault(Fault.HASH, f"hash is {record['hash']}, expected {want}")
    return record


def _parse(line: bytes) -> dict[str, object]:
    try:
        record = _DECODER.decode(line)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise LineFault(Fault.UNPARSABLE, "line is not JSON") from error
    if not isinstance(record, dict):
        raise LineFault(Fault.UNPARSABLE, "line is not a JSON object")
    return record


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"not a whole number: {text}")


_DECODER: msgspec.json.Decoder[object] = msgspec.json.Decoder(float_hook=_no_float)


def _check_shape(record: Mapping[str, object]) -> None:
    missing = sorted(OWN_FIELDS - record.keys())
    if missing:
        raise LineFault(Fault.UNPARSABLE, f"line has no {', '.join(missing)}")
    for name in ("v", "seq", "mono_ns"):
        value = record[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INT:
            raise LineFault(Fault.UNPARSABLE, f"{name} is not a whole number")
    for name in ("ts", "boot", "ev", "prev", "hash"):
        if not isinstance(record[name], str):
            raise LineFault(Fault.UNPARSABLE, f"{name} is not text")
    if record["v"] != VERSION:
        raise LineFault(Fault.UNPARSABLE, f"version is {record['v']}, expected {VERSION}")


def follow(head: Head, line: bytes) -> tuple[dict[str, object], Head]:
    """Check that `line` is sound and comes right after `head`. Raises LineFault."""
    record = parse_line(line)
    if record["seq"] != head.seq + 1:
        raise LineFault(Fault.SEQ, f"seq is {record['seq']}, expected {head.seq + 1}")
    if record["prev"] != head.sha256:
        raise LineFault(Fault.PREV, f"prev is {record['prev']}, expected {head.sha256}")
    return record, Head(seq=head.seq + 1, sha256=hashlib.sha256(line).hexdigest())
