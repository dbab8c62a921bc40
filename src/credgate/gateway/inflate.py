"""A streamed body without its content coding, so that it can be searched; bounded in what it may grow to.

What is decoded here is sent decoded. So more is taken than where a body is judged and goes on as it came: members one
behind the other, and deflate without zlib's frame, which many servers send under that name (RFC 9110 8.4.1.2).
"""

import sys
import zlib
from collections.abc import Callable
from typing import Protocol

import brotli

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

FLOOR = 1 << 20  # bytes that any body may decode to
RATIO = 128  # and so many times what came; gzip reaches 1030, brotli and zstd far more
# Members cost time however little is in them, and what stands behind one is copied for the next.
MEMBERS = 1 << 10  # that any body may have, and one more for each so many bytes
MEMBER = 256
_PIECE = 8 << 10  # bytes that are decoded at once
_WINDOW_LOG = 23  # 8 MiB, what RFC 9659 lets a sender of "zstd" use

CODINGS = frozenset({b"gzip", b"x-gzip", b"deflate", b"br", b"zstd"})


class NotThat(Exception):
    """A body that is not what its content coding says, or that grows over the bound. The text says which."""


class _Engine(Protocol):
    """A decoder of one coding. `members`: those that it has begun."""

    members: int

    @property
    def ended(self) -> bool:
        """Whether it could end here."""

    def decode(self, data: bytes, limit: int) -> bytes:
        """At most `limit` bytes. Raises NotThat where there are more."""


class Inflater:
    """One body of one of CODINGS."""

    def __init__(self, coding: bytes) -> None:
        self._engine: _Engine = _Zlib(coding) if coding not in _OTHERS else _OTHERS[coding]()
        self._in = self._out = 0

    def feed(self, data: bytes) -> bytes:
        """What the data decode to, so far. Raises NotThat."""
        self._in += len(data)
        out = [self._decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
        return b"".join(out)

    def _decode(self, piece: bytes) -> bytes:
        out = self._engine.decode(piece, max(FLOOR, RATIO * self._in) - self._out)
        self._out += len(out)
        if self._engine.members > MEMBERS + self._in // MEMBER:
            raise NotThat("a content coding of very many members")
        return out

    def finish(self) -> None:
        """Raise NotThat where the body is not whole; one without a byte is."""
        if self._in and not self._engine.ended:
            raise NotThat("a content coding that ends early")


_LYING = "not what its content coding says"
_GROWS = f"over {RATIO} times its size when decoded"


class _Zlib:
    """gzip and deflate."""

    def __init__(self, coding: bytes) -> None:
        self.ended = False
        self.members = 0
        self._gzip = coding != b"deflate"
        self._engine: zlib._Decompress | None = None

    def _begin(self, first: int) -> "zlib._Decompress":
        self.members += 1
        framed = first & 0x0F == 8  # RFC 1950 2.2: CM; RFC 1951 3.2.3: such a block is a stored one with a bit to spare
        window = zlib.MAX_WBITS | 16 if self._gzip else zlib.MAX_WBITS if framed else -zlib.MAX_WBITS
        return zlib.decompressobj(window)

    def decode(self, data: bytes, limit: int) -> bytes:
        """At most `limit` bytes of all members."""
        out: list[bytes] = []
        while data:
            engine = self._engine = self._engine or self._begin(data[0])
            try:
                out.append(engine.decompress(data, limit + 1))
            except zlib.error:
                raise NotThat(_LYING) from None
            limit -= len(out[-1])
            if limit < 0:
                raise NotThat(_GROWS)
            self.ended, data = engine.eof, engine.unused_data or engine.unconsumed_tail
            if engine.eof:
                self._engine = None
        return b"".join(out)


class _Brotli:
    members = 1

    def __init__(self) -> None:
        self._engine = brotli.Decompressor()

    @property
    def ended(self) -> bool:
        return bool(self._engine.is_finished())

    def decode(self, data: bytes, limit: int) -> bytes:
        """At most `limit` bytes."""
        try:
            out: bytes = self._engine.process(data, output_buffer_limit=limit + 1)
            while len(out) <= limit and not self._engine.can_accept_more_data():
                out += self._engine.process(b"", output_buffer_limit=limit + 1 - len(out))
        except brotli.error:  # also for bytes behind the end
            raise NotThat(_LYING) from None
        if len(out) > limit:
            raise NotThat(_GROWS)
        return out


class _Zstd:
    def __init__(self) -> None:
        self.ended = False
        self.members = 0
        self._engine: zstd.ZstdDecompressor | None = None

    def _begin(self) -> zstd.ZstdDecompressor:
        self.members += 1
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        return zstd.ZstdDecompressor(options=options)

    def decode(self, data: bytes, limit: int) -> bytes:
        """At most `limit` bytes of all frames."""
        out: list[bytes] = []
        while data:
            engine = self._engine = self._engine or self._begin()
            try:
                out.append(engine.decompress(data, max_length=limit + 1))
            except zstd.ZstdError:
                raise NotThat(_LYING) from None
            limit -= len(out[-1])
            if limit < 0:
                raise NotThat(_GROWS)
            self.ended, data = engine.eof, engine.unused_data if engine.eof else b""
            if engine.eof:
                self._engine = None
        return b"".join(out)


_OTHERS: dict[bytes, Callable[[], _Engine]] = {b"br": _Brotli, b"zstd": _Zstd}
