"""WebSocket messages under a rule with a body term: each is judged before a byte of it goes on, or the socket ends."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from credgate.gateway import hooks, waiting
from credgate.gateway.frames import BINARY, CLOSE, CONTINUATION, PING, TEXT, FrameError
from credgate.gateway.gates import Gate
from credgate.gateway.hooks import Hooks
from credgate.gateway.messages import MAX_FRAMES, MessageRefused, Messages, close_frame
from credgate.gateway.steps import Steps
from tests.credgate.gateway_rig import SECRET, Rig, Seen, rig
from tests.credgate.test_websocket import POLICY_WS, WS_RULE, Reader, Socket, Writer, agreed, echo, frame, opened

MAX = 64 << 10
TERM = 'body = { type = "json", max = "64KiB", in = { type = ["say", "ask"] } }\n'
POLICY = POLICY_WS.replace(WS_RULE, WS_RULE + TERM.replace("{", "{{").replace("}", "}}"))
SAY = json.dumps({"type": "say", "text": "fine"})
EVIL = json.dumps({"type": "evil"})


def run(tmp_path: Path, test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=POLICY) as r:
            r.good.script = echo
            await test(r)

    asyncio.run(main())


async def ends(socket: Socket) -> tuple[int, str]:
    """How the gateway closed: code and reason of its Close frame, (1006, "") where none came."""
    raw = await socket.client.rest()
    socket.connection.receive_data(raw)
    found = [event for event in socket.connection.events() if isinstance(event, CloseConnection)]
    return (found[0].code, found[0].reason or "") if found else (1006, "")


def read_by_another(raw: bytes) -> list[bytes]:
    """The whole messages that wsproto reads from what a target got."""
    connection = Connection(ConnectionType.SERVER)
    connection.receive_data(raw)
    out, parts = [], b""
    for event in connection.events():
        if isinstance(event, TextMessage | BytesMessage):
            parts += event.data.encode() if isinstance(event.data, str) else bytes(event.data)
            if event.message_finished:
                out.append(parts)
                parts = b""
    return out


def test_what_fits_goes_on_as_it_came_and_what_does_not_ends_the_socket(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        socket = await opened(r)
        sent = frame(TEXT, SAY.encode(), mask=b"abcd")
        socket.client.writer.write(sent[:9])
        await asyncio.sleep(0.05)
        assert bytes(r.good.seen[0].body) == b"", "half a message is nothing that could be judged"
        socket.client.writer.write(sent[9:])
        assert await socket.message() == SAY.encode()
        assert bytes(r.good.seen[0].body) == sent
        assert r.good.seen[0].values(b"authorization") == [b"Bearer " + SECRET.encode()]
        await socket.say(TextMessage(EVIL))
        assert await ends(socket) == (1008, "body_refused")
        async with asyncio.timeout(60):
            await r.good.closed.wait()
        assert bytes(r.good.seen[0].body) == sent + close_frame(1001, masked=True)
        [outcome] = r.records("outcome")
        assert (outcome["status"], outcome["reason"], outcome["detail"]) == (101, "body_refused", "the field type")
        assert outcome["req_bytes"] == len(sent)
        assert (r.run.allowed, r.run.denied) == (1, 1)
        assert r.run.held == 0

    run(tmp_path, test)


def test_control_without_the_term_the_same_message_passes(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=POLICY_WS) as r:
            r.good.script = echo
            socket = await opened(r)
            await socket.say(TextMessage(EVIL))
            assert await socket.message() == EVIL.encode()

    asyncio.run(main())


REFUSED: dict[str, tuple[bytes, str]] = {
    "binary": (frame(BINARY, SAY.encode()), "a binary message, where the rule asks for text"),
    "binary in parts": (frame(BINARY, b"", final=False), "a binary message, where the rule asks for text"),
    "too long, by its head alone": (frame(TEXT, bytes(MAX + 1))[:14], f"over max = {MAX} bytes"),
    "too long in parts": (
        frame(TEXT, b"[" * MAX, final=False) + frame(CONTINUATION, b"x"),
        f"over max = {MAX} bytes",
    ),
    "empty frames without end": (
        frame(TEXT, b"", final=False) + frame(CONTINUATION, b"", final=False) * MAX_FRAMES,
        f"a message of more than {MAX_FRAMES} frames",
    ),
    "not JSON": (frame(TEXT, b"say"), "not JSON in UTF-8"),
    "not UTF-8": (frame(TEXT, SAY.encode() + b"\xff"), "not JSON in UTF-8"),
    "a key twice": (frame(TEXT, b'{"type":"say","type":"evil"}'), "a key stands twice in one object"),
    "good, then evil at once": (frame(TEXT, SAY.encode()) + frame(TEXT, EVIL.encode()), "the field type"),
    "evil in parts": (
        frame(TEXT, EVIL.encode()[:5], final=False) + frame(PING) + frame(CONTINUATION, EVIL.encode()[5:]),
        "the field type",
    ),
    "compressed": (frame(TEXT, SAY.encode(), rsv=4), "a reserved bit, though no extension was agreed on"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    raw, why = REFUSED[name]

    async def test(r: Rig) -> None:
        socket = await opened(r)
        socket.client.writer.write(raw)
        code, _ = await ends(socket)
        assert code == (1006 if name == "compressed" else 1008)
        async with asyncio.timeout(60):
            await r.good.closed.wait()
        assert read_by_another(bytes(r.good.seen[0].body)) == ([SAY.encode()] if name.startswith("good") else [])
        [outcome] = r.records("outcome")
        assert outcome["detail"] == why
        assert outcome["reason"] == ("malformed" if name == "compressed" else "body_refused")
        assert r.run.held == 0

    run(tmp_path, test)


def test_a_long_message_in_parts_with_pings_between(tmp_path: Path) -> None:
    """Long enough to be parsed in a thread; the pong comes while the message is still on its way."""
    long = json.dumps({"type": "ask", "text": "x" * (MAX - 100)})

    async def test(r: Rig) -> None:
        socket = await opened(r)
        await socket.say(TextMessage(long[:40_000], message_finished=False))
        await socket.say(Ping(b"between"))
        assert isinstance((await socket.hear())[0], Pong)
        assert r.run.held > 40_000
        await socket.say(TextMessage(long[40_000:]))
        assert await socket.message() == long.encode()
        assert r.run.held == 0
        await socket.say(CloseConnection(1000))
        assert await ends(socket) == (1000, "")
        assert "reason" not in r.records("outcome")[0]

    run(tmp_path, test)


def test_no_close_in_the_middle_of_a_frame_of_the_targets(tmp_path: Path) -> None:
    async def script(seen: Seen, reader: Reader, writer: Writer) -> None:
        writer.write(agreed(seen) + frame(TEXT, b"0123456789", mask=None)[:6])
        seen.body += await reader.read()
        writer.close()

    async def test(r: Rig) -> None:
        r.good.script = script
        socket = await opened(r)
        while len(socket.client.reader._buffer) < 6:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        socket.client.writer.write(frame(TEXT, EVIL.encode()))
        assert await socket.client.rest() == frame(TEXT, b"0123456789", mask=None)[:6]
        assert r.records("outcome")[0]["reason"] == "body_refused"

    run(tmp_path, test)


def test_what_all_sockets_of_a_run_keep_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_RUN", 5000)

    async def test(r: Rig) -> None:
        first, second = await opened(r), await opened(r)
        half = frame(TEXT, b"[" + b" " * 2000)
        first.client.writer.write(half[:-1])
        async with asyncio.timeout(60):
            while not r.run.held:
                await asyncio.sleep(0.01)
        second.client.writer.write(half[:-1])
        assert await ends(second) == (1008, "body_refused")
        assert "wait to be judged" in r.records("outcome")[0]["detail"]
        first.client.writer.close()
        async with asyncio.timeout(60):
            while r.run.held:
                await asyncio.sleep(0.01)

    run(tmp_path, test)


def test_an_exception_while_it_is_judged_lets_nothing_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError

    async def test(r: Rig) -> None:
        socket = await opened(r)
        monkeypatch.setattr(Hooks, "socket_message", broken)
        await socket.say(TextMessage(SAY))
        assert await socket.client.rest() == b""
        await r.good.closed.wait()
        assert bytes(r.good.seen[0].body) == b""
        [outcome] = r.records("outcome")
        assert outcome["reason"] == "internal"

    run(tmp_path, test)


def test_a_hook_that_says_nothing_lets_nothing_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> None:
        return

    async def test(r: Rig) -> None:
        socket = await opened(r)
        monkeypatch.setattr(Hooks, "socket_message", silent)
        await socket.say(TextMessage(SAY))
        assert await ends(socket) == (1008, "body_refused")
        assert read_by_another(bytes(r.good.seen[0].body)) == []

    run(tmp_path, test)


masks = st.binary(min_size=4, max_size=4)
texts = st.sampled_from([b"", b'{"type":"say"}', b'{"type":"evil"}', b"\xff", b"x" * 200])
some_frames = st.builds(
    lambda opcode, payload, final, mask: frame(opcode, payload, final=final, mask=mask),
    st.sampled_from([TEXT, TEXT, CONTINUATION, CONTINUATION, PING, CLOSE, BINARY]),
    texts,
    st.booleans(),
    masks,
)
streams = st.one_of(
    st.lists(some_frames, max_size=8).map(b"".join),
    st.tuples(st.lists(some_frames, max_size=4).map(b"".join), st.binary(max_size=30)).map(b"".join),
)


def judged(raw: bytes, cuts: list[int]) -> tuple[list[bytes], bytes, str]:
    """The texts that were put up for a verdict, what went on, and how it ended: each cut is a read of its own."""
    messages, shown, passed = Messages(limit=300), [], b""
    ends = [*sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]
    start = 0
    for end in ends:
        try:
            pieces = messages.take(raw[start:end])
        except (FrameError, MessageRefused) as error:
            return shown, passed, type(error).__name__
        for piece in pieces:
            shown += [] if piece.text is None else [piece.text]
            passed += piece.raw
        start = end
    assert messages.held <= 2 * 300 + 14 * MAX_FRAMES
    return shown, passed, ""


@settings(max_examples=400, deadline=None)
@given(streams, st.lists(st.integers(0, 2000), max_size=12))
def test_what_another_parser_reads_at_the_target_is_what_was_judged(raw: bytes, cuts: list[int]) -> None:
    shown, passed, ended = judged(raw, cuts)
    if all(_is_text(text) for text in shown):
        assert read_by_another(passed) == shown
    assert raw.startswith(passed) or b"\x89" in raw or b"\x88" in raw, "only a control frame overtakes a message"
    byte_by_byte = judged(raw, list(range(len(raw))))
    assert byte_by_byte[2] == ended
    assert byte_by_byte[0][: len(shown)] == shown, "what a read holds behind a good message may be lost with a bad one"


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_the_close_frame_is_one_for_another_parser() -> None:
    for masked, side in ((True, ConnectionType.SERVER), (False, ConnectionType.CLIENT)):
        connection = Connection(side)
        connection.receive_data(close_frame(1008, masked=masked, reason="body_refused"))
        [event] = connection.events()
        assert isinstance(event, CloseConnection)
        assert (event.code, event.reason) == (1008, "body_refused")


@pytest.mark.parametrize("guarded", [True, False])
def test_others_have_their_turn_between_the_messages_of_one_read(
    guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(hooks, "MESSAGES", 1 << 30)
    judged, turns = 0, list[int]()
    judge = Steps.judge_message

    async def counted(*args: Any) -> str:
        nonlocal judged
        judged += 1
        return await judge(*args)

    async def other() -> None:
        while True:
            turns.append(judged)
            await asyncio.sleep(0)

    monkeypatch.setattr(Steps, "judge_message", counted)

    async def test(r: Rig) -> None:
        socket = await opened(r)
        task = asyncio.create_task(other())
        socket.client.writer.write(frame(TEXT, b'{"type":"say"}', mask=b"abcd") * 190)
        async with asyncio.timeout(60):
            while judged < 190:
                await asyncio.sleep(0.01)
        task.cancel()
        most = max(after - before for before, after in itertools.pairwise([*turns, judged]))
        assert (most <= 8) is guarded

    run(tmp_path, test)


def test_a_gate_that_was_closed_again_keeps_who_waits() -> None:
    async def main() -> None:
        gate, through = Gate(), list[int]()

        async def reader() -> None:
            await gate.wait()
            through.append(1)

        gate.hold()
        task = asyncio.create_task(reader())
        await asyncio.sleep(0)
        for _ in range(3):
            gate.release()
            gate.hold()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not through
        gate.release()
        await task
        assert through == [1]

    asyncio.run(main())
