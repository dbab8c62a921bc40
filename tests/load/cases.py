"""What a client or a target can do in bulk. Each case takes a count, asserts, and returns its figures.

Client, gateway and targets are one process, so that its memory bounds all three from above.
"""

import asyncio
import contextlib
import resource
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import h2.settings

from credgate.gateway import lane
from credgate.gateway.steps import Timeouts
from tests.credgate.gateway_rig import Client, Rig, Seen, rig
from tests.credgate.h2_rig import H2Client

type Figures = dict[str, float | int | str]
type Case = Callable[[Path, int], Awaitable[Figures]]
BOTH = ("h2", "http/1.1")
MIB = 1 << 20


def resident() -> int:
    """Bytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cpu() -> float:
    """Seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def answers_still(r: Rig) -> float:
    """Milliseconds for an ordinary request, new connection included."""
    started = time.monotonic()
    client = await r.tunnel()
    assert (await client.get("/free/a", host=f"api.good.test:{r.direct}")).status == 200
    client.close()
    return round((time.monotonic() - started) * 1000, 1)


async def gone(r: Rig) -> None:
    """Wait until no client connection is left."""
    async with asyncio.timeout(10):
        while any(i.handlers for instances in r.gateway._instances.values() for i in instances):
            await asyncio.sleep(0.01)


async def idle_connections(place: Path, count: int) -> Figures:
    """Connections that are open and ask nothing: half of them in TLS."""
    async with rig(place) as r:
        before = resident()
        clients = [await (r.dial(r.proxy) if n % 2 else r.tunnel()) for n in range(count)]
        grown, used = resident() - before, cpu()
        await asyncio.sleep(1.0)
        idle = cpu() - used
        latency = await answers_still(r)
        for client in clients:
            client.close()
        await gone(r)
        assert grown / count < 512 << 10
        assert idle < 0.5
        assert latency < 3000
        return {
            "KiB each, both ends": round(grown / count / 1024),
            "CPU in an idle second": round(idle, 3),
            "ms": latency,
        }


async def slow_clients(place: Path, count: int) -> Figures:
    """A byte of a head every now and then: each connection ends at its time-out, the others are served."""
    old, lane.HEAD_TIMEOUT = lane.HEAD_TIMEOUT, 1.0
    try:
        async with rig(place) as r:
            clients = [await r.tunnel() for _ in range(count)]
            started = time.monotonic()

            async def drip(client: Client) -> float:
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    for byte in b"GET /ok/a HTTP/1.1\r\nHost: " + b"a" * 100:
                        client.writer.write(bytes([byte]))
                        await client.writer.drain()
                        try:
                            async with asyncio.timeout(0.1):
                                assert await client.reader.read(100) == b""
                                break
                        except TimeoutError:
                            continue
                return time.monotonic() - started

            drips = [asyncio.ensure_future(drip(client)) for client in clients]
            latency = await answers_still(r)
            ended = await asyncio.gather(*drips)
            assert max(ended) < 5
            assert r.untouched or len(r.good.seen) == 1
            await gone(r)
            return {"all ended within s": round(max(ended), 1), "ms meanwhile": latency}
    finally:
        lane.HEAD_TIMEOUT = old


async def slow_targets(place: Path, count: int) -> Figures:
    """Targets that answer with a byte now and then, or never: 504 at the time-out, the others are served."""
    async with rig(place, timeouts=Timeouts(first_byte=1.0)) as r:

        async def drip(seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
            if b"/free/a" in seen.line:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                return
            for byte in b"HTTP/1.1 200 OK\r\n" * 30:
                if writer.transport.is_closing():
                    return
                writer.write(bytes([byte]))
                await asyncio.sleep(0.2)

        r.good.script = drip
        clients = [await r.tunnel() for _ in range(count)]
        started = time.monotonic()
        asks = [client.get("/ok/a", host=f"api.good.test:{r.direct}") for client in clients]
        answers = asyncio.gather(*asks)
        latency = await answers_still(r)
        statuses = [answer.status for answer in await answers]
        took = time.monotonic() - started
        assert statuses == [504] * count
        assert took < 10
        return {"all told within s": round(took, 1), "ms meanwhile": latency}


async def large_heads(place: Path, count: int) -> Figures:
    """One MiB of headers: in one field, in many, and without an end."""
    async with rig(place) as r:
        before, latencies = resident(), []
        fields = (
            b"X: " + b"a" * MIB + b"\r\n",
            b"".join(b"X-%d: a\r\n" % n for n in range(MIB // 10)),
            b"X: y\r\n" * (MIB // 6),
        )
        for n in range(count):
            for field in fields:
                client = await r.tunnel()
                with contextlib.suppress(ConnectionError):
                    client.writer.write(b"GET /ok/a HTTP/1.1\r\n" + field + (b"\r\n" if n % 2 else b""))
                    assert (await client.answer()).status == 400
                client.close()
            latencies.append(await answers_still(r))
        await gone(r)
        assert len(r.good.seen) == count
        grown = resident() - before
        assert grown < 32 * MIB
        return {"MiB grown": round(grown / MIB, 1), "ms after": max(latencies)}


async def speak_h2(r: Rig) -> H2Client:
    opened = await r.tunnel("h2.good.test", alpn=BOTH)
    return H2Client(opened.reader, opened.writer)


def head(r: Rig, path: bytes = b"/ok/a") -> list[tuple[bytes, bytes]]:
    pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"h2.good.test:%d" % r.direct)]
    return [*pseudo, (b":path", path)]


async def streams(place: Path, count: int) -> Figures:
    """Streams on one connection, as many at once as the gateway lets: each is judged and answered."""
    async with rig(place, alpn=BOTH, timeouts=Timeouts()) as r:
        client, before, started = await speak_h2(r), resident(), time.monotonic()
        opened = answered = 0
        async with asyncio.timeout(240):
            while answered < count:
                room = client.conn.remote_settings.get(h2_max(), 100)
                while opened < count and opened - answered < min(room, 100):
                    stream = client.conn.get_next_available_stream_id()
                    client.conn.send_headers(stream, head(r, b"/ok/%d" % opened), end_stream=True)
                    opened += 1
                client.flush()
                for event in client.conn.receive_data(await client.reader.read(65536)):
                    name = type(event).__name__
                    assert name not in {"ConnectionTerminated", "StreamReset"}, event
                    if name == "DataReceived":
                        client.conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    answered += name == "StreamEnded"
        took, grown = time.monotonic() - started, resident() - before
        assert len(r.good.sessions[0].seen) == count
        assert len(r.records("intent")) == count
        assert grown < 64 * MIB
        return {"streams a second, all ends": round(count / took), "MiB grown": round(grown / MIB, 1)}


def h2_max() -> h2.settings.SettingCodes:
    return h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS


async def rapid_resets(place: Path, count: int) -> Figures:
    """HEADERS and RST_STREAM in one go, again and again (CVE-2023-44487): cut off early, the others are served."""
    async with rig(place, alpn=BOTH) as r:
        client, before, used = await speak_h2(r), resident(), cpu()
        for n in range(count):
            stream = client.conn.get_next_available_stream_id()
            client.conn.send_headers(stream, head(r, b"/ok/%d" % n), end_stream=True)
            client.conn.reset_stream(stream)
            if n % 50 == 49:
                client.flush()
                await asyncio.sleep(0)
        client.flush()
        latency = await answers_still(r)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            async with asyncio.timeout(5):
                while await client.reader.read(65536):
                    pass
        client.writer.transport.abort()
        await gone(r)
        seen = sum(len(s.seen) for s in r.good.sessions)
        intents, outcomes = r.records("intent"), r.records("outcome")
        assert seen <= len(intents) <= 110
        assert len(intents) == len(outcomes)
        assert "more streams reset than answered" in {x.get("detail") for x in r.records("deny")}
        grown = resident() - before
        assert grown < 64 * MIB
        assert latency < 1000
        return {
            "judged": len(intents) - 1,
            "CPU s": round(cpu() - used, 1),
            "MiB grown": round(grown / MIB, 1),
            "ms meanwhile": latency,
        }


async def server_names(place: Path, count: int) -> Figures:
    """A name nobody listed, for each connection another: leaves are made, and not kept for ever."""
    async with rig(place) as r:
        before, used, started = resident(), cpu(), time.monotonic()
        for n in range(count):
            client = await r.tls(f"n{n:06d}.evil.test")
            client.close()
            r.clients.clear()  # each keeps a TLS context of the client's
        took, grown = time.monotonic() - started, resident() - before
        kept = len(r.extra["authority"]._contexts)
        assert kept <= 1024
        assert r.untouched
        assert grown < 96 * MIB
        return {
            "contexts kept": kept,
            "MiB grown": round(grown / MIB, 1),
            "ms of CPU each, both ends": round((cpu() - used) / count * 1000, 1),
            "s": round(took, 1),
            "ms after": await answers_still(r),
        }


ODD = (
    b"\x00\x01\x02" * 1000,
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf",
    b"HTTP/1.1 200 OK\r\nContent-Le",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokand more" + b"x" * 100_000,
    b"HTTP/1.1 200 OK\r\n\r\n" * 50,
    b"HTTP/1.1 102 Processing\r\n\r\n" * 5000,
    b"",
)


async def odd_answers(place: Path, count: int) -> Figures:
    """Garbage, half an answer, bytes behind the end, an answer before the request: told or cut off, within 5 s."""
    async with rig(place, timeouts=Timeouts(first_byte=0.3)) as r:
        slowest = 0.0
        for _ in range(count):
            for answer in ODD:
                for closes in (True, False):
                    r.good.script = odd(answer, closes)
                    client, started = await r.tunnel(), time.monotonic()
                    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
                    got = b""
                    with contextlib.suppress(TimeoutError, ConnectionError):
                        async with asyncio.timeout(0.4):
                            while more := await client.reader.read(65536):
                                got += more
                    slowest = max(slowest, time.monotonic() - started)
                    assert got.count(b"HTTP/1.1 ") <= 1 or answer.count(b"HTTP/1.1 200") > 1
                    client.close()
                    await asyncio.sleep(0.02)
                    r.gateway._hooks.pool.close(r.run)
        await gone(r)
        assert slowest < 5
        assert len(r.records("intent")) == len(r.records("outcome"))
        return {"answers": count * len(ODD) * 2, "slowest s": round(slowest, 1)}


def odd(answer: bytes, closes: bool) -> Callable[..., Awaitable[None]]:
    async def script(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if closes:
            writer.close()

    return script


async def event_gaps(place: Path, count: int) -> Figures:
    """An event stream that is silent between two events, half a second here, 25 s in full."""
    gap, events = (25.0, 5) if count >= 25 else (0.5, count)
    async with rig(place, timeouts=Timeouts()) as r:

        async def stream(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for n in range(events):
                await asyncio.sleep(gap)
                event = b"data: %f %d\n\n" % (time.monotonic(), n)
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            writer.write(b"0\r\n\r\n")

        r.good.script = stream
        client, delays = await r.tunnel(), []
        client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
        for _ in range(events):
            async with asyncio.timeout(gap + 5):
                line = await client.reader.readuntil(b"\n\n")
            delays.append(time.monotonic() - float(line.rpartition(b"data: ")[2].split()[0]))
        await client.reader.readuntil(b"0\r\n\r\n")
        assert max(delays) < 0.25
        return {"events": events, "gap s": gap, "slowest ms": round(max(delays) * 1000, 1)}


async def transfers(place: Path, count: int) -> Figures:
    """64 MB down and 64 MB up, again and again: what is kept does not grow with what passes."""
    size, chunk = 64 * MIB, b"x" * (256 << 10)
    async with rig(place, timeouts=Timeouts()) as r:

        async def serve(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            left = sum(int(v) for v in seen.values(b"content-length"))
            while left:
                left -= len(await reader.read(1 << 18))
            down = size if seen.line.startswith(b"GET") else 0
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % down)
            for _ in range(down // len(chunk)):
                writer.write(chunk)
                await writer.drain()

        r.good.script = serve
        client, peaks, started = await r.tunnel(), [], time.monotonic()
        await once(r, client, size, chunk)  # what is needed once is not growth
        before = resident()
        for _ in range(count):
            await once(r, client, size, chunk)
            peaks.append(resident())
        took = time.monotonic() - started
        assert len(r.records("outcome")) == 2 * (count + 1)
        grown = max(peaks) - before
        assert grown <= 16 * MIB
        return {"MiB grown": round(grown / MIB, 1), "MB/s, all ends": round(2 * (count + 1) * 64 / took)}


async def once(r: Rig, client: Client, size: int, chunk: bytes) -> None:
    """One way and the other."""
    host = b"Host: api.good.test:%d" % r.direct
    client.writer.write(b"GET /ok/a HTTP/1.1\r\n%s\r\n\r\n" % host)
    await client.reader.readuntil(b"\r\n\r\n")
    left = size
    while left:
        left -= len(await client.reader.read(1 << 18))
    client.writer.write(b"PUT /ok/a HTTP/1.1\r\n%s\r\nContent-Length: %d\r\n\r\n" % (host, size))
    for _ in range(size // len(chunk)):
        client.writer.write(chunk)
        await client.writer.drain()
    assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


CASES: dict[str, Case] = {
    "idle_connections": idle_connections,
    "slow_clients": slow_clients,
    "slow_targets": slow_targets,
    "large_heads": large_heads,
    "streams": streams,
    "rapid_resets": rapid_resets,
    "server_names": server_names,
    "odd_answers": odd_answers,
    "event_gaps": event_gaps,
    "transfers": transfers,
}
FULL: dict[str, int] = {
    "idle_connections": 500,
    "slow_clients": 500,
    "slow_targets": 500,
    "large_heads": 20,
    "streams": 10_000,
    "rapid_resets": 10_000,
    "server_names": 2_000,
    "odd_answers": 5,
    "event_gaps": 25,
    "transfers": 10,
}
