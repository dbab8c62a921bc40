"""HTTP/2 frames that carry nothing: each costs a look and nobody's budget, so a peer may send so many and no more.

The others of RFC 9113 10.5 as cases of their own: streams taken back, windows of nothing, heads without end, a GOAWAY
in the middle. Each request that went out has an outcome, whatever a peer does.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h2.events
import pytest
from h2.errors import ErrorCodes

from credgate.gateway import http2
from tests.credgate.gateway_rig import PATIENT, Rig, rig
from tests.credgate.h2_rig import H2Client
from tests.credgate.test_gateway_h2 import BOTH, client, fields
from tests.credgate.test_gateway_h2_targets import INTERIM, frame, serve, settings, statuses

DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
LITERAL = b"\x40\x01a\x01b"  # "a: b", RFC 7541 6.2.1
OK = b"\x88"  # ":status: 200", the static table's 8th entry
HASTY = replace(PATIENT, first_byte=0.3, connect=0.3, tls=1.0)
IDLE = {
    "settings": frame(SETTINGS),
    "a long settings frame": frame(SETTINGS, struct.pack(">HI", 4, 65535) * 2700),
    "ping": frame(PING, b"8 bytes."),
    "priority": frame(PRIORITY, b"\0\0\0\1\1", stream=5),
    "window": frame(WINDOW, b"\0\0\0\1"),
    "unknown": frame(0x77, b"x" * 10),
}


async def sent(c: H2Client, data: bytes, most: int) -> bool:
    """Send until the other side ends the connection, or `most` bytes; whether it did. What it says is read."""
    reading = asyncio.create_task(c.reader.read(-1))
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            for _ in range(0, most, len(data)):
                if reading.done():
                    break
                c.writer.write(data)
                await c.writer.drain()
            else:
                reading.cancel()
                return False
    reading.cancel()
    return True


@pytest.mark.parametrize("name", IDLE)
def test_a_client_that_asks_for_nothing_is_ended(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "IDLE_BURST", 500)
    monkeypatch.setattr(http2, "IDLE_RATE", 1)
    data = IDLE[name] * (1 + 4000 // len(IDLE[name]))

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            assert await sent(await client(r), data, 1 << 26)
            assert [d["detail"] for d in r.records("deny")] == ["frames without end that carry nothing"]

    asyncio.run(main())


def test_without_a_bound_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control; and a client within the bound has its answers."""
    monkeypatch.setattr(http2, "IDLE_BURST", 100_000)

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            c = await client(r)
            assert not await sent(c, IDLE["ping"] * 100, 17 * 2000)
            await asyncio.sleep(0)  # the reader's task ends
            assert (await c.ask(fields(r))).status == 200
            assert r.records("deny") == []

    asyncio.run(main())


def test_what_a_body_needs_is_no_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that opens its window for each part of an answer, and a target that does for each of an upload."""
    monkeypatch.setattr(http2, "IDLE_BURST", 20)
    monkeypatch.setattr(http2, "IDLE_RATE", 0)
    seen: list[int] = []
    real = http2.Calm.lost.fget
    assert real is not None

    def counted(self: http2.Calm) -> bool:
        seen.append(self._cut.idle)
        return bool(real(self))

    monkeypatch.setattr(http2.Calm, "lost", property(counted))

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            r.good.answer_size = 8 << 20
            c = await client(r)
            c.conn.send_headers(1, fields(r), end_stream=True)
            c.flush()
            got = 0
            async with asyncio.timeout(60):
                while got < 8 << 20:
                    data = await c.reader.read(65536)
                    assert data, "the connection ended"
                    got += len(data)
                    for _ in range(0, len(data), 2048):
                        c.writer.write(frame(WINDOW, b"\0\0\x08\0") + frame(WINDOW, b"\0\0\x08\0", stream=1))
                    await c.writer.drain()
            r.good.answer_size = 0
            post = fields(r, method=b"POST")
            assert (await (await client(r)).ask(post, bytes(16384))).body == b"ok 16384"
            assert max(seen) > 20

    asyncio.run(main())


def repeated(data: bytes, first: bytes = b"") -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings() + first)
        await reader.read(65536)
        while not writer.is_closing():
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)

    return target


@pytest.mark.parametrize("name", [*IDLE, "empty data"])
def test_a_target_that_says_nothing_without_end_is_ended(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its answer is late."""
    monkeypatch.setattr(http2, "IDLE_BURST", 500)
    monkeypatch.setattr(http2, "IDLE_RATE", 1)
    empty = frame(DATA, stream=1)
    data = IDLE.get(name, empty)
    # of a stream that nobody opened, in the place of an answer
    first = frame(HEADERS, OK, stream=1, flags=4) if name == "empty data" else b""

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH, timeouts=replace(PATIENT, first_byte=3600.0)) as r:
            serve(r, repeated(data * (1 + 4000 // len(data)), first))  # type: ignore[arg-type]
            if name == "empty data":
                c = await client(r)
                assert (await c.ask(fields(r))).body == b""
            else:
                assert await statuses(r, 1) == [b"502"]
            assert [d["reason"] for d in r.records("outcome")] == ["upstream_invalid"]

    asyncio.run(main())


# -- each in its own way, and none leaves a request without an outcome ------------------------------------------------


async def goaway_within(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)
    begun = frame(HEADERS, OK, stream=1, flags=4) + frame(DATA, b"abc", stream=1)
    writer.write(settings() + begun + frame(GOAWAY, struct.pack(">II", 1, 0)))
    await reader.read(65536)


async def goaway_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(settings() + frame(GOAWAY, struct.pack(">II", 0, 0)))
    await reader.read(65536)


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(settings())
    while await reader.read(65536):
        for stream in (1, 3, 5):
            writer.write(frame(RST, struct.pack(">I", ErrorCodes.REFUSED_STREAM), stream=stream))


async def no_window(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(frame(SETTINGS, struct.pack(">HI", 4, 0)))
    while await reader.read(65536):
        pass


async def endless_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(settings())
    await reader.read(65536)
    writer.write(frame(HEADERS, OK, stream=1))
    while not writer.is_closing():
        writer.write(frame(CONTINUATION, LITERAL * 100, stream=1))
        await writer.drain()


async def dripped_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(settings())
    await reader.read(65536)
    while not writer.is_closing():
        writer.write(frame(HEADERS, INTERIM, stream=1, flags=4))
        await writer.drain()
        await asyncio.sleep(0.05)


async def zero_window_update(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(settings())
    await reader.read(65536)
    writer.write(frame(WINDOW, bytes(4), stream=1))
    await reader.read(65536)


TARGETS = (goaway_within, goaway_at_once, resets, no_window, endless_head, dripped_head, zero_window_update)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_leaves_no_request_without_an_outcome(target: object, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH, timeouts=HASTY) as r:
            serve(r, target)  # type: ignore[arg-type]
            c = await client(r)
            for stream in (1, 3, 5):
                c.conn.send_headers(stream, fields(r), end_stream=True)
            c.flush()
            over: set[int | None] = set()
            async with asyncio.timeout(60):
                while len(over) < 3 and (data := await c.reader.read(65536)):
                    ends = (h2.events.StreamEnded, h2.events.StreamReset)
                    over |= {e.stream_id for e in c.conn.receive_data(data) if isinstance(e, ends)}
                    c.flush()
                while len(r.records("outcome")) < 3:
                    await asyncio.sleep(0.01)
            assert len(r.records("intent")) == len(r.records("outcome")) == 3
            assert r.run.streams == 0

    asyncio.run(main())


async def taken_back(r: Rig, c: H2Client, frames: Callable[[int], bytes]) -> None:
    """Streams, each with `frames` behind it, until the other side has enough of them."""
    reading = asyncio.create_task(c.reader.read(-1))
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            while not reading.done():
                for _ in range(20):
                    stream = c.conn.get_next_available_stream_id()
                    c.conn.send_headers(stream, fields(r), end_stream=True)
                    c.flush()
                    c.writer.write(frames(stream))
                await c.writer.drain()
                await asyncio.sleep(0.001)  # each is dear for the test too
    reading.cancel()


@pytest.mark.parametrize(
    "frames",
    [
        lambda stream: frame(RST, struct.pack(">I", ErrorCodes.CANCEL), stream=stream),  # CVE-2023-44487
        lambda stream: frame(WINDOW, bytes(4), stream=stream),  # CVE-2025-8671: we are made to reset it
        lambda stream: frame(DATA, b"behind its end", stream=stream),
    ],
)
def test_a_client_that_takes_streams_back_is_ended(frames: Callable[[int], bytes], tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings())
        while await reader.read(65536):
            pass

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            serve(r, silent)
            await taken_back(r, await client(r), frames)
            async with asyncio.timeout(60):
                while r.run.streams or len(r.records("outcome")) < len(r.records("intent")):
                    await asyncio.sleep(0.01)
            assert 0 < len(r.records("intent")) <= http2.MAX_RESETS + 1
            assert [d["reason"] for d in r.records("deny")] == ["malformed"]

    asyncio.run(main())
