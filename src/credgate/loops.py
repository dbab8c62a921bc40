"""The event loop of the gateway's processes: epoll(7), and poll(2) for what epoll has no room for.

poll(2) asks about every descriptor each time the loop wakes: a request beside a thousand idle connections took three
times the CPU (measured). But epoll's watches are counted per user of the host (fs.epoll.max_user_watches), and a jail,
which is the same user there, can use them all up: epoll_ctl(2) then says ENOSPC.
"""

import asyncio
import errno
import os
import select
import selectors
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextvars import Context
from functools import partial
from time import monotonic
from typing import Any, Protocol, cast

from credgate import compiled

type Key = selectors.SelectorKey
type Ready = list[tuple[Key, int]]
MOST = 256  # events that are asked for at once
type Call = Callable[[], object]
type Turn = Callable[[int, float | None, dict[int, Any], Call1 | None, Any], list[tuple[int, int]] | None]
type Call1 = Callable[[BaseException], object]
# What descriptors that are called first are watched for. inotify(7) says it beside EPOLLIN, a table of mounts beside
# EPOLLERR (proc(5)); no socket is asked for it.
FIRST = select.EPOLLRDNORM | select.EPOLLPRI


class Watches(Protocol):
    """Calls back when a descriptor can be read, or written: an event loop, or its selector without the loop between."""

    def add_reader(self, fd: int, callback: Call, /) -> object:
        """As a loop's."""
        ...

    def remove_reader(self, fd: int, /) -> object:
        """As a loop's."""
        ...

    def add_writer(self, fd: int, callback: Call, /) -> object:
        """As a loop's."""
        ...

    def remove_writer(self, fd: int, /) -> object:
        """As a loop's."""
        ...


class _Calls:
    """What is called for a descriptor: looked at when its turn comes, so that what was taken back isn't."""

    __slots__ = ("read", "write")

    def __init__(self) -> None:
        self.read: Call | None = None
        self.write: Call | None = None


class WideSelector(selectors.BaseSelector):
    """An epoll; what it refuses for want of watches is polled beside it, for as long as it is registered.

    What was added by `add_reader` and `add_writer` is called within `select`, and not in the loop's way, which makes an
    object of each event, lists it, and enters a context for it: 5 us of a request's at one connection. A descriptor is
    either watched so or registered. What is called must not raise; `failed` is told where it does.

    `select` goes on waiting behind such calls, until its time is over, something registered is ready, or `due` is set:
    by the loop, once it has more to do than to wait for that long.
    """

    def __init__(self, failed: Callable[[BaseException], object] | None = None) -> None:
        self._failed = failed
        module = compiled.load("turn")
        self._compiled: Turn | None = None if module is None else module.turn
        self._is_fresh: Callable[[int], bool] | None = None if module is None else module.fresh
        self._firsts: set[int] = set()
        self.due = True
        self._calls: dict[int, _Calls] = {}  # of those that have room in the epoll
        self._epoll = selectors.EpollSelector()
        self._same = select.epoll.fromfd(os.dup(self._epoll.fileno()))  # asked without an object of each event
        self._fd = self._same.fileno()
        self._poll = selectors.PollSelector()
        self._poll.register(self._epoll.fileno(), selectors.EVENT_READ)
        self._crowded = False  # something is polled besides the epoll itself

    def _of(self, file: Any) -> selectors.BaseSelector:
        """Where a file is registered; the epoll where it is nowhere, which raises what has to be raised."""
        return self._poll if self._crowded and file in self._poll.get_map() else self._epoll

    def register(self, fileobj: Any, events: int, data: Any = None) -> Key:
        """As BaseSelector."""
        try:
            return self._epoll.register(fileobj, events, data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        self._crowded = self.due = True  # it waits in another way from here on
        self._no_firsts()  # such turns don't call them first
        return self._poll.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> Key:
        """As BaseSelector."""
        key = self._of(fileobj).unregister(fileobj)
        if self._crowded:
            self._crowded = len(self._poll.get_map()) > 1
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> Key:
        """As BaseSelector."""
        return self._of(fileobj).modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> Ready:
        """As BaseSelector, of what is registered."""
        self.due = timeout is not None and timeout <= 0
        if self._compiled is not None and not self._crowded:
            strangers = self._compiled(self._fd, timeout, self._calls, self._failed, self)
            return self._registered(strangers) if strangers else []
        until = None if timeout is None else monotonic() + timeout
        while True:
            others = self._turn(timeout)
            if others or self.due:
                return others
            if until is not None:
                timeout = until - monotonic()
                if timeout <= 0:
                    return others

    def _turn(self, timeout: float | None) -> Ready:
        """Wait once, and call who is to be called."""
        if self._crowded:
            return self._sorted(self._ready(timeout))
        return self._registered(self._called(timeout))

    def _called(self, timeout: float | None) -> list[tuple[int, int]]:
        """Wait, and call who is to be called; returns of whom nobody is. As native/modules/turn.c, which serves where
        it was built.
        """
        strangers = []
        found = self._same.poll(timeout, MOST)
        found.sort(key=lambda one: not one[1] & FIRST)
        for fd, event in found:
            calls = self._calls.get(fd)
            if calls is None:
                strangers.append((fd, event))
                continue
            if event & ~select.EPOLLOUT and calls.read is not None:
                self._call(calls.read)
            if event & ~select.EPOLLIN and calls.write is not None:
                self._call(calls.write)
        return strangers

    def _registered(self, found: list[tuple[int, int]]) -> Ready:
        """As EpollSelector says it."""
        ready, keys = list[tuple[Key, int]](), self._epoll.get_map()
        for fd, event in found:
            key = keys.get(fd)
            if key is not None and type(key.data) is not _Calls:  # its number may be another's by now, who is called
                read = selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                write = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                if (read | write) & key.events:
                    ready.append((key, (read | write) & key.events))
        return ready

    def _sorted(self, ready: Ready) -> Ready:
        """Call who is to be called, and return the rest."""
        others: Ready = []
        for each in ready:
            calls = each[0].data
            if type(calls) is not _Calls:
                others.append(each)
                continue
            if each[1] & selectors.EVENT_READ and calls.read is not None:
                self._call(calls.read)
            if each[1] & selectors.EVENT_WRITE and calls.write is not None:
                self._call(calls.write)
        return [each for each in others if self._is_there(each[0])]

    def _is_there(self, key: Key) -> bool:
        """Whether that descriptor is registered still: a call in the same turn may have closed it, and another may
        have its number.
        """
        now = self.get_map().get(key.fd)
        return now is not None and type(now.data) is not _Calls

    def _call(self, call: Call) -> None:
        try:
            call()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # as a handle of the loop's has it: a cancellation too ends nobody else
            if self._failed is None:
                raise
            self._failed(error)

    def _ready(self, timeout: float | None) -> Ready:
        ready: Ready = []
        for key, events in self._poll.select(timeout):
            if key.fd == self._epoll.fileno():
                ready += self._epoll.select(0)
            else:
                ready.append((key, events))
        return ready

    # -- what is called ------------------------------------------------------------------------------------------------

    def add_reader(self, fd: int, callback: Call, /) -> None:
        """As a loop's. Raises ValueError for a descriptor that is registered."""
        self._watched(fd, selectors.EVENT_READ).read = callback

    def add_writer(self, fd: int, callback: Call, /) -> None:
        """Likewise."""
        self._watched(fd, selectors.EVENT_WRITE).write = callback

    def remove_reader(self, fd: int, /) -> None:
        """As a loop's."""
        self._unwatched(fd, selectors.EVENT_READ)

    def remove_writer(self, fd: int, /) -> None:
        """As a loop's."""
        self._unwatched(fd, selectors.EVENT_WRITE)

    def add_edge(self, fd: int, callback: Call) -> bool:
        """As add_reader, called once for all that is there, and again once there is more, though nothing was read.

        False: it is called for as long as anything is there.
        """
        self.add_reader(fd, callback)
        if fd not in self._calls:
            return False
        self._same.modify(fd, select.EPOLLIN | select.EPOLLET)
        return True

    def add_first(self, fd: int, event: int, callback: Call) -> bool:
        """Have `callback` called before all others that are called in the same turn, once one of FIRST is there.

        False: there is no room for it, or not in such an order. When room gets scarce later, or the selector is closed,
        it is taken back, and called.
        """
        if self._crowded or self._compiled is None:
            return False
        try:
            self._same.register(fd, event & FIRST)
        except OSError:
            return False
        calls = self._calls[fd] = _Calls()
        calls.read = callback
        self._firsts.add(fd)
        return True

    def remove_first(self, fd: int) -> None:
        """Take it back; nothing is done for one that isn't there."""
        if fd in self._firsts:
            self._firsts.discard(fd)
            del self._calls[fd]
            self._same.unregister(fd)

    def _no_firsts(self) -> None:
        """Take all of them back, each called: what is called may take back more of them, as a watch with two does."""
        while self._firsts:
            fd = next(iter(self._firsts))
            call = self._calls[fd].read
            self.remove_first(fd)
            if call is not None:
                self._call(call)

    @property
    def is_fresh(self) -> Callable[[], bool]:
        """Says whether it is called within a turn that began a moment ago (2 ms), and each of `add_first` whose
        descriptor was ready then was called: nothing had happened to the others.
        """
        return _never if self._is_fresh is None else partial(self._is_fresh, self._fd)

    def _watched(self, fd: int, event: int) -> _Calls:
        key = self.get_map().get(fd)
        if key is None:
            calls = _Calls()
            self.register(fd, event, calls)
            if fd in self._epoll.get_map():
                self._calls[fd] = calls
            return calls
        if not isinstance(key.data, _Calls):
            raise ValueError(f"descriptor {fd} is registered")
        self.modify(fd, key.events | event, key.data)
        return key.data

    def _unwatched(self, fd: int, event: int) -> None:
        key = self.get_map().get(fd)
        if key is None or not isinstance(key.data, _Calls):
            return
        if event == selectors.EVENT_READ:
            key.data.read = None
        else:
            key.data.write = None
        left = key.events & ~event
        if left:
            self.modify(fd, left, key.data)
        else:
            self._calls.pop(fd, None)
            self.unregister(fd)

    def get_map(self) -> Mapping[Any, Key]:
        """As BaseSelector."""
        if not self._crowded:
            return self._epoll.get_map()
        maps: Any = (self._epoll.get_map(), self._poll.get_map())  # only read, which is all that ChainMap needs then
        return ChainMap(*maps)

    def close(self) -> None:
        """As BaseSelector."""
        self._no_firsts()  # the next loop's epoll may have this one's number, and is fresh by that
        self._poll.close()
        self._same.close()
        self._epoll.close()


def _never() -> bool:
    return False


class WideLoop(asyncio.SelectorEventLoop):
    """The event loop of the gateway's processes. `wide`: its selector, which is told when there is more to do."""

    time = staticmethod(monotonic)  # as asyncio's, without a frame: it is asked for each deadline

    def __init__(self) -> None:
        self.wide = WideSelector(self._told)
        super().__init__(self.wide)

    def call_soon[*Ts](
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As a loop's. What another thread asks for comes by a descriptor that is registered."""
        self.wide.due = True
        return super().call_soon(callback, *args, context=context)

    def call_at[*Ts](
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As a loop's; call_later asks it."""
        self.wide.due = True
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        """As a loop's."""
        self.wide.due = True
        super().stop()

    def _told(self, error: BaseException) -> None:
        self.call_exception_handler({"message": "a descriptor's callback failed", "exception": error})


def new_loop() -> WideLoop:
    """The loop_factory of these processes."""
    return WideLoop()


def running() -> WideSelector | None:
    """The selector of the loop that this is called on, where it has such a one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop.wide if isinstance(loop, WideLoop) else None


def add_edge(loop: asyncio.AbstractEventLoop, fd: int, callback: Call) -> bool:
    """WideSelector.add_edge, or a reader of another loop."""
    if isinstance(loop, WideLoop):
        return loop.wide.add_edge(fd, callback)
    loop.add_reader(fd, callback)
    return False


def watches(loop: asyncio.AbstractEventLoop) -> Watches:
    """What calls back for a descriptor of the gateway's own, on whichever loop."""
    return loop.wide if isinstance(loop, WideLoop) else cast("Watches", loop)
