"""CONNECT lines that were taken are known by their bytes: by all of them, for this policy and role, by nothing else."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from credgate.gateway import connects
from credgate.gateway.connects import Connects
from credgate.gateway.exchange import ClientState
from credgate.gateway.steps import Steps
from tests.credgate.gateway_rig import Rig, rig

LINE = b"CONNECT api.good.test:%d HTTP/1.1\r\nHost: api.good.test\r\n\r\n"


async def first_line(r: Rig, *sent: bytes) -> bytes:
    """What a connection whose first bytes these are is answered with."""
    client = await r.dial(r.proxy)
    for each in sent:
        client.writer.write(each)
        await asyncio.sleep(0.05)  # so that they are read one after the other
    async with asyncio.timeout(10):
        answer = await client.reader.readuntil(b"\r\n\r\n")
    client.close()
    return answer.split(b"\r\n", 1)[0]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that were read and judged, not known by their bytes."""
    seen, true = list[bytes](), Steps.open_tunnel

    def watched(self: Steps, state: ClientState, authority: bytes) -> Any:
        seen.append(authority)
        return true(self, state, authority)

    monkeypatch.setattr(Steps, "open_tunnel", watched)
    return seen


def test_the_same_line_opens_the_same_tunnel_and_requests_pass_in_it(tmp_path: Path, read: list[bytes]) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            for count in range(3):
                client = await r.tunnel()
                assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200
                assert len(r.good.seen) == count + 1
                client.close()
            assert len(read) == 1
            assert {x["host"] for x in r.records("intent")} == {"api.good.test"}

    asyncio.run(main())


def test_what_is_not_that_line_alone_is_read(tmp_path: Path, read: list[bytes]) -> None:
    """In pieces, with bytes behind it, with another header, behind a line that was refused: each is judged as it is."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            line, no = LINE % r.direct, b"CONNECT no.test:22 HTTP/1.1\r\n\r\n"
            for way in ((line[:3], line[3:]), (line[:-4], line[-4:])) * 2:
                assert b" 200 " in await first_line(r, *way)
            read.clear()
            for way in ((line + b"\x16",), (no + line,), (no, line)) * 2:
                assert (b" 200 " if way[0].startswith(line) else b" 403 ") in await first_line(r, *way)
            assert len(read) >= 6
            assert b" 403 " in await first_line(r, no)
            other = line.replace(b"\r\n\r\n", b"\r\nX: y\r\n\r\n")
            assert b" 200 " in await first_line(r, other)
            before = len(read)
            assert b" 200 " in await first_line(r, other)
            assert len(read) == before

    asyncio.run(main())


def test_another_policy_or_role_judges_it_anew(tmp_path: Path, read: list[bytes]) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            line = b"CONNECT api.good.test:22 HTTP/1.1\r\n\r\n"
            assert b" 403 " in await first_line(r, line)
            line = LINE % r.direct
            assert b" 200 " in await first_line(r, line) and b" 200 " in await first_line(r, line)
            assert len(read) == 2
            r.run.policy = replace(r.run.policy)
            assert b" 200 " in await first_line(r, line) and b" 200 " in await first_line(r, line)
            assert len(read) == 3

    asyncio.run(main())


def test_what_is_kept_is_bounded() -> None:
    policy = object()
    state = ClientState(run=cast("Any", _Run(policy)), listener=cast("Any", None))
    state.connect_host, state.connect_port = b"a.test", 443
    kept = Connects()
    for number in range(connects.MOST + 10):
        kept.keep(state, b"CONNECT a.test:443 HTTP/1.1\r\nX: %d\r\n\r\n" % number)
    assert kept.find(state, b"CONNECT a.test:443 HTTP/1.1\r\nX: 9\r\n\r\n") is None
    assert kept.find(state, b"CONNECT a.test:443 HTTP/1.1\r\nX: 10\r\n\r\n") == (b"a.test", 443)
    long = b"CONNECT a.test:443 HTTP/1.1\r\nX: %s\r\n\r\n" % (b"y" * connects.LONGEST)
    kept.keep(state, long)
    kept.keep(state, b"CON")
    assert kept.find(state, long) is None and kept.find(state, b"CON") is None
    state.run = cast("Any", _Run(policy, role="other"))
    assert kept.find(state, b"CONNECT a.test:443 HTTP/1.1\r\nX: 10\r\n\r\n") is None


class _Run:
    def __init__(self, policy: object, role: str = "dev") -> None:
        self.policy, self.role = policy, role
