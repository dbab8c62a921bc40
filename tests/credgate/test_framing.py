"""Where a body ends: what is taken, and that no cutting into pieces changes it."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.gateway.framing import (
    MAX_CHUNK_LINE,
    Chunked,
    Counted,
    FramingError,
    UntilClose,
    chunk,
    request_body,
    response_body,
)

LENGTH, TE = (b"Content-Length", b"5"), (b"Transfer-Encoding", b"Chunked")


def read(data: bytes, *cuts: int) -> tuple[bytes, bytes, bool, bool]:
    body, got, rest = Chunked(), b"", b""
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    for start, end in itertools.pairwise(edges):
        pieces, behind = body.feed(data[start:end]) if not body.done else ([], data[start:end])
        got += b"".join(pieces)
        rest += behind
    return got, rest, body.done, body.fault is not None


@pytest.mark.parametrize(
    ("data", "body", "rest"),
    [
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello", b""),
        (b"5\r\nhello\r\n0\r\n\r\nGET ", b"hello", b"GET "),
        (b"00005\r\nhello\r\n000\r\n\r\n", b"hello", b""),
        (b'5;a=b;c="d"\r\nhello\r\n0;x\r\n\r\n', b"hello", b""),
        (b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nAuthorization: mine\r\n\r\n", b"hello", b""),
        (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2, b""),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n", b""),
    ],
)
def test_chunks(data: bytes, body: bytes, rest: bytes) -> None:
    assert read(data) == (body, rest, True, False)
    for at in range(len(data)):
        assert read(data, at) == (body, rest, True, False)
    assert read(data, *range(len(data))) == (body, rest, True, False)


@pytest.mark.parametrize(
    "data",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\n",
        b"5\r\nhello\r\n0\r\nX: a\nb: c\r\n\r\n",
        b"5\r\nhello\r\n0\r\nno trailer\r\n\r\n",
        b"5\r\nhello\r\n0\r\n folded\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-1\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"\r\n",
        b"5_0\r\nhello\r\n",
        b"5;a\x00\r\nhello\r\n0\r\n\r\n",
        b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        b"f" * 17 + b"\r\n",
        b"5;" + b"a" * MAX_CHUNK_LINE + b"\r\n",
        b"1" * (MAX_CHUNK_LINE + 1),
        b"0\r\n" + b"X-A: b\r\n" * 3000 + b"\r\n",
    ],
)
def test_what_is_no_chunk(data: bytes) -> None:
    _, _, done, fault = read(data)
    assert (done, fault) == (False, True)
    _, _, done, fault = read(data, *range(0, len(data), 7))
    assert (done, fault) == (False, True)


_MIXED = st.lists(
    st.sampled_from([b"5", b"0", b"a", b"\r\n", b"\n", b"\r", b";x", b" ", b"hello", b"X: y", b"\x00", b"\xff"]),
    max_size=40,
).map(b"".join)


@settings(max_examples=500, deadline=None)
@given(_MIXED, st.lists(st.integers(0, 120), max_size=6))
def test_pieces_are_read_as_the_whole(data: bytes, cuts: list[int]) -> None:
    body, rest, done, fault = read(data)
    pieces = read(data, *cuts)
    assert pieces[2:] == (done, fault)
    if not fault:
        assert pieces == (body, rest, done, fault)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=10), st.binary(max_size=20))
def test_what_we_write_is_what_we_read(parts: list[bytes], rest: bytes) -> None:
    wire = b"".join(chunk([part], last=False) for part in parts) + chunk([], last=True)
    assert read(wire + rest) == (b"".join(parts), rest, True, False)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.binary(max_size=80), st.integers(0, 80))
def test_a_counted_body_in_pieces(length: int, data: bytes, at: int) -> None:
    whole, pieces = Counted(length), Counted(length)
    got, rest = whole.feed(data)
    first, behind = pieces.feed(data[:at])
    second, more = pieces.feed(behind + data[at:]) if not pieces.done else ([], behind + data[at:])
    assert (b"".join(got), rest, whole.done) == (b"".join(first + second), more, pieces.done)


@pytest.mark.parametrize(
    ("fields", "version", "kind"),
    [
        ((), b"HTTP/1.1", Counted),
        ((LENGTH,), b"HTTP/1.1", Counted),
        ((TE,), b"HTTP/1.1", Chunked),
        ((LENGTH, TE), b"HTTP/1.1", None),
        ((LENGTH, LENGTH), b"HTTP/1.1", None),
        ((TE, TE), b"HTTP/1.1", None),
        ((TE,), b"HTTP/1.0", None),
        (((b"transfer-encoding", b"gzip, chunked"),), b"HTTP/1.1", None),
        (((b"transfer-encoding", b"identity"),), b"HTTP/1.1", None),
        (((b"transfer-encoding", b""),), b"HTTP/1.1", None),
        (((b"content-length", b"+5"),), b"HTTP/1.1", None),
        (((b"content-length", b"5, 5"),), b"HTTP/1.1", None),
        (((b"content-length", b""),), b"HTTP/1.1", None),
        (((b"content-length", b"\xb2"),), b"HTTP/1.1", None),
        (((b"content-length", b"1" * 20),), b"HTTP/1.1", None),
    ],
)
def test_a_requests_framing(fields: tuple[tuple[bytes, bytes], ...], version: bytes, kind: type | None) -> None:
    if kind is None:
        with pytest.raises(FramingError):
            request_body(fields, version)
        with pytest.raises(FramingError):
            response_body(b"GET", 200, fields, version)
    else:
        assert isinstance(request_body(fields, version), kind)


@pytest.mark.parametrize(
    ("method", "status", "fields", "kind", "done"),
    [
        (b"GET", 200, (), UntilClose, False),
        (b"GET", 200, (LENGTH,), Counted, False),
        (b"GET", 200, (TE,), Chunked, False),
        (b"HEAD", 200, (LENGTH,), Counted, True),
        (b"HEAD", 200, (TE,), Counted, True),
        (b"HEAD", 200, (), Counted, True),
        (b"GET", 204, (LENGTH,), Counted, True),
        (b"GET", 204, (), Counted, True),
        (b"GET", 304, (LENGTH,), Counted, True),
    ],
)
def test_an_answers_framing(
    method: bytes, status: int, fields: tuple[tuple[bytes, bytes], ...], kind: type, done: bool
) -> None:
    body = response_body(method, status, fields, b"HTTP/1.1")
    assert isinstance(body, kind)
    assert body.done is done


def test_many_small_chunks_cost_no_more_than_their_bytes() -> None:
    """A slice of what is left at each of them took 60 s for these."""
    began, body = time.process_time(), Chunked()
    pieces, rest = body.feed(b"1\r\na\r\n" * (1 << 18) + b"0\r\n\r\nGET")
    assert (len(pieces), rest, body.done) == (1 << 18, b"GET", True)
    assert time.process_time() - began < 10.0
