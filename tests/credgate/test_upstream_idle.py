"""Time-outs are those of their phase: an agent's stream may be silent for longer than any of them but the idle limit.

Scaled by 1/10: an event each 25 s is one each 2.5 seconds, and every phase's limit lies below that.
"""

import asyncio
import dataclasses
import itertools
import time
from pathlib import Path

import pytest

from credgate.gateway.steps import Timeouts
from tests.credgate.gateway_rig import PATIENT, Rig, Script, Seen, rig

GAP, EVENTS = 2.5, 3
QUICK = dataclasses.replace(PATIENT, connect=2.0, tls=2.0, first_byte=2.0, resolve=2.0)


def events(gap: float, count: int, *, chunked: bool) -> Script:
    async def script(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        framing = b"Transfer-Encoding: chunked" if chunked else b"Connection: close"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n")
        for n in range(count):
            await asyncio.sleep(gap)
            event = b"data: %d\n\n" % n
            writer.write(b"%x\r\n%s\r\n" % (len(event), event) if chunked else event)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if chunked else b"")
        if not chunked:
            writer.close()

    return script


async def ask(r: Rig) -> tuple[bytes, list[float]]:
    """Everything that came behind the head, and when."""
    client = await r.tunnel()
    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nConnection: close\r\n\r\n" % r.direct)
    await client.reader.readuntil(b"\r\n\r\n")
    got, at = b"", []
    while data := await client.reader.read(65536):
        got += data
        at.append(time.monotonic())
    return got, at


@pytest.mark.parametrize("chunked", [True, False])
def test_an_event_each_25_seconds(chunked: bool, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, timeouts=QUICK) as r:
            r.good.script = events(GAP, EVENTS, chunked=chunked)
            got, at = await ask(r)
            assert got.count(b"data: ") == EVENTS
            gaps = [later - sooner for sooner, later in itertools.pairwise(at)][: EVENTS - 1]
            assert all(gap > GAP / 2 for gap in gaps)  # each came when it was sent, and none waited for the next
            assert "reason" not in r.records("outcome")[0]

    asyncio.run(main())


def test_the_idle_limit_ends_what_is_silent_for_longer(tmp_path: Path) -> None:
    """The control: the same stream under an idle limit below its gap is cut off, and the ledger says so."""

    async def main() -> None:
        async with rig(tmp_path, timeouts=dataclasses.replace(QUICK, idle=1.0)) as r:
            r.good.script = events(60.0, 2, chunked=True)
            started = time.monotonic()
            try:
                got, _ = await ask(r)
            except ConnectionError:
                got = b""
            assert b"data" not in got and not got.endswith(b"0\r\n\r\n")
            assert time.monotonic() - started < 50
            assert len(r.records("outcome")) == 1

    asyncio.run(main())


def test_the_defaults_leave_room_for_agents() -> None:
    limits = Timeouts()
    assert limits.idle >= 3600
    assert limits.first_byte >= 120
