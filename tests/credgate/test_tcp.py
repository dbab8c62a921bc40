"""Opaque TCP: a port of the gateway, piped to a judged address, counted, and ended with the run."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from credgate.gateway import dial
from credgate.gateway.handler import reset
from credgate.gateway.steps import Timeouts
from credgate.ledger.record import LedgerError
from credgate.runs import Listener
from rules.policy import Budget
from tests.credgate.gateway_rig import PATIENT, POLICY, Client, Rig, free_port, listening, resetting, rig

HOST = "db.good.test"
TABLE = """
[endpoint.db]
host = "db.good.test"
port = PORT
address = ["127.0.0.0/8"]
protocol = "tcp"
listen = LISTEN
[endpoint.good]"""


@dataclass
class Server:
    """A server of no protocol: what it gets, and what it does with each piece."""

    port: int = 0
    got: bytes = b""
    hello: bytes = b""
    echo: bool = True
    connections: int = 0
    ended: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            writer.write(self.hello)
            while data := await reader.read(65536):
                self.got += data
                if self.echo:
                    writer.write(data)
                    await writer.drain()
            self.ended.append("eof")
            writer.write(b"bye")
        except ConnectionError:
            self.ended.append("reset")
        writer.close()


@dataclass
class Db:
    """The rig, its server behind the tunnel, and the gateway's port that leads there."""

    r: Rig
    server: Server
    listen: int

    async def dial(self) -> Client:
        return await self.r.dial(self.listen)

    def tunnels(self) -> list[dict[str, object]]:
        return self.r.records("tunnel")


@contextlib.asynccontextmanager
async def db(tmp_path: Path, timeouts: Timeouts = PATIENT) -> AsyncIterator[Db]:
    server = Server()
    up = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = up.sockets[0].getsockname()[1]
    sock = listening()
    port = int(sock.getsockname()[1])
    table = TABLE.replace("PORT", str(server.port)).replace("LISTEN", str(port))
    policy = POLICY.replace("\n[endpoint.good]", table, 1)
    policy = policy.replace('endpoints = ["plain", "looked-up"]', 'endpoints = ["plain", "looked-up", "db"]')
    async with rig(tmp_path, policy=policy, timeouts=timeouts) as r:
        r.names[HOST] = (ip_address("127.0.0.1"),)
        run = dataclasses.replace(r.run, id="run-2")
        await r.gateway.serve(run, [Listener(sock=sock, port=port, proxy=False)])
        r.run = run
        yield Db(r, server, port)
    up.close()


def running(tmp_path: Path, test: Callable[[Db], Awaitable[None]], **kw: Timeouts) -> None:
    async def main() -> None:
        async with db(tmp_path, **kw) as d:
            await test(d)

    asyncio.run(main())


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def test_bytes_pass_as_they_are_and_are_counted(tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        d.server.hello = b"\x00server speaks first"
        client = await d.dial()
        assert await client.reader.readexactly(len(d.server.hello)) == d.server.hello
        sent = b"GET / HTTP/1.1\r\nHost: evil.test\r\nAuthorization: Bearer mine\r\n\r\n" + os.urandom(1000)
        client.writer.write(sent)
        assert await client.reader.readexactly(len(sent)) == sent  # no one reads or changes it, HTTP or not
        client.writer.write_eof()
        assert await client.rest() == b"bye"
        assert d.server.ended == ["eof"]
        await until(lambda: len(d.tunnels()) == 2)
        first, last = d.tunnels()
        assert (first["verdict"], first["rule"], first["host"], first["port"]) == ("allow", "db", HOST, d.server.port)
        assert (first["pin"], first["run"], first["via"]) == ("127.0.0.1", "run-2", "tcp")
        assert last["intent_seq"] == first["seq"]
        assert (last["req_bytes"], last["resp_bytes"]) == (len(sent), len(d.server.hello) + len(sent) + 3)
        assert "reason" not in last and "detail" not in last
        assert (d.r.run.allowed, d.r.run.denied) == (1, 0)

    running(tmp_path, test)


def test_the_line_is_there_before_the_first_byte(tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        await d.dial()
        await until(lambda: d.server.connections)
        assert [t["verdict"] for t in d.tunnels()] == ["allow"]

    running(tmp_path, test)


def test_a_target_that_resets_as_it_stands_is_no_fault_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(d: Db) -> None:
        async with resetting(monkeypatch) as port:
            object.__setattr__(d.r.run.policy.endpoints["db"], "dial_port", port)
            client = await d.dial()
            assert await client.rest() == b""
        await until(lambda: len(d.tunnels()) == 2)
        assert (d.tunnels()[1]["reason"], d.r.reasons()) == ("upstream_reset", [])

    running(tmp_path, test)


def test_many_megabytes_both_ways_at_once(tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        client = await d.dial()
        sent = os.urandom(1 << 20) * 16

        async def send() -> None:
            for start in range(0, len(sent), 1 << 16):
                client.writer.write(sent[start : start + (1 << 16)])
                await client.writer.drain()
            client.writer.write_eof()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            got = await client.rest()
        assert got == sent + b"bye"
        await until(lambda: len(d.tunnels()) == 2)
        assert d.tunnels()[1]["req_bytes"] == len(sent)

    running(tmp_path, test)


def test_a_slow_reader_fills_nothing(tmp_path: Path) -> None:
    """What the target will not take stays with the client: the gateway holds less than a megabyte of it."""

    async def test(d: Db) -> None:
        d.server.echo = False
        loop = asyncio.get_running_loop()
        stuck = asyncio.Event()

        async def stand_still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await stuck.wait()
            writer.close()

        still = await asyncio.start_server(stand_still, "127.0.0.1", 0, limit=1024)
        object.__setattr__(d.r.run.policy.endpoints["db"], "dial_port", still.sockets[0].getsockname()[1])
        client = await d.dial()
        client.writer.transport.set_write_buffer_limits(0)
        passed, start = 0, loop.time()
        with contextlib.suppress(TimeoutError):
            while loop.time() - start < 3:
                client.writer.write(bytes(1 << 16))
                async with asyncio.timeout(0.5):
                    await client.writer.drain()
                passed += 1 << 16
        handler = next(h for i in d.r.gateway._instances["run-2"] for h in i.handlers)
        held = sum(w.transport.get_write_buffer_size() for w in handler._writers)
        assert passed < 32 << 20  # the kernel's own buffers on two connections
        assert held < 1 << 20
        stuck.set()
        still.close()

    running(tmp_path, test)


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "127.0.0.99"])
def test_the_address_is_judged(address: str, tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        d.r.names[HOST] = (ip_address("127.0.0.1"), ip_address(address))
        client = await d.dial()
        assert await client.rest() == b""
        assert d.server.connections == 0
        [deny] = d.r.records("deny")
        assert deny["reason"] in ("address_blocked", "metadata")
        assert (deny["host"], deny["port"]) == (HOST, d.server.port)
        assert d.r.run.denied == 1

    running(tmp_path, test)


@pytest.mark.parametrize("what", ["proof", "revoked", "paused", "budget"])
def test_a_run_without_rights_has_no_tunnel(what: str, tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        if what == "proof":
            d.r.run.proof = ""
        elif what == "budget":
            object.__setattr__(d.r.run.role_rule, "budget", Budget(requests=0))
        else:
            setattr(d.r.run, what, True)
        assert await (await d.dial()).rest() == b""
        assert d.server.connections == 0
        assert d.tunnels() == []
        assert len(d.r.records("deny")) == 1

    running(tmp_path, test)


def test_the_budget_of_bytes_ends_it(tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        object.__setattr__(d.r.run.role_rule, "budget", Budget(bytes_out=1000))
        client = await d.dial()
        client.writer.write(bytes(900))
        assert await client.reader.readexactly(900) == bytes(900)
        client.writer.write(bytes(200))
        assert await client.rest() == b""
        await until(lambda: len(d.tunnels()) == 2)
        last = d.tunnels()[1]
        assert (last["req_bytes"], last["reason"]) == (900, "budget_exhausted")
        assert len(d.server.got) == 900

    running(tmp_path, test)


def test_nobody_listens(tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        object.__setattr__(d.r.run.policy.endpoints["db"], "dial_port", free_port())
        assert await (await d.dial()).rest() == b""
        await until(lambda: len(d.tunnels()) == 2)
        assert d.tunnels()[1]["reason"] == "upstream_unreachable"

    running(tmp_path, test)


@pytest.mark.parametrize("how", ["close", "cut"])
def test_the_run_ends_and_the_tunnel_with_it(how: str, tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        client = await d.dial()
        client.writer.write(b"x")
        assert await client.reader.readexactly(1) == b"x"
        started = asyncio.get_running_loop().time()
        if how == "close":
            await d.r.gateway.close("run-2")
        else:
            assert d.r.gateway.cut("run-2", "revoked") == 1
        assert await client.rest() == b""
        await until(lambda: d.server.ended)
        assert asyncio.get_running_loop().time() - started < 30  # nothing moves: half of what it may rest
        last = d.tunnels()[-1]
        assert last["detail"] and last["req_bytes"] == 1

    running(tmp_path, test)


def test_idle(tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        client = await d.dial()
        for _ in range(4):  # more than the limit in all, and never that long without a byte
            await asyncio.sleep(0.6)
            client.writer.write(b"x")
            assert await client.reader.readexactly(1) == b"x"
        assert await client.rest() == b""
        assert d.tunnels()[-1]["detail"] == "nothing moved"

    running(tmp_path, test, timeouts=dataclasses.replace(PATIENT, idle=2.0))


@pytest.mark.parametrize("who", ["client", "target"])
def test_a_reset_is_passed_on(who: str, tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        client = await d.dial()
        client.writer.write(b"x")
        assert await client.reader.readexactly(1) == b"x"
        if who == "client":
            reset(client.writer)
            await until(lambda: d.server.ended)
            assert d.server.ended == ["reset"]
        else:
            for task in asyncio.all_tasks():
                if "Server.serve" in repr(task.get_coro()):
                    task.cancel()
            assert await client.rest() in (b"", b"bye")
            client.close()  # it was half closed until now, which is its right
        await until(lambda: len(d.tunnels()) == 2)

    running(tmp_path, test)


def test_a_peer_that_is_not_the_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(d: Db) -> None:
        real = dial._open

        async def elsewhere(_address: object, port: int) -> object:
            return await real(ip_address("127.0.0.1"), port)

        monkeypatch.setattr(dial, "_open", elsewhere)
        d.r.names[HOST] = (ip_address("127.0.0.2"),)
        client = await d.dial()
        client.writer.write(b"x")
        assert await client.rest() == b""
        await until(lambda: len(d.tunnels()) == 2)
        assert d.tunnels()[1]["reason"] == "internal"
        assert d.server.got == b""

    running(tmp_path, test)


def test_a_ledger_that_can_not_be_written_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(d: Db) -> None:
        def full(*_: object, **__: object) -> int:
            raise LedgerError("ledger_full", "no room")

        with monkeypatch.context() as broken:
            broken.setattr(d.r.extra["ledger"], "append", full)
            assert await (await d.dial()).rest() == b""
        assert d.server.connections == 0

    running(tmp_path, test)


def test_its_host_is_no_target_of_http(tmp_path: Path) -> None:
    async def test(d: Db) -> None:
        r = d.r
        client = await r.tunnel(HOST)
        answer = await client.get(host=f"{HOST}:{r.direct}")
        assert (answer.status, answer.code) == (403, "host_unlisted")
        for port in (d.server.port, d.listen):
            asked = await r.dial(r.proxy)
            refused = await asked.ask(b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (HOST.encode(), port))
            assert (refused.status, refused.code) == (403, "port_unlisted")
        assert d.server.connections == 0

    running(tmp_path, test)
