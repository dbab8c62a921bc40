"""WebSocket: judged at its handshake, relayed frame by frame, and ended with whatever ends the run's rights."""

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import RemoteProtocolError

from credgate.gateway.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, FrameError, Frames
from credgate.gateway.hooks import Hooks
from credgate.gateway.steps import Steps
from rules.upgrades import accepts
from tests.credgate.gateway_rig import PATIENT, POLICY, SECRET, Answer, Client, Rig, Seen, rig

WS_RULE = """
[[endpoint.good.allow]]
id = "ws"
methods = ["GET"]
paths = ["/ws", "/ws/*"]
upgrade = true
"""
POLICY_WS = POLICY.replace("[[endpoint.good.deny]]", f"{WS_RULE}[[endpoint.good.deny]]", 1)
POLICY_WS = POLICY_WS.replace('rules = ["ok", "query", "slash"]', 'rules = ["ok", "query", "slash", "ws"]')
POLICY_WS = POLICY_WS.replace(
    'id = "all"\nmethods = ["GET", "POST"]', 'id = "all"\nupgrade = true\nmethods = ["GET", "POST"]'
)
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455's own

type Reader = asyncio.StreamReader
type Writer = asyncio.StreamWriter


def accept(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())


def agreed(seen: Seen, *more: bytes) -> bytes:
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
    lines += [b"Sec-WebSocket-Accept: " + accept(seen.values(b"sec-websocket-key")[0]), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def echo(seen: Seen, reader: Reader, writer: Writer) -> None:
    """Sends every message back, pongs, and closes when asked to."""
    if not seen.values(b"upgrade"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
        return
    writer.write(agreed(seen))
    connection = Connection(ConnectionType.SERVER)
    with contextlib.suppress(RemoteProtocolError):
        while data := await reader.read(65536):
            seen.body += data
            connection.receive_data(data)
            for event in connection.events():
                if isinstance(event, TextMessage | BytesMessage):
                    writer.write(connection.send(event))
                elif isinstance(event, Ping | CloseConnection):
                    writer.write(connection.send(event.response()))
            await writer.drain()
            if connection.state is ConnectionState.CLOSED:
                break
    writer.close()


def handshake(r: Rig, path: str = "/ws", **more: str) -> bytes:
    fields = {
        "Host": f"api.good.test:{r.direct}",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec_WebSocket_Key": KEY.decode(),
        "Sec_WebSocket_Version": "13",
        **more,
    }
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines]).encode() + b"\r\n\r\n"


class Socket:
    """A client behind its handshake."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.connection = Connection(ConnectionType.CLIENT)

    async def say(self, event: TextMessage | BytesMessage | Ping | CloseConnection) -> None:
        self.client.writer.write(self.connection.send(event))
        await self.client.writer.drain()

    async def hear(self) -> list[object]:
        """The next whole message, or what else came."""
        found: list[object] = []
        async with asyncio.timeout(60):
            while not found:
                self.connection.receive_data(await self.client.reader.read(65536) or None)
                found += list(self.connection.events())
        return found

    async def message(self) -> bytes:
        whole = b""
        while True:
            for event in await self.hear():
                assert isinstance(event, TextMessage | BytesMessage), event
                whole += event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                if event.message_finished:
                    return whole


async def opened(r: Rig, path: str = "/ws", **more: str) -> Socket:
    client = await r.tunnel()
    answer = await client.ask(handshake(r, path, **more))
    assert answer.status == 101, answer
    return Socket(client)


def run(tmp_path: Path, test: Callable[[Rig], Awaitable[None]], **kw: Any) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=POLICY_WS, **kw) as r:
            r.good.script = r.plain.script = echo
            await test(r)

    asyncio.run(main())


def test_an_echo_with_the_secret_in_the_handshake_alone(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        client = await r.tunnel()
        answer = await client.ask(
            handshake(r, Authorization="Bearer mine", Sec_WebSocket_Extensions="permessage-deflate")
        )
        assert answer.status == 101
        assert b"sec-websocket-accept: " + accept(KEY).lower() in answer.head.lower()
        assert SECRET.encode() not in answer.head
        socket = Socket(client)
        await socket.say(TextMessage("hello"))
        assert await socket.message() == b"hello"
        [seen] = r.good.seen
        assert seen.values(b"authorization") == [b"Bearer " + SECRET.encode()]
        assert seen.values(b"sec-websocket-extensions") == []
        assert (seen.values(b"upgrade"), seen.values(b"connection")) == ([b"websocket"], [b"Upgrade"])
        assert seen.values(b"sec-websocket-key") == [KEY]
        assert r.records("outcome") == []  # it lives
        await socket.say(CloseConnection(1000))
        assert isinstance((await socket.hear())[0], CloseConnection)
        assert await client.rest() == b""
        [outcome] = r.records("outcome")
        assert (outcome["status"], outcome.get("reason"), outcome.get("detail")) == (101, None, None)
        assert outcome["req_bytes"] == len(seen.body) > 0
        assert outcome["resp_bytes"] > 0
        assert r.records("intent")[0]["rule"] == "good.ws"

    run(tmp_path, test)


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536, 70_000, 3 << 20])
def test_messages_of_any_length(size: int, tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        socket = await opened(r)
        sent = os.urandom(size)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(socket.say(BytesMessage(sent)))
            tasks.create_task(_hears(socket, sent))

    run(tmp_path, test)


async def _hears(socket: Socket, sent: bytes) -> None:
    assert await socket.message() == sent


def test_a_message_in_parts_and_control_frames_between(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        socket = await opened(r)
        await socket.say(TextMessage("one ", message_finished=False))
        await socket.say(Ping(b"are you there"))
        await socket.say(TextMessage("two"))
        found: list[object] = []
        while len(found) < 3:
            found += await socket.hear()
        assert {type(event).__name__ for event in found} >= {"Pong", "TextMessage"}

    run(tmp_path, test)


def test_silence_longer_than_every_phase(tmp_path: Path) -> None:
    """Connect, TLS, first byte are over; only the idle limit counts."""

    async def test(r: Rig) -> None:
        socket = await opened(r)
        for _ in range(2):
            await asyncio.sleep(2.5)
            await socket.say(TextMessage("still there"))
            assert await socket.message() == b"still there"

    run(tmp_path, test, timeouts=dataclasses.replace(PATIENT, connect=2.0, tls=2.0, first_byte=2.0))


def test_a_socket_on_which_nothing_moves_ends(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        socket = await opened(r)
        assert await socket.client.rest() == b""
        assert r.records("outcome")[0]["status"] == 101

    run(tmp_path, test, timeouts=dataclasses.replace(PATIENT, idle=2.0))


def test_cleartext_where_the_endpoint_is(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        client = await r.dial(r.cleartext)
        asked = handshake(r, "/ok/ws", Host=f"plain.good.test:{r.cleartext}")
        assert (await client.ask(asked)).status == 101
        socket = Socket(client)
        await socket.say(TextMessage("x"))
        assert await socket.message() == b"x"

    run(tmp_path, test)


REFUSED: dict[str, tuple[str, dict[str, str], int]] = {
    "a path without upgrade": ("/ok/a", {}, 426),
    "no path at all": ("/none", {}, 426),
    "h2c": ("/ws", {"Upgrade": "h2c"}, 426),
    "two protocols": ("/ws", {"Upgrade": "websocket, h2c"}, 426),
    "another version": ("/ws", {"Sec_WebSocket_Version": "8"}, 426),
    "no version": ("/ws", {"Sec_WebSocket_Version": ""}, 426),
    "no key": ("/ws", {"Sec_WebSocket_Key": ""}, 426),
    "a short key": ("/ws", {"Sec_WebSocket_Key": "AAAA"}, 426),
    "no connection": ("/ws", {"Connection": "keep-alive"}, 426),
    "a body": ("/ws", {"Content_Length": "4"}, 403),
    "an ambiguous path": ("/ws/../ws", {}, 403),
    "another host": ("/ws", {"Host": "evil.test"}, 403),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_handshake_of_a_rule(name: str, tmp_path: Path) -> None:
    path, more, status = REFUSED[name]

    async def test(r: Rig) -> None:
        client = await r.tunnel()
        raw = handshake(r, path, **more)
        answer = await client.ask(raw + (b"body" if "Content_Length" in more else b""))
        assert (answer.status, answer.verdict) == (status, True)
        assert r.untouched

    run(tmp_path, test)


def test_absolute_form_is_no_handshake(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        client = await r.dial(r.proxy)
        target = f"http://plain.good.test:{r.cleartext}/ok/ws"
        answer = await client.ask(handshake(r, target, Host=f"plain.good.test:{r.cleartext}"))
        assert answer.status == 426
        assert r.untouched

    run(tmp_path, test)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: AAAA\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: OK\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: OK\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: OK\r\n"
        b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: OK\r\n"
        b"Sec-WebSocket-Protocol: unasked\r\n\r\n",
    ],
)
def test_a_target_that_does_not_agree(answer: bytes, tmp_path: Path) -> None:
    async def script(_seen: Seen, reader: Reader, writer: Writer) -> None:
        writer.write(answer.replace(b"OK", accept(KEY)) + b"\x81\x04evil")
        await reader.read()

    async def test(r: Rig) -> None:
        r.good.script = script
        client = await r.tunnel()
        got = await client.ask(handshake(r))
        assert (got.status, got.code) == (502, "upstream_invalid")
        assert b"evil" not in got.body
        await asyncio.sleep(0.1)
        assert not client.reader._buffer  # type: ignore[attr-defined]

    run(tmp_path, test)


def test_a_101_that_nobody_asked_for(tmp_path: Path) -> None:
    async def script(_seen: Seen, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        await reader.read()

    async def test(r: Rig) -> None:
        r.good.script = script
        client = await r.tunnel()
        answer = await client.get(host=f"api.good.test:{r.direct}")
        assert (answer.status, answer.code) == (502, "upstream_invalid")

    run(tmp_path, test)


def test_a_target_that_declines(tmp_path: Path) -> None:
    async def script(seen: Seen, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")

    async def test(r: Rig) -> None:
        r.good.script = script
        client = await r.tunnel()
        for _ in range(2):
            answer = await client.ask(handshake(r))
            assert (answer.status, answer.body, answer.verdict) == (403, b"no", False)

    run(tmp_path, test)


def test_a_chosen_subprotocol_and_a_credential_among_the_offered(tmp_path: Path) -> None:
    async def script(seen: Seen, reader: Reader, writer: Writer) -> None:
        writer.write(agreed(seen, b"Sec-WebSocket-Protocol: realtime"))
        await reader.read()

    async def test(r: Rig) -> None:
        r.good.script = script
        client = await r.tunnel()
        answer = await client.ask(handshake(r, Sec_WebSocket_Protocol="realtime, openai-insecure-api-key.sk-mine"))
        assert answer.status == 101
        assert b"realtime" in answer.head
        assert r.good.seen[0].values(b"sec-websocket-protocol") == [b"realtime"]

    run(tmp_path, test)


def frame(
    opcode: int, payload: bytes = b"", *, final: bool = True, mask: bytes | None = b"\0\0\0\0", rsv: int = 0
) -> bytes:
    size = len(payload)
    length = (
        bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x7f" + size.to_bytes(8)
    )
    head = (
        bytes([(0x80 if final else 0) | rsv << 4 | opcode, length[0] | (0x80 if mask is not None else 0)]) + length[1:]
    )
    masked = payload if mask is None else bytes(b ^ mask[i % 4] for i, b in enumerate(payload))
    return head + (mask or b"") + masked


BAD: dict[str, bytes] = {
    "no mask": frame(TEXT, b"evil", mask=None),
    "reserved bit": frame(TEXT, b"evil", rsv=4),
    "opcode 3": frame(3, b"evil"),
    "opcode 15": frame(15, b"evil"),
    "continuation of nothing": frame(CONTINUATION, b"evil"),
    "a message in a message": frame(TEXT, b"a", final=False) + frame(TEXT, b"evil"),
    "a ping in parts": frame(PING, b"evil", final=False),
    "a long ping": frame(PING, b"evil" + b"x" * 122),
    "behind a close": frame(CLOSE) + frame(TEXT, b"evil"),
    "a length in a longer form": b"\x81\xfe\x00\x04\0\0\0\0evil",
    "a length in the longest form": b"\x81\xff" + (4).to_bytes(8) + b"\0\0\0\0evil",
    "a length without end": b"\x82\xff" + (1 << 63).to_bytes(8) + b"\0\0\0\0evil",
    "no frames": b"GET /evil HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_frame_ends_the_socket(name: str, tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        socket = await opened(r)
        socket.client.writer.write(frame(TEXT, b"fine"))
        assert await socket.message() == b"fine"
        socket.client.writer.write(BAD[name])
        assert b"evil" not in await socket.client.rest()
        async with asyncio.timeout(60):
            await r.good.closed.wait()
        assert b"evil" not in r.good.seen[0].body
        [outcome] = r.records("outcome")
        assert outcome["reason"] == "malformed"

    run(tmp_path, test)


@pytest.mark.parametrize("name", [n for n in BAD if n != "no mask"])
def test_nor_of_the_target(name: str, tmp_path: Path) -> None:
    bad = frame(TEXT, b"evil") if name == "no frames" else _unmasked(BAD[name])  # the first one is masked

    async def script(seen: Seen, reader: Reader, writer: Writer) -> None:
        writer.write(agreed(seen) + frame(TEXT, b"fine", mask=None))
        await reader.readexactly(1)
        writer.write(bad)
        await reader.read()

    async def test(r: Rig) -> None:
        r.good.script = script
        socket = await opened(r)
        assert await socket.message() == b"fine"
        socket.client.writer.write(frame(TEXT, b"go"))
        assert b"evil" not in await socket.client.rest()
        [outcome] = r.records("outcome")
        assert outcome["reason"] == "upstream_invalid"

    run(tmp_path, test)


def _unmasked(raw: bytes) -> bytes:
    """The same frames as a server sends them: without the mask's bit and its four bytes of zero."""
    out, i = b"", 0
    while i < len(raw):
        length = raw[i + 1] & 0x7F
        extra = {126: 2, 127: 8}.get(length, 0)
        size = int.from_bytes(raw[i + 2 : i + 2 + extra]) if extra else length
        out += bytes([raw[i], length]) + raw[i + 2 : i + 2 + extra] + raw[i + 6 + extra : i + 6 + extra + size]
        i += 6 + extra + size
    return out


@pytest.mark.parametrize("how", ["close", "cut"])
def test_the_run_ends_and_the_socket_with_it(how: str, tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        socket = await opened(r)
        await socket.say(TextMessage("x"))
        assert await socket.message() == b"x"
        started = asyncio.get_running_loop().time()
        if how == "close":
            await r.gateway.close(r.run.id)
        else:
            assert r.gateway.cut(r.run.id, "revoked") == 1
        assert await socket.client.rest() == b""
        await r.good.closed.wait()
        assert asyncio.get_running_loop().time() - started < 1
        [outcome] = r.records("outcome")
        assert outcome["status"] == 101 and outcome["req_bytes"] > 0 and outcome["detail"]

    run(tmp_path, test)


@pytest.mark.parametrize("name", ["passed", "socket_end"])
def test_an_exception_lets_nothing_more_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError

    def broken_at_once(*_: object) -> str:
        raise ValueError

    async def test(r: Rig) -> None:
        socket = await opened(r)
        await socket.say(TextMessage("x"))
        assert await socket.message() == b"x"
        before = r.good.seen[0].body
        if name == "passed":
            monkeypatch.setattr(Steps, name, broken_at_once)
            socket.client.writer.write(frame(TEXT, b"evil"))
        else:
            monkeypatch.setattr(Hooks, name, broken)
            socket.client.writer.write(BAD["opcode 3"])
        assert await socket.client.rest() == b""
        await r.good.closed.wait()
        assert r.good.seen[0].body == before
        [outcome] = r.records("outcome")
        assert (outcome["status"], outcome["reason"]) == (101, "internal")

    run(tmp_path, test)


@pytest.mark.parametrize("who", ["client", "target"])
def test_an_end_without_a_close_frame(who: str, tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        socket = await opened(r)
        await socket.say(TextMessage("x"))
        assert await socket.message() == b"x"
        if who == "client":
            socket.client.close()
        else:
            socket.client.writer.write(frame(9, b"x", rsv=0)[:1])  # half a frame keeps the client's side open
            r.good._raw_server.close()
            for task in asyncio.all_tasks():
                if "_serve" in repr(task.get_coro()):
                    task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                while not r.records("outcome"):
                    await asyncio.sleep(0.01)
        [outcome] = r.records("outcome")
        assert "close" in outcome["detail"]

    run(tmp_path, test)


def test_requests_before_the_handshake_on_one_connection(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        client = await r.tunnel()
        assert (await client.get("/ws", host=f"api.good.test:{r.direct}")).status == 200
        assert (await client.ask(handshake(r, "/ok/no"))).status == 426
        answer: Answer = await client.ask(handshake(r, "/ws/a"))
        assert answer.status == 101
        socket = Socket(client)
        await socket.say(TextMessage("x"))
        assert await socket.message() == b"x"

    run(tmp_path, test)


def whole(raw: bytes, *, masked: bool) -> str:
    frames = Frames(masked=masked)
    try:
        frames.feed(raw)
    except FrameError as error:
        return str(error)
    return "closed" if frames.closed else "open"


good_frames = st.lists(
    st.one_of(
        st.builds(lambda p, m: frame(TEXT, p, mask=m), st.binary(max_size=300), st.binary(min_size=4, max_size=4)),
        st.builds(lambda p, m: frame(PONG, p, mask=m), st.binary(max_size=125), st.binary(min_size=4, max_size=4)),
        st.builds(
            lambda p, m: frame(BINARY, p, final=False, mask=m) + frame(PING) + frame(CONTINUATION, p, mask=m),
            st.binary(max_size=70),
            st.binary(min_size=4, max_size=4),
        ),
    ),
    max_size=6,
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.binary(max_size=200), good_frames, st.tuples(good_frames, st.binary(max_size=20)).map(b"".join)),
    st.data(),
)
def test_any_bytes_in_any_pieces_are_seen_alike(raw: bytes, data: st.DataObject) -> None:
    at_once = whole(raw, masked=True)
    frames, result = Frames(masked=True), "open"
    start = 0
    while start < len(raw):
        end = data.draw(st.integers(start + 1, len(raw)))
        try:
            frames.feed(raw[start:end])
        except FrameError as error:
            result = str(error)
            break
        start = end
    else:
        result = "closed" if frames.closed else "open"
    assert result == at_once


@settings(max_examples=200, deadline=None)
@given(good_frames)
def test_good_frames_pass(raw: bytes) -> None:
    assert whole(raw, masked=True) == "open"
    assert whole(raw + frame(CLOSE, b"\x03\xe8"), masked=True) == "closed"


def test_a_frame_of_gigabytes_is_not_kept() -> None:
    frames = Frames(masked=True)
    frames.feed(b"\x82\xff" + (1 << 40).to_bytes(8) + secrets.token_bytes(4))
    for _ in range(64):
        frames.feed(bytes(1 << 20))
    assert len(frames._head) < 16


def test_the_rfcs_own_example() -> None:
    asked = ((b"Sec-WebSocket-Key", KEY),)
    told = ((b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"))
    assert accepts(asked, (*told, (b"Sec-WebSocket-Accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")))
    assert not accepts(asked, (*told, (b"Sec-WebSocket-Accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOp=")))
