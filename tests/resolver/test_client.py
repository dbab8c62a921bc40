"""The process as the daemon uses it: orders, events, its death and ours."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resolver import client as client_module
from resolver import link
from resolver.client import ResolverProcess
from resolver.errors import ResolverError
from rules.names import NameTable
from rules.policy import Unlisted
from tests.resolver.bench import GATEWAY, NXDOMAIN, Client, answers, framed, query, rcode, sockets, table

pytestmark = pytest.mark.needs("netns")


@pytest.fixture(autouse=True)
def _young_processes_count_as_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is for one that dies at once; none here has lived for ten seconds."""
    monkeypatch.setattr(client_module, "_STABLE_SECONDS", 0.0)


NARROWED = replace(table(), exact=frozenset({("evil", "example")}))

type Events = list[dict[str, Any]]


@asynccontextmanager
async def process() -> AsyncGenerator[tuple[ResolverProcess, Events]]:
    """A started resolver process."""
    events: Events = []
    async with asyncio.TaskGroup() as tasks:
        resolver = ResolverProcess(events.append)
        await resolver.start(tasks)
        try:
            yield resolver, events
        finally:
            await resolver.stop()


async def served(resolver: ResolverProcess, run: str, unlisted: Unlisted = Unlisted.NXDOMAIN) -> Client:
    """A client of a new run, whose sockets the caller has closed already."""
    udp, tcp = sockets()
    await resolver.add(run, table(unlisted), udp, tcp)
    client = Client(udp.getsockname())
    udp.close()
    tcp.close()
    return client


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for something that comes by itself."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.01)


def test_answers_events_and_totals() -> None:
    """Over UDP and TCP; the totals come before remove() returns."""

    async def run() -> None:
        async with process() as (resolver, events):
            udp, tcp = sockets()
            await resolver.add("r1", table(), udp, tcp)
            client = Client(udp.getsockname())
            assert answers(await client.ask(query("api.github.com"))) == [GATEWAY]
            assert rcode(await client.ask(query("Evil.example", "TXT"))) == NXDOMAIN
            reader, writer = await asyncio.open_connection(*tcp.getsockname())
            writer.write(framed(query("api.github.com")))
            size = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 5), "big")
            assert answers(await reader.readexactly(size)) == [GATEWAY]
            writer.close()
            await until(lambda: len(events) == 2)
            assert events[1] == {
                "event": "dns",
                "run": "r1",
                "code": "dns.deny",
                "name": "evil.example",
                "qtype": "TXT",
                "detail": "",
                "count": 1,
                "alarm": False,
            }
            await resolver.remove("r1")
            assert [(e["code"], e["detail"], e["count"]) for e in events[2:]] == [
                ("dns.total", "dns.allow", 2),
                ("dns.total", "dns.deny", 1),
            ]
            for sock in (udp, tcp):
                sock.close()
            client.close()

    asyncio.run(run())


def test_another_table_holds_over_a_restart() -> None:
    """One that no process would take leaves the old one in force, also then."""

    async def run() -> None:
        async with process() as (resolver, events):
            client = await served(resolver, "r1")
            await resolver.replace("r1", NARROWED)
            assert rcode(await client.ask(query("api.github.com"))) == NXDOMAIN
            assert answers(await client.ask(query("evil.example"))) == [GATEWAY]
            huge = replace(NARROWED, exact=frozenset((f"a{n}" * 10, "example") for n in range(9999)))
            with pytest.raises(ResolverError) as caught:
                await resolver.replace("r1", huge)
            assert caught.value.code == "table_too_large"
            assert resolver.pid is not None
            os.kill(resolver.pid, signal.SIGKILL)
            await until(lambda: any(e["event"] == "restart" for e in events))
            await until(lambda: resolver.pid is not None)
            assert answers(await client.ask(query("evil.example"))) == [GATEWAY]
            with pytest.raises(ResolverError):
                await resolver.replace("nobody", NARROWED)
            client.close()

    asyncio.run(run())


def test_a_killed_process_is_replaced_and_serves_the_live_runs() -> None:
    """What was revoked stays revoked, what was removed stays removed, the death is told."""

    async def run() -> None:
        async with process() as (resolver, events):
            kept, revoked, removed = [await served(resolver, name) for name in ("kept", "revoked", "removed")]
            await resolver.revoke("revoked")
            await resolver.remove("removed")
            first = resolver.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            assert answers(await kept.ask(query("api.github.com"), 8.0)) == [GATEWAY]
            assert rcode(await revoked.ask(query("api.github.com"))) == NXDOMAIN
            with pytest.raises((TimeoutError, ConnectionRefusedError)):
                await removed.ask(query("api.github.com"), 0.2)
            await until(lambda: resolver.pid not in {None, first})
            assert {"event": "restart", "code": "dns.restart", "alarm": True, "status": -9} in events
            for client in (kept, revoked, removed):
                client.close()

    asyncio.run(run())


def test_orders_given_while_it_is_down_wait_for_the_next_process() -> None:
    """add, revoke and remove all hold afterwards."""

    async def run() -> None:
        async with process() as (resolver, events):
            one, two = [await served(resolver, name) for name in ("one", "two")]
            assert resolver.pid is not None
            os.kill(resolver.pid, signal.SIGKILL)
            await until(lambda: any(e["event"] == "restart" for e in events))
            three, *_ = await asyncio.gather(served(resolver, "three"), resolver.revoke("one"), resolver.remove("two"))
            assert answers(await three.ask(query("api.github.com"))) == [GATEWAY]
            assert rcode(await one.ask(query("api.github.com"))) == NXDOMAIN
            with pytest.raises((TimeoutError, ConnectionRefusedError)):
                await two.ask(query("api.github.com"), 0.2)
            for client in (one, two, three):
                client.close()

    asyncio.run(run())


def test_a_process_that_hangs_is_killed_when_it_leaves_an_order_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order holds all the same: revoke() returns, and the next process knows it."""

    async def run() -> None:
        async with process() as (resolver, events):
            client = await served(resolver, "r1")
            assert resolver.pid is not None
            monkeypatch.setattr(link, "_ANSWER_SECONDS", 0.3)
            os.kill(resolver.pid, signal.SIGSTOP)
            await resolver.revoke("r1")
            monkeypatch.undo()
            assert rcode(await client.ask(query("api.github.com"), 8.0)) == NXDOMAIN
            assert [e["status"] for e in events if e["event"] == "restart"] == [-9]
            client.close()

    asyncio.run(run())


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.04, 0.08, 0.12, 0.16])
def test_stop_while_it_starts_again_leaves_no_process(moment: float) -> None:
    """At whatever point of the restart."""

    async def run() -> None:
        async with process() as (resolver, _):
            client = await served(resolver, "r1")
            assert resolver.pid is not None
            os.kill(resolver.pid, signal.SIGKILL)
            await asyncio.sleep(moment)
            await resolver.stop()
            client.close()

    asyncio.run(run())
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if "resolver" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_refused_orders_leave_nothing() -> None:
    """Each with a code; afterwards the same run can be added."""

    async def run() -> None:
        async with process() as (resolver, _):
            udp, tcp = sockets()
            with pytest.raises(ResolverError, match="wrong_sockets"):
                await resolver.add("r1", table(), tcp, udp)
            many = NameTable(gateway_ip=GATEWAY, exact=frozenset((f"host-number-{n}", "example") for n in range(9_000)))
            with pytest.raises(ResolverError, match="table_too_large"):
                await resolver.add("r1", many, udp, tcp)
            with pytest.raises(ResolverError, match="run_unknown"):
                await resolver.revoke("r1")
            with pytest.raises(ResolverError, match="run_unknown"):
                await resolver.remove("r1")
            await resolver.add("r1", table(), udp, tcp)
            with pytest.raises(ResolverError, match="run_known"):
                await resolver.add("r1", table(), udp, tcp)
            client = Client(udp.getsockname())
            assert answers(await client.ask(query("api.github.com"))) == [GATEWAY]
            for sock in (udp, tcp):
                sock.close()
            client.close()

    asyncio.run(run())


def test_a_table_of_a_thousand_names_fits() -> None:
    """The packet is larger than one page and smaller than the limit."""

    async def run() -> None:
        async with process() as (resolver, _):
            udp, tcp = sockets()
            names = frozenset((f"host-number-{n}", "with-a-long-zone-name", "example", "com") for n in range(1_500))
            await resolver.add("r1", NameTable(gateway_ip=GATEWAY, exact=names), udp, tcp)
            client = Client(udp.getsockname())
            name = "host-number-1499.with-a-long-zone-name.example.com"
            assert answers(await client.ask(query(name))) == [GATEWAY]
            for sock in (udp, tcp):
                sock.close()
            client.close()

    asyncio.run(run())


def test_stop_ends_the_process() -> None:
    """And its sockets."""

    async def run() -> None:
        async with process() as (resolver, events):
            client = await served(resolver, "r1")
            pid = resolver.pid
            await resolver.stop()
            assert not Path(f"/proc/{pid}").exists()
            assert events == []
            with pytest.raises((TimeoutError, ConnectionRefusedError)):
                await client.ask(query("api.github.com"), 0.2)
            client.close()

    asyncio.run(run())


DAEMON = """
import asyncio, os, signal, sys
from resolver import client as client_module
from resolver import link
from resolver.client import ResolverProcess
async def main():
    async with asyncio.TaskGroup() as tasks:
        resolver = ResolverProcess(print)
        await resolver.start(tasks)
        print(resolver.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_the_daemon_s_death_ends_the_process() -> None:
    """Killed without a chance to say anything."""
    done = subprocess.run([sys.executable, "-I", "-c", DAEMON], check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == -signal.SIGKILL
    status = Path(f"/proc/{int(done.stdout)}/status")
    end = time.monotonic() + 5
    while _lives(status):
        assert time.monotonic() < end
        time.sleep(0.01)


def _lives(status: Path) -> bool:
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("argument", [[], ["x"], ["-1"], ["3", "4"]])
def test_without_a_descriptor_it_says_so(argument: list[str]) -> None:
    """Usage is status 2."""
    done = subprocess.run(
        [sys.executable, "-I", "-m", "resolver", *argument], check=False, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "\nhint: " in done.stderr


INSPECT = """
import asyncio, os, re, socket, sys
sys.path.insert(0, sys.argv[1])
uid, gid = os.getuid(), os.getgid()
os.unshare(os.CLONE_NEWUSER)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
from tests.resolver.test_client import inspect_process
asyncio.run(inspect_process())
"""


def test_denied_names_leave_nothing_and_the_process_holds_nothing() -> None:
    """Read from /proc by a process with rights over it (root of a user namespace): it isn't dumpable for others."""
    checkout = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-I", "-c", INSPECT, str(checkout)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"HOME": "/", "CREDGATE_CANARY": "canary"},
    )
    assert done.returncode == 0, done.stderr


def _sockets_of(pid: int) -> list[str]:
    links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return sorted(link for link in links if link.startswith("socket:"))


def _own_network(pid: int) -> dict[str, int]:
    """Sockets of each family in the process's network namespace (their number: lines behind the heading)."""
    files = ("tcp", "udp", "raw", "udplite", "tcp6", "udp6", "raw6", "packet")
    paths = [Path(f"/proc/{pid}/net/{name}") for name in files]
    return {path.name: len(path.read_text().splitlines()) - 1 for path in paths if path.exists()}


async def inspect_process() -> None:
    """Run by INSPECT. The control for each emptiness is that the same look at ourselves is not empty."""
    async with process() as (resolver, _):
        pid = resolver.pid
        assert pid is not None
        client = await served(resolver, "r1", Unlisted.NXDOMAIN)
        open_run = await served(resolver, "r2", Unlisted.GATEWAY)
        before = _sockets_of(pid)
        for n in range(40):
            for name in (f"{'mzxw6ytboi' * 6}.t{n}.tunnel.example", "metadata.google.internal", "evil.example"):
                assert rcode(await client.ask(query(name, ("A", "TXT", "NULL")[n % 3]))) == NXDOMAIN
                await open_run.ask(query(name))
        assert _sockets_of(pid) == before
        # control, asyncio's self-pipe (a pair), two runs with two sockets each
        assert len(before) == 1 + 2 + 2 * 2
        assert sum(_own_network(pid).values()) == 0
        assert sum(_own_network(os.getpid()).values()) > 0
        assert Path(f"/proc/{pid}/net/route").read_text().count("\n") <= 1
        assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        _inspect_rights(Path(f"/proc/{pid}"))
        client.close()
        open_run.close()


def _inspect_rights(proc: Path) -> None:
    assert b"canary" not in (proc / "environ").read_bytes()
    assert b"canary" in Path("/proc/self/environ").read_bytes()
    assert (proc / "cwd").readlink() == Path("/")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
    assert (status["NoNewPrivs"], status["Threads"]) == ("1", "1")
    limits = (proc / "limits").read_text()
    assert "Max core file size        0                    0 " in limits
    assert f"Max address space         {1 << 30}" in limits
