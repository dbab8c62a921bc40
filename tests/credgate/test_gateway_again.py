"""An answer whose head is the last one's, byte by byte: nothing about it may differ from what the first one was."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from credgate.gateway.again import known
from credgate.gateway.exchange import Exchange
from credgate.gateway.steps import Steps
from tests.credgate.gateway_rig import SECRET, Rig, Seen, rig

S = SECRET.encode()
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Request-Id: r-1\r\nContent-Length: 5\r\n\r\nhello"


@dataclass(kw_only=True)
class Said:
    """What the target says each time, in these pieces; `again`: whether it is one that is remembered."""

    pieces: tuple[bytes, ...]
    again: bool
    method: str = "GET"


def head(*lines: bytes, status: bytes = b"200 OK", version: bytes = b"HTTP/1.1") -> bytes:
    return b"".join(line + b"\r\n" for line in (version + b" " + status, *lines, b""))


SAID = {
    "counted": Said(pieces=(PLAIN,), again=True),
    "empty": Said(pieces=(head(b"Content-Length: 0"),), again=True),
    "in chunks": Said(pieces=(head(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",), again=True),
    "head in two": Said(pieces=(PLAIN[:30], PLAIN[30:]), again=True),
    "body apart": Said(pieces=(PLAIN[:-5], PLAIN[-5:-2], PLAIN[-2:]), again=True),
    "HEAD": Said(pieces=(head(b"Content-Length: 5"),), again=True, method="HEAD"),
    "no content": Said(pieces=(head(status=b"204 No Content"),), again=True),
    "an error": Said(pieces=(head(b"Content-Length: 2", status=b"500 Oh") + b"no",), again=True),
    "no phrase": Said(pieces=(head(b"Content-Length: 2", status=b"200") + b"no",), again=True),
    "interim": Said(pieces=(head(b"X-Hint: 1", status=b"103 Early Hints") + PLAIN,), again=False),
    "hop by hop": Said(
        pieces=(head(b"Connection: x-own", b"X-Own: 1", b"Keep-Alive: timeout=9", b"Content-Length: 1") + b"a",),
        again=True,
    ),
    "said twice": Said(pieces=(head(b"X-A: 1", b"x-a: 2", b"Date: 1", b"date: 2", b"Content-Length: 0"),), again=True),
    "the secret in its body": Said(
        pieces=(head(b"Content-Length: %d" % (len(S) + 2)) + b"<" + S[:9], S[9:] + b">"), again=True
    ),
    "the secret in its whole body": Said(pieces=(head(b"Content-Length: %d" % len(S)) + S,), again=True),
    "the secret in a header": Said(pieces=(head(b"X-A: " + S, b"Content-Length: 0"),), again=False),
    "the secret in the phrase": Said(pieces=(head(b"Content-Length: 0", status=b"200 " + S),), again=False),
    "unauthorized": Said(pieces=(head(b"Content-Length: 0", status=b"401 No"),), again=False),
    "too long to be kept": Said(pieces=(head(b"X-A: " + b"a" * 4096, b"Content-Length: 0"),), again=False),
}


async def asked(r: Rig, said: Said, times: int) -> list[tuple[bytes, bytes]]:
    """Heads and bodies as the client gets them, on one connection."""

    async def script(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for at, piece in enumerate(said.pieces):
            writer.write(piece)
            if at < len(said.pieces) - 1:
                await writer.drain()
                await asyncio.sleep(0.02)  # so that they come apart; that they do is not what is claimed

    r.good.script = script
    client, got = await r.tunnel(), []
    for _ in range(times):
        raw = f"{said.method} /ok/a HTTP/1.1\r\nHost: api.good.test:{r.direct}\r\n\r\n".encode()
        answer = await client.ask(raw)
        got.append((answer.head, answer.body))
    client.close()
    return got


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many answers were judged by their fields."""
    count, was = 0, Steps.answered

    def answered(*args: Any) -> Any:
        nonlocal count
        count += 1
        return was(*args)

    monkeypatch.setattr(Steps, "answered", answered)
    return lambda: count


def outcomes(r: Rig) -> list[dict[str, Any]]:
    told = ("status", "resp_bytes", "req_bytes", "ids", "detail", "reason", "pin")
    return [{name: line.get(name) for name in told} for line in r.records("outcome")]


@pytest.mark.parametrize("name", SAID)
def test_the_second_is_as_the_first(name: str, judged: Callable[[], int], tmp_path: Path) -> None:
    said = SAID[name]

    async def main() -> None:
        async with rig(tmp_path) as r:
            got = await asked(r, said, 3)
            assert got[1] == got[0] and got[2] == got[0]
            assert S not in got[0][0] + got[0][1]
            assert judged() == (1 if said.again else 3)
            first, *others = outcomes(r)
            assert len(others) == 2 and all(one == first for one in others), (first, others)

    asyncio.run(main())


def test_a_secret_that_is_known_by_now_is_found_in_the_same_head(tmp_path: Path) -> None:
    new = b"a-value-that-nobody-knew-before"
    said = Said(pieces=(head(b"X-A: " + new, b"Content-Length: 0"),), again=True)

    async def main() -> None:
        async with rig(tmp_path) as r:
            before = await asked(r, said, 2)
            assert all(new in answer[0] for answer in before)
            r.vault.values["other"] = new.decode()
            await r.gateway._hooks.judge.fetch(r.run, "other")
            after = await asked(r, said, 2)
            assert not any(new in answer[0] for answer in after)
            assert ["scrubbed" in (line["detail"] or "") for line in outcomes(r)] == [False, False, True, True]

    asyncio.run(main())


def test_other_requests_get_the_same_head_as_it_is_for_them(tmp_path: Path) -> None:
    """Of a HEAD and a GET the same head frames another body."""
    get = Said(pieces=(PLAIN,), again=True)
    bare = Said(pieces=(PLAIN[:-5],), again=True, method="HEAD")

    async def main() -> None:
        async with rig(tmp_path) as r:
            for said, body in ((get, b"hello"), (bare, b""), (get, b"hello"), (bare, b"")):
                assert [answer[1] for answer in await asked(r, said, 2)] == [body] * 2

    asyncio.run(main())


def test_a_policy_that_was_replaced_knows_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            await asked(r, Said(pieces=(PLAIN,), again=True), 2)
            (sent,) = [one.sent for _, heads in r.gateway._hooks.judge.heads._runs.values() for one in heads.values()]
            assert sent is not None and sent.again is not None
            exchange = Exchange(sent=sent)
            assert known(exchange, PLAIN, r.run.policy) is sent.again
            assert known(exchange, PLAIN, replace(r.run.policy)) is None
            assert known(exchange, PLAIN[:-6], r.run.policy) is None
            assert known(Exchange(), PLAIN, r.run.policy) is None

    asyncio.run(main())
