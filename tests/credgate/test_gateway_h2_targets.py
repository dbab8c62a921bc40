"""Targets that speak HTTP/2 and mean ill: each request has an end, and other connections have their turn."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
from h2.errors import ErrorCodes
from mitmproxy.proxy.layers.http import _http2 as mitm

from credgate.gateway import handler, http2
from credgate.gateway.handler import reset
from credgate.gateway.http2 import GateHttp2Client
from credgate.gateway.steps import Timeouts
from tests.credgate.gateway_rig import FAST, Rig, rig
from tests.credgate.h2_rig import H2Client
from tests.credgate.test_gateway_h2 import BOTH, client, fields
from tests.credgate.test_upstream_proxy import Corporate, behind

type Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HEADERS, SETTINGS, PING = 0x1, 0x4, 0x6
MAX_STREAMS = 0x3
INTERIM = b"\x08\x03103"  # ":status: 103", RFC 7541 6.2.2 with the name of the static table's 8th entry
HASTY = replace(FAST, first_byte=0.3)


def frame(kind: int, payload: bytes = b"", *, stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def settings(**values: int) -> bytes:
    return frame(SETTINGS, b"".join(struct.pack(">HI", MAX_STREAMS, value) for value in values.values()))


async def statuses(r: Rig, count: int) -> list[bytes]:
    """Ask `count` times at once; the status of each answer."""
    c = await client(r)
    for _ in range(count):
        c.conn.send_headers(c.conn.get_next_available_stream_id(), fields(r), end_stream=True)
    c.flush()
    found: dict[int, bytes] = {}
    async with asyncio.timeout(20):
        while len(found) < count:
            data = await c.reader.read(65536)
            assert data, "the connection ended"
            for event in c.conn.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    found[event.stream_id] = dict(event.headers)[b":status"]
            c.flush()
    return [found[stream] for stream in sorted(found)]


def serve(r: Rig, how: Serve) -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await how(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    r.good._serve_h2 = closing  # type: ignore[method-assign]


@pytest.mark.parametrize("leaves", [True, False])
def test_what_a_target_never_took_has_an_end_too(leaves: bool, tmp_path: Path) -> None:
    """It takes one stream at a time, and goes; or none at all, and is silent. mitmproxy's end forgot the others."""

    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings(most=int(leaves)))
        while await reader.read(65536):
            if leaves:
                await asyncio.sleep(0.1)
                return

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH, timeouts=HASTY) as r:
            serve(r, target)
            found = await statuses(r, 12)
            assert set(found) <= {b"502", b"504"}
            assert len(r.records("outcome")) == len(r.records("intent")) == 12

    asyncio.run(main())


SIZE = 2_000_000  # more than the target's window: nobody ever sends the whole of it


async def upload(r: Rig) -> tuple[bytes, bytes, str]:
    """Send as much of a body as may be sent; status and body of the answer, and what ended the wait for it."""
    c = await client(r)
    stream = c.conn.get_next_available_stream_id()
    length = (b"content-length", b"%d" % SIZE)
    c.conn.send_headers(stream, fields(r, length, method=b"POST"))
    status, body, left = b"", b"", SIZE
    async with asyncio.timeout(60):
        while True:
            while room := min(c.conn.local_flow_control_window(stream), 16384, left):
                c.conn.send_data(stream, bytes(room))
                left -= room
            c.flush()
            data = await c.reader.read(65536)
            for event in c.conn.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    status = dict(event.headers)[b":status"]
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data
                elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                    return status, body, type(event).__name__
            assert data, (status, body, "the connection ended")


@pytest.mark.parametrize("then", ["waits", "resets the stream", "closes", "resets"])
@pytest.mark.parametrize("proxied", [False, True])
def test_an_answer_in_the_middle_of_an_upload_ends_for_the_client(then: str, proxied: bool, tmp_path: Path) -> None:
    """RFC 9113 8.1. The client's upload can't end: the window for it is full."""

    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        conn.initiate_connection()
        writer.write(conn.data_to_send())
        while data := await reader.read(65536):
            begun = [e for e in conn.receive_data(data) if isinstance(e, h2.events.RequestReceived)]
            for stream in (event.stream_id for event in begun):
                conn.send_headers(stream, [(":status", "413"), ("content-length", "2")])
                conn.send_data(stream, b"no", end_stream=True)
                if then == "resets the stream":
                    conn.reset_stream(stream, ErrorCodes.NO_ERROR)
            writer.write(conn.data_to_send())
            await writer.drain()
            if begun and then in ("closes", "resets"):
                break
        if then == "resets":
            reset(writer)

    async def main() -> None:
        reached = behind(tmp_path, Corporate(), alpn="h2") if proxied else rig(tmp_path, alpn=BOTH)
        async with reached as r:
            serve(r, target)
            assert await upload(r) == (b"413", b"no", "StreamEnded")
            (outcome,) = r.records("outcome")
            assert (outcome["status"], r.reasons()) == (413, [])
            r.good._serve_h2 = type(r.good)._serve_h2.__get__(r.good)  # type: ignore[method-assign] # as it was
            assert (await (await client(r)).ask(fields(r))).status == 200  # and the gateway goes on

    asyncio.run(asyncio.wait_for(main(), 100))


@pytest.mark.parametrize("guarded", [True, False])
def test_others_have_their_turn_between_a_targets_frames(
    guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pings, most = frame(PING, b"8 bytes.") * 900, http2._FRAMES * 17
    if not guarded:
        monkeypatch.setattr(http2, "_FRAMES", 1 << 30)
    sizes: list[int] = []
    real = mitm.Http2Connection._handle_event

    def counted(self: mitm.Http2Connection, event: object) -> object:
        if isinstance(self, GateHttp2Client) and isinstance(event, http2.events.DataReceived):
            sizes.append(len(event.data))
        return real(self, event)  # type: ignore[arg-type]

    monkeypatch.setattr(mitm.Http2Connection, "_handle_event", counted)

    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings())
        await reader.read(65536)
        writer.write(pings)
        acks = 0
        while acks < len(pings) // 2:
            acks += len(await reader.read(65536))

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            serve(r, target)
            assert await statuses(r, 1) == [b"502"]
            assert (max(sizes) <= most) is guarded
            assert sum(sizes) >= len(pings), "and nothing is lost"

    asyncio.run(main())


def test_what_a_dropped_target_still_says_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interim answers without end, each a turn of its own: who gave up waiting for the real one has a word at once."""
    flood = frame(HEADERS, INTERIM, stream=1, flags=4) * 1000
    behind: list[object] = []
    given_up: set[GateHttp2Client] = set()
    real, forget = mitm.Http2Client.handle_h2_event, GateHttp2Client.forget

    def forgetting(self: GateHttp2Client) -> None:
        if self.unread:
            given_up.add(self)
        forget(self)

    def handled(self: mitm.Http2Client, event: h2.events.Event) -> object:
        if self in given_up:
            behind.append(event)
        return real(self, event)

    monkeypatch.setattr(GateHttp2Client, "forget", forgetting)
    monkeypatch.setattr(mitm.Http2Client, "handle_h2_event", handled)

    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings())
        await reader.read(65536)
        while not writer.is_closing():
            writer.write(flood)
            await writer.drain()
            await asyncio.sleep(0)

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH, timeouts=HASTY) as r:
            serve(r, target)
            assert await statuses(r, 1) == [b"504"]

    asyncio.run(main())
    assert given_up
    assert behind == []


def test_a_run_has_so_many_streams_and_then_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On all of its connections together; who is turned away knows that nothing was done, and may try again."""
    monkeypatch.setattr(handler, "MAX_STREAMS", 5)
    release = asyncio.Event()

    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings())
        await release.wait()

    async def resets(c: H2Client, count: int) -> list[int]:
        found: list[int] = []
        async with asyncio.timeout(20):
            while len(found) < count:
                events = c.conn.receive_data(await c.reader.read(65536))
                found += [int(e.error_code) for e in events if isinstance(e, h2.events.StreamReset)]
                c.flush()
        return found

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH, timeouts=Timeouts()) as r:
            serve(r, target)
            first, second = await client(r), await client(r)
            for c in (first, second):
                for _ in range(4):
                    c.conn.send_headers(c.conn.get_next_available_stream_id(), fields(r), end_stream=True)
                c.flush()
                async with asyncio.timeout(20):
                    while r.run.streams < 4:
                        await asyncio.sleep(0.01)
            assert await resets(second, 3) == [ErrorCodes.REFUSED_STREAM] * 3
            assert len(r.records("intent")) == r.run.streams == 5
            assert r.reasons() == []
            release.set()
            first.writer.close()
            second.writer.close()
            async with asyncio.timeout(20):
                while r.run.streams:
                    await asyncio.sleep(0.01)

    asyncio.run(main())
