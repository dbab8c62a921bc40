"""kill -9 of a gateway in the middle of its work, again and again: no request reached the target without its record.

The tag in the User-Agent says which line of the ledger a request at the target has to have.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from credgate.ca import Authority as OwnCa
from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger
from tests.credgate.gateway_child import VALUE
from tests.credgate.gateway_rig import listening, server_tls
from tests.targets.pki import Authority

KILLS = int(os.environ.get("CREDGATE_GATEWAY_KILLS", "160"))
KILLS_OF_TWO = KILLS // 16  # each has a process to start
EACH = 20  # kills of one ledger, before another is begun
CLIENTS = 4
POLICY = """
version = 1
[secret.token]
source = "env:TOKEN"
[endpoint.good]
host = "api.good.test"
port = {port}
dial_port = {target}
address = ["127.0.0.1"]
ca = "{ca}"
[[endpoint.good.allow]]
id = "ok"
methods = ["POST"]
paths = ["/ok/*"]
[binding.token]
secret = "token"
endpoint = "good"
rules = ["ok"]
place = "header:authorization"
[role.dev]
bindings = ["token"]
"""
_TAG = re.compile(rb"user-agent: x credgate/run[0-9]+-([0-9a-z]+)\r\n")


@dataclass
class Seen:
    """What reached the target since the last look: line number and path, as its head says."""

    requests: list[tuple[int, str]] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def forget(self) -> None:
        self.requests.clear()
        self.first.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _TAG.search(head)
                assert found and VALUE.encode() in head
                self.first.set()
                self.requests.append((int(found[1], 36), head.split()[1].decode()))
                await reader.readexactly(3)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.transport.abort()


async def hammer(port: int, trust: ssl.SSLContext, name: int) -> None:
    """Requests one after the other, until the gateway is gone."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="api.good.test")
    except (OSError, asyncio.IncompleteReadError):
        return
    try:
        for n in range(10_000):
            head = f"POST /ok/{name}-{n} HTTP/1.1\r\nHost: api.good.test:{port}\r\nUser-Agent: x\r\nContent-Length: 3"
            writer.write(head.encode() + b"\r\n\r\nabc")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def zygote(directory: Path, policy: str, fd: int, processes: int) -> AsyncIterator[asyncio.subprocess.Process]:
    (directory / "policy.toml").write_text(policy)
    script = Path(__file__).with_name("gateway_child.py")
    argv = [sys.executable, "-I", str(script), str(directory), str(directory / "policy.toml"), str(fd), str(processes)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, pass_fds=[fd])
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def kill_once(
    process: asyncio.subprocess.Process, name: str, port: int, trust: ssl.SSLContext, wait: float, first: asyncio.Event
) -> None:
    """Start a gateway on the ledger of that name, use it, and kill it `wait` seconds after its first request."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{name}\n".encode())
    async with asyncio.timeout(60):
        up, pid = (await process.stdout.readline()).split()
    assert up == b"up"
    clients = [asyncio.create_task(hammer(port, trust, n)) for n in range(CLIENTS)]
    async with asyncio.timeout(60):
        await first.wait()
    await asyncio.sleep(wait)
    os.kill(int(pid), signal.SIGKILL)
    process.stdin.write(b"end\n")
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"ended\n"
    for client in clients:
        client.cancel()  # who waits in the listening socket's queue, which outlives the gateway
    ended = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError | None) for end in ended), ended


def intents(directory: Path) -> set[tuple[int, str]]:
    """Those of whole lines: a process may be killed in the middle of a write(2)."""
    whole = [line for path in directory.glob("seg-*.jsonl") for line in path.read_text().split("\n")[:-1]]
    lines = [json.loads(line) for line in whole]
    return {(line["seq"], line["path"]) for line in lines if line["ev"] == "intent"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("processes", "kills"), [(1, KILLS), (2, KILLS_OF_TWO)])
def test_kill_9_anywhere_leaves_no_request_without_a_record(processes: int, kills: int, tmp_path: Path) -> None:
    """With two the worker outlives the daemon by a moment, and may send what it was told to: no more."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance, total = random.Random(seed), 0

    async def main() -> None:
        nonlocal total
        ca, seen, sock = Authority(tmp_path, "target-ca"), Seen(), listening()
        target = await asyncio.start_server(seen.serve, "127.0.0.1", 0, ssl=server_tls(ca, "api.good.test"))
        port = sock.getsockname()[1]
        policy = POLICY.format(port=port, target=target.sockets[0].getsockname()[1], ca=ca.ca)
        (tmp_path / "ours.pem").write_bytes(OwnCa.load_or_create(tmp_path / "ca").ca_pem)
        trust = ssl.create_default_context(cafile=str(tmp_path / "ours.pem"))
        async with zygote(tmp_path, policy, sock.fileno(), processes) as process:
            for n in range(kills):
                name = str(n // EACH)
                seen.forget()
                await kill_once(process, name, port, trust, chance.random() * 0.03, seen.first)
                killed = verify(tmp_path / name)
                assert killed.status in (Status.SOUND, Status.INCOMPLETE), (seed, n, killed)
                assert set(seen.requests) <= intents(tmp_path / name), (seed, n)
                Ledger.open(tmp_path / name).close()
                mended = verify(tmp_path / name)
                assert (mended.status, mended.signed) == (Status.SOUND, mended.records), (seed, n, mended)
                total += len(seen.requests)
        target.close()
        sock.close()

    asyncio.run(main())
    assert total > 2 * kills  # they were killed at work
