"""`revoke`: the next request is refused, and what is open ends within a second; of one binding, only what used it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from credgate.errors import CredgateError
from credgate.rights import resume, revoke
from credgate.runs import Run
from tests.credgate.gateway_rig import POLICY, Client, Rig, Seen, echo, rig
from tests.credgate.live_rig import Live

type Writer = asyncio.StreamWriter
SOON = 30.0  # seconds; by itself a connection stays open for twice as long, and one in use for ever


async def stream(_seen: Seen, _reader: asyncio.StreamReader, writer: Writer) -> None:
    """Answer without an end: a line each 20 ms."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"5\r\nline\n\r\n")
        await asyncio.sleep(0.02)
        await writer.drain()


async def keep_alive(r: Rig, path: str = "/ok/a") -> Client:
    """A connection on which one request was answered."""
    client = await r.tunnel()
    assert (await client.get(path, f"api.good.test:{r.direct}")).status == 200
    return client


async def streaming(r: Rig, path: str = "/ok/a") -> Client:
    """A connection in the middle of an answer without end."""
    r.good.script = stream
    client = await r.tunnel()
    client.writer.write(f"GET {path} HTTP/1.1\r\nHost: api.good.test:{r.direct}\r\n\r\n".encode())
    assert b" 200 " in await client.reader.readuntil(b"\r\n\r\n")
    await client.reader.readuntil(b"line\n")
    return client


async def uploading(r: Rig) -> Client:
    """A connection in the middle of a request's body."""
    client = await r.tunnel()
    head = f"POST /ok/a HTTP/1.1\r\nHost: api.good.test:{r.direct}\r\nContent-Length: 1000000\r\n\r\n"
    client.writer.write(head.encode() + b"x" * 1000)
    while not r.records("intent"):
        await asyncio.sleep(0.01)
    return client


async def idle_tunnel(r: Rig) -> Client:
    """A CONNECT in which nothing was asked yet."""
    return await r.tunnel()


async def ended(client: Client) -> float:
    """Seconds until the connection is at its end."""
    began = time.monotonic()
    await client.rest()
    return time.monotonic() - began


async def open_still(client: Client) -> bool:
    try:
        async with asyncio.timeout(0.3):
            return bool(await client.reader.read(1))
    except TimeoutError:
        return True


@asynccontextmanager
async def lived(tmp: Path, policy: str = POLICY) -> AsyncIterator[tuple[Rig, Live, dict[str, Any]]]:
    async with rig(tmp, policy=policy) as r:
        live = Live(r, r.run, tmp)
        try:
            yield r, live, {r.run.id: live}
        finally:
            live.close()


@pytest.mark.parametrize("make", [keep_alive, streaming, uploading, idle_tunnel])
def test_what_a_run_has_open_ends_within_a_second(make: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path) as (r, _, sessions):
            client = await make(r)
            assert make is streaming or await open_still(client)  # the control: by itself it does not end
            answer = await revoke(sessions, "run-1")
            assert await ended(client) < SOON
            assert answer["revoked"] == [{"run": "run-1", "binding": "", "closed": 1}]
            (line,) = r.records("revoke")
            assert (line["run"], line["count"]) == ("run-1", 1)
            assert len(r.records("outcome")) == len(r.records("intent"))

    asyncio.run(main())


def test_the_next_request_is_refused_and_the_resolver_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path) as (r, live, sessions):
            await keep_alive(r)
            await revoke(sessions, "run-1")
            client = await r.tunnel()
            answer = await client.get("/free/a", f"api.good.test:{r.direct}")
            assert (answer.status, answer.code) == (403, "revoked")
            assert live.parts.resolver.orders == [("revoke", "run-1", None)]
            assert len(r.good.seen) == 1

    asyncio.run(main())


@pytest.mark.parametrize("make", [keep_alive, streaming])
def test_a_binding_takes_its_connections_with_it_and_no_others(make: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path) as (r, live, sessions):
            without = await keep_alive(r, "/free/a")
            tunnel = await idle_tunnel(r)
            using = await make(r)
            answer = await revoke(sessions, "token")
            assert await ended(using) < SOON
            assert answer["revoked"] == [{"run": "run-1", "binding": "token", "closed": 1}]
            r.good.script = echo
            host = f"api.good.test:{r.direct}"
            assert (await without.get("/free/a", host)).status == 200  # on the same connection
            assert (await tunnel.get("/ok/a", host)).code == "revoked"
            assert (await tunnel.get("/free/a", host)).status == 200
            assert live.parts.resolver.orders == []
            (line,) = r.records("revoke")
            assert (line["binding"], line["count"]) == ("token", 1)

    asyncio.run(main())


def test_a_child_run_goes_with_its_parent(tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path) as (r, live, sessions):
            child = Run(id="run-2", policy=r.run.policy, role="dev", gateway_ip="127.0.0.99", proxy_port=0, proof="p")
            r.run.adopt(child)
            below = Live(r, child, tmp_path, live)
            for instance in r.gateway._instances["run-1"]:
                instance.run = child
            r.gateway._instances["run-2"] = r.gateway._instances.pop("run-1")
            client = await keep_alive(r)
            answer = await revoke({**sessions, "run-2": below}, "run-1")
            assert [row["run"] for row in answer["revoked"]] == ["run-1", "run-2"]
            assert await ended(client) < SOON
            below.close()

    asyncio.run(main())


def test_a_binding_of_one_run_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path) as (r, live, sessions):
            other = Run(id="run-2", policy=r.run.policy, role="dev", gateway_ip="", proxy_port=0)
            second = Live(r, other, tmp_path)
            both = {**sessions, "run-2": second}
            answer = await revoke(both, "token", "run-2")
            assert [row["run"] for row in answer["revoked"]] == ["run-2"]
            assert (live.run.revoked_bindings, other.revoked_bindings) == (set(), {"token"})
            assert len((await revoke(both, "token"))["revoked"]) == 2
            second.close()

    asyncio.run(main())


def test_what_nobody_has_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path) as (r, _, sessions):
            for name in ("run-9", "nothing", ""):
                with pytest.raises(CredgateError) as caught:
                    await revoke(sessions, name)
                assert caught.value.exit_status == 1
            with pytest.raises(CredgateError):
                await resume(sessions, "run-1")
            assert r.records("revoke", "grant") == []

    asyncio.run(main())


def test_what_was_allowed_and_not_yet_sent_is_not_sent(tmp_path: Path) -> None:
    """A request waits for its secret while the binding is revoked."""

    async def main() -> None:
        async with lived(tmp_path) as (r, _, sessions):
            fetch, asked, go = r.vault.fetch, asyncio.Event(), asyncio.Event()

            async def slow(rule: Any, env: Any) -> Any:
                asked.set()
                await go.wait()
                return await fetch(rule, env)

            r.vault.fetch = slow  # type: ignore[method-assign]
            client = await r.tunnel()
            client.writer.write(f"GET /ok/a HTTP/1.1\r\nHost: api.good.test:{r.direct}\r\n\r\n".encode())
            await asked.wait()
            await revoke(sessions, "token")
            assert await ended(client) < SOON
            go.set()
            await asyncio.sleep(0.1)
            assert r.untouched
            assert r.records("intent") == []
            assert r.run.spent.requests == 0

    asyncio.run(main())


# Time takes rights back as well

TOKEN = 'place = "header:authorization"\nformat = "Bearer {{secret}}"\n'


@pytest.mark.parametrize("make", [keep_alive, streaming])
def test_what_a_binding_opened_ends_with_its_ttl(make: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path, POLICY.replace(TOKEN, TOKEN + 'ttl = "2s"\n')) as (r, _, _):
            without = await keep_alive(r, "/free/a")
            using = await make(r)
            assert await ended(using) < SOON  # and not before: it was served just now
            if make is streaming:
                assert r.records("outcome")[-1]["detail"] == "the binding's ttl is over"
            r.good.script = echo
            assert (await without.get("/free/a", f"api.good.test:{r.direct}")).status == 200
            assert (await (await r.tunnel()).get("/ok/a", f"api.good.test:{r.direct}")).code == "expired"

    asyncio.run(main())


def test_the_deadline_ends_all_that_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path, POLICY.replace("[role.dev]\n", '[role.dev]\ndeadline = "2s"\n')) as (r, _, _):
            clients = [await keep_alive(r, "/free/a"), await idle_tunnel(r), await streaming(r)]
            assert max([await ended(client) for client in clients]) < SOON
            assert r.records("outcome")[-1]["detail"] == "the run's deadline is over"

    asyncio.run(main())


def test_without_a_bound_nothing_ends_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with lived(tmp_path) as (r, _, _):
            client = await keep_alive(r)
            await asyncio.sleep(1.5)
            assert (await client.get("/ok/a", f"api.good.test:{r.direct}")).status == 200

    asyncio.run(main())
