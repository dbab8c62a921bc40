"""A client that changes its TLS keys on a kept connection (RFC 8446, 4.6.3), and asks for the gateway's to change."""

import asyncio
from pathlib import Path

from credgate.loops import new_loop
from tests.credgate.gateway_rig import Rig, rig

ROUNDS = 6


async def until(process: asyncio.subprocess.Process, what: bytes) -> None:
    got, stdout = b"", process.stdout
    assert stdout is not None
    async with asyncio.timeout(60):
        while what not in got:
            data = await stdout.read(65536)
            assert data, got
            got += data


async def say(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    await process.stdin.drain()


async def started(r: Rig) -> asyncio.subprocess.Process:
    """OpenSSL's client; a line of "k" changes its keys, one of "K" asks for the other side's too."""
    name = "api.good.test"
    argv = ["openssl", "s_client", "-proxy", f"127.0.0.1:{r.proxy}", "-connect", f"{name}:{r.direct}"]
    argv += ["-servername", name, "-CAfile", str(r.ca), "-tls1_3", "-crlf"]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)


def test_keys_change_between_requests_and_nothing_else_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            process = await started(r)
            stderr = process.stderr
            assert stderr is not None
            await until(process, b"Verify return code: 0")
            for number in range(ROUNDS):
                await say(process, f"GET /ok/a HTTP/1.1\nHost: api.good.test:{r.direct}\n\n".encode())
                await until(process, b"ok 0")
                await say(process, (b"k\n", b"K\n")[number % 2])
                async with asyncio.timeout(60):  # read as a line of its own, else it is sent as one
                    while (await stderr.readline()) != b"KEYUPDATE\n":
                        pass
            await say(process, b"Q\n")
            async with asyncio.timeout(60):
                await process.communicate()
            assert len(r.good.seen) == len(r.records("outcome")) == ROUNDS
            assert {line["status"] for line in r.records("outcome")} == {200}
            assert not r.records("deny")

    asyncio.run(main(), loop_factory=new_loop)
