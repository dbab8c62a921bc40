"""The daemon's loop goes on where epoll has no watches left, which a jail can bring about."""

import asyncio
import errno
import os
import selectors
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from credgate import compiled, daemon, loops
from credgate.loops import WideSelector
from credgate.workers import main as worker

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture(autouse=True, params=["compiled", "python"])
def _turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds of both."""
    if request.param == "python":
        monkeypatch.setattr(compiled, "load", lambda _name: None)
    else:
        assert compiled.load("turn") is not None


class Full(selectors.EpollSelector):
    """As when the user's watches are used up behind the first few."""

    room = 3

    def register(self, *args: Any, **more: Any) -> selectors.SelectorKey:
        if len(self.get_map()) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().register(*args, **more)


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


# -- what is called without the loop between


def watching(*calls: Callable[[], object]) -> tuple[WideSelector, list[socket.socket], list[socket.socket]]:
    """A selector that calls each when its descriptor can be read, and the pairs that bring it about."""
    pairs = [socket.socketpair() for _ in calls]
    selector = WideSelector()
    for (mine, _), call in zip(pairs, calls, strict=True):
        selector.add_reader(mine.fileno(), call)
    return selector, [mine for mine, _ in pairs], [theirs for _, theirs in pairs]


def closed(selector: WideSelector, *sockets: list[socket.socket]) -> None:
    selector.close()
    for sock in (one for some in sockets for one in some):
        sock.close()


@pytest.mark.parametrize("room", [100, 1])
def test_who_is_called_is_not_in_what_select_returns(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "room", room)
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    called: list[str] = []
    selector, mine, theirs = watching(lambda: called.append("a"), lambda: called.append("b"))
    other = socket.socketpair()
    selector.register(other[0], selectors.EVENT_READ, "registered")
    for sock in (*theirs, other[1]):
        sock.send(b"x")
    assert [(key.data, mask) for key, mask in selector.select(5)] == [("registered", selectors.EVENT_READ)]
    assert sorted(called) == ["a", "b"]
    selector.remove_reader(mine[0].fileno())
    selector.add_writer(mine[1].fileno(), lambda: called.append("w"))
    selector.select(5)
    assert sorted(called[2:]) == ["b", "w"]
    selector.remove_writer(mine[1].fileno())
    selector.remove_writer(mine[1].fileno())  # as a loop's: nothing was there
    assert [selector.get_map().get(sock.fileno()) is None for sock in mine] == [True, False]
    with pytest.raises(ValueError, match="is registered"):
        selector.add_reader(other[0].fileno(), print)
    closed(selector, mine, theirs, list(other))


def test_what_another_call_took_back_is_not_called() -> None:
    """Both can be read when the first is called; with its descriptor's number somebody else may have begun by then."""
    called: list[int] = []

    def taking(which: int) -> Callable[[], None]:
        def call() -> None:
            called.append(which)
            selector.remove_reader(mine[1 - which].fileno())
            selector.add_writer(mine[1 - which].fileno(), lambda: called.append(2))

        return call

    selector, mine, theirs = watching(taking(0), taking(1))
    for sock in theirs:
        sock.send(b"x")
    selector.select(0)
    assert called in ([0], [1])
    closed(selector, mine, theirs)


def test_who_raises_is_told_of_and_the_others_have_their_turn() -> None:
    told: list[dict[str, object]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: told.append(context))
        pair, done = socket.socketpair(), asyncio.Event()

        def call() -> None:
            loops.watches(loop).remove_reader(pair[0].fileno())
            done.set()
            raise ZeroDivisionError

        loops.watches(loop).add_reader(pair[0].fileno(), call)
        pair[1].send(b"x")
        await asyncio.wait_for(done.wait(), 60)
        for sock in pair:
            sock.close()

    asyncio.run(main(), loop_factory=loops.new_loop)
    assert [type(one["exception"]) for one in told] == [ZeroDivisionError]


def test_another_loop_calls_back_itself() -> None:
    loop = asyncio.SelectorEventLoop()
    assert loops.watches(loop) is loop
    loop.close()


@pytest.mark.parametrize("room", [100, 1])
def test_a_number_that_has_become_anothers_in_the_same_turn_is_not_returned(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered when its event came, and one that is called by the time that `select` returns: the loop would take
    apart what is not its own, and end.
    """
    monkeypatch.setattr(Full, "room", room)
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    selector, first = WideSelector(), socket.socketpair()
    pairs = [socket.socketpair() for _ in range(4)]

    def call() -> None:
        first[0].recv(10)
        for mine, _ in pairs:
            selector.unregister(mine)
            selector.add_reader(mine.fileno(), lambda: None)

    for mine, _ in pairs[:2]:
        selector.register(mine, selectors.EVENT_READ, "registered")
    selector.add_reader(first[0].fileno(), call)
    for mine, _ in pairs[2:]:
        selector.register(mine, selectors.EVENT_READ, "registered")
    for sock in (*(theirs for _, theirs in pairs), first[1]):
        sock.send(b"x")
    assert selector.select(0) == []
    closed(selector, list(first), *[list(pair) for pair in pairs])


def test_a_cancellation_out_of_a_call_ends_nobody_else() -> None:
    """As a handle of the loop's has it; it came out of `select`, and the loop ended."""
    told: list[object] = []

    async def main() -> None:
        loop, pair, done = asyncio.get_running_loop(), socket.socketpair(), asyncio.Event()
        loop.set_exception_handler(lambda _loop, context: told.append(type(context["exception"])))

        def call() -> None:
            loops.watches(loop).remove_reader(pair[0].fileno())
            done.set()
            raise asyncio.CancelledError

        loops.watches(loop).add_reader(pair[0].fileno(), call)
        pair[1].send(b"x")
        await asyncio.wait_for(done.wait(), 60)
        for sock in pair:
            sock.close()

    asyncio.run(main(), loop_factory=loops.new_loop)
    assert told == [asyncio.CancelledError]


def test_timers_threads_and_other_descriptors_have_their_turn_while_calls_keep_coming() -> None:
    """Of one that can always be read, so that each turn has a call and nothing of it asks for the loop."""

    async def main() -> None:
        loop, busy, other = asyncio.get_running_loop(), socket.socketpair(), socket.socketpair()
        calls = [0]

        def call() -> None:
            calls[0] += 1

        busy[1].send(b"x")
        loops.watches(loop).add_reader(busy[0].fileno(), call)
        try:
            async with asyncio.timeout(60):
                await asyncio.sleep(0.01)
                assert await asyncio.to_thread(lambda: 5) == 5
                other[1].send(b"y")
                other[0].setblocking(False)
                assert await loop.sock_recv(other[0], 1) == b"y"
                process = await asyncio.create_subprocess_exec("true")
                assert await process.wait() == 0
            assert calls[0]
        finally:
            loops.watches(loop).remove_reader(busy[0].fileno())
            for sock in (*busy, *other):
                sock.close()

    asyncio.run(main(), loop_factory=loops.new_loop)


@pytest.mark.parametrize("room", [300, 10_000])
def test_of_more_events_than_a_turn_has_each_has_its_turn(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors that can always be read, as those of a jail that never stops: neither they nor others wait."""
    monkeypatch.setattr(Full, "room", room)
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    wide, called = WideSelector(), Counter[int]()
    some = [os.eventfd(1) for _ in range(2 * loops.MOST + 50)]
    others = {os.eventfd(1) for _ in range(2)}
    for descriptor in some:
        wide.add_reader(descriptor, partial(called.update, [descriptor]))
    for descriptor in others:
        wide.register(descriptor, selectors.EVENT_READ)
    seen = set()
    for _ in range(4):
        seen |= {key.fd for key, _ in wide.select(0)}
    assert seen == others
    assert set(called) == set(some)
    for descriptor in some:
        wide.remove_reader(descriptor)
    for descriptor in others:
        wide.unregister(descriptor)
    wide.close()
    for descriptor in (*some, *others):
        os.close(descriptor)
