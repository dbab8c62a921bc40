"""The event loop of the gateway's processes: epoll(7), and poll(2) for what epoll has no room for.

poll(2) asks about every descriptor each time the loop wakes: a request beside a thousand idle connections took three
times the CPU (measured). But epoll's watches are counted per user of the host (fs.epoll.max_user_watches), and a jail,
which is the same user there, can use them all up: epoll_ctl(2) then says ENOSPC.
"""

import asyncio
import errno
import selectors
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

type Key = selectors.SelectorKey
type Ready = list[tuple[Key, int]]


class WideSelector(selectors.BaseSelector):
    """An epoll; what it refuses for want of watches is polled beside it, for as long as it is registered."""

    def __init__(self) -> None:
        self._epoll = selectors.EpollSelector()
        self._poll = selectors.PollSelector()
        self._poll.register(self._epoll.fileno(), selectors.EVENT_READ)

    @property
    def _crowded(self) -> bool:
        return len(self._poll.get_map()) > 1  # the epoll itself is there

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
        return self._poll.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> Key:
        """As BaseSelector."""
        return self._of(fileobj).unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> Key:
        """As BaseSelector."""
        return self._of(fileobj).modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> Ready:
        """As BaseSelector."""
        if not self._crowded:
            return self._epoll.select(timeout)
        ready: Ready = []
        for key, events in self._poll.select(timeout):
            if key.fd == self._epoll.fileno():
                ready += self._epoll.select(0)
            else:
                ready.append((key, events))
        return ready

    def get_map(self) -> Mapping[Any, Key]:
        """As BaseSelector."""
        if not self._crowded:
            return self._epoll.get_map()
        maps: Any = (self._epoll.get_map(), self._poll.get_map())  # only read, which is all that ChainMap needs then
        return ChainMap(*maps)

    def close(self) -> None:
        """As BaseSelector."""
        self._poll.close()
        self._epoll.close()


def new_loop() -> asyncio.SelectorEventLoop:
    """The loop_factory of these processes."""
    return asyncio.SelectorEventLoop(WideSelector())
