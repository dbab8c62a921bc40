"""One end of a SOCK_SEQPACKET socket in the daemon's event loop: messages with descriptors, awaited."""

import array
import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jail import fdpass
from jail.errors import JailError

if TYPE_CHECKING:
    from credgate.front import Front

log = logging.getLogger(__name__)

SO_PEERGROUPS = 59  # asm-generic/socket.h; the socket module lacks it
MAX_GROUPS = 256  # what socket.getsockopt has room for
# What accept(2) says of the connection, or of this process and this host for the moment, and not of the listener.
PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR, errno.EPROTO}
)
UNASKED = 256  # connections of the control socket that have asked nothing yet; with one more the oldest is closed
PAUSE = 0.5  # seconds before the next try: the listener stays readable, so that trying at once would spin


class Peer:
    """Awaitable wrapper; owns the socket. One reader at a time; writers wait for each other.

    front: where a launcher listens that reads no JSON, who words messages for it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.front: Front | None = None
        self._reset = False
        self._writing = asyncio.Lock()  # the loop keeps one waiter a descriptor

    async def recv(self) -> fdpass.Received | None:
        """Wait for the next message; None at the end. Raises JailError for a malformed one, OSError as recvmsg.

        A peer that dies with messages of ours unread resets the connection (unix(7)). The kernel says that once, before
        what that peer said itself and its end.
        """
        while True:
            try:
                return fdpass.recv(self.sock)
            except BlockingIOError:
                await self._ready(write=False)
            except ConnectionResetError:
                if self._reset:
                    return None
                self._reset = True

    async def send(self, body: fdpass.Json, fds: Sequence[int] = ()) -> None:
        """Send one message, waiting while the other side's queue is full. Raises OSError when it is gone."""
        async with self._writing:
            while True:
                try:
                    self.put(body, fds)
                except BlockingIOError:
                    await self._ready(write=True)
                else:
                    return

    def put(self, body: fdpass.Json, fds: Sequence[int] = ()) -> None:
        """Send one message at once or not at all. Raises OSError, BlockingIOError while the queue is full."""
        worded = None if self.front is None else self.front.form(body, len(fds))
        if worded is None:
            fdpass.send(self.sock, body, fds)
        elif worded:
            fdpass.send_bytes(self.sock, worded, fds)

    async def _ready(self, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
        add(self.sock, wake, waiter)
        try:
            await waiter
        finally:
            remove(self.sock)

    def pid(self) -> int:
        """Pid of the process that connected, by the kernel's word."""
        return fdpass.peer_credentials(self.sock)[0]

    def groups(self) -> tuple[int, ...]:
        """Supplementary groups of the process that connected, as they were then (SO_PEERGROUPS, Linux 4.13).

        Raises JailError for more than 256 of them.
        """
        found = array.array("I")
        try:
            found.frombytes(self.sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS * found.itemsize))
        except OSError as error:
            raise JailError("groups_not_shown", f"groups of the launcher: {error.strerror}") from None
        return tuple(sorted(found))

    def close(self) -> None:
        """Close the socket; the other side sees the end."""
        self.sock.close()


def channel() -> tuple[Peer, socket.socket]:
    """The daemon's end of a socket pair, which shows who sends, and the jail's."""
    mine, theirs = fdpass.pair()
    fdpass.want_credentials(mine)
    return Peer(mine), theirs


def wake(waiter: "asyncio.Future[None]") -> None:
    """For add_reader: resolve the waiter once."""
    if not waiter.done():
        waiter.set_result(None)


async def accept(listener: socket.socket) -> socket.socket:
    """Wait for a connection on a listening, non-blocking SOCK_SEQPACKET socket (asyncio's own accept wants streams)."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            waiter: asyncio.Future[None] = loop.create_future()
            loop.add_reader(listener, wake, waiter)
            try:
                await waiter
            finally:
                loop.remove_reader(listener)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            log.warning("a connection could not be accepted: %s", error.strerror)
            await asyncio.sleep(PAUSE)
        else:
            return sock
