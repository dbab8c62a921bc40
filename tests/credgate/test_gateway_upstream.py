"""What goes wrong behind the gateway: each fault is told, recorded, and passes nothing that looks whole and is not."""

import asyncio
import dataclasses
import socket
import ssl
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.credgate.gateway_rig import PATIENT, SECRET, Rig, Script, Seen, Target, resetting, rig, server_tls
from tests.credgate.h2_rig import H2Client
from tests.targets.pki import Authority as TargetCa

type Writer = asyncio.StreamWriter


async def ask(r: Rig, host: str = "api.good.test", path: str = "/ok/a") -> tuple[int, str]:
    client = await r.tunnel(host)
    answer = await client.get(path, host=f"{host}:{r.direct}")
    assert answer.verdict
    return answer.status, answer.code


def told(r: Rig) -> str:
    intents, outcomes = r.records("intent"), r.records("outcome")
    assert [o["intent_seq"] for o in outcomes] == [i["seq"] for i in intents]
    return str(outcomes[-1]["reason"])


def test_a_certificate_for_another_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, good_hosts=("evil.test",)) as r:
            assert await ask(r) == (502, "upstream_tls")
            assert told(r) == "upstream_tls"
            assert r.good.raw == b""

    asyncio.run(main())


def test_a_certificate_of_an_unknown_authority(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "x").mkdir()
        async with rig(tmp_path) as r:
            other = Target(server_tls(TargetCa(tmp_path / "x", "others"), "api.good.test"))
            async with other:
                moved(r, "good", other.port)
                assert await ask(r) == (502, "upstream_tls")
                assert told(r) == "upstream_tls"
                assert other.raw == b""

    asyncio.run(main())


def test_our_own_ca_is_not_trusted_for_targets(tmp_path: Path) -> None:
    """A target that shows a leaf of the gateway's own CA would be the gateway asking itself."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            context = r.extra["authority"].context_for("api.good.test")
            assert context is not None
            async with Target(_tls_of(r, tmp_path)) as other:
                moved(r, "good", other.port)
                assert await ask(r) == (502, "upstream_tls")
                assert other.raw == b""

    asyncio.run(main())


def _tls_of(r: Rig, tmp_path: Path) -> ssl.SSLContext:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority = r.extra["authority"]
    (tmp_path / "leaf.pem").write_bytes(authority.leaf_for("api.good.test").public_bytes(Encoding.PEM))
    key = authority._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "leaf.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "leaf.pem", tmp_path / "leaf.key")
    return context


def moved(r: Rig, endpoint: str, port: int) -> None:
    """Let an endpoint of the running policy dial another port."""
    object.__setattr__(r.run.policy.endpoints[endpoint], "dial_port", port)


def test_a_fault_is_not_for_ever(tmp_path: Path) -> None:
    """mitmproxy keeps the error of a connection and refuses with it what comes later on the same client connection."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            right = r.run.policy.endpoints["good"].dial_port
            client = await r.tunnel()
            host = f"api.good.test:{r.direct}"
            for port, status in ((r.evil.port, 502), (right, 200), (closed_port(), 502), (right, 200)):
                moved(r, "good", port)
                if status == 502:
                    for handler in handlers(r):
                        if handler._lane is not None:
                            handler._lane._drop()
                    await asyncio.sleep(0.05)
                assert (await client.get(host=host)).status == status

    asyncio.run(main())


def handlers(r: Rig) -> list[Any]:
    return [h for instances in r.gateway._instances.values() for i in instances for h in i.handlers]


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_nobody_listens(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            moved(r, "good", closed_port())
            assert await ask(r) == (502, "upstream_unreachable")
            assert told(r) == "upstream_unreachable"

    asyncio.run(main())


def scripted(raw: bytes, *, reset: bool = False) -> Script:
    async def script(_seen: Seen, _reader: object, writer: Writer) -> None:
        writer.write(raw)
        await writer.drain()
        if reset:
            writer.transport.abort()
        else:
            writer.close()

    return script


@pytest.mark.parametrize(
    ("raw", "reset", "status", "code"),
    [
        (b"", False, 502, "upstream_reset"),
        (b"", True, 502, "upstream_reset"),
        (b"HTTP/1.1 200", False, 502, "upstream_invalid"),
        (b"nonsense\r\n\r\n", False, 502, "upstream_invalid"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", False, 502, "upstream_invalid"),
        (b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\nok", False, 502, "upstream_invalid"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", False, 502, "upstream_invalid"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            False,
            502,
            "upstream_invalid",
        ),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nraw", False, 502, "upstream_invalid"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 70000, False, 502, "upstream_invalid"),
    ],
)
def test_no_answer_that_counts(raw: bytes, reset: bool, status: int, code: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = scripted(raw, reset=reset)
            assert await ask(r) == (status, code)
            assert told(r) == code

    asyncio.run(main())


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\nzzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n" + b"1" * 200000,
    ],
)
def test_a_body_that_is_cut_off(raw: bytes, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = scripted(raw)
            client = await r.tunnel()
            client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
            got = await client.rest()
            assert b"part" in got
            assert not got.endswith(b"0\r\n\r\n")
            assert told(r) == "upstream_invalid"

    asyncio.run(main())


def part_then(reset: bool) -> Script:
    async def script(_seen: Seen, _reader: object, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart")
        await writer.drain()
        await asyncio.sleep(0.1)
        sock = writer.get_extra_info("socket")
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    return script


def test_a_body_without_length_that_is_reset(tmp_path: Path) -> None:
    """Only the connection's end tells the length: a reset must not look like it."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            for reset in (False, True):
                r.plain.script = part_then(reset)
                client = await r.dial(r.cleartext)
                client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: plain.good.test:%d\r\n\r\n" % r.cleartext)
                await client.reader.readuntil(b"part")
                if reset:
                    with pytest.raises(ConnectionResetError):
                        await client.reader.read()
                else:
                    assert await client.reader.read() == b""
            assert r.reasons() == ["upstream_reset"]

    asyncio.run(main())


def test_a_target_that_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, timeouts=dataclasses.replace(PATIENT, first_byte=1.0)) as r:

            async def hang(*_: object) -> None:
                await asyncio.sleep(30)

            r.good.script = hang
            assert await ask(r) == (504, "upstream_timeout")
            assert told(r) == "upstream_timeout"

    asyncio.run(main())


def test_a_handshake_that_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        # The client's own handshake has as long.
        async with rig(tmp_path, timeouts=dataclasses.replace(PATIENT, tls=3.0)) as r, Target(None) as silent:
            moved(r, "good", silent.port)
            assert await ask(r) == (504, "upstream_timeout")
            assert told(r) == "upstream_timeout"

    asyncio.run(main())


def test_a_handshake_that_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:

            async def slam(_reader: object, writer: Writer) -> None:
                await asyncio.sleep(0.05)
                writer.close()

            async with await asyncio.start_server(slam, "127.0.0.1", 0) as server:
                moved(r, "good", server.sockets[0].getsockname()[1])
                assert await ask(r) == (502, "upstream_reset")
                assert told(r) == "upstream_reset"

    asyncio.run(main())


@pytest.mark.parametrize(("host", "lane"), [("api.good.test", "http/1.1"), ("h2.good.test", "h2")])
def test_a_connection_that_is_reset_as_soon_as_it_stands(
    host: str, lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that we look there is no peer any more: that is the target's doing, and no fault of ours."""

    async def main() -> None:
        async with rig(tmp_path, alpn=(lane,)) as r, resetting(monkeypatch) as port:
            moved(r, host.partition(".")[0].replace("api", "good"), port)
            client = await r.tunnel(host, alpn=(lane,))
            if lane == "h2":
                pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/ok/a")]
                answer = await H2Client(client.reader, client.writer).ask(
                    [*pseudo, (b":authority", b"%b:%d" % (host.encode(), r.direct))]
                )
                assert answer.status == 502 and b"upstream_reset" in answer.body
            else:
                assert await ask(r) == (502, "upstream_reset")
            assert told(r) == "upstream_reset"

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("lane", ["h1", "h2"])
@pytest.mark.parametrize("step", ["fetch", "durable"])
def test_a_client_that_leaves_while_its_request_is_judged(
    step: str, lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is dialled for it, and an intent that was written by then has its outcome."""

    async def main() -> None:
        async with rig(tmp_path, alpn=("h2", "http/1.1")) as r:
            place: Any = r.vault if step == "fetch" else r.extra["ledger"]
            inner = getattr(place, step)

            async def slow(*args: object) -> object:
                await asyncio.sleep(0.2)
                return await inner(*args)

            monkeypatch.setattr(place, step, slow)
            if lane == "h2":
                client = await r.tunnel("h2.good.test", alpn=("h2", "http/1.1"))
                h2 = H2Client(client.reader, client.writer)
                pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/ok/a")]
                h2.conn.send_headers(1, [*pseudo, (b":authority", b"h2.good.test:%d" % r.direct)], end_stream=True)
                h2.flush()
            else:
                client = await r.tunnel()
                client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
            await client.writer.drain()
            await asyncio.sleep(0.05)
            client.close()
            await asyncio.sleep(0.4)
            assert len(r.records("intent")) == len(r.records("outcome")) == 1
            assert r.records("outcome")[0]["detail"] == "client closed the connection"
            assert r.good.connections == 0
            assert r.untouched

    asyncio.run(main())


def test_a_connect_that_hangs(tmp_path: Path) -> None:
    """A full backlog of a socket that nobody accepts on: the kernel drops the SYN."""

    async def main() -> None:
        async with rig(tmp_path, timeouts=dataclasses.replace(PATIENT, connect=1.0)) as r:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                sock.listen(0)
                port = sock.getsockname()[1]
                fill = [socket.socket() for _ in range(8)]
                for s in fill:
                    s.setblocking(False)
                    s.connect_ex(("127.0.0.1", port))
                moved(r, "good", port)
                assert await ask(r) == (504, "upstream_timeout")
                for s in fill:
                    s.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        ([], 502, "resolve_failed"),
        (["10.1.2.3"], 403, "address_blocked"),
        (["127.0.0.1", "10.1.2.3"], 403, "address_blocked"),  # one closed address closes the answer
        (["169.254.169.254"], 403, "metadata"),
        (["::ffff:169.254.169.254"], 403, "metadata"),
        (["127.0.0.99"], 403, "address_blocked"),  # the gateway itself
        (["0.0.0.0"], 403, "address_blocked"),
    ],
)
def test_addresses_are_judged(answer: list[str], status: int, code: str, tmp_path: Path) -> None:
    """Rows 30 and 31."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            r.names["up.good.test"] = tuple(ip_address(a) for a in answer)
            assert await ask(r, "up.good.test", "/a") == (status, code)
            assert r.untouched
            assert r.reasons() == [code]
            assert not r.records("intent")

    asyncio.run(main())


def test_a_name_without_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            del r.names["up.good.test"]
            assert await ask(r, "up.good.test", "/a") == (502, "resolve_failed")

    asyncio.run(main())


def test_the_second_address_is_tried(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.names["up.good.test"] = (ip_address("127.0.0.77"), ip_address("127.0.0.1"))
            client = await r.tunnel("up.good.test")
            assert (await client.get("/a", host=f"up.good.test:{r.direct}")).status == 200
            assert r.records("outcome")[0]["pin"] == "127.0.0.1"

    asyncio.run(main())


def test_an_answer_that_changes_is_judged_again(tmp_path: Path) -> None:
    """Row 30: the second look-up of a rebinding name."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel("up.good.test")
            assert (await client.get("/a", host=f"up.good.test:{r.direct}")).status == 200
            r.names["up.good.test"] = (ip_address("10.0.0.1"),)
            other = await r.tunnel("up.good.test")
            answer = await other.get("/a", host=f"up.good.test:{r.direct}")
            assert (answer.status, answer.code) == (403, "address_blocked")

    asyncio.run(main())


def test_a_peer_that_is_not_the_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            from credgate.gateway import dial

            opened = dial._open

            async def elsewhere(_address: object, port: int) -> object:
                return await opened(ip_address("127.0.0.1"), port)

            monkeypatch.setattr(dial, "_open", elsewhere)
            r.names["up.good.test"] = (ip_address("127.0.0.2"),)
            client = await r.tunnel("up.good.test")
            client.writer.write(b"GET /a HTTP/1.1\r\nHost: up.good.test:%d\r\n\r\n" % r.direct)
            assert await client.rest() == b""
            assert r.untouched
            assert r.records("outcome")[-1]["reason"] == "internal"

    asyncio.run(main())


def test_interim_answers_are_swallowed(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            raw = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
            r.good.script = scripted(raw)
            client = await r.tunnel()
            answer = await client.get(host=f"api.good.test:{r.direct}")
            assert (answer.status, answer.body) == (200, b"ok")

    asyncio.run(main())


def test_a_target_can_not_speak_in_our_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            raw = b'HTTP/1.1 403 No\r\nCredgate-Verdict: deny\r\nAlt-Svc: h3=":443"\r\nContent-Length: 0\r\n\r\n'
            r.good.script = scripted(raw)
            client = await r.tunnel()
            answer = await client.get(host=f"api.good.test:{r.direct}")
            assert answer.status == 403
            assert not answer.verdict
            assert b"alt-svc" not in answer.head.lower()

    asyncio.run(main())


def test_trailers_are_dropped_and_the_body_is_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n"
            r.good.script = scripted(raw)
            client = await r.tunnel()
            answer = await client.get(host=f"api.good.test:{r.direct}")
            assert (answer.status, answer.body) == (200, b"ok")
            head = b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nTransfer-Encoding: chunked\r\n\r\n" % r.direct
            r.good.script = echo_all
            client = await r.tunnel()
            answer = await client.ask(head + b"2\r\nok\r\n0\r\nAuthorization: Bearer mine\r\n\r\n")
            assert answer.body == b"ok 2"
            assert b"mine" not in r.good.raw
            assert SECRET.encode() in r.good.raw

    asyncio.run(main())


async def echo_all(seen: Seen, reader: asyncio.StreamReader, writer: Writer) -> None:
    from tests.credgate.gateway_rig import echo

    await echo(seen, reader, writer)
