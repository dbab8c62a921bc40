"""An accepted socket as a pipe has it: read at once, written as far as it goes, ended once."""

import asyncio
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from credgate import compiled
from credgate.gateway import wire as wires
from credgate.gateway.accepting import Acceptor
from credgate.gateway.pipe import Pipe
from credgate.gateway.wire import HIGH, LOW, Wire
from credgate.loops import new_loop

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture(autouse=True, params=["compiled", "python"])
def _calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds with both."""
    if request.param == "python":
        monkeypatch.setattr(wires, "calls", lambda: (wires.receive, wires.send))
    else:
        assert compiled.load("turn") is not None


def test_what_is_asked_of_a_socket() -> None:
    """What is not there now is no error, and neither is the end; all else is."""
    receive, send = wires.calls()
    mine, theirs = socket.socketpair()
    for sock in (mine, theirs):
        sock.setblocking(False)
    room = bytearray(8)
    assert receive(mine.fileno(), memoryview(room)) == -1
    assert send(theirs.fileno(), b"0123456789") == 10
    assert (receive(mine.fileno(), memoryview(room)), bytes(room)) == (8, b"01234567")
    assert (receive(mine.fileno(), memoryview(room)[:4]), bytes(room)) == (2, b"89234567")
    assert send(theirs.fileno(), memoryview(b"ab")[1:]) == 1
    while send(theirs.fileno(), b"x" * 4096):
        pass
    with pytest.raises((TypeError, BufferError)):
        receive(mine.fileno(), memoryview(b"read only"))
    number = theirs.fileno()
    theirs.close()
    while receive(mine.fileno(), memoryview(room)) > 0:
        pass
    assert receive(mine.fileno(), memoryview(room)) == 0
    with pytest.raises(BrokenPipeError):
        send(mine.fileno(), b"x")
    for closed in (number, -1):
        with pytest.raises(OSError, match="Bad file descriptor"):
            send(closed, b"x")
        with pytest.raises(OSError, match="Bad file descriptor"):
            receive(closed, memoryview(room))
    mine.close()


def test_a_wire_that_ended_asks_nothing_of_whoever_has_its_number() -> None:
    async def body(j: Joined) -> None:
        j.wire.abort()
        await j.told.over.wait()
        assert (j.near.fileno(), j.wire._fd) == (-1, -1)
        j.wire.write(b"x")
        j.wire._readable()

    joined(body)


class Told:
    """The end of a pipe: what it was told, in order."""

    def __init__(self, then: Callable[[Pipe], None] = lambda _: None) -> None:
        self.then, self.got, self.said = then, b"", list[str]()
        self.over = asyncio.Event()

    def received(self, pipe: Pipe, data: bytes) -> None:
        self.got += data
        self.then(pipe)

    def ended(self, pipe: Pipe) -> None:
        self.said.append("broken" if pipe.broken else "ended")
        pipe.close()

    def crowded(self, _pipe: Pipe, full: bool) -> None:
        self.said.append("full" if full else "free")

    def lost(self, _pipe: Pipe) -> None:
        self.said.append("lost")
        self.over.set()


class Joined:
    """A pipe on one end of a connection over loopback, a plain socket on the other."""

    def __init__(self, told: Told, first: bytes = b"", *, heeds: bool = False) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.far = socket.create_connection(listener.getsockname())
            self.far.settimeout(5)
            self.near, _ = listener.accept()
        self.near.setblocking(False)
        self.far.sendall(first)
        self.told, self.pipe = told, Pipe(told)  # type: ignore[arg-type] # what bytes in the clear call
        self.wire = Wire(self.near, self.pipe, heeds=heeds)
        self.wire.begin()


def joined(body: Callable[[Joined], Awaitable[None]], first: bytes = b"", *, heeds: bool = False, **more: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            made = Joined(Told(**more), first, heeds=heeds)
            try:
                await body(made)
            finally:
                made.far.close()
                made.wire.abort()
                await made.told.over.wait()
        assert made.near.fileno() < 0 and made.told.said.count("lost") == 1

    asyncio.run(main(), loop_factory=new_loop)


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def test_what_is_there_already_is_read_at_once() -> None:
    async def body(made: Joined) -> None:
        assert made.told.got == b"first"
        made.far.sendall(b" second")
        await until(lambda: made.told.got == b"first second")

    joined(body, b"first")


def test_what_the_kernel_has_no_room_for_waits_and_comes_whole() -> None:
    async def body(made: Joined) -> None:
        data = bytes(range(256)) * 64 * 1024  # 16 MiB
        made.pipe.send(data)
        assert made.told.said == ["full"] and made.wire.get_write_buffer_size() > HIGH
        made.pipe.close()  # what waits is sent all the same, and only then is it closed

        def drain() -> bytes:
            return b"".join(iter(lambda: made.far.recv(1 << 20), b""))

        assert await asyncio.to_thread(drain) == data
        await made.told.over.wait()
        assert made.told.said == ["full", "free", "lost"]
        assert made.wire.get_write_buffer_size() <= LOW

    joined(body)


def test_a_pause_leaves_bytes_in_the_kernel() -> None:
    async def body(made: Joined) -> None:
        made.far.sendall(b"x")
        await until(lambda: made.told.got == b"x")  # the end pauses the pipe with each byte that it gets
        made.far.sendall(b"y")
        await asyncio.sleep(0.05)
        assert made.told.got == b"x" and not made.wire.is_reading()
        made.pipe.pause(False)
        await until(lambda: made.told.got == b"xy")

    joined(body, then=lambda pipe: pipe.pause(True))


@pytest.mark.parametrize(("reset", "said"), [(False, ["ended", "lost"]), (True, ["broken", "lost"])])
def test_the_other_sides_end(reset: bool, said: list[str]) -> None:
    async def body(made: Joined) -> None:
        if reset:
            made.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.far.close()
        await made.told.over.wait()
        assert made.told.said == said

    joined(body)


def test_sending_to_who_is_gone_ends_it() -> None:
    async def body(made: Joined) -> None:
        made.pipe.pause(True)  # so that only sending can tell
        made.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.far.close()
        await asyncio.sleep(0.05)
        made.pipe.send(b"x")
        await made.told.over.wait()
        assert made.told.said == ["broken", "lost"]

    joined(body)


def gone(made: Joined, *, reset: bool) -> None:
    """The other side says "no" and is gone, within a turn of the loop: who sends next is the first to learn of it."""
    made.far.sendall(b"no")
    if reset:
        made.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.far.close()
    if not reset:
        made.near.send(b"x")  # answered by RST
    over = select.poll()
    over.register(made.near, 0)
    assert over.poll(5000)


@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_what_a_target_said_before_it_was_gone(reset: bool, heeds: bool) -> None:
    async def body(made: Joined) -> None:
        gone(made, reset=reset)
        made.pipe.send(b"x")
        made.pipe.send(b"y")
        assert made.told.got == b"" and made.wire.is_closing() and not made.wire.get_write_buffer_size()
        await made.told.over.wait()
        assert (made.told.got, made.told.said) == (b"no" if heeds else b"", ["broken", "lost"])

    joined(body, heeds=heeds)


def test_what_waits_to_be_sent_is_dropped_then() -> None:
    async def body(made: Joined) -> None:
        made.pipe.send(b"x" * (16 << 20))
        made.far.sendall(b"no")
        made.far.close()  # on what it didn't read: by RST
        await made.told.over.wait()
        assert (made.told.got, made.told.said) == (b"no", ["full", "broken", "lost"])

    joined(body, heeds=True)


@pytest.mark.parametrize("end", [Pipe.reset, Pipe.close])
@pytest.mark.parametrize("at", ["before", "amid"])
def test_an_end_of_ours_while_that_is_read(at: str, end: Callable[[Pipe], None]) -> None:
    async def body(made: Joined) -> None:
        gone(made, reset=True)
        made.pipe.send(b"x")
        if at == "before":
            end(made.pipe)
        await made.told.over.wait()
        assert (made.told.got, made.told.said) == (b"" if at == "before" else b"no", ["lost"])

    joined(body, heeds=True, then=(lambda _: None) if at == "before" else end)


def test_an_end_that_raises_at_that_ends_it_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def body(made: Joined) -> None:
        gone(made, reset=True)
        made.pipe.send(b"x")
        await made.told.over.wait()
        assert "ZeroDivisionError" in caplog.text and made.told.said == ["broken", "lost"]

    joined(body, heeds=True, then=lambda _: 1 / 0)  # raises, and returns nothing


def test_a_reset_drops_what_waits() -> None:
    async def body(made: Joined) -> None:
        made.pipe.send(b"x" * (16 << 20))
        assert made.wire.get_write_buffer_size()
        made.pipe.reset()
        await made.told.over.wait()

        def drain() -> bytes:
            return b"".join(iter(lambda: made.far.recv(1 << 20), b""))

        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(drain)

    joined(body)


def test_an_end_that_raises_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def body(made: Joined) -> None:
        made.far.sendall(b"x")
        await made.told.over.wait()
        assert "ZeroDivisionError" in caplog.text and "broken" in made.told.said

    joined(body, then=lambda _: 1 / 0)  # raises, and returns nothing


@pytest.mark.parametrize("closed", [False, True])
def test_accepted_sockets_wait_for_no_ack(closed: bool) -> None:
    """TCP_NODELAY is the listener's, and inherited; an end that is closed before its socket is there is closed then."""

    async def main() -> None:
        told, made = Told(), list[Pipe]()

        def make() -> Pipe:
            made.append(Pipe(told))  # type: ignore[arg-type] # as above
            if closed:
                made[0].close()
            return made[0]

        listener = socket.create_server(("127.0.0.1", 0))
        acceptor = Acceptor(listener, None, make)
        with socket.create_connection(listener.getsockname()) as far:
            far.setblocking(False)
            async with asyncio.timeout(60):
                await until(lambda: made)
                if not closed:
                    assert made[0].info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                    assert made[0].info("peername") == far.getsockname()
                    assert made[0].info("sockname") == far.getpeername()
                    assert made[0].info("cipher") is None
                    made[0].close()
                await told.over.wait()
        acceptor.close()
        assert told.said == ["lost"]

    asyncio.run(main(), loop_factory=new_loop)
