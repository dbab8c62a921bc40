"""Bytes that providers, jails and secrets' owners choose: each parser takes them or says so in its own error."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.gateway.clientcert import parse_identity
from credgate.gateway.framing import FramingError
from credgate.gateway.head import HeadError
from credgate.minting import calls, forms, jailcall, jwt
from credgate.minting.forms import Answered, Grant, Unusable
from credgate.secretvalue import Secret, SecretUnavailable
from rules.mints import GithubApp

APP = GithubApp(name="m", secret="k", endpoint="e", app="a", installation=1, permissions=(("issues", "read"),))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KEYS = ("access_token", "token", "token_type", "expires_in", "expires_at", "refresh_token", "permissions", "error")
DOCUMENTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
BODIES = st.binary(max_size=200) | DOCUMENTS.map(lambda d: json.dumps(d).encode())


def _or_error(read: Callable[[Answered], Grant], answer: Answered) -> Grant | Unusable:
    try:
        return read(answer)
    except Unusable as error:
        return error


@given(BODIES, st.sampled_from([200, 201, 204, 302, 400, 401, 500]))
def test_answers_of_providers(body: bytes, status: int) -> None:
    answer = Answered(status=status, fields=(), body=body)
    for read in (forms.granted, lambda a: forms.github_granted(APP, a, 1_000_000.0)):
        grant = _or_error(read, answer)
        if isinstance(grant, Unusable):
            assert str(grant).isprintable() and str(grant).isascii()
            continue
        assert grant.token.isascii() and grant.token.isprintable() and " " not in grant.token
        assert 0 <= grant.lifetime <= forms.MAX_LIFETIME
    assert isinstance(forms.token_in(answer), str)


@given(
    st.dictionaries(
        st.sampled_from(["contents", "issues", "metadata"]), VALUES | st.sampled_from(["read", "write", "admin"])
    )
)
def test_no_permission_beyond_what_was_asked_is_taken(given_: dict[str, Any]) -> None:
    body = json.dumps({"token": "t", "permissions": given_, "expires_at": "2026-01-01T00:00:00Z"}).encode()
    try:
        forms.github_granted(APP, Answered(status=201, fields=(), body=body), 0.0)
    except Unusable:
        return
    assert all(level in ("", "read") for level in given_.values())
    assert given_.get("contents", "") == ""


@given(st.binary(max_size=300) | DOCUMENTS.map(lambda d: json.dumps(d).encode()))
def test_bodies_of_the_jails_own_call(body: bytes) -> None:
    said = jailcall._parse(body)
    assert all(isinstance(value, str) for value in said.values())


@given(
    st.text(min_size=1, max_size=200),
    st.sampled_from(["", "-----BEGIN PRIVATE KEY-----\n", "-----BEGIN CERTIFICATE-----\n"]),
)
def test_keys_and_certificates(text: str, head: str) -> None:
    try:
        secret = Secret("k", head + text)
    except SecretUnavailable:
        return
    for read in (parse_identity, jwt.read_key, jwt.read_account):
        with pytest.raises(SecretUnavailable) as caught:
            read(secret)
        assert caught.value.code == "secret_invalid"


class Wire:
    """Stands for TLS: gives the bytes in pieces, then the end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    async def receive(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def cut(data: bytes, at: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(n % (len(data) + 1) for n in at)})
    return [data[a:b] for a, b in pairwise(marks) if a < b]


def read(pieces: list[bytes]) -> Answered:
    return asyncio.run(calls._read(Wire(pieces), "POST"))  # type: ignore[arg-type]


WHOLE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nhello",
]


@given(st.sampled_from(WHOLE), st.lists(st.integers(min_value=0, max_value=200), max_size=6))
def test_an_answer_is_one_wherever_it_is_cut(data: bytes, at: list[int]) -> None:
    assert read(cut(data, at)).body == b"hello"


@given(st.sampled_from(WHOLE[:2]), st.integers(min_value=0, max_value=200))
def test_an_answer_that_ends_early_is_none(data: bytes, end: int) -> None:
    with pytest.raises((ConnectionResetError, HeadError)):
        read([data[: end % len(data)]])


@given(st.binary(max_size=200), st.booleans())
def test_what_is_no_answer_is_an_error_of_ours(data: bytes, headed: bool) -> None:
    raw = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" if headed else b"") + data
    with contextlib.suppress(HeadError, FramingError, OSError):
        read([raw] if raw else [])


def test_an_answer_without_end_is_bounded() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    with pytest.raises(FramingError, match="over"):
        read([head, *[b"x" * 65536] * 6])
    with pytest.raises(FramingError, match="over"):
        read([b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"])
    with pytest.raises(HeadError, match="without end"):
        read([b"HTTP/1.1 100 Continue\r\n\r\n" * 20])


@pytest.mark.parametrize(
    ("said", "lifetime"), [("600", 600), ("\u00b2", forms.DEFAULT_LIFETIME), ("\u0663", forms.DEFAULT_LIFETIME)]
)
def test_a_lifetime_in_digits_that_are_none_is_none(said: str, lifetime: int) -> None:
    """`int` refuses some of what `isdigit` takes: the next refresh token was lost with the exception."""
    document = {"access_token": "abc", "refresh_token": "next", "expires_in": said}
    grant = forms.granted(Answered(status=200, fields=(), body=json.dumps(document).encode()))
    assert (grant.lifetime, grant.refresh) == (lifetime, "next")
