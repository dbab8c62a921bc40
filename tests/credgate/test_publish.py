"""Ports of a jail on the host's loopback: piped, counted, and there for no longer than the run."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from credgate.errors import CredgateError
from credgate.gateway.publish import bound
from rules.policy import Budget
from tests.credgate.gateway_rig import Client, Rig, free_port, rig
from tests.credgate.test_tcp import Server, until


class Elsewhere(socket.socket):
    """Stands for a socket of the jail's namespace: there the same port is another one."""

    to = 0

    def connect(self, address: object) -> None:
        assert isinstance(address, tuple)
        super().connect((address[0], self.to))


@dataclass
class Place:
    r: Rig
    server: Server
    port: int

    async def dial(self) -> Client:
        return await self.r.dial(self.port)


@contextlib.asynccontextmanager
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    server = Server()
    up = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    inside = up.sockets[0].getsockname()[1]

    async def make() -> socket.socket:
        sock = Elsewhere(socket.AF_INET, socket.SOCK_STREAM)
        sock.to = server.port or inside
        sock.setblocking(False)
        return sock

    async with rig(tmp_path) as r:
        port = free_port()
        object.__setattr__(r.run.role_rule, "publish", (port,))
        await r.gateway.publish(r.run, [port], make)
        yield Place(r, server, port)
    up.close()


def running(tmp_path: Path, test: Callable[[Place], Awaitable[None]]) -> None:
    async def main() -> None:
        async with place(tmp_path) as p:
            await test(p)

    asyncio.run(main())


def test_bytes_both_ways_and_the_ledger_says_which(tmp_path: Path) -> None:
    async def test(p: Place) -> None:
        p.server.hello = b"from the jail"
        client = await p.dial()
        assert await client.reader.readexactly(13) == b"from the jail"
        client.writer.write(b"x")
        assert await client.reader.readexactly(1) == b"x"
        client.writer.write_eof()
        assert await client.rest() == b"bye"
        await until(lambda: len(p.r.records("tunnel")) == 2)
        first, last = p.r.records("tunnel")
        assert (first["via"], first["rule"], first["port"], first["run"]) == ("publish", "publish", p.port, p.r.run.id)
        assert (last["req_bytes"], last["resp_bytes"]) == (17, 1)  # out of the jail, and into it

    running(tmp_path, test)


def test_nothing_listens_inside(tmp_path: Path) -> None:
    async def test(p: Place) -> None:
        p.server.port = free_port()
        assert await (await p.dial()).rest() == b""
        await until(lambda: len(p.r.records("tunnel")) == 2)
        assert p.r.records("tunnel")[1]["reason"] == "upstream_unreachable"

    running(tmp_path, test)


@pytest.mark.parametrize("what", ["proof", "revoked", "paused", "reload"])
def test_a_run_without_rights_is_not_reached(what: str, tmp_path: Path) -> None:
    async def test(p: Place) -> None:
        if what == "reload":  # to a policy that publishes another port
            object.__setattr__(p.r.run.role_rule, "publish", (p.port + 1,))
        else:
            setattr(p.r.run, what, "" if what == "proof" else True)
        assert await (await p.dial()).rest() == b""
        assert p.server.connections == 0
        assert p.r.records("tunnel") == []

    running(tmp_path, test)


def test_what_comes_out_is_bytes_out(tmp_path: Path) -> None:
    async def test(p: Place) -> None:
        object.__setattr__(p.r.run.role_rule, "budget", Budget(bytes_out=100))
        client = await p.dial()
        client.writer.write(bytes(90))
        assert await client.reader.readexactly(90) == bytes(90)
        client.writer.write(bytes(90))
        assert await client.rest() == b""
        await until(lambda: len(p.r.records("tunnel")) == 2)
        assert p.r.records("tunnel")[1]["reason"] == "budget_exhausted"

    running(tmp_path, test)


@pytest.mark.parametrize("how", ["close", "cut"])
def test_it_ends_with_the_run(how: str, tmp_path: Path) -> None:
    async def test(p: Place) -> None:
        client = await p.dial()
        client.writer.write(b"x")
        assert await client.reader.readexactly(1) == b"x"
        if how == "close":
            await p.r.gateway.close(p.r.run.id)
            with pytest.raises(ConnectionRefusedError):
                await p.dial()
        else:
            assert p.r.gateway.cut(p.r.run.id, "revoked") >= 1
        assert await client.rest() == b""
        await until(lambda: p.server.ended)

    running(tmp_path, test)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async def test(p: Place) -> None:
        with pytest.raises(CredgateError, match="publish") as caught:
            await p.r.gateway.publish(p.r.run, [p.port], lambda: None)  # type: ignore[arg-type, return-value]
        assert (caught.value.code, caught.value.exit_status) == ("port_taken", 125)

    running(tmp_path, test)


def test_it_is_the_loopback_alone() -> None:
    with bound(free_port()) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
