"""Who is called first in a turn of the loop, and what may be relied on then."""

import asyncio
import errno
import os
import select
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from credgate import compiled, filewatch, loops
from credgate.filewatch import FileWatch
from credgate.loops import MOST, WideSelector
from credgate.unchanged import WATCHED, Unchanged, identities
from tests.credgate.test_loops import Full

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture
def selector() -> Iterator[WideSelector]:
    assert compiled.load("turn") is not None
    with WideSelector() as made:
        yield made


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield mine, theirs


@pytest.fixture
def news() -> Iterator[tuple[int, int]]:
    """A descriptor that polls as an inotify instance does, and the one that brings it about: those of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("first", [True, False])
def test_it_is_called_before_one_that_was_ready_earlier(
    first: bool, selector: WideSelector, pair: tuple[socket.socket, socket.socket], news: tuple[int, int]
) -> None:
    """An epoll tells of them in the order in which they came; that of the control."""
    called, event = list[str](), news[0]
    selector.add_reader(pair[0].fileno(), lambda: called.append("request"))
    if first:
        assert selector.add_first(event, select.EPOLLRDNORM, lambda: called.append("news"))
    else:
        selector.add_reader(event, lambda: called.append("news"))
    pair[1].send(b"x")
    os.write(news[1], b"x")
    selector.select(0)
    assert called == (["news", "request"] if first else ["request", "news"])
    selector.remove_first(event)
    selector.remove_first(event)  # nothing is there


def test_a_turn_is_fresh_while_it_is_and_not_for_long(
    selector: WideSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    found: list[bool] = []

    def asked() -> None:
        found.append(selector.is_fresh())
        time.sleep(0.003)
        found.append(selector.is_fresh())

    selector.add_reader(pair[0].fileno(), asked)
    assert not selector.is_fresh()
    for _ in range(20):  # a machine that is busy may have taken 2 ms to call
        pair[1].send(b"x")
        selector.select(0)
        pair[0].recv(9)
        assert not selector.is_fresh()
    assert True in found[::2]
    assert True not in found[1::2]


def test_another_selectors_turn_is_not_this_ones(
    selector: WideSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    found: list[tuple[bool, bool]] = []
    with WideSelector() as other:
        selector.add_reader(pair[0].fileno(), lambda: found.append((other.is_fresh(), other.select(0) == [])))
        pair[1].send(b"x")
        selector.select(0)
    assert found == [(False, True)]


def test_a_turn_within_a_turn_makes_no_older_one_fresh(
    selector: WideSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    found: list[bool] = []
    with WideSelector() as other:
        near, far = socket.socketpair()
        other.add_reader(near.fileno(), lambda: None)
        far.send(b"x")

        def asked() -> None:
            time.sleep(0.003)
            other.select(0)
            found.append(selector.is_fresh())

        selector.add_reader(pair[0].fileno(), asked)
        pair[1].send(b"x")
        selector.select(0)
        near.close()
        far.close()
    assert found == [False]


@pytest.mark.parametrize("count", [MOST - 1, MOST])
def test_a_turn_that_may_have_more_to_tell_is_not_fresh(count: int, selector: WideSelector) -> None:
    found, pairs = list[bool](), [socket.socketpair() for _ in range(count)]
    for mine, theirs in pairs:
        selector.add_reader(mine.fileno(), lambda: found.append(selector.is_fresh()))
        theirs.send(b"x")
    for _ in range(20):
        found.clear()
        selector.select(0)
        if True in found:
            break
    assert len(found) == count
    assert (True in found) == (count < MOST)
    for sock in (one for both in pairs for one in both):
        sock.close()


def test_where_room_gets_scarce_it_is_called_and_taken_back(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket], news: tuple[int, int]
) -> None:
    monkeypatch.setattr(Full, "room", 1)
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    called = list[str]()
    with WideSelector() as selector:
        selector.register(pair[0], selectors.EVENT_READ)
        assert selector.add_first(news[0], select.EPOLLRDNORM, lambda: called.append("over"))
        selector.register(pair[1], selectors.EVENT_READ)
        assert called == ["over"]
        assert not selector.add_first(news[0], select.EPOLLRDNORM, lambda: called.append("never"))
        os.write(news[1], b"x")
        assert selector.select(0) == []
        assert called == ["over"]


def test_where_room_gets_scarce_a_watch_ends_and_the_connection_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A watch has two descriptors, and takes back the other one when it is told by one."""
    monkeypatch.setattr(Full, "room", 1)
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    path = tmp_path / "value"
    path.write_text("one")

    async def main() -> bytes:
        loop, watch = asyncio.get_running_loop(), FileWatch([str(path)])
        assert watch.begin()
        assert watch.is_silent()
        heard: asyncio.Future[bytes] = loop.create_future()
        loops.watches(loop).add_reader(pair[0].fileno(), lambda: heard.set_result(pair[0].recv(9)))
        assert not watch.is_silent()
        pair[1].send(b"x")
        try:
            return await asyncio.wait_for(heard, 60)
        finally:
            loops.watches(loop).remove_reader(pair[0].fileno())

    assert asyncio.run(main(), loop_factory=loops.new_loop) == b"x"


def test_without_room_or_the_module_nothing_is_added(monkeypatch: pytest.MonkeyPatch, news: tuple[int, int]) -> None:
    class Crowded:
        def register(self, _fd: int, _events: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with WideSelector() as selector, monkeypatch.context() as patched:
        patched.setattr(selector, "_same", Crowded())
        assert not selector.add_first(news[0], select.EPOLLRDNORM, print)
    monkeypatch.setattr(compiled, "load", lambda _name: None)
    with WideSelector() as selector:
        assert not selector.add_first(news[0], select.EPOLLRDNORM, print)
        assert not selector.is_fresh()


# -- what is watched so ------------------------------------------------------------------------------------------------


async def in_a_turn(asked: Callable[[], object], act: Callable[[], object]) -> object:
    """What `asked` says in a turn that begins behind `act`, the request before it."""
    loop, (mine, theirs) = asyncio.get_running_loop(), socket.socketpair()
    told: asyncio.Future[object] = loop.create_future()

    def heard() -> None:
        loops.watches(loop).remove_reader(mine.fileno())
        told.set_result(asked())

    loops.watches(loop).add_reader(mine.fileno(), heard)
    theirs.send(b"x")
    act()
    try:
        return await asyncio.wait_for(told, 60)
    finally:
        mine.close()
        theirs.close()


def test_a_file_that_changes_behind_a_request_is_told_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both come with the same wait, the request first: without an order it would have the value of before."""
    path, asked = tmp_path / "value", list[int]()
    path.write_text("one")
    usual = filewatch._silent()
    assert usual is not None
    monkeypatch.setattr(filewatch, "_silent", lambda: lambda *both: (asked.append(1), usual(*both))[1])

    async def main() -> None:
        watch = FileWatch([str(path)])
        assert watch.begin()
        asked.clear()
        for _ in range(20):  # at rest, and no call of the kernel's is made for it
            assert await in_a_turn(watch.is_silent, lambda: None)
        assert len(asked) < 20
        assert not await in_a_turn(watch.is_silent, lambda: path.write_text("two"))
        watch.end()

    asyncio.run(main(), loop_factory=loops.new_loop)


def test_a_loop_that_calls_nobody_first_has_the_kernel_asked(tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_text("one")

    async def main() -> None:
        watch = FileWatch([str(path)])
        assert watch.begin()
        assert await in_a_turn(watch.is_silent, lambda: None)
        assert not await in_a_turn(watch.is_silent, lambda: path.write_text("two"))
        watch.end()

    asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop)


@pytest.mark.parametrize("how", ["dropped", "many"])
def test_a_watch_that_nobody_has_leaves_nothing_open(how: str, tmp_path: Path) -> None:
    async def main() -> None:
        before, kept = len(os.listdir("/proc/self/fd")), Unchanged[str]()
        for number in range(3 * WATCHED):
            path = tmp_path / str(number)
            path.write_text("one")
            if how == "dropped":
                assert FileWatch([str(path)]).begin()
                continue
            os.utime(path, ns=(0, 0))
            looked = identities((str(path),))
            kept._held[path] = (looked, "one")
            assert kept.known(path, (str(path),)) == "one"
        assert len(os.listdir("/proc/self/fd")) <= before + (0 if how == "dropped" else 2 * WATCHED)
        assert how == "dropped" or len(os.listdir("/proc/self/fd")) > before  # it does watch

    asyncio.run(main(), loop_factory=loops.new_loop)


def test_a_watch_ends_with_its_loop(tmp_path: Path) -> None:
    """The next loop's epoll mostly has its number: that one's turns are fresh, and it is told of none of this."""
    path, now = tmp_path / "value", [0.0]
    path.write_text("one")
    watch = FileWatch([str(path)], clock=lambda: now[0])

    def number() -> int:
        return cast("loops.WideLoop", asyncio.get_running_loop()).wide._fd

    async def begin() -> int:
        assert watch.begin()
        assert watch.is_silent()
        return number()

    async def changed(text: str) -> int:
        path.write_text(text)
        assert await in_a_turn(watch.is_silent, lambda: None) is False
        return number()

    for _ in range(5):
        now[0] += filewatch.PAUSE
        before = asyncio.run(begin(), loop_factory=loops.new_loop)
        assert not watch.is_silent()
        if asyncio.run(changed(str(now)), loop_factory=loops.new_loop) == before:
            break
    else:
        pytest.fail("each loop had another number")


# -- what is told once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", [True, False])
def test_by_edge_it_is_called_once_for_what_is_there(edge: bool, selector: WideSelector) -> None:
    """And again for what comes then, though nothing was read. A reader is called as long as anything is there."""
    event, called = os.eventfd(0, os.EFD_NONBLOCK), list[int]()
    if edge:
        assert selector.add_edge(event, lambda: called.append(1))
    else:
        selector.add_reader(event, lambda: called.append(1))
    counts = []
    for more in (1, 0, 0, 1, 0):
        if more:
            os.eventfd_write(event, 1)
        selector.select(0)
        counts.append(len(called))
    assert counts == ([1, 1, 1, 2, 2] if edge else [1, 2, 3, 4, 5])
    selector.remove_reader(event)
    os.eventfd_write(event, 1)
    selector.select(0)
    assert len(called) == counts[-1]
    os.close(event)


@pytest.mark.parametrize("factory", [loops.new_loop, asyncio.SelectorEventLoop])
def test_a_loop_says_whether_it_can(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> bool:
        loop, event = asyncio.get_running_loop(), os.eventfd(1, os.EFD_NONBLOCK)
        told = asyncio.Event()
        by_edge = loops.add_edge(loop, event, told.set)
        await asyncio.wait_for(told.wait(), 60)  # what was there before is told too
        loops.watches(loop).remove_reader(event)
        os.close(event)
        return by_edge

    assert asyncio.run(main(), loop_factory=factory) == (factory is loops.new_loop)


def test_where_there_is_no_room_it_has_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "room", 0)
    monkeypatch.setattr(selectors, "EpollSelector", Full)
    event, called = os.eventfd(1, os.EFD_NONBLOCK), list[int]()
    with WideSelector() as selector:
        assert not selector.add_edge(event, lambda: called.append(1))
        for _ in range(3):
            selector.select(0)
        assert called == [1, 1, 1]
    os.close(event)
