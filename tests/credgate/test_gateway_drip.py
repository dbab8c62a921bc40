"""A target that drips: each byte is progress, and none of them puts off when its answer's head has to be there."""

import asyncio
import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.credgate.gateway_rig import PATIENT, Seen, rig
from tests.credgate.test_gateway_h2 import BOTH
from tests.credgate.test_gateway_h2_targets import HEADERS, INTERIM, frame, serve, settings, statuses
from tests.credgate.test_gateway_lane import head

PAUSE = 0.05  # seconds between two pieces, of which each of these has 30 at least: 1.5 s
LATE, IN_TIME = replace(PATIENT, first_byte=0.4), replace(PATIENT, first_byte=60.0)
CODED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
NAMED = bytearray(gzip.compress(b"ok"))
NAMED[3] |= 8  # RFC 1952 2.3.1: behind these ten bytes stands a name, of any length
END = b"0\r\n\r\n"


def chunks(pieces: Sequence[bytes]) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]


def one(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


DRIPS: dict[str, list[bytes]] = {
    "a head": one(b"HTTP/1.1 200 OK\r\nX: aaaaaaaa\r\nContent-Length: 2\r\n\r\nok"),
    "interim heads": [
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        *[b""] * 30,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
    # its head is held until its coding is known to hold: nothing of it has gone to the client either
    "a coding's head": [CODED, *chunks([bytes(NAMED[:10]), *[b"n"] * 30, b"\0" + NAMED[10:]]), END],
    "silence behind a coded head": [CODED, *[b""] * 30, *chunks([gzip.compress(b"ok")]), END],
}


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", DRIPS)
def test_a_head_has_so_long_to_come(name: str, late: bool, tmp_path: Path) -> None:
    async def drip(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        for piece in DRIPS[name]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(PAUSE)

    async def main() -> None:
        async with rig(tmp_path, timeouts=LATE if late else IN_TIME) as r:
            r.good.script = drip
            client = await r.tunnel()
            if late:
                refused = await client.ask(head(r))
                assert (refused.status, refused.code) == (504, "upstream_timeout")
                assert r.reasons() == ["upstream_timeout"]
                assert [o["status"] for o in r.records("outcome") if "status" in o] in ([], [504])
            else:
                answer = await client.ask(head(r))
                assert (answer.status, answer.body) == (200, b"ok")
                assert r.reasons() == []

    asyncio.run(main())


def test_a_body_may_drip(tmp_path: Path) -> None:
    """An event stream is quiet for long: the deadline is the head's alone, a coded one's too once a byte of it came."""

    async def drip(seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        if b"coded" in seen.line:
            packer = gzip.compress(b"")  # a member of nothing: the client's bytes are those of the next one
            pieces = [CODED, *chunks([gzip.compress(b"o")]), *[b""] * 20, *chunks([packer, gzip.compress(b"k")]), END]
        else:
            pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", *[b""] * 20, b"k"]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(PAUSE)

    async def main() -> None:
        async with rig(tmp_path, timeouts=LATE) as r:
            r.good.script = drip
            client = await r.tunnel()
            for path in (b"/ok/plain", b"/ok/coded"):
                answer = await client.ask(head(r, b"GET %b HTTP/1.1" % path))
                assert (answer.status, answer.body) == (200, b"ok")
            assert r.reasons() == []

    asyncio.run(main())


@pytest.mark.parametrize("late", [True, False])
def test_in_http2_too(late: bool, tmp_path: Path) -> None:
    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings())
        await reader.read(65536)
        for _ in range(60):
            writer.write(frame(HEADERS, INTERIM, stream=1, flags=4))
            await writer.drain()
            await asyncio.sleep(PAUSE)
        writer.write(frame(HEADERS, b"\x88", stream=1, flags=5))
        await reader.read(65536)

    async def main() -> None:
        # the connection's own time is part of it: the request is whole before there is one
        limits = replace(LATE, connect=0.4, tls=1.0) if late else IN_TIME
        async with rig(tmp_path, alpn=BOTH, timeouts=limits) as r:
            serve(r, target)
            assert await statuses(r, 1) == [b"504" if late else b"200"]
            assert len(r.records("outcome")) == 1

    asyncio.run(main())
