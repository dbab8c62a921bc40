"""Content codings taken off as a body streams: however it is cut, bounded, and nothing but NotThat is raised."""

import contextlib
import gzip
import sys
import time
import zlib
from collections.abc import Callable
from random import Random

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.gateway.inflate import CODINGS, FLOOR, MEMBER, MEMBERS, RATIO, Inflater, NotThat

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

MADE: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"br": brotli.compress,
    b"zstd": zstd.compress,
}
coding = pytest.mark.parametrize("coding", sorted(MADE))


def inflated(coding: bytes, data: bytes, size: int) -> bytes:
    inflater = Inflater(coding)
    out = b"".join(inflater.feed(data[at : at + size]) for at in range(0, len(data), size))
    inflater.finish()
    return out


def test_every_coding_has_its_case() -> None:
    assert set(MADE) == CODINGS


@coding
@given(text=st.binary(max_size=3000), size=st.integers(1, 700))
def test_however_it_is_cut(coding: bytes, text: bytes, size: int) -> None:
    assert inflated(coding, MADE[coding](text), size) == text


@coding
@given(data=st.binary(min_size=1, max_size=400), size=st.integers(1, 50), behind=st.binary(min_size=1, max_size=20))
def test_any_bytes(coding: bytes, data: bytes, size: int, behind: bytes) -> None:
    with contextlib.suppress(NotThat):
        inflated(coding, data, size)
    with contextlib.suppress(NotThat):
        inflated(coding, MADE[coding](data) + behind, size)
    damaged = bytearray(MADE[coding](data))
    damaged[len(data) % len(damaged)] ^= 1 + behind[0] % 255
    with contextlib.suppress(NotThat):
        inflated(coding, bytes(damaged), size)


@coding
def test_an_early_end_is_none(coding: bytes) -> None:
    whole = MADE[coding](b"x" * 100)
    with pytest.raises(NotThat, match="ends early"):
        inflated(coding, whole[:-1], 7)
    assert inflated(coding, b"", 1) == b""


@coding
def test_it_grows_to_a_bound(coding: bytes) -> None:
    small = MADE[coding](bytes(FLOOR))
    assert len(inflated(coding, small, 64)) == FLOOR
    bomb = MADE[coding](bytes(8 * FLOOR))
    assert len(bomb) * RATIO < 8 * FLOOR  # else it is none
    inflater, out, why = Inflater(coding), 0, ""
    try:
        for at in range(0, len(bomb), 512):
            out += len(inflater.feed(bomb[at : at + 512]))
    except NotThat as error:
        why = str(error)
    assert "times its size" in why
    assert out <= max(FLOOR, RATIO * len(bomb))


EMPTY = {b"gzip": gzip.compress(b""), b"zstd": b"\x50\x2a\x4d\x18\0\0\0\0"}  # the latter: a skippable frame, RFC 8878


@pytest.mark.parametrize("coding", sorted(EMPTY))
def test_members_without_number_end_the_decoding_early(coding: bytes) -> None:
    some, many = EMPTY[coding] * MEMBERS, EMPTY[coding] * (1 << 17)
    assert inflated(coding, some + MADE[coding](b"whole"), 1 << 16) == b"whole"
    began = time.process_time()
    with pytest.raises(NotThat, match="members"):
        Inflater(coding).feed(many)
    assert time.process_time() - began < 2.0  # 13 s for the half of it, when what stood behind one was copied each time


def test_members_that_hold_something_are_as_many_as_there_are() -> None:
    one = gzip.compress(Random(1).randbytes(2 * MEMBER))
    assert inflated(b"gzip", one * (4 * MEMBERS), 1 << 16) == gzip.decompress(one) * (4 * MEMBERS)
