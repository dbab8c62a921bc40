"""The daemon's loop goes on where epoll has no watches left, which a jail can bring about."""

import asyncio
import errno
import selectors
import socket
from collections.abc import Callable

import pytest

from credgate import daemon, loops
from credgate.loops import WideSelector
from credgate.workers import main as worker


class Full(selectors.EpollSelector):
    """As when the user's watches are used up behind the first few."""

    room = 3

    def register(self, *args: object, **more: object) -> selectors.SelectorKey:
        if len(self.get_map()) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().register(*args, **more)  # type: ignore[arg-type]


async def talk(count: int) -> list[bytes]:
    """So many connections, each with a reader and a writer that has to wait, closed and made again."""
    loop, heard = asyncio.get_running_loop(), []
    for _ in range(2):
        pairs = [socket.socketpair() for _ in range(count)]
        streams = [await asyncio.open_connection(sock=mine) for mine, _ in pairs]
        big = b"x" * (1 << 20)
        for (_, writer), (_, theirs) in zip(streams, pairs, strict=True):
            theirs.setblocking(False)
            writer.write(big)
        for (reader, writer), (_, theirs) in zip(streams, pairs, strict=True):
            got = 0
            while got < len(big):
                got += len(await loop.sock_recv(theirs, 1 << 16))
            await writer.drain()
            await loop.sock_sendall(theirs, b"heard")
            heard.append(await reader.readexactly(5))
            writer.close()
            theirs.close()
    return heard


def test_it_goes_on_without_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    assert asyncio.run(talk(8), loop_factory=loops.new_loop) == [b"heard"] * 16
    pair = socket.socketpair()
    with Full() as alone, pair[0], pair[1]:  # control: epoll alone
        alone.room = 1
        alone.register(pair[0], selectors.EVENT_READ)
        with pytest.raises(OSError, match="No space left"):
            alone.register(pair[1], selectors.EVENT_READ)


@pytest.mark.parametrize("room", [100, 1])
def test_it_is_a_selector_as_any_other(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "room", room)
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    pairs = [socket.socketpair() for _ in range(3)]
    with WideSelector() as one, selectors.PollSelector() as other:
        for each in (one, other):
            for mine, _ in pairs:
                each.register(mine, selectors.EVENT_READ, mine.fileno())
        pairs[1][1].send(b"x")
        pairs[2][1].send(b"x")

        def same(of: Callable[[selectors.BaseSelector], object]) -> None:
            assert of(one) == of(other)

        ready = lambda s: sorted((key.fd, key.data, mask) for key, mask in s.select(0))  # noqa: E731 - one line, twice
        same(ready)
        for each in (one, other):
            each.modify(pairs[0][0], selectors.EVENT_READ | selectors.EVENT_WRITE, "changed")
            each.unregister(pairs[2][0])
        same(ready)
        same(lambda s: [s.get_map().get(mine.fileno()) is None for mine, _ in pairs])
        same(lambda s: s.get_key(pairs[0][0]).data)
        for each in (one, other):
            with pytest.raises(KeyError):
                each.unregister(pairs[2][0])
            with pytest.raises(KeyError):
                each.modify(pairs[2][0], selectors.EVENT_READ)
        same(lambda s: s.select(0.01) != [])
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_another_error_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(selectors.EpollSelector):
        def register(self, *_: object, **__: object) -> selectors.SelectorKey:
            raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(selectors, "EpollSelector", Broken)
    mine, theirs = socket.socketpair()
    with WideSelector() as one, mine, theirs, pytest.raises(PermissionError):
        one.register(mine, selectors.EVENT_READ)


def test_daemon_and_workers_run_on_it() -> None:
    assert daemon.new_loop is worker.new_loop is loops.new_loop
    loop = loops.new_loop()
    assert isinstance(loop._selector, WideSelector)  # type: ignore[attr-defined]
    loop.close()
