"""Bodies go through as they come, both ways, and are never held."""

import asyncio
import contextlib
import resource
from pathlib import Path

import pytest

from credgate.gateway.steps import Timeouts
from tests.credgate.gateway_rig import SECRET, Client, Rig, Seen, Target, rig

SIZE = 64 << 20
CHUNK = b"x" * (256 << 10)
SLOW = Timeouts(first_byte=30.0)


def memory() -> int:
    """Peak resident bytes of this process, which holds client, gateway and target."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def swallow(client: Client, size: int) -> None:
    while size:
        data = await client.reader.read(1 << 18)
        assert data
        size -= len(data)


def test_the_first_event_comes_while_the_answer_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, timeouts=SLOW) as r:
            heard = asyncio.Event()

            async def events(_seen: object, _reader: object, writer: asyncio.StreamWriter) -> None:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                for n in range(3):
                    event = b"data: %d\n\n" % n
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                    await writer.drain()
                    await heard.wait()
                writer.write(b"0\r\n\r\n")

            r.good.script = events
            client = await r.tunnel()
            client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
            async with asyncio.timeout(60):
                assert b"data: 1" not in await client.reader.readuntil(b"data: 0")
                heard.set()
                assert b"data: 2" in await client.reader.readuntil(b"0\r\n\r\n")

    asyncio.run(main())


def test_a_large_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, timeouts=SLOW) as r:

            async def large(_seen: object, _reader: object, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
                for _ in range(SIZE // len(CHUNK)):
                    writer.write(CHUNK)
                    await writer.drain()

            r.good.script = large
            client = await r.tunnel()
            before = memory()
            client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
            await client.reader.readuntil(b"\r\n\r\n")
            await swallow(client, SIZE)
            assert memory() - before < 24 << 20
            await settled(r, resp_bytes=SIZE)

    asyncio.run(main())


@pytest.mark.parametrize("coding", ["length", "chunked"])
def test_a_large_upload_carries_the_secret_first(coding: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, timeouts=SLOW) as r:
            first = asyncio.Event()

            async def count(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                first.set()
                assert seen.values(b"authorization") == [b"Bearer " + SECRET.encode()]
                if coding == "length":
                    await swallow(Client(reader, writer), SIZE)
                else:
                    while size := int((await reader.readline()).strip(), 16):
                        await reader.readexactly(size)
                        await reader.readline()
                    await reader.readline()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

            r.good.script = count
            client = await r.tunnel()
            before = memory()
            framing = b"Content-Length: %d" % SIZE if coding == "length" else b"Transfer-Encoding: chunked"
            client.writer.write(b"PUT /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n%s\r\n\r\n" % (r.direct, framing))
            client.writer.write(CHUNK if coding == "length" else b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
            async with asyncio.timeout(60):
                await first.wait()  # the head left while the body is still to come
            for _ in range(SIZE // len(CHUNK) - 1):
                client.writer.write(CHUNK if coding == "length" else b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
                await client.writer.drain()
            if coding == "chunked":
                client.writer.write(b"0\r\n\r\n")
            assert (await client.answer()).body == b"ok"
            assert memory() - before < 24 << 20
            await settled(r, req_bytes=SIZE)

    asyncio.run(main())


async def settled(r: Rig, **expected: int) -> None:
    async with asyncio.timeout(60):
        while not (outcomes := r.records("outcome")):
            await asyncio.sleep(0.01)
    assert {name: outcomes[0][name] for name in expected} == expected


def test_an_upload_waits_in_the_client_while_the_target_does_not_answer(tmp_path: Path) -> None:
    """mitmproxy would queue it all: reading stops until there is an upstream connection."""

    async def main() -> None:
        async with rig(tmp_path, timeouts=Timeouts()) as r, Target(None) as silent:
            object.__setattr__(r.run.policy.endpoints["good"], "dial_port", silent.port)
            client = await r.tunnel()
            before = memory()
            head = b"PUT /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nContent-Length: %d\r\n\r\n"
            client.writer.write(head % (r.direct, SIZE))
            sent = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    while sent < SIZE:
                        client.writer.write(CHUNK)
                        await client.writer.drain()
                        sent += len(CHUNK)
            assert sent < SIZE // 2
            assert memory() - before < 24 << 20
            client.close()

    asyncio.run(main())


def test_expect_continue(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            fields = b"Content-Length: 5\r\nExpect: 100-continue"
            client.writer.write(b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n%s\r\n\r\n" % (r.direct, fields))
            async with asyncio.timeout(60):
                interim = await client.reader.readuntil(b"\r\n\r\n")
            assert interim.startswith(b"HTTP/1.1 100")
            answer = await client.ask(b"hello")
            assert (answer.status, answer.body) == (200, b"ok 5")

    asyncio.run(main())


def test_an_answer_before_the_upload_is_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:

            async def early(_seen: object, _reader: object, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
                await writer.drain()
                await asyncio.sleep(0.2)
                writer.close()

            r.good.script = early
            client = await r.tunnel()
            head = b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nContent-Length: 1000000\r\n\r\n" % r.direct
            answer = await client.ask(head + b"x" * 1000)
            assert (answer.status, answer.body) == (413, b"no")

    asyncio.run(main())


def test_a_client_that_leaves_ends_the_upstream_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:

            async def slow(_seen: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
                await writer.drain()
                assert await reader.read(1) == b""
                writer.close()

            r.good.script = slow
            client = await r.tunnel()
            client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
            await client.reader.readuntil(b"part")
            client.close()
            async with asyncio.timeout(60):
                await r.good.closed.wait()
            assert r.records("outcome")[0]["detail"] == "client closed the connection"

    asyncio.run(main())
