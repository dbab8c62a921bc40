"""The sockets, on loopback: what a library's server got wrong (half-open, split, pipelined, huge), limits, records."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from resolver import limits
from resolver import server as module
from resolver.errors import ResolverError
from resolver.events import Code, Event
from resolver.server import Server
from rules.hosts import HostPattern
from rules.names import NameTable
from rules.policy import Unlisted
from tests.resolver.bench import (
    FORMERR,
    GATEWAY,
    NXDOMAIN,
    SERVFAIL,
    Client,
    answers,
    framed,
    query,
    rcode,
    sockets,
    table,
)


@dataclass(slots=True)
class Bench:
    """One server with run "r1"."""

    server: Server
    events: list[Event]
    udp: tuple[str, int]
    tcp: tuple[str, int]
    client: Client

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to the run's socket."""
        return await asyncio.open_connection(*self.tcp)

    def codes(self) -> list[Code]:
        """The codes recorded so far."""
        return [event.code for event in self.events]


@asynccontextmanager
async def serving(unlisted: Unlisted = Unlisted.NXDOMAIN) -> AsyncGenerator[Bench]:
    """A server for the time of a test; removing the run must leave no task behind."""
    events: list[Event] = []
    udp, tcp = sockets()
    addresses = udp.getsockname(), tcp.getsockname()
    async with asyncio.TaskGroup() as tasks:
        server = Server(tasks, events.append)
        server.add("r1", table(unlisted), udp, tcp)
        client = Client(addresses[0])
        try:
            yield Bench(server, events, *addresses, client)
        finally:
            client.close()
            await server.remove("r1")


async def read_framed(reader: asyncio.StreamReader) -> bytes:
    """One message of a TCP connection."""
    size = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 5), "big")
    return await reader.readexactly(size)


@pytest.mark.parametrize("unlisted", list(Unlisted))
def test_udp_allow_and_deny(unlisted: Unlisted) -> None:
    """Both verdicts over a real socket, with their records; the allowed name is recorded once."""

    async def run() -> None:
        async with serving(unlisted) as bench:
            assert answers(await bench.client.ask(query("api.github.com"))) == [GATEWAY]
            assert answers(await bench.client.ask(query("API.github.com"))) == [GATEWAY]
            denied = await bench.client.ask(query("evil.example"))
            assert (rcode(denied), answers(denied)) == ((NXDOMAIN, []) if unlisted == "nxdomain" else (0, [GATEWAY]))
            assert [(e.code, e.name) for e in bench.events] == [
                (Code.ALLOW, "api.github.com"),
                (Code.DENY, "evil.example"),
            ]
        totals = {e.detail: e.count for e in bench.events if e.code is Code.TOTAL}
        assert totals == {"dns.allow": 2, "dns.deny": 1}

    asyncio.run(run())


def test_udp_60_kb_message_is_answered_at_once() -> None:
    """FORMERR for what cost a library 88 s, and the next query is served."""

    async def run() -> None:
        chain = b"\x01a" + b"".join(b"\x01a" + (0xC000 | 12 + 4 * n).to_bytes(2, "big") for n in range(900))
        huge = b"\x00\x01\x01\x00\x27\x10" + bytes(6) + chain + b"\xcd\x00\x00\x01\x00\x01" * 9_000
        assert len(huge) > 57_000
        async with serving() as bench:
            for message in (huge, huge[:512], huge[:200]):
                start = time.thread_time()
                assert rcode(await bench.client.ask(message)) == FORMERR
                assert time.thread_time() - start < 0.5
            assert answers(await bench.client.ask(query("api.github.com"))) == [GATEWAY]
            assert bench.codes().count(Code.MALFORMED) == 3

    asyncio.run(run())


def test_udp_label_with_a_dot_is_not_the_listed_name() -> None:
    """As text both names are equal."""

    async def run() -> None:
        async with serving(Unlisted.GATEWAY) as bench:
            header = b"\x00\x07\x01\x00\x00\x01" + bytes(6)
            tail = b"\x03com\x00\x00\x01\x00\x01"
            assert rcode(await bench.client.ask(header + b"\x0aapi.github" + tail)) == FORMERR
            assert answers(await bench.client.ask(header + b"\x03api\x06github" + tail)) == [GATEWAY]

    asyncio.run(run())


def test_udp_response_is_dropped() -> None:
    """No answer to a response, to TC, to UPDATE: the answer that comes is that of the query behind."""

    async def run() -> None:
        async with serving() as bench:
            for flags in (b"\x81\x00", b"\x03\x00", b"\x29\x00"):
                bench.client.send(b"\xff\xff" + flags + query("api.github.com")[4:])
            bench.client.send(b"short")
            bench.client.send(b"")
            await bench.client.ask(query("api.github.com"))
            assert bench.codes() == [Code.MALFORMED] * 5 + [Code.ALLOW]

    asyncio.run(run())


def test_tcp_prefix_in_two_segments_and_bytes_one_by_one() -> None:
    """RFC 7766 section 8: no border of a segment means anything."""

    async def run() -> None:
        async with serving() as bench:
            reader, writer = await bench.dial()
            for byte in framed(query("api.github.com")):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.002)
            assert answers(await read_framed(reader)) == [GATEWAY]
            writer.close()

    asyncio.run(run())


def test_tcp_pipelined() -> None:
    """Several queries in one segment, each answered, in order."""

    async def run() -> None:
        async with serving() as bench:
            reader, writer = await bench.dial()
            asked = [query(name) for name in ("api.github.com", "evil.example", "a.cdn.example")]
            writer.write(b"".join(framed(data) for data in asked))
            replies = [await read_framed(reader) for _ in asked]
            assert [reply[:2] for reply in replies] == [data[:2] for data in asked]
            assert [answers(reply) for reply in replies] == [[GATEWAY], [], [GATEWAY]]
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("size", [513, 514, 60_000, 65_535])
def test_tcp_long_message(size: int) -> None:
    """FORMERR, and the connection goes on behind its last byte."""

    async def run() -> None:
        async with serving() as bench:
            reader, writer = await bench.dial()
            asked = query("api.github.com")
            writer.write(framed(asked + bytes(size - len(asked))) + framed(asked))
            assert rcode(await read_framed(reader)) == FORMERR
            assert answers(await read_framed(reader)) == [GATEWAY]
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("bad", [framed(b""), framed(b"\x00\x01\x81\x00" + bytes(8))])
def test_tcp_what_has_no_answer_ends_the_connection(bad: bytes) -> None:
    """A client would otherwise wait for it."""

    async def run() -> None:
        async with serving() as bench:
            reader, writer = await bench.dial()
            writer.write(bad + framed(query("api.github.com")))
            with suppress(ConnectionResetError):  # the second query was still unread
                assert await asyncio.wait_for(reader.read(), 1.0) == b""
            writer.close()

    asyncio.run(run())


def test_tcp_half_open_connections_end_and_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 of them: four are held, in no thread; UDP is served meanwhile, TCP after their time is up."""
    monkeypatch.setattr(module, "TCP_SECONDS", 0.2)

    async def run() -> None:
        async with serving() as bench:
            threads = threading.active_count()
            idle = [await bench.dial() for _ in range(40)]
            idle[0][1].write(b"\x00")
            await asyncio.sleep(0.05)
            # private, but nothing else shows that a connection waits in the kernel and not in us
            assert len(bench.server._runs["r1"]._connections) == module.TCP_CONNECTIONS
            assert threading.active_count() == threads
            assert answers(await bench.client.ask(query("api.github.com"), 0.2)) == [GATEWAY]
            for reader, writer in idle[:8]:
                assert await asyncio.wait_for(reader.read(), 2.0) == b""
                writer.close()
            for _, writer in idle[8:]:
                writer.close()
            reader, writer = await bench.dial()
            writer.write(framed(query("api.github.com")))
            assert answers(await read_framed(reader)) == [GATEWAY]
            writer.close()

    asyncio.run(run())


def test_tcp_total_time_counts_not_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then doesn't keep a connection."""
    monkeypatch.setattr(module, "TCP_SECONDS", 0.3)

    async def run() -> None:
        async with serving() as bench:
            reader, writer = await bench.dial()
            start = time.perf_counter()
            with suppress(ConnectionError):
                for byte in framed(query("api.github.com")):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.05)
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 1.0) == b""
            assert time.perf_counter() - start < 3.0
            writer.close()

    asyncio.run(run())


class StoppedClock:
    """The module `time` in one and the same second."""

    thread_time = staticmethod(time.thread_time)

    @staticmethod
    def monotonic() -> float:
        return 5.0


@pytest.fixture
def twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second that doesn't end, in which a run has twenty messages."""
    monkeypatch.setattr(module, "time", StoppedClock)
    monkeypatch.setattr(limits, "MESSAGES_PER_SECOND", 20)


@pytest.mark.usefixtures("twenty")
def test_tcp_connections_that_ask_for_nothing_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost more than a message does, and no message counts them."""
    taken: list[socket.socket] = []

    async def serve(_: object, conn: socket.socket) -> None:
        taken.append(conn)
        conn.close()

    monkeypatch.setattr(module._RunServer, "_serve", serve)  # private: how many are accepted shows nowhere else

    async def run() -> None:
        async with serving() as bench:
            for _ in range(40):
                _, writer = await bench.dial()
                writer.close()
            for _ in range(200):
                await asyncio.sleep(0.002)
        assert len(taken) == 20

    asyncio.run(run())


@pytest.mark.usefixtures("twenty")
def test_tcp_bytes_one_by_one_are_counted() -> None:
    """A read for one byte costs what a message does: a query in more pieces than a second has has no answer in it."""

    async def run() -> None:
        async with serving() as bench:
            reader, writer = await bench.dial()
            with suppress(ConnectionError):
                for byte in framed(query("a-name-with-more-bytes-than-that.github.com")):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.002)
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 10.0) == b""
            writer.close()
        assert bench.events[-1].detail == Code.TCP_ENDED.value

    asyncio.run(run())


@pytest.mark.parametrize("unlisted", list(Unlisted))
def test_row_24_flood(unlisted: Unlisted) -> None:
    """120 denials in a moment: every one answered as before, at most 50 a second recorded, one alarm."""

    async def run() -> None:
        async with serving(unlisted) as bench:
            wanted = answers(await bench.client.ask(query("first.evil.example")))
            for n in range(120):
                assert answers(await bench.client.ask(query(f"n{n}.evil.example"))) == wanted
            codes = bench.codes()
            assert codes.count(Code.FLOOD) == 1
            assert codes.count(Code.DENY) <= 100  # the loop may cross one border of a second
            (flood,) = [event for event in bench.events if event.code is Code.FLOOD]
            assert flood.count > 50
        assert [e.count for e in bench.events if e.code is Code.TOTAL and e.detail == "dns.deny"] == [121]

    asyncio.run(run())


def test_row_5_cap_of_wildcard_names() -> None:
    """The 257th name has no address, one alarm; the names before keep theirs."""

    async def run() -> None:
        async with serving() as bench:
            for n in range(256):
                assert answers(await bench.client.ask(query(f"n{n}.cdn.example"))) == [GATEWAY]
            for n in range(256, 300):
                assert rcode(await bench.client.ask(query(f"n{n}.cdn.example"))) == NXDOMAIN
            assert answers(await bench.client.ask(query("n7.cdn.example"))) == [GATEWAY]
            assert bench.codes().count(Code.DENY_WILDCARD) == 1
            assert bench.codes().count(Code.ALLOW) == 256

    asyncio.run(run())


def test_row_13_revoke() -> None:
    """From the next query on."""

    async def run() -> None:
        async with serving() as bench:
            assert answers(await bench.client.ask(query("api.github.com"))) == [GATEWAY]
            bench.server.revoke("r1")
            assert rcode(await bench.client.ask(query("api.github.com"))) == NXDOMAIN
            assert bench.codes() == [Code.ALLOW, Code.DENY_REVOKED]

    asyncio.run(run())


def test_another_table_counts_from_the_next_query_on() -> None:
    """Counts go on: a reload gives a flood no new start."""

    async def run() -> None:
        async with serving() as bench:
            assert answers(await bench.client.ask(query("api.github.com"))) == [GATEWAY]
            assert rcode(await bench.client.ask(query("evil.example"))) == NXDOMAIN
            bench.server.replace("r1", replace(table(), exact=frozenset({("evil", "example")})))
            assert rcode(await bench.client.ask(query("api.github.com"))) == NXDOMAIN
            assert answers(await bench.client.ask(query("evil.example"))) == [GATEWAY]
            with pytest.raises(ResolverError):
                bench.server.replace("r2", table())

    asyncio.run(run())


def test_row_25_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """SERVFAIL with the question, an alarm without the exception's text, and the service goes on."""

    async def run() -> None:
        async with serving(Unlisted.GATEWAY) as bench:
            with monkeypatch.context() as patch:

                def broken(*_: object, **__: object) -> None:
                    raise RecursionError("a text that names a path")

                patch.setattr(module, "answer", broken)
                for _ in range(100):
                    reply = await bench.client.ask(query("api.github.com"))
                    assert (rcode(reply), answers(reply)) == (SERVFAIL, [])
            assert bench.events == [Event(run="r1", code=Code.ERROR, detail="RecursionError")]
            assert answers(await bench.client.ask(query("api.github.com"))) == [GATEWAY]

    asyncio.run(run())


def test_a_run_that_asks_without_pause_does_not_starve_another() -> None:
    """One run is flooded for a second; the other is answered at once, and the flood is read at its pace."""

    async def run() -> None:
        async with serving() as bench:
            udp, tcp = sockets()
            noisy = udp.getsockname()
            bench.server.add("noisy", table(), udp, tcp)
            until = time.monotonic() + 1.2
            data = query("evil.example")

            def flood() -> None:
                sender = Client(noisy)
                while time.monotonic() < until:
                    for _ in range(40):
                        sender.send(data)
                    time.sleep(0.005)
                sender.close()

            thread = threading.Thread(target=flood)
            thread.start()
            slowest = 0.0
            while thread.is_alive():
                start = time.thread_time()  # of the server, on this very thread: what else the machine does is not its
                await bench.client.ask(query("api.github.com"))
                slowest = max(slowest, time.thread_time() - start)
                await asyncio.sleep(0.02)
            thread.join()
            await bench.server.remove("noisy")
            assert slowest < 0.5
            served = [e.count for e in bench.events if (e.run, e.detail) == ("noisy", "dns.deny")]
            assert 100 < served[0] <= 3_000

    asyncio.run(run())


def test_a_run_whose_questions_are_dear_does_not_starve_another() -> None:
    """120 labels against 500 wildcards: the run gets a quarter of the time, the other is answered meanwhile."""

    async def run() -> None:
        async with serving() as bench:
            udp, tcp = sockets()
            wild = tuple(HostPattern.parse(f"**.zone{n}.example") for n in range(500))
            bench.server.add("dear", NameTable(gateway_ip=GATEWAY, wildcards=wild), udp, tcp)
            sender = Client(udp.getsockname())
            data = query(".".join(["a"] * 120))
            spent = time.thread_time()
            until = time.monotonic() + 1.5
            slowest = 0.0
            while time.monotonic() < until:
                for _ in range(10):
                    sender.send(data)
                start = time.thread_time()
                await bench.client.ask(query("api.github.com"))
                slowest = max(slowest, time.thread_time() - start)
                await asyncio.sleep(0.02)
            spent = time.thread_time() - spent
            assert slowest < 1.0
            assert spent < 1.2  # up to three borders of a second, and this loop's own work; unbounded it is all 1.5
            sender.close()
            await bench.server.remove("dear")

    asyncio.run(run())


def test_runs_have_their_own_tables_and_sockets() -> None:
    """A name of one run is unlisted in the other; a removed run answers no more, and its sockets are closed."""

    async def run() -> None:
        async with serving(Unlisted.GATEWAY) as bench:
            udp, tcp = sockets()
            other = Client(udp.getsockname())
            bench.server.add("r2", table(Unlisted.NXDOMAIN), udp, tcp)
            assert rcode(await other.ask(query("evil.example"))) == NXDOMAIN
            assert answers(await bench.client.ask(query("evil.example"))) == [GATEWAY]
            reader, writer = await asyncio.open_connection(*tcp.getsockname())
            await bench.server.remove("r2")
            assert (udp.fileno(), tcp.fileno()) == (-1, -1)
            assert await asyncio.wait_for(reader.read(), 1) == b""
            writer.close()
            with pytest.raises((TimeoutError, ConnectionRefusedError)):
                await other.ask(query("evil.example"), 0.2)
            other.close()

    asyncio.run(run())


def test_orders_that_make_no_sense() -> None:
    """A run twice, an unknown run, sockets of the wrong kind."""

    async def run() -> None:
        async with serving() as bench:
            udp, tcp = sockets()
            with pytest.raises(ResolverError, match="run_known"):
                bench.server.add("r1", table(), udp, tcp)
            with pytest.raises(ResolverError, match="wrong_sockets"):
                bench.server.add("r2", table(), tcp, tcp)
            with pytest.raises(ResolverError, match="wrong_sockets"):
                bench.server.add("r2", table(), udp, udp)
            with pytest.raises(ResolverError, match="run_unknown"):
                bench.server.revoke("r2")
            with pytest.raises(ResolverError, match="run_unknown"):
                await bench.server.remove("r2")
            udp.close()
            tcp.close()

    asyncio.run(run())
