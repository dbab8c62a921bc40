"""The strict HTTP/1.1 lane: what it sends on, byte for byte, and whose upstream connections it uses again."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from credgate.gateway import link
from credgate.gateway.handler import reset
from credgate.gateway.wire import Wire
from credgate.loops import new_loop
from credgate.runs import Listener, Run
from tests.credgate.gateway_rig import DECOY, SECRET, Client, Rig, Seen, echo, listening, rig

type Writer = asyncio.StreamWriter
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def head(r: Rig, line: bytes = b"GET /free/a HTTP/1.1", *fields: bytes) -> bytes:
    host = b"Host: api.good.test:%d" % r.direct
    return b"\r\n".join((line, host, *fields)) + b"\r\n\r\n"


def scripted(*answers: bytes, then: Callable[[Writer], None] | None = None) -> Callable[..., Awaitable[None]]:
    """Write these as they are, one event of the loop after the other."""

    async def script(_seen: Seen, _reader: object, writer: Writer) -> None:
        for answer in answers:
            writer.write(answer)
            await writer.drain()
            await asyncio.sleep(0.02)
        if then is not None:
            then(writer)

    return script


def close(writer: Writer) -> None:
    writer.close()


async def got(client: Client, size: int = 0) -> bytes:
    """What comes within a moment, and within more than that as long as it is not `size` bytes."""
    data = b""
    with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        async with asyncio.timeout(60):
            data = await client.reader.readexactly(size)
        async with asyncio.timeout(0.15):
            while more := await client.reader.read(65536):
                data += more
    return data


# -- what is sent ---------------------------------------------------------------------------------------------------


def test_the_request_as_the_target_gets_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            fields = (b"X-Odd:   spaced\t ", b"Connection: X-Mine", b"X-Mine: 1", b"TE: trailers", b"Accept: */*")
            await client.ask(head(r, b"GET /ok/a?b=%20 HTTP/1.1", *fields))
            tag = r.records("intent")[0]["ua_tag"]
            lines = (
                b"GET /ok/a?b=%20 HTTP/1.1",
                b"Host: api.good.test:%d" % r.direct,
                b"X-Odd: spaced",
                b"Accept: */*",
                b"authorization: Bearer " + SECRET.encode(),
                b"accept-encoding: identity",
                b"user-agent: " + tag.encode(),
            )
            assert r.good.raw == b"\r\n".join(lines) + b"\r\n\r\n"

    asyncio.run(main(), loop_factory=new_loop)


def test_a_chunked_body_is_framed_anew(tmp_path: Path) -> None:
    """Extensions and trailers are dropped, sizes are ours, and Expect was answered here."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            wire = bytearray()

            async def keep(_seen: Seen, reader: asyncio.StreamReader, writer: Writer) -> None:
                while not wire.endswith(b"0\r\n\r\n"):
                    wire.extend(await reader.read(1000))
                writer.write(OK)

            r.good.script = keep
            client = await r.tunnel()
            fields = (b"Transfer-Encoding: Chunked", b"Trailer: X-Sum")
            body = b"0005;name=value\r\nhello\r\n1\r\n!\r\n0;last\r\nX-Sum: 1\r\nAuthorization: Bearer mine\r\n\r\n"
            assert (await client.ask(head(r, b"POST /ok/a HTTP/1.1", *fields) + body)).body == b"ok"
            assert bytes(wire) == b"6\r\nhello!\r\n0\r\n\r\n"
            assert r.good.seen[0].values(b"transfer-encoding") == [b"chunked"]
            assert r.good.seen[0].values(b"trailer") == r.good.seen[0].values(b"expect") == []
            assert r.records("outcome")[0]["req_bytes"] == 6

    asyncio.run(main(), loop_factory=new_loop)


def test_a_length_is_sent_as_a_plain_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            answer = await client.ask(head(r, b"POST /ok/a HTTP/1.1", b"content-length: 0005") + b"hello")
            assert answer.body == b"ok 5"
            assert r.good.seen[0].values(b"content-length") == [b"5"]

    asyncio.run(main(), loop_factory=new_loop)


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b"5\r\nhello\r\nzz\r\n", b"hello"),
        (b"5\nhello\r\n0\r\n\r\n", b""),
        (b"5\r\nhello!\r\n0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\nno trailer\r\n\r\n", b"hello"),
        (b"2000;" + b"x" * 2000, b""),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_body_without_one_reading_gets_no_end(body: bytes, sent: bytes, at_once: bool, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:

            async def read_on(seen: Seen, reader: asyncio.StreamReader, writer: Writer) -> None:
                seen.body = await reader.read()
                writer.close()

            r.good.script = read_on
            client = await r.tunnel()
            client.writer.write(
                head(r, b"POST /ok/a HTTP/1.1", b"Transfer-Encoding: chunked") + (body if at_once else b"")
            )
            if not at_once:
                await asyncio.sleep(0.1)
                client.writer.write(body)
            answer = await client.answer()
            assert (answer.status, answer.code) == (400, "malformed")
            async with asyncio.timeout(60):
                if r.good.connections:
                    await r.good.closed.wait()
            assert not r.good.raw.endswith(b"0\r\n\r\n")
            assert len(r.good.seen) <= 1
            assert r.records("outcome")[0]["reason"] == "malformed"
            client.writer.write(head(r))  # what follows such a body is nobody's request
            assert await got(client) == b""

    asyncio.run(main(), loop_factory=new_loop)


def test_expect_is_answered_when_the_target_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            client.writer.write(head(r, b"POST /ok/a HTTP/1.1", b"Content-Length: 5", b"Expect: 100-Continue"))
            async with asyncio.timeout(60):
                assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            assert r.good.connections == 1
            assert (await client.ask(b"hello")).body == b"ok 5"
            assert r.good.seen[0].values(b"expect") == []
            object.__setattr__(r.run.policy.endpoints["good"], "dial_port", 1)
            other = await r.tunnel()
            answer = await other.ask(head(r, b"POST /free/a HTTP/1.1", b"Content-Length: 5", b"Expect: 100-continue"))
            assert answer.status == 403  # and no 100 before it

    asyncio.run(main(), loop_factory=new_loop)


def test_requests_sent_ahead_are_answered_in_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            paths = (b"/free/a", b"/no", b"/ok/b", b"/no", b"/no", b"/free/c")
            client.writer.write(b"".join(head(r, b"GET %s HTTP/1.1" % path) for path in paths))
            assert [(await client.answer()).status for _ in paths] == [200, 403, 200, 403, 403, 200]
            assert r.good.connections == 1

    asyncio.run(main(), loop_factory=new_loop)


def test_thousands_of_refusals_sent_ahead(tmp_path: Path) -> None:
    """Each is answered without a deeper stack than the one before."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            one, count = head(r, b"GET /no HTTP/1.1"), 3000
            assert len(one) * 2000 > 64 << 10
            client.writer.write(one * count)
            assert [(await client.answer()).status for _ in range(count)] == [403] * count

    asyncio.run(main(), loop_factory=new_loop)


# -- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "answer", "expected"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 None\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 204 None\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n"),
        (b"GET", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"),
        (
            b"GET",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
            b"2;e=1\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        (
            b"GET",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n" + OK,
            OK,
        ),
        (
            b"GET",
            b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\n"
            b"Keep-Alive: timeout=5\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ),
    ],
)
def test_answers_and_what_the_client_gets(method: bytes, answer: bytes, expected: bytes, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = scripted(answer)
            client = await r.tunnel()
            for _ in range(2):  # the second one shows that both sides agree on where the first one ended
                client.writer.write(head(r, method + b" /free/a HTTP/1.1"))
                assert await got(client, len(expected)) == expected
            assert r.good.connections == 1
            assert r.reasons() == []

    asyncio.run(main(), loop_factory=new_loop)


def test_an_answer_byte_by_byte(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"

            async def drip(_seen: Seen, _reader: object, writer: Writer) -> None:
                for at in range(len(whole)):
                    writer.write(whole[at : at + 1])
                    await writer.drain()
                    await asyncio.sleep(0)

            r.good.script = drip
            client = await r.tunnel()
            client.writer.write(head(r))
            assert (await client.answer()).body == b"ok"

    asyncio.run(main(), loop_factory=new_loop)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 O\x08K\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 600000 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK,
        b"\r\n" + OK,
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(300)) + b"\r\n",
    ],
)
def test_answers_that_do_not_count(answer: bytes, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = scripted(answer)
            client = await r.tunnel()
            refused = await client.ask(head(r, b"GET /ok/a HTTP/1.1"))
            assert (refused.status, refused.code) == (502, "upstream_invalid")
            async with asyncio.timeout(60):
                await r.good.closed.wait()  # such a connection is never used again
            assert r.reasons() == ["upstream_invalid"]
            r.good.script = echo
            assert (await client.ask(head(r))).status == 200  # the client's may go on

    asyncio.run(main(), loop_factory=new_loop)


def test_bytes_behind_an_answer_are_no_answer_to_the_next_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            poison = OK.replace(b"ok", b"no")
            for answers in ((OK + poison,), (OK, poison)):
                r.good.script, before = scripted(*answers), r.good.connections
                client = await r.tunnel()
                assert (await client.ask(head(r))).body == b"ok"
                await asyncio.sleep(0.1)
                r.good.script = echo
                assert (await client.ask(head(r))).body == b"ok 0"
                assert r.good.connections == before + 2
                client.close()
                await asyncio.sleep(0.05)
                r.gateway._hooks.pool.close(r.run)
            assert r.records("outcome")[0]["detail"] == "bytes behind the end of the answer"

    asyncio.run(main(), loop_factory=new_loop)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 413 Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
        b"HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno",
    ],
)
def test_an_answer_in_the_middle_of_an_upload(answer: bytes, tmp_path: Path) -> None:
    """The client has the answer whole, and its connection ends: nobody takes the rest of its request."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = scripted(answer)
            client = await r.tunnel()
            client.writer.write(head(r, b"PUT /ok/a HTTP/1.1", b"Content-Length: 1000000") + b"x" * 1000)
            early = await client.answer()
            assert (early.status, early.body) == (413, b"no")
            client.writer.write(b"x" * 999_000 + head(r))
            assert await got(client) == b""
            assert len(r.records("intent")) == 1
            assert r.records("outcome")[0]["status"] == 413

    asyncio.run(main(), loop_factory=new_loop)


@pytest.mark.parametrize("tls", [True, False])
def test_an_answer_whose_target_is_gone_before_it_is_read(
    tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says no to an upload and closes on the rest, by RST. The gateway learns of that as it sends, which is ahead of
    what there is to be read as often as not; here always.
    """
    slammed, readable = asyncio.Event(), Wire._readable

    def blind(self: Wire) -> None:
        if not (isinstance(self._pipe.end, link.Link) and slammed.is_set()):
            readable(self)

    async def slam(_seen: Seen, reader: asyncio.StreamReader, writer: Writer) -> None:
        await reader.readexactly(1000)
        slammed.set()
        writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno")
        reset(writer)

    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = r.plain.script = slam
            client = await r.tunnel() if tls else await r.dial(r.cleartext)
            host = b"api.good.test:%d" % r.direct if tls else b"plain.good.test:%d" % r.cleartext
            monkeypatch.setattr(Wire, "_readable", blind)
            client.writer.write(b"POST /ok/a HTTP/1.1\r\nHost: %b\r\nContent-Length: 100000\r\n\r\n" % host)
            client.writer.write(b"x" * 1000)
            await slammed.wait()
            client.writer.write(b"x" * 99_000)
            early = await client.answer()
            assert (early.status, early.body) == (413, b"no")
            assert (r.records("outcome")[0]["status"], r.reasons()) == (413, [])

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    ("framing", "body", "goes_on"),
    [
        (b"Content-Length: 100000", b"x" * 100_000, True),
        (b"Content-Length: 2000000", b"x" * 2_000_000, False),
        (b"Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n", False),
        (b"Content-Length: 100\r\nExpect: 100-continue", b"x" * 100, False),
    ],
)
def test_a_refused_body_is_read_to_its_end_and_no_longer(
    framing: bytes, body: bytes, goes_on: bool, tmp_path: Path
) -> None:
    """Measured: a client that sends on behind `connection: close` waited five seconds for an answer to nobody."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            client.writer.write(head(r, b"PUT /closed HTTP/1.1", framing) + body[:2])
            refused = await client.answer()
            assert refused.status == 403
            assert (b"connection: close" in refused.head) is not goes_on
            begun = time.monotonic()
            if goes_on:
                r.good.script = scripted(OK)
                client.writer.write(body[2:40])
                await asyncio.sleep(0.05)
                client.writer.write(body[40:] + head(r))
                assert (await client.answer()).status == 200
            else:
                client.writer.write(body[2:])
                assert await got(client) == b""
            assert time.monotonic() - begun < 4.5
            assert [line["path"] for line in r.records("intent")] == (["/free/a"] if goes_on else [])

    asyncio.run(main(), loop_factory=new_loop)


# -- connections that are used again --------------------------------------------------------------------------------


async def once(r: Rig, path: bytes = b"/free/a", host: str = "api.good.test") -> int:
    client = await r.tunnel(host)
    request = b"GET %s HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (path, host.encode(), r.direct)
    status = (await client.ask(request)).status
    client.close()
    await asyncio.sleep(0.05)
    return status


def test_the_next_client_connection_of_the_run_uses_it_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            for _ in range(3):
                assert await once(r) == 200
            assert r.good.connections == 1
            assert {o["pin"] for o in r.records("outcome")} == {"127.0.0.1"}
            both = [await r.tunnel(), await r.tunnel()]
            for client in both:  # one that rests is lent to another client connection that is still there
                assert (await client.ask(head(r))).status == 200
            assert r.good.connections == 1
            assert await at_once(r, both) == [200, 200]
            assert r.good.connections == 2
            for client in both * 2:
                assert (await client.ask(head(r))).status == 200
            assert r.good.connections == 2

    asyncio.run(main(), loop_factory=new_loop)


async def at_once(r: Rig, clients: list[Client]) -> list[int]:
    """One request of each, none of which is answered before all of them are there."""
    there: list[Seen] = []

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: Writer) -> None:
        there.append(seen)
        while len(there) < len(clients):
            await asyncio.sleep(0.001)
        await echo(seen, reader, writer)

    r.good.script = script
    answers = await asyncio.gather(*(client.ask(head(r)) for client in clients))
    r.good.script = echo
    return [answer.status for answer in answers]


def test_no_other_run_uses_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            assert await once(r) == 200
            sock = listening()
            port = sock.getsockname()[1]
            other = Run(
                id="run-2", policy=r.run.policy, role="dev", gateway_ip="127.0.0.98", proxy_port=port, proof="p",
                decoys={"swap": DECOY},
            )  # fmt: skip
            await r.gateway.serve(other, [Listener(sock=sock, port=port, proxy=True)])
            mine, r.proxy = r.proxy, port
            assert await once(r) == 200
            assert r.good.connections == 2
            r.proxy = mine
            assert await once(r) == 200
            assert r.good.connections == 2
            assert len(r.gateway._hooks.pool) == 2
            await r.gateway.close("run-2")
            assert len(r.gateway._hooks.pool) == 1

    asyncio.run(main(), loop_factory=new_loop)


def test_neither_another_endpoint_nor_generation_nor_pin_uses_it(tmp_path: Path) -> None:
    """Both endpoints have the same address; `up` is looked up, and its answer changes."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            assert await once(r) == 200
            assert await once(r, b"/a", "up.good.test") == 200
            assert r.good.connections == 2
            assert await once(r, b"/a", "up.good.test") == 200
            assert r.good.connections == 2
            r.run.generation += 1
            assert await once(r) == 200
            assert r.good.connections == 3
            endpoints = dict(r.run.policy.endpoints)
            endpoints["good"] = replace(endpoints["good"], ca=str(tmp_path / "none.pem"))
            r.run.policy = replace(r.run.policy, endpoints=endpoints)
            assert (
                await once(r) == 502
            )  # a CA file that is not there: nothing that was verified by the old one's serves
            assert r.good.connections == 3

    asyncio.run(main(), loop_factory=new_loop)


def test_a_revoked_run_has_no_idle_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            assert await once(r) == 200
            assert len(r.gateway._hooks.pool) == 1
            r.gateway.cut("run-1", "revoked")
            async with asyncio.timeout(30):  # an idle one would stay for twice as long
                await r.good.closed.wait()
            assert len(r.gateway._hooks.pool) == 0

    asyncio.run(main(), loop_factory=new_loop)


def test_idle_connections_are_bounded_in_time_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_IDLE_RUN", 2)

    async def main() -> None:
        async with rig(tmp_path) as r:
            pool = r.gateway._hooks.pool
            r.good.script = scripted(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 0\r\n\r\n")
            assert await once(r) == 200
            assert len(pool) == 0  # its second of grace was our margin
            r.good.script = echo
            clients = [await r.tunnel() for _ in range(4)]
            assert await at_once(r, clients) == [200] * 4
            for client in clients:
                client.close()
            async with asyncio.timeout(60):
                while len(pool) != 2:
                    await asyncio.sleep(0.01)

    asyncio.run(main(), loop_factory=new_loop)


def test_one_that_the_target_closed_is_not_used_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = scripted(OK, then=close)
            for n in range(1, 3):
                assert await once(r) == 200
                await asyncio.sleep(0.05)
                assert r.good.connections == n
            client = await r.tunnel()  # nor within one client connection
            for _ in range(2):
                assert (await client.ask(head(r))).status == 200
                await asyncio.sleep(0.05)
            assert r.good.connections == 4
            assert r.reasons() == []

    asyncio.run(main(), loop_factory=new_loop)


@pytest.mark.parametrize(
    ("line", "fields", "body", "status"),
    [
        (b"GET /ok/a HTTP/1.1", (), b"", 200),
        (b"HEAD /ok/a HTTP/1.1", (), b"", 200),
        (b"POST /ok/a HTTP/1.1", (b"Content-Length: 2",), b"ab", 502),
        (b"POST /ok/a HTTP/1.1", (b"Content-Length: 0",), b"", 502),
    ],
)
@pytest.mark.parametrize("pooled", [True, False])
def test_what_is_sent_once_more(
    line: bytes, fields: tuple[bytes, ...], body: bytes, status: int, pooled: bool, tmp_path: Path
) -> None:
    """A target that closes just as it is asked again: only what can be repeated is, and once."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.ask(head(r))).status == 200
            if pooled:
                client.close()
                await asyncio.sleep(0.05)
                client = await r.tunnel()

            async def slam(_seen: Seen, _reader: object, writer: Writer) -> None:
                r.good.script = echo
                writer.close()

            r.good.script = slam
            answer = await client.ask(head(r, line, *fields) + body)
            assert answer.status == status
            assert r.good.connections == (2 if status == 200 else 1)
            # a second sending has lines and a tag of its own: the target may have had both
            intents, again = r.records("intent"), status == 200
            assert len(intents) == len(r.records("outcome")) == (3 if again else 2)
            tags = [seen.values(b"user-agent")[0].decode() for seen in r.good.seen]
            assert tags == [intent["ua_tag"] for intent in intents]
            assert r.reasons() == (["upstream_resent"] if again else ["upstream_reset"])

    asyncio.run(main(), loop_factory=new_loop)


def test_a_fresh_connection_is_not_tried_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = scripted(b"", then=close)
            client = await r.tunnel()
            assert (await client.ask(head(r))).status == 502
            assert r.good.connections == 1
            r.good.script = echo
            assert (await client.ask(head(r))).status == 200
            r.good.script = scripted(b"", then=close)
            assert (await client.ask(head(r))).status == 502  # once more, and no third time
            assert r.good.connections == 3

    asyncio.run(main(), loop_factory=new_loop)


def test_an_answer_that_began_is_not_asked_for_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.ask(head(r))).status == 200
            r.good.script = scripted(b"HTTP/1.1 2", then=close)
            assert (await client.ask(head(r))).status == 502
            assert r.good.connections == 1

    asyncio.run(main(), loop_factory=new_loop)


def test_the_connections_of_plain_endpoints_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            line = b"GET /ok/a HTTP/1.1\r\nHost: plain.good.test:%d\r\n\r\n" % r.cleartext
            for _ in range(2):
                client = await r.dial(r.cleartext)
                assert (await client.ask(line)).status == 200
                client.close()
                await asyncio.sleep(0.05)
            assert r.plain.connections == 1
            proxied = await r.dial(r.proxy)
            for path in (b"/ok/a", b"/ok/b"):
                url = b"http://plain.good.test:%d%s" % (r.cleartext, path)
                request = b"GET %s HTTP/1.1\r\nHost: plain.good.test:%d\r\n\r\n" % (url, r.cleartext)
                assert (await proxied.ask(request)).status == 200
            assert r.plain.connections == 1
            tunnel = b"CONNECT api.good.test:%d HTTP/1.1\r\n\r\n" % r.direct  # leaves it to the others
            proxied.writer.write(tunnel)
            assert b" 200 " in await proxied.reader.readuntil(b"\r\n\r\n")
            assert len(r.gateway._hooks.pool) == 1

    asyncio.run(main(), loop_factory=new_loop)
