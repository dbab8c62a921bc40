"""Secrets in the messages of a WebSocket: written over towards the client, refused towards the target."""

import asyncio
import contextlib
import itertools
import os
from pathlib import Path

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, TextMessage

from credgate.gateway.cleaning import Cleaning
from credgate.gateway.frames import CONTINUATION, PING, TEXT, FrameError, Frames
from credgate.gateway.leaving import Leak
from credgate.gateway.searched import MAX_BEHIND, CleanFrames, LeavingFrames
from rules.needles import needles
from rules.scrub import HEAD, Table
from tests.credgate.gateway_rig import SECRET, Rig, Seen
from tests.credgate.test_websocket import Reader, Writer, agreed, opened, run

S = SECRET.encode()
TABLE = Table(dict.fromkeys(needles(SECRET), "token"))


def frame(opcode: int, payload: bytes, *, fin: bool = True, mask: bytes = b"") -> bytes:
    masked = bytes(c ^ mask[n % 4] for n, c in enumerate(payload)) if mask else payload
    size = len(payload)
    bit = 0x80 if mask else 0
    length = bytes([bit | size]) if size < 126 else bytes([bit | 126]) + size.to_bytes(2)
    return bytes([(0x80 if fin else 0) | opcode]) + length + mask + masked


class Opened(Frames):
    """Takes frames apart again: data payloads together, control payloads apart."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__(masked=masked)
        self.data, self.control, self.order, self._now = b"", b"", list[int](), 0

    def _began(self, head: bytes, opcode: int, length: int) -> None:
        self._now = opcode
        self.order.append(opcode)

    def _payload(self, data: bytes) -> None:
        if self._now == PING:
            self.control += data
        else:
            self.data += data


MESSAGE = b'{"said": "' + S + b'", "more": "' + b"x" * 120 + b'"}'


def frames(mask: bytes = b"") -> bytes:
    cuts = [0, 7, 25, 25, 40, len(MESSAGE)]
    parts = [MESSAGE[a:b] for a, b in itertools.pairwise(cuts)]
    made = [
        frame(TEXT if not n else CONTINUATION, part, fin=n == len(parts) - 1, mask=mask) for n, part in enumerate(parts)
    ]
    made.insert(2, frame(PING, b"are you there", mask=mask))
    return b"".join(made) + frame(TEXT, b"next", mask=mask)


def cleaning(found: list[str]) -> Cleaning:
    return Cleaning(table=TABLE, report=lambda name, where: found.append(f"{name} in {where}"))


def test_written_over_at_every_split() -> None:
    raw = frames()
    for at in range(len(raw) + 1):
        found: list[str] = []
        clean = CleanFrames(cleaning(found))
        out = clean.through(raw[:at]) + clean.through(raw[at:])
        seen = Opened(masked=False)
        seen.feed(out)
        assert (seen.control, seen.order[-1]) == (b"are you there", TEXT)
        assert len(out) == len(raw)
        shown = sum(a == b for a, b in zip(seen.data, MESSAGE + b"next", strict=True)) - len(MESSAGE + b"next") + len(S)
        assert shown < HEAD
        assert S[HEAD:] not in seen.data
        assert found == ["token in a message"]
        assert clean.between


def test_a_secret_in_two_messages_is_found_all_the_same() -> None:
    clean = CleanFrames(cleaning([]))
    first, second = clean.through(frame(TEXT, S[:20])), clean.through(frame(TEXT, S[20:] + b"."))
    assert first == frame(TEXT, S[:20])  # whole, and nothing more may come for long
    assert second == frame(TEXT, b"*" * (len(S) - 20) + b".")


def test_refused_at_every_split() -> None:
    raw = frames(b"\x01\x7f\x80\xaa")
    for at in range(len(raw) + 1):
        leaving = LeavingFrames(TABLE)
        sent, names = b"", frozenset[str]()
        try:
            for part in (raw[:at], raw[at:]):
                sent += leaving.through(part)
        except Leak as leak:
            names = leak.names
        assert names == {"token"}
        assert raw.startswith(sent)
        assert len(sent) < raw.index(frame(TEXT, b"next", mask=b"\x01\x7f\x80\xaa")) - 100


def test_control_other_messages_pass_as_they_came() -> None:
    for size in (0, 1, 125, 126, 70_00):
        payload = os.urandom(size)
        for mask in (b"", b"\x00\x00\x00\x00", b"abcd"):
            raw = frame(TEXT, payload, mask=mask) + frame(PING, b"x", mask=mask)
            passing = LeavingFrames(TABLE) if mask else CleanFrames(cleaning([]))
            assert b"".join(passing.through(raw[n : n + 1]) for n in range(len(raw))) == raw


async def telling(seen: Seen, reader: Reader, writer: Writer) -> None:
    """Says the secret to whoever says anything, in two frames."""
    writer.write(agreed(seen))
    connection = Connection(ConnectionType.SERVER)
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            seen.body += data
            connection.receive_data(data)
            for event in connection.events():
                if isinstance(event, TextMessage | BytesMessage):
                    writer.write(connection.send(TextMessage("you sent " + SECRET[:9], message_finished=False)))
                    await writer.drain()
                    writer.write(connection.send(TextMessage(SECRET[9:] + ".")))
                elif isinstance(event, CloseConnection):
                    writer.write(connection.send(event.response()))
                await writer.drain()


def test_through_the_gateway(tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        heard: list[tuple[str, str]] = []
        r.run.alarm = lambda kind, detail: heard.append((kind, detail))
        r.good.script = telling
        socket = await opened(r)
        await socket.say(TextMessage("hello"))
        assert await socket.message() == b"you sent " + b"*" * len(S) + b"."
        assert [kind for kind, _ in heard] == ["secret_scrubbed"]
        before = len(r.good.seen[-1].body)
        await socket.say(TextMessage("my key is " + SECRET))
        closed = (await socket.hear())[0]
        assert isinstance(closed, CloseConnection)
        assert (closed.code, closed.reason) == (1008, "secret_misplaced")
        async with asyncio.timeout(60):
            while not r.records("outcome"):
                await asyncio.sleep(0.01)
        (outcome,) = r.records("outcome")
        assert outcome["reason"] == "secret_misplaced"
        assert outcome["detail"].startswith("secret 'token' (binding h2, token) in the messages of a request")
        assert "scrubbed: secret 'token'" in outcome["detail"]
        assert [kind for kind, _ in heard] == ["secret_scrubbed", "secret_misplaced"]
        assert len(r.good.seen[-1].body) - before < len(SECRET)
        assert S not in b"".join(f.read_bytes() for f in r.ledger_dir.iterdir())

    run(tmp_path, test)


@pytest.mark.parametrize("opcode", [PING, CONTINUATION])
@pytest.mark.parametrize("target", [False, True])
def test_what_waits_behind_the_beginning_of_a_secret_has_a_bound(opcode: int, target: bool) -> None:
    """Frames that say nothing wait behind it; the message that it stands in never goes on."""
    mask = b"" if target else b"abcd"
    direction, goes_on = (CleanFrames(cleaning([])) if target else LeavingFrames(TABLE) for _ in range(2))
    one = frame(opcode, b"" if opcode == CONTINUATION else b"x" * 100, fin=opcode == PING, mask=mask)
    some = one * (MAX_BEHIND // len(one) // 2)
    begin = frame(TEXT, S[: HEAD + 2], fin=False, mask=mask)
    assert direction.through(begin + some) != begin + some, "something waits"
    direction.through(some)
    with pytest.raises(FrameError, match="without end"):
        direction.through(some)
    goes_on.through(begin + some)
    for _ in range(5):  # a message that goes on lets all of them go
        goes_on.through(frame(CONTINUATION, b"n" * 40, fin=False, mask=mask) + frame(PING, b"", mask=mask) + some)
