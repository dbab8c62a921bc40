import string
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.gateway.head import (
    MAX_HEAD,
    HeadError,
    cut,
    parse_request_head,
    parse_response_head,
    take_request,
    take_response,
)

HEAD = b"GET /a HTTP/1.1\r\nHost: x\r\nA:  b \r\n\r\n"


def test_a_head_and_its_parts() -> None:
    head = cut(HEAD + b"body", 0)
    assert head == HEAD[:-4]
    parsed = parse_request_head(head)
    assert (parsed.method, parsed.target, parsed.version) == (b"GET", b"/a", b"HTTP/1.1")
    assert parsed.fields == ((b"Host", b"x"), (b"A", b"b"))


@pytest.mark.parametrize("at", range(len(HEAD)))
def test_a_head_in_two_pieces(at: int) -> None:
    assert cut(HEAD[:at], 0) is None
    assert cut(HEAD, at) == HEAD[:-4]


def test_a_head_byte_by_byte() -> None:
    for at in range(len(HEAD) - 1):
        assert cut(HEAD[: at + 1], at) is None
    assert cut(HEAD, len(HEAD) - 1) == HEAD[:-4]


@pytest.mark.parametrize(
    "bad",
    [b"A: b\nC: d", b"A: b\rC", b"A: \x00", b"A: b\r\n c", b"A: b\r\n\tc", b"A: b\r\r\n"],
)
@pytest.mark.parametrize("whole", [True, False])
def test_illegal_bytes_are_told_at_once(bad: bytes, whole: bool) -> None:
    data = b"GET /a HTTP/1.1\r\n" + bad + (b"\r\n\r\n" if whole else b"")
    if not whole and bad.endswith(b"\n"):
        data += b"x"
    with pytest.raises(HeadError):
        cut(data, 0)


@pytest.mark.parametrize("line", [b"nonsense", b"GET /a", b"\x16\x03", b"SSH-2.0-x", b" GET / HTTP/1.1"])
def test_what_is_not_http_is_told_by_its_first_line(line: bytes) -> None:
    with pytest.raises(HeadError) as caught:
        cut(line + b"\r\n", 0)
    assert not caught.value.http


def test_the_bound() -> None:
    long = b"GET /a HTTP/1.1\r\nA: " + b"a" * MAX_HEAD
    with pytest.raises(HeadError, match="over"):
        cut(long, 0)
    with pytest.raises(HeadError, match="over"):
        cut(long + b"\r\n\r\n", 0)
    exact = b"GET /a HTTP/1.1\r\nA: "
    exact += b"a" * (MAX_HEAD - len(exact) - 2) + b"\r\n\r\n"
    assert cut(exact, 0) is not None


@pytest.mark.parametrize("field", [b"A : b", b": b", b"A", b"A\tB: c", b"A(: b", b"\xc3\xa9: b"])
def test_fields_that_are_none(field: bytes) -> None:
    with pytest.raises(HeadError):
        parse_request_head(b"GET /a HTTP/1.1\r\n" + field)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"http://h/a?b", (b"http", b"h", b"/a?b")),
        (b"http://h", (b"http", b"h", b"/")),
        (b"http://h?b", (b"http", b"h", b"/?b")),
        (b"HTTPS://u@h:1/a", (b"HTTPS", b"u@h:1", b"/a")),
        (b"/http://h/a", (b"", b"", b"/http://h/a")),
        (b"*", (b"", b"", b"*")),
    ],
)
def test_absolute_targets(target: bytes, expected: tuple[bytes, bytes, bytes]) -> None:
    head = parse_request_head(b"GET " + target + b" HTTP/1.1")
    assert (head.scheme, head.authority, head.target) == expected


def test_an_absolute_target_without_host() -> None:
    with pytest.raises(HeadError):
        parse_request_head(b"GET http:///a HTTP/1.1")


@pytest.mark.parametrize("line", [b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.0 404 Not Found"])
def test_status_lines(line: bytes) -> None:
    assert parse_response_head(line).status in (200, 404)


@pytest.mark.parametrize("line", [b"HTTP/1.1 20 OK", b"HTTP/1.1 2000", b"HTTP/2 200", b"HTTP/1.1 099 x", b"ICY 200 OK"])
def test_status_lines_that_are_none(line: bytes) -> None:
    with pytest.raises(HeadError):
        parse_response_head(line)


_BYTES = st.lists(
    st.sampled_from([b"\r\n", b"\n", b"\r", b" ", b":", b"\x00", b"GET", b"/", b"HTTP/1.1", b"a", b"\xff", b"\t"]),
    max_size=40,
).map(b"".join)


@settings(max_examples=600, deadline=None)
@given(_BYTES)
def test_any_bytes_give_parts_or_head_error(data: bytes) -> None:
    for parse in (parse_request_head, parse_response_head):
        try:
            head = cut(data, 0)
            if head is None:
                continue
            parsed = parse(head)
        except HeadError:
            continue
        for name, value in parsed.fields:
            assert not set(name) & set(b" \t\r\n:\x00")
            assert not set(value) & set(b"\r\n\x00")


@settings(max_examples=300, deadline=None)
@given(_BYTES, st.integers(0, 60))
def test_pieces_are_read_as_the_whole(data: bytes, at: int) -> None:
    """What was let through in pieces is what would have been let through at once."""

    def reading(*lengths: int) -> bytes | str | None:
        seen = 0
        for length in lengths:
            try:
                head = cut(data[:length], seen)
            except HeadError:
                return "refused"
            if head is not None:
                return head
            seen = min(length, len(data))
        return None

    pieces = reading(at, len(data))
    once = reading(len(data))
    assert pieces == once


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.text(string.ascii_letters + "-", min_size=1), st.text(string.printable[:94])), max_size=20)
)
def test_what_is_well_formed_comes_back_as_it_was(fields: list[tuple[str, str]]) -> None:
    wire = [f"{name}: {value}".encode() for name, value in fields]
    head = parse_request_head(b"\r\n".join([b"GET / HTTP/1.1", *wire]))
    assert head.fields == tuple((name.encode(), value.encode()) for name, value in fields)


_LINES = st.lists(
    st.sampled_from(
        [
            *[b"GET /a HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n", b"GET http:///a HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n"],
            *[
                b"HTTP/1.1 200\r\n",
                b"A: b\r\n",
                b"A:\r\n",
                b"A : b\r\n",
                b"A: \x01\r\n",
                b"A: \x7f\r\n",
                b" folded\r\n",
            ],
            *[
                b"A: b\n",
                b"A: \x00\r\n",
                b"\r\n",
                b"\r\n",
                b"body",
                b"A: b\r\n" * 300,
                b"A: " + b"x" * MAX_HEAD + b"\r\n",
            ],
        ]
    ),
    max_size=8,
).map(b"".join)


@settings(max_examples=1500, deadline=None)
@given(st.one_of(_BYTES, _LINES), st.integers(0, 60))
def test_a_head_taken_at_once_is_what_its_two_steps_make_of_it(data: bytes, seen: int) -> None:
    """The way of the common head: nothing passes by it that cut and the parser would refuse, or read otherwise."""

    def stepwise(parse: Callable[[bytes], object]) -> object:
        try:
            raw = cut(data, min(seen, len(data)))
            return None if raw is None else (parse(raw), len(raw) + 4)
        except HeadError as error:
            return str(error), error.http

    def at_once(take: Callable[[bytes, int], object]) -> object:
        try:
            return take(data, min(seen, len(data)))
        except HeadError as error:
            return str(error), error.http

    assert at_once(take_request) == stepwise(parse_request_head)
    assert at_once(take_response) == stepwise(parse_response_head)
