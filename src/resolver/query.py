"""A strict parser for one DNS query: bytes in, one of three values out, never an exception.

Only what a stub resolver sends is understood: one question of class IN without compression, and at most one OPT
record (RFC 1035 section 4, RFC 6891). All work is bounded by MAX_QUERY bytes and one pass over them. Labels come out
as a tuple, because a dot inside a label makes two different names equal as text.
"""

from dataclasses import dataclass
from enum import StrEnum

HEADER_SIZE = 12
MAX_QUERY = 512  # bytes; RFC 1035 section 4.2.1, a stub never asks more
MAX_NAME = 255  # bytes on the wire, length bytes and root included; RFC 1035 section 3.1
MAX_LABEL = 63
CLASS_IN = 1
TYPE_OPT = 41

_QR = 0x8000
_OPCODE = 0x7800
_TC = 0x0200
_RD = 0x0100
_NAME_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"


class Fault(StrEnum):
    """What was wrong with a message; goes into the record of it."""

    SHORT = "short"  # no whole header: nothing to answer
    RESPONSE = "response"  # QR=1: answering it would let two servers talk for ever
    TRUNCATED = "truncated"  # TC=1 in a query
    OPCODE = "opcode"
    SIZE = "size"
    COUNTS = "counts"
    NAME = "name"
    CLASS = "class"
    ADDITIONAL = "additional"
    TRAILING = "trailing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A well-formed question. `labels` lower case, root not included; `question` the bytes to be echoed.

    `edns` is the version of the OPT record, None where there was none.
    """

    ident: int
    recursion: bool
    labels: tuple[bytes, ...]
    wire_labels: tuple[bytes, ...]
    qtype: int
    question: bytes
    edns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """To be answered with FORMERR: silence costs the client 10 to 15 seconds."""

    ident: int
    recursion: bool
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """To be left without an answer."""

    fault: Fault


type Parsed = Query | Malformed | Drop


def parse_query(data: bytes) -> Parsed:
    """Parse one message: a datagram, or what followed a length prefix. Rows 14 to 20 of the table in answer.py."""
    if len(data) < HEADER_SIZE:
        return Drop(fault=Fault.SHORT)
    flags = _u16(data, 2)
    for bit, fault in ((_QR, Fault.RESPONSE), (_OPCODE, Fault.OPCODE), (_TC, Fault.TRUNCATED)):
        if flags & bit:
            return Drop(fault=fault)
    parsed = _body(data, recursion=bool(flags & _RD))
    if isinstance(parsed, Fault):
        return Malformed(ident=_u16(data, 0), recursion=bool(flags & _RD), fault=parsed)
    return parsed


def _body(data: bytes, *, recursion: bool) -> Query | Fault:
    if len(data) > MAX_QUERY:
        return Fault.SIZE
    additional = _u16(data, 10)
    if (_u16(data, 4), _u16(data, 6), _u16(data, 8)) != (1, 0, 0) or additional > 1:
        return Fault.COUNTS
    name = _name(data)
    if isinstance(name, Fault):
        return name
    labels, end = name
    if len(data) < end + 4:
        return Fault.SIZE
    if _u16(data, end + 2) != CLASS_IN:
        return Fault.CLASS
    edns = _additional(data, end + 4, additional)
    if isinstance(edns, Fault):
        return edns
    return Query(
        ident=_u16(data, 0),
        recursion=recursion,
        labels=tuple(label.lower() for label in labels),
        wire_labels=labels,
        qtype=_u16(data, end),
        question=data[HEADER_SIZE : end + 4],
        edns=edns,
    )


def _name(data: bytes) -> tuple[tuple[bytes, ...], int] | Fault:
    """The labels of the name behind the header, and the offset behind its root."""
    labels: list[bytes] = []
    at = HEADER_SIZE
    while at < len(data):
        size = data[at]
        if size == 0:
            whole = at + 1 - HEADER_SIZE
            return (tuple(labels), at + 1) if whole <= MAX_NAME else Fault.NAME
        label = data[at + 1 : at + 1 + size]
        # A compression pointer (0xC0) and the reserved forms (0x40, 0x80) are sizes above 63 here.
        if size > MAX_LABEL or len(label) != size or label.translate(None, _NAME_BYTES):
            return Fault.NAME
        labels.append(label)
        at += 1 + size
    return Fault.NAME


def _additional(data: bytes, at: int, count: int) -> int | Fault | None:
    """The version of the OPT record, None without one. Its options are skipped unread: none changes an answer."""
    if count == 0:
        return None if at == len(data) else Fault.TRAILING
    if len(data) < at + 11 or data[at] != 0 or _u16(data, at + 1) != TYPE_OPT:
        return Fault.ADDITIONAL
    end = at + 11 + _u16(data, at + 9)
    if end != len(data):
        return Fault.TRAILING if end < len(data) else Fault.ADDITIONAL
    return data[at + 6]


def _u16(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]
