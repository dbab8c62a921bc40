"""A body without its content coding, within a bound: what a rule judges, while what was sent goes on as it is.

Only what every decoder reads alike is taken: one coding, one stream that ends where the body ends. Servers differ in
what they do with a second gzip member, with bytes behind the end, or with raw deflate under zlib's name.
"""

import sys
import zlib
from collections.abc import Callable

import brotli

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

from rules.credentials import fold_name

_WINDOW_LOG = 23  # 8 MiB, what RFC 9659 lets a sender of "zstd" use

type Fields = tuple[tuple[bytes, bytes], ...]


class Undecodable(Exception):
    """A body that is not what its content coding says, or grows over the bound. The text says which."""


def decoded(fields: Fields, raw: bytes, limit: int) -> bytes:
    """Return the body behind its content coding, at most `limit` bytes. Raises Undecodable."""
    codings = [value.strip(b" \t").lower() for name, value in fields if fold_name(name) == "content-encoding"]
    if not codings or codings == [b"identity"]:
        data = raw
    elif len(codings) > 1 or codings[0] not in _DECODERS:
        raise Undecodable("a content coding other than one of gzip, deflate, br, zstd")
    else:
        data = _DECODERS[codings[0]](raw, limit + 1)
    if len(data) > limit:
        raise Undecodable(f"over max = {limit} bytes when decoded")
    return data


def _zlib(window: int) -> Callable[[bytes, int], bytes]:
    def decode(raw: bytes, limit: int) -> bytes:
        engine = zlib.decompressobj(window)
        try:
            data = engine.decompress(raw, limit)
        except zlib.error:
            raise Undecodable("not what its content coding says") from None
        return _whole(data, limit, ended=engine.eof and not engine.unused_data)

    return decode


def _brotli(raw: bytes, limit: int) -> bytes:
    engine = brotli.Decompressor()
    try:
        data: bytes = engine.process(raw, output_buffer_limit=limit)
        while len(data) < limit and not engine.can_accept_more_data():
            data += engine.process(b"", output_buffer_limit=limit)
    except brotli.error:  # also for bytes behind the end
        raise Undecodable("not what its content coding says") from None
    return _whole(data, limit, ended=engine.is_finished())


def _zstd(raw: bytes, limit: int) -> bytes:
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    engine = zstd.ZstdDecompressor(options=options)
    try:
        data = engine.decompress(raw, max_length=limit)
    except zstd.ZstdError:
        raise Undecodable("not what its content coding says") from None
    return _whole(data, limit, ended=engine.eof and not engine.unused_data)


def _whole(data: bytes, limit: int, *, ended: bool) -> bytes:
    if len(data) < limit and not ended:
        raise Undecodable("not what its content coding says, or not one stream alone")
    return data


_DECODERS: dict[bytes, Callable[[bytes, int], bytes]] = {
    b"gzip": _zlib(zlib.MAX_WBITS | 16),
    b"x-gzip": _zlib(zlib.MAX_WBITS | 16),  # RFC 9110 8.4.1.3: the same
    b"deflate": _zlib(zlib.MAX_WBITS),
    b"br": _brotli,
    b"zstd": _zstd,
}
