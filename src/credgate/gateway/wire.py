"""A connected socket on the loop, for a pipe: what asyncio's transport does for it, in one turn of the loop instead of
four, and without a task, a future and three calls that wait for their turn (docs/decisions/0165).
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from credgate import compiled
from credgate.gateway.ending import where
from credgate.loops import watches

if TYPE_CHECKING:
    from credgate.gateway.pipe import Pipe

logger = logging.getLogger(__name__)

HIGH, LOW = 64 << 10, 16 << 10  # bytes that wait to be sent: from there on it is behind, and no longer; as asyncio's
LAST = 4  # reads of what came before nothing more could be sent: a refusal is short


def receive(fd: int, buffer: memoryview) -> int:
    """How many bytes were read, 0 at the end, -1 where none are there. Raises OSError."""
    try:
        return os.readv(fd, (buffer,))
    except (BlockingIOError, InterruptedError):
        return -1


def send(fd: int, data: Any) -> int:
    """How many bytes the kernel took, which may be none. Raises OSError. Python ignores SIGPIPE."""
    try:
        return os.write(fd, data)
    except (BlockingIOError, InterruptedError):
        return 0


@cache
def calls() -> tuple[Callable[[int, memoryview], int], Callable[[int, Any], int]]:
    """Both, compiled where they were built. A socket's own are slower: they let go of the interpreter's lock."""
    module = compiled.load("turn")
    return (receive, send) if module is None else (module.receive, module.send)


class Wire(asyncio.Transport):
    """The socket is its own from here on, and doesn't block."""

    __slots__ = (
        "_broke",
        "_closing",
        "_fd",
        "_full",
        "_heeds",
        "_inside",
        "_loop",
        "_lost",
        "_out",
        "_paused",
        "_pipe",
        "_receive",
        "_send",
        "_sock",
        "_watches",
    )

    def __init__(self, sock: socket.socket, pipe: "Pipe", *, heeds: bool = False) -> None:
        """`heeds`: what the other side said still counts where nothing can be sent to it any more."""
        super().__init__()
        self._heeds = heeds
        self._loop = asyncio.get_running_loop()
        self._watches = watches(self._loop)
        self._sock, self._fd, self._pipe = sock, sock.fileno(), pipe
        self._receive, self._send = calls()
        self._out = bytearray()
        self._full = self._paused = False
        self._closing = False  # nothing is read any more, and nothing taken to be sent
        self._lost = False  # it is told, or will be
        self._broke: Exception | None = None  # why
        self._inside = False  # what is called was brought about by reading, and nothing but that

    def attach(self) -> None:
        """Tell the pipe, and read once the loop says that there is something."""
        self._watches.add_reader(self._fd, self._readable)
        self._pipe.connection_made(self)

    def begin(self) -> None:
        """The same, and read: what a client says first is often there by now."""
        self.attach()
        if self.is_reading():
            self._readable()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._closing:
            return
        self._inside, pipe = True, self._pipe
        try:
            size = self._receive(self._fd, pipe.buffer)
        except OSError as error:
            self._end(error)
            size = -1
        try:
            if size > 0:
                pipe.buffer_updated(size)
            elif not size:
                pipe.eof_received()
                self.close()
        except Exception as error:  # noqa: BLE001 - the outermost frame: a pipe has nobody to tell, the connection ends
            logger.error("gateway: pipe failed: %s at %s", type(error).__name__, where(error))
            self._end(error)
        self._inside = False
        if self._lost:
            self._tell()

    def is_reading(self) -> bool:
        """Whether bytes are read when they come."""
        return not (self._closing or self._paused)

    def pause_reading(self) -> None:
        """Read nothing for now."""
        if self.is_reading():
            self._paused = True
            self._watches.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Go on reading."""
        if self._paused and not self._closing:
            self._paused = False
            self._watches.add_reader(self._fd, self._readable)

    # -- sending ------------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """Send bytes; those that the kernel has no room for wait."""
        if self._closing:
            return
        if not self._out:
            try:
                sent = self._send(self._fd, data)
            except OSError as error:
                self._unsendable(error)
                return
            if sent == len(data):
                return
            if sent:
                data = memoryview(data)[sent:]
            self._watches.add_writer(self._fd, self._writable)
        self._out += data
        if len(self._out) > HIGH and not self._full:
            self._full = True
            self._pipe.pause_writing()

    def _unsendable(self, error: OSError) -> None:
        """End it; of a target first take what it said: an early answer to a body that it doesn't want. The kernel keeps
        that behind a FIN and behind an RST (measured). In the loop's next turn: who sends is not to be told meanwhile.
        """
        if not (self._heeds and self.is_reading()):
            self._end(error)
            return
        self._closing = True
        self._watches.remove_reader(self._fd)
        if self._out:
            self._out = bytearray()
            self._watches.remove_writer(self._fd)
        self._loop.call_soon(self._last, error)

    def _last(self, error: Exception) -> None:
        if self._lost:
            return
        self._inside = True
        try:
            for _ in range(LAST):
                if not self._one_more():
                    break
        except OSError:
            pass  # no more is there
        except Exception as fault:  # noqa: BLE001 - as in _readable
            logger.error("gateway: pipe failed: %s at %s", type(fault).__name__, where(fault))
        self._lose(error)
        self._inside = False
        self._tell()

    def _one_more(self) -> bool:
        """Whether another read may have something."""
        size = self._receive(self._fd, self._pipe.buffer)
        if size > 0:
            self._pipe.buffer_updated(size)
        return size > 0 and not self._lost

    def _writable(self) -> None:
        try:
            with memoryview(self._out) as waiting:
                sent = self._send(self._fd, waiting)
        except OSError as error:
            self._unsendable(error)
            return
        del self._out[:sent]
        if self._full and len(self._out) <= LOW:
            self._full = False
            self._pipe.resume_writing()
        if not self._out:
            self._watches.remove_writer(self._fd)
            if self._closing:
                self._lose(None)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return len(self._out)

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Whether it was closed, by either side."""
        return self._closing

    def close(self) -> None:
        """Send what waits, and close."""
        if self._closing:
            return
        self._closing = True
        self._watches.remove_reader(self._fd)
        if not self._out:
            self._lose(None)

    def abort(self) -> None:
        """Close at once."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        if self._out:
            self._out = bytearray()
            self._watches.remove_writer(self._fd)
        if not self._closing:
            self._closing = True
            self._watches.remove_reader(self._fd)
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        """Told when nobody is in the middle of something any more: behind the read, or in the loop's next turn."""
        if not self._lost:
            self._lost, self._broke = True, error
            if not self._inside:
                self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        try:
            self._pipe.connection_lost(self._broke)
        finally:
            self._fd = -1  # its number may be another's from here on
            self._sock.close()
            del self._pipe  # which has this

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, `peername` and `sockname`, the latter None where the connection is no more."""
        if name == "socket":
            return self._sock
        ask = {"peername": self._sock.getpeername, "sockname": self._sock.getsockname}.get(name)
        if ask is None:
            return default
        try:
            return ask()
        except OSError:
            return default
