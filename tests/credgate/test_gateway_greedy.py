"""Clients that ask without end and take nothing: they wait, and nobody else does."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from credgate.gateway import pipe
from credgate.gateway.pipe import Pipe
from tests.credgate import gateway_rig
from tests.credgate.gateway_rig import Client, Rig, listening, rig

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 1500


def refused(r: Rig, count: int) -> bytes:
    return b"GET /x HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct * count


def test_refusals_asked_for_at_once_leave_the_loop_its_turns(tmp_path: Path) -> None:
    """Thousands of heads fit in one read; measured, they kept every other run waiting for seconds."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.dial(r.cleartext)
            client.writer.write(refused(r, 400))
            at_once, before = 0, 0
            async with asyncio.timeout(60):
                while r.run.denied < 400:
                    await asyncio.sleep(0)
                    at_once, before = max(at_once, r.run.denied - before), r.run.denied
            assert at_once == 1
            for _ in range(400):
                assert (await client.answer()).status == 403

    asyncio.run(main())


def test_who_takes_no_answer_is_asked_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small() -> socket.socket:
        sock = listening()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted ones have it too; else it grows to 4 MiB
        return sock

    monkeypatch.setattr(gateway_rig, "listening", small)

    async def main() -> None:
        async with rig(tmp_path) as r:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", r.cleartext))
            client = Client(*await asyncio.open_connection(sock=sock, limit=1 << 10))
            r.clients.append(client)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's has it
            client.writer.write(refused(r, MANY))
            last = -1
            async with asyncio.timeout(60):
                while r.run.denied != last:
                    last = r.run.denied
                    await asyncio.sleep(1.0)
            assert 0 < last < MANY
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # likewise
            for _ in range(MANY):  # nothing was lost of those that waited
                assert (await client.answer()).status == 403
            assert r.run.denied == MANY

    asyncio.run(main())


class Chatter:
    """TLS whose other side asks for new keys before each byte: `own` bytes of an answer to that."""

    server_side = False

    def __init__(self, own: int, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._own, self._incoming, self._outgoing = own, incoming, outgoing

    def do_handshake(self) -> None:
        pass

    def read(self, _size: int, buffer: memoryview | None = None) -> bytes | int:
        if not self._incoming.pending:
            raise ssl.SSLWantReadError
        one = self._incoming.read(1)
        self._outgoing.write(b"k" * self._own)
        if buffer is None:
            return one
        buffer[:1] = one
        return 1


class Deaf(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = 0
        self.closed = False

    def write(self, data: object) -> None:
        self.kept += len(cast("bytes", data))

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class Told:
    """The end of a pipe."""

    def __init__(self) -> None:
        self.data, self.over = b"", False

    def received(self, _pipe: Pipe, data: bytes) -> None:
        self.data += data

    def secured(self, _pipe: Pipe) -> None:
        pass

    def insecure(self, _pipe: Pipe, error: ssl.SSLError) -> None:
        raise error

    def ended(self, made: Pipe) -> None:
        self.over = True
        made.close()

    def crowded(self, _pipe: Pipe, _full: bool) -> None:
        pass

    def lost(self, _pipe: Pipe) -> None:
        pass


class Mute(Chatter):
    """The same with nothing but such requests."""

    def pending(self) -> int:
        return 0

    def read(self, _size: int, _buffer: memoryview | None = None) -> bytes | int:
        while self._incoming.read(1):
            self._outgoing.write(b"k" * self._own)
        raise ssl.SSLWantReadError


@pytest.mark.parametrize(("own", "ends"), [(1, False), (10, True)])
def test_nothing_but_requests_for_new_keys_ends_it_too(own: int, ends: bool) -> None:
    told, transport = Told(), Deaf()
    made = Pipe(told)
    with contextlib.suppress(AttributeError):  # it has no socket
        made.connection_made(transport)
    made.start_tls(cast("Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]", lambda i, o: Mute(own, i, o)))
    for _ in range(100):
        made.get_buffer(0)[:100] = b"d" * 100
        made.buffer_updated(100)
    assert (told.over, made.broken, transport.closed) == (ends, ends, ends)
    assert transport.kept <= pipe.OWN + 100 * own


@pytest.mark.parametrize(("own", "ends"), [(0, False), (10, False), (1000, True)])
def test_tls_that_has_much_to_say_of_its_own_ends(own: int, ends: bool) -> None:
    """Measured: 300,000 requests for new keys, no answer read, had 2 MB wait here; there was no bound."""
    told, transport = Told(), Deaf()
    made = Pipe(told)
    with contextlib.suppress(AttributeError):  # it has no socket
        made.connection_made(transport)
    made.start_tls(cast("Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]", lambda i, o: Chatter(own, i, o)))
    for _ in range(20):
        made.get_buffer(0)[:100] = b"d" * 100
        made.buffer_updated(100)
    assert (told.over, made.broken, transport.closed) == (ends, ends, ends)
    assert transport.kept <= pipe.OWN + 100 * own
    assert len(told.data) == (2000 if not ends else 100)
