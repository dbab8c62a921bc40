"""Where an HTTP/1 body ends, read strictly (RFC 9112 6 and 7). Pure: bytes in, pieces of the body out.

Chunk extensions and trailers are checked, bounded and dropped: nobody judged them, and they mean nothing to the next
hop (RFC 9112 7.1.1, RFC 9110 6.5.1). A body goes on in chunks of our own.
"""

import re
from dataclasses import dataclass

import msgspec

MAX_CHUNK_LINE = 1 << 10  # a chunk's size with its extensions
MAX_TRAILERS = 16 << 10  # the whole section

type Fields = tuple[tuple[bytes, bytes], ...]
type Pieces = list[bytes]

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_PLAIN_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")
_DIGITS = re.compile(rb"[0-9]{1,19}")
_NONE: frozenset[bytes] = frozenset()
_LAST = b"0\r\n\r\n"


class FramingError(Exception):
    """The bytes do not frame a body. The text is fixed and quotes none of them."""


class Counted(msgspec.Struct):
    """A body of `left` bytes."""

    left: int
    fault: FramingError | None = None  # none: every byte is one of the body

    @property
    def done(self) -> bool:
        """Whether the body is whole."""
        return not self.left

    def feed(self, data: bytes) -> tuple[Pieces, bytes]:
        """The body's part of the data, and what stands behind the body."""
        piece, rest = (data, b"") if len(data) <= self.left else (data[: self.left], data[self.left :])
        self.left -= len(piece)
        return ([piece] if piece else []), rest


@dataclass(slots=True)
class UntilClose:
    """An answer without length: it ends with its connection."""

    done: bool = False
    fault: FramingError | None = None

    def feed(self, data: bytes) -> tuple[Pieces, bytes]:
        """All of the data."""
        return ([data] if data else []), b""


class Chunked:
    """A body in chunks. `fault` tells of anything that RFC 9112 7.1 does not have, a bare LF too."""

    __slots__ = ("_ended", "_left", "_line", "_trailers", "done", "fault")

    def __init__(self) -> None:
        self.done = False
        self.fault: FramingError | None = None
        self._line = b""  # what came of a line, or of the line end behind a chunk
        self._left = 0  # of the chunk
        self._ended = False  # the chunk's data are whole and its line end is to come
        self._trailers = -1  # bytes of the trailer section, once the last chunk came

    def feed(self, data: bytes) -> tuple[Pieces, bytes]:
        """The chunks' data, and what stands behind the body. After a fault nothing more is taken."""
        pieces: Pieces = []
        at = 0  # no slice of what is left at each step: of chunks of one byte that would be quadratic
        try:
            while at < len(data) and not self.done and self.fault is None:
                if not (self._left or self._ended or self._line or self._trailers >= 0):
                    at = self._whole(data, at, pieces)
                if self._left:
                    pieces.append(data[at : at + self._left])
                    self._left -= len(pieces[-1])
                    at += len(pieces[-1])
                    self._ended = not self._left
                else:
                    at = self._in_line(data, at)
        except FramingError as fault:
            self.fault, at = fault, len(data)
        return pieces, data[at:]

    def _whole(self, data: bytes, at: int, pieces: Pieces) -> int:
        """Take chunks that are here from their size to their line end, which is how an event comes."""
        while match := _PLAIN_SIZE.match(data, at):
            begin = match.end()
            end = begin + int(match[1], 16)
            if end == begin or data[end : end + 2] != b"\r\n":
                break
            pieces.append(data[begin:end])
            at = end + 2
        return at

    def _in_line(self, data: bytes, at: int) -> int:
        """Read one line, or as much of it as there is; returns where it ends."""
        end = data.find(b"\n", at)
        line = self._line + (data[at:] if end < 0 else data[at : end + 1])
        if len(line) > (MAX_TRAILERS if self._trailers >= 0 else MAX_CHUNK_LINE):
            raise FramingError("a line of a chunked body that does not end")
        if end < 0:
            self._line = line
            return len(data)
        if not line.endswith(b"\r\n"):
            raise FramingError("a bare LF in a chunked body")
        self._line = b""
        self._take(line[:-2])
        return end + 1

    def _take(self, line: bytes) -> None:
        if self._ended:
            if line:
                raise FramingError("bytes behind the data of a chunk")
            self._ended = False
        elif self._trailers >= 0:
            self._trailer(line)
        else:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise FramingError("not the size of a chunk")
            self._left = int(match[1], 16)
            self._trailers = -1 if self._left else 0

    def _trailer(self, line: bytes) -> None:
        if not line:
            self.done = True
            return
        self._trailers += len(line) + 2
        if not _TRAILER.fullmatch(line) or self._trailers > MAX_TRAILERS:
            raise FramingError("not a trailer, or too many of them")


type Body = Counted | Chunked | UntilClose


def chunk(pieces: Pieces, *, last: bool) -> bytes:
    """One chunk that holds the pieces, and the last one behind it."""
    size = sum(map(len, pieces))
    head = (b"%x\r\n" % size, *pieces, b"\r\n") if size else ()
    return b"".join((*head, _LAST if last else b""))


def values(fields: Fields, name: bytes) -> list[bytes]:
    """The values of all fields of this name (lower case), in their order."""
    size = len(name)  # few have it: cheaper than to fold them all
    return [value for key, value in fields if len(key) == size and key.lower() == name]


def tokens(fields: Fields, name: bytes) -> frozenset[bytes]:
    """The members of a list header, lower case."""
    found = values(fields, name)
    return frozenset(part.strip().lower() for value in found for part in value.split(b",")) if found else _NONE


def _length(fields: Fields) -> int | None:
    lengths = values(fields, b"content-length")
    if not lengths:
        return None
    if len(lengths) > 1 or not all(_DIGITS.fullmatch(length) for length in lengths):
        raise FramingError("content-length is not one decimal number")
    return int(lengths[0])


def _is_chunked(fields: Fields, version: bytes) -> bool:
    codings = values(fields, b"transfer-encoding")
    if not codings:
        return False
    if [coding.lower() for coding in codings] != [b"chunked"] or version == b"HTTP/1.0":
        raise FramingError('transfer-encoding is not "chunked" alone')
    return True


def request_body(fields: Fields, version: bytes) -> Counted | Chunked:
    """How a request's body is framed. Raises FramingError."""
    length, chunked = _length(fields), _is_chunked(fields, version)
    if chunked and length is not None:
        raise FramingError("both content-length and transfer-encoding")
    return Chunked() if chunked else Counted(length or 0)


def response_body(method: bytes, status: int, fields: Fields, version: bytes) -> Body:
    """How an answer's body is framed (RFC 9112 6.3). Raises FramingError."""
    length, chunked = _length(fields), _is_chunked(fields, version)
    if chunked and length is not None:
        raise FramingError("both content-length and transfer-encoding")
    if method == b"HEAD" or status in (204, 304):
        return Counted(0)
    if chunked:
        return Chunked()
    return UntilClose() if length is None else Counted(length)
