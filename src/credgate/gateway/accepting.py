"""Accepting on a listening socket, which several processes may do: each takes what its share of the load leaves it.

The kernel wakes all who poll a listener, and whoever is first gets the connection; asyncio's own server then takes all
that wait in one go. So each process says in shared memory how many connections it serves, takes one at a time, and
leaves one to the others for a moment where it is theirs to take.

The daemon's own process, which each request of all others passes through, takes the first few: of so little a request
costs less where nobody has to be asked. All further ones are the workers', shared evenly: their claims then come
together, and the daemon serves nobody else between them (docs/decisions/0266).
"""

import asyncio
import logging
import mmap
import os
import socket
from collections.abc import Callable

from credgate.gateway.pipe import Pipe
from credgate.gateway.wire import Wire
from credgate.peer import PASSING, PAUSE

logger = logging.getLogger(__name__)

SLOTS = 64  # processes, the daemon's own is the first
_WORD = 4  # bytes: one process writes it, and an aligned word is written in one piece
_ABSENT = 0xFFFF_FFFF
FEW = 2  # connections that are the daemon's own, where there are workers
_LATER = 0.002  # seconds that a connection waits for a process whose turn it is,
_WORKERS = 0.02  # and that it waits for a worker, which may be in the middle of many handshakes
_TIMES = 5  # times that it is left to others while they take others: they may not be at this listener
_ALONE = 0.2  # seconds in which the daemon leaves workers none, once they left one

type Make = Callable[[], asyncio.BaseProtocol]


def make_loads() -> int:
    """The shared memory, as a descriptor for mmap."""
    descriptor = os.memfd_create("loads", os.MFD_CLOEXEC)
    os.write(descriptor, _ABSENT.to_bytes(_WORD, "little") * SLOTS)
    return descriptor


class Share:
    """One process's view of the loads. `descriptor` stays the caller's."""

    def __init__(self, descriptor: int, slot: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, SLOTS * _WORD)).cast("I")
        self._slot = slot

    def enter(self) -> None:
        """From now on this process accepts."""
        self._words[self._slot] = 0

    def leave(self, slot: int) -> None:
        """A process is gone, or accepts no more: nobody waits for it."""
        self._words[slot] = _ABSENT

    def loads(self) -> tuple[int | None, ...]:
        """Connections of each process, None for those that are not there."""
        return tuple(None if load == _ABSENT else load for load in self._words)

    def more(self, count: int) -> None:
        """Count connections that this process serves."""
        self._words[self._slot] += count

    @property
    def is_daemons(self) -> bool:
        """Whether this process is the daemon's own."""
        return self._slot == 0

    @property
    def leaves(self) -> float:
        """Seconds for which a connection is left to another process, whose turn it is; 0: it is this one's."""
        daemon, *workers = self._words
        if self._slot == 0:
            return _WORKERS if daemon >= FEW and min(workers) != _ABSENT else 0.0
        return _LATER if daemon < FEW or min(workers) < self._words[self._slot] else 0.0


class Acceptor:
    """Accepts on one listener. Closed as an asyncio server is; the socket's other descriptors go on listening.

    `make` makes the protocol of a connection, and counts it in the share for as long as it lives. No share: there is
    one process. `shared`: whether others accept on this one.
    """

    def __init__(
        self, sock: socket.socket, share: Share | None, make: Make, shared: Callable[[], bool] = lambda: True
    ) -> None:
        self._share, self._make, self._shared = share, make, shared
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._alone = 0.0  # until then, by the loop's clock, nobody else accepts here
        self._left: tuple[int | None, ...] = ()  # what all had when one was left to them
        self._times = 0  # that one was left since the last one was taken
        self._tasks: set[asyncio.Task[None]] = set()
        self.sockets = (sock,)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        self._loop.add_reader(sock, self._readable)

    def close(self) -> None:
        """Accept no more; connections that were accepted go on."""
        (sock,) = self.sockets
        if sock.fileno() < 0:
            return
        self._loop.remove_reader(sock)
        if self._later is not None:
            self._later.cancel()
        sock.close()

    def _readable(self) -> None:
        leaves = 0.0 if self._share is None or not self._shared() else self._share.leaves
        if self._share is not None and leaves and self._loop.time() >= self._alone:
            self._left = self._share.loads()
            self._wait(leaves)
        else:
            self._accept()

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self.sockets[0])
        self._later = self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        """Nobody took it meanwhile, or somebody did."""
        self._later = None
        self._loop.add_reader(self.sockets[0], self._readable)
        share, self._times = self._share, self._times + 1
        if share is None or share.loads() == self._left:  # else see anew whose the next one is
            self._alone = self._loop.time() + _ALONE if share is not None and share.is_daemons else 0.0
            self._accept()
        elif self._times >= _TIMES:  # what waits may be the very same one
            self._accept()

    def _accept(self) -> None:
        self._times = 0
        try:
            sock, _ = self.sockets[0].accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in PASSING:
                raise
            logger.warning("gateway: a connection could not be accepted: %s", error.strerror)
            self._wait(PAUSE)
            return
        sock.setblocking(False)
        made = self._make()
        if isinstance(made, Pipe):
            Wire(sock, made).begin()
            return
        task = self._loop.create_task(self._run(sock, made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, sock: socket.socket, made: asyncio.BaseProtocol) -> None:
        await self._loop.connect_accepted_socket(lambda: made, sock)
