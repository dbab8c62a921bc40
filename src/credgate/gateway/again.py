"""What follows from an answer's head, kept for the next answer whose head has the same bytes, or the same ones but for
values that only pass: a date, an id, a length.

It hangs on the request as it was sent (`prepared.Sent`): the same request, allowed by the same rule, with the same
secrets in it. What else decides it, the policy and the table of what is searched for, is compared by identity; neither
changes in place. Kept is only a head in which nothing was found, whose answer has an end of its own.
"""

import re
from collections import Counter

import msgspec
from msgspec import structs

from credgate.gateway.capture import SPELT, id_in
from credgate.gateway.exchange import Exchange
from credgate.gateway.framing import Chunked, Counted
from rules.policy import Policy
from rules.scrub import Table

MOST = 4 << 10  # bytes of a head
UNAUTHORIZED = 401  # has a credential doubted, each time

_LINES = 64  # of a head whose values may differ
_END = b"\r\n\r\n"
_LENGTH = b"content-length"
# Each has a say in how the answer is framed, or read, or in what else is dropped.
_FIXED = frozenset({b"transfer-encoding", b"connection", b"keep-alive", b"content-encoding", b"grpc-encoding"})
_PLAIN = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")  # what `head` takes as a field's value in an answer
_DIGITS = re.compile(rb"[0-9]{1,19}")


class _Free(msgspec.Struct, eq=False, frozen=True):
    """A line whose value may differ. `name` as it is spelt, `out`: which of the client's lines it is, `id`: as which
    the ledger has it, "" for none.
    """

    name: bytes
    at: int
    id: str
    length: bool


class _Frame(msgspec.Struct, eq=False, frozen=True):
    """The lines of a head as it came, and as it goes."""

    came: list[bytes]
    goes: list[bytes]
    free: dict[int, _Free]
    ids: dict[str, str]
    length: int | None


class Again(msgspec.Struct, eq=False, kw_only=True):
    """One head. `lines` is what the client gets of it, but for the last line end."""

    raw: bytes  # with its empty line
    policy: Policy
    table: Table | None  # None: the answer is not searched
    status: int
    ids: dict[str, str]  # never changed
    length: int | None  # of the body; None: it is in chunks
    chunked: bool  # so are the client's
    keep: bool  # the target keeps its connection
    idle: float  # seconds for which it says so
    lines: bytes
    frame: _Frame | None = None  # made when another head comes

    def body(self) -> Counted | Chunked:
        """The body that follows, of which nothing was read."""
        return Chunked() if self.length is None else Counted(self.length)


def known(exchange: Exchange, data: bytes, policy: Policy) -> Again | None:
    """What is known of the head that the data begin with."""
    sent = exchange.sent
    again = None if sent is None else sent.again
    if sent is None or again is None or again.policy is not policy:
        return None
    if not data.startswith(again.raw):
        again = _alike(again, data)
        if again is not None:
            sent.again = again
    return again


def is_steady(exchange: Exchange, raw: bytes) -> bool:
    """Whether everything about this head would be the same the next time."""
    cleaning = exchange.cleaning
    plain = cleaning is None or not (cleaning.decodes or exchange.scrubbed)
    return plain and len(raw) <= MOST and exchange.status != UNAUTHORIZED


def _alike(again: Again, data: bytes) -> Again | None:
    """The same with other values in lines that are free, None where more is other."""
    end = data.find(_END, 0, MOST)
    if end < 0:
        return None
    frame = again.frame
    if frame is None:
        frame = again.frame = _framed(again)
    came = data[:end].split(b"\r\n")
    return _changed(again, frame, came, data[: end + len(_END)]) if len(came) == len(frame.came) else None


def _changed(again: Again, frame: _Frame, came: list[bytes], raw: bytes) -> Again | None:
    length, ids, goes, fresh = frame.length, frame.ids, frame.goes[:], list[bytes]()
    for at, line in enumerate(came):
        if line == frame.came[at]:
            continue
        free = frame.free.get(at)
        value = None if free is None else _value(free, line)
        if free is None or value is None:
            return None
        if free.length:
            length = int(value)
        elif free.id:
            ids = {**ids, free.id: id_in(free.id, value).decode("ascii")}
        if free.at:
            goes[free.at] = b"%b %b" % (free.name, value)
        fresh.append(line)
    if again.table is not None and again.table.candidates(b"\n".join(fresh)):
        return None
    return structs.replace(again, raw=raw, ids=ids, length=length, lines=b"\r\n".join(goes))


def _value(free: _Free, line: bytes) -> bytes | None:
    """The value of a line that may differ, None where it is another line, or no such value."""
    value = line[len(free.name) :].strip(b" \t")
    if not line.startswith(free.name) or not _PLAIN.fullmatch(value):
        return None
    if free.length:
        return value if _DIGITS.fullmatch(value) else None
    return value if not free.id or id_in(free.id, value) else None


def _framed(again: Again) -> _Frame:
    """Which lines may differ: what the client gets as it came, in one line, or doesn't get, and what has no say."""
    came, goes = again.raw[: -len(_END)].split(b"\r\n"), again.lines.split(b"\r\n")
    free: dict[int, _Free] = {}
    names = [line.partition(b":")[0] for line in came] if len(came) <= _LINES else []
    count, where = Counter(name.lower() for name in names), {line: at for at, line in enumerate(goes) if at}
    for at, name in enumerate(names[1:], 1):
        lower, value = name.lower(), came[at][len(name) + 1 :].strip(b" \t")
        out, spelt, length = where.get(b"%b: %b" % (name, value), 0), SPELT.get(lower, ""), lower == _LENGTH
        if lower in _FIXED or (count[lower] > 1 and (out or spelt)) or (spelt and spelt not in again.ids):
            continue
        if length and not (out and again.length):  # to a HEAD, or a 304, it says nothing of the body
            continue
        free[at] = _Free(name + b":", out, spelt, length)
    return _Frame(came, goes, free, again.ids, again.length)
