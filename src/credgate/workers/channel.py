"""One end of the socket between daemon and worker: messages in order, with descriptors, many in one packet.

SOCK_SEQPACKET: the kernel keeps packets whole, and what was sent stays to be read when the sender has died. Messages
posted in one turn of the event loop share a packet. What is too large for one goes by a memfd.
"""

import array
import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from credgate.errors import CredgateError
from credgate.loops import watches
from credgate.workers.messages import Message, encode

PACKET = 96 << 10  # bytes; below the kernel's default for what a socket holds (net.core.wmem_default, 208 KiB)
MAX_FDS = 64
_ROOM = socket.CMSG_SPACE(MAX_FDS * 4)
_LENGTH = struct.Struct("<I")
_MEMFD = _LENGTH.pack(0xFFFF_FFFF)  # the packet's last descriptor holds what it would have
# as numbers: those of the module are enumerations, whose every operation is a call
_CUT, _CLOEXEC = int(socket.MSG_TRUNC | socket.MSG_CTRUNC), int(socket.MSG_CMSG_CLOEXEC)
_NOSIGNAL = int(socket.MSG_NOSIGNAL)
_PACKETS = 64  # read before others of the loop have their turn
_SMALL = 32 << 10  # bytes: behind a packet below this there is seldom another one, and a read that finds none costs too
LATER = 0.005  # seconds
GONE = "it is gone"
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET})
BACKLOG = 64 << 20  # bytes that may wait for the other side to read: the policies of many runs, given to a new worker
PATIENCE = 10.0  # seconds that the other side may leave a full socket unread, or a question unanswered


class ChannelError(CredgateError):
    """The other process is gone, silent, or says what it may not."""


class Channel:
    """`take` gets each message with its descriptors, which are its to close; `ended` is called once, with a reason.

    `taken`, where there is one, is called behind the last message of each packet.
    """

    def __init__(
        self,
        sock: socket.socket,
        decoder: "msgspec.msgpack.Decoder[Any]",
        take: Callable[[Any, list[int]], None],
        ended: Callable[[str], None],
        most: int,
    ) -> None:
        """`most`: bytes of a message that are read."""
        sock.setblocking(False)
        self._most = most
        self._sock, self._decoder, self._take, self._on_end = sock, decoder, take, ended
        self._loop = asyncio.get_running_loop()
        self._out: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._waiting = 0  # bytes in it
        self.taken: Callable[[], None] = _nothing
        self.gathered: Callable[[], Message | None] = _none  # what is to go before the next message, or with the flush
        self._due = self._blocked = self.over = False
        self._reset = False  # it is said that the other side left without having read all
        self._left = False  # the other side: nothing can be sent, and what it said is still to be read
        self._timer: asyncio.TimerHandle | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._buffer = bytearray(PACKET + _LENGTH.size)
        self._buffers = (self._buffer,)
        self._size = 0  # of the last packet
        self._watches = watches(self._loop)  # what comes is read within select: see loops
        self._watches.add_reader(sock.fileno(), self._readable)

    # -- sending ------------------------------------------------------------------------------------------------------

    def post(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message with the others of this turn of the loop. The descriptors stay the caller's."""
        self._gather()
        if self._enter(encode(message), fds):
            self.soon()

    def say(self, message: Message) -> None:
        """Send a message at once, behind those that wait."""
        self._gather()
        data = encode(message)
        if (self._out or not self._sent(data)) and self._enter(data, ()):
            self._flush()

    def soon(self) -> None:
        """Send what there is, and what is gathered, with the other messages of this turn of the loop."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def add(self, message: Message) -> None:
        """Send a message with the next ones, or alone a moment later. A packet costs more than what is in it."""
        self._gather()
        if self._enter(encode(message), ()):
            self.later()

    def later(self) -> None:
        """Send what there is, and what is gathered, at the latest a moment later."""
        if self._timer is None and not self._due:
            self._timer = self._loop.call_later(LATER, self._timed)

    def _timed(self) -> None:
        """A timer is left to end where its messages went with others: to set one for each packet costs more."""
        self._timer = None
        self._flush()

    def _sent(self, data: bytes) -> bool:
        """Whether the kernel took a message that nothing waits before."""
        if self.over or self._left or len(data) > PACKET - _LENGTH.size:
            return False
        try:
            self._sock.send(_LENGTH.pack(len(data)) + data, _NOSIGNAL)
        except OSError:
            return False  # a full socket, which is waited for, or one that fails again
        return True

    def _gather(self) -> None:
        message = self.gathered()
        if message is not None:
            self._enter(encode(message), ())

    def _enter(self, data: bytes, fds: Sequence[int]) -> bool:
        """False where nothing more is sent: of who asks and reads no answer so much is kept, and no more."""
        if not self.over and self._waiting + len(data) > BACKLOG:
            self.end("it reads nothing")
        if self.over or self._left:
            return False
        self._out.append((data, tuple(map(os.dup, fds))))
        self._waiting += len(data)
        return True

    def push(self, message: Message) -> None:
        """Send a message and all before it: when this returns the kernel has them. Raises ChannelError."""
        self.post(message)
        self._flush()
        while self._out and not self.over:
            poll = select.poll()
            poll.register(self._sock, select.POLLOUT)
            if not poll.poll(PATIENCE * 1000):
                self.end("it reads nothing")
            self._flush()
        if self.over or self._left:
            raise ChannelError("worker_gone", "the other process is gone")

    def number(self) -> int:
        """Another number for a question."""
        self._next += 1
        return self._next

    def question(self, make: Callable[[int], Message], fds: Sequence[int] = ()) -> "tuple[int, asyncio.Future[Any]]":
        """Send a question; its number, and what will have its answer, or a ChannelError."""
        number, answer = self.number(), self._loop.create_future()
        if self.over:
            answer.set_exception(ChannelError("worker_gone", "the other process is gone"))
            return number, answer
        self._asked[number] = answer
        self.post(make(number), fds)
        return number, answer

    async def ask(self, make: Callable[[int], Message], fds: Sequence[int] = (), within: float | None = None) -> Any:
        """Send a question and return its answer. Raises ChannelError, also where none comes in `within` seconds."""
        number, answer = self.question(make, fds)
        try:
            async with asyncio.timeout(within):
                return await answer
        except TimeoutError:
            self.end("it leaves a question unanswered")
            raise ChannelError("worker_silent", "the other process does not answer") from None
        finally:
            self._asked.pop(number, None)

    def answered(self, message: Message) -> bool:
        """Give an answer to who asked for it; False where nobody waits."""
        future = self._asked.pop(message.ask, None)
        if future is None or future.done():
            return False
        future.set_result(message)
        return True

    def _flush(self) -> None:
        self._due = False
        message = self.gathered()
        if message is not None:
            data = encode(message)
            if self._out or not self._sent(data):
                self._enter(data, ())
        while self._out and not self.over:
            data, fds, count = self._packet()
            try:
                self._send(data, fds)
            except BlockingIOError:
                self._wait_for_room()
                return
            except OSError as error:
                self._unsendable(error)
                return
            for _ in range(count):
                sent, passed = self._out.popleft()
                self._waiting -= len(sent)
                for fd in passed:
                    os.close(fd)
        self._unblock()

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._watches.remove_writer(self._sock.fileno())

    def _unsendable(self, error: OSError) -> None:
        """End it; who is gone may have said something first, which the kernel keeps, and its end behind that."""
        if error.errno in _GONE:
            self._left = True
            self._drop()
        else:
            self.end(error.strerror or "its socket failed")

    def _drop(self) -> None:
        """Send nothing of what waits."""
        self._unblock()
        for _, fds in self._out:
            _close(list(fds))
        self._out.clear()
        self._waiting = 0

    def _wait_for_room(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._watches.add_writer(self._sock.fileno(), self._flush)

    def _packet(self) -> tuple[bytes, tuple[int, ...], int]:
        """What goes next, and how many messages that are. One with descriptors goes alone."""
        parts: list[bytes] = []
        size = count = 0
        for data, fds in self._out:
            size += len(data) + _LENGTH.size
            if count and (size > PACKET or fds):
                break
            parts += (_LENGTH.pack(len(data)), data)
            count += 1
            if fds:
                return b"".join(parts), fds, 1
        return b"".join(parts), (), count

    def _send(self, data: bytes, fds: tuple[int, ...]) -> None:
        if len(data) <= PACKET:
            if fds:
                self._sock.sendmsg([data], _rights(fds), _NOSIGNAL)
            else:
                self._sock.send(data, _NOSIGNAL)
            return
        large = os.memfd_create("message", os.MFD_CLOEXEC)
        try:
            with open(large, "wb", closefd=False) as file:
                file.write(data)
            self._sock.sendmsg([_MEMFD], _rights((*fds, large)), _NOSIGNAL)
        finally:
            os.close(large)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        for _ in range(_PACKETS):
            if self.over or not self._receive() or self._size < _SMALL:
                return

    def _receive(self) -> bool:
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into(self._buffers, _ROOM, _CLOEXEC)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ECONNRESET and not self._reset:
                self._reset = True  # it had not read all: the kernel says that once, before what it said itself
                return True
            self.end(error.strerror or "its socket failed")
            return False
        self._size, fds = size, _descriptors(ancillary) if ancillary else []
        if not size:
            self.end(GONE)
            return False
        data = memoryview(self._buffer)[:size]
        if flags & _CUT:
            _close(fds)
            self.end("it sent too much at once")
            return False
        if data == _MEMFD and fds:
            whole = _whole(fds.pop(), self._most)
            if whole is None:
                _close(fds)
                self.end("it sent too much at once")
                return False
            data = memoryview(whole)
        self._messages(data, fds)
        return True

    def _messages(self, data: memoryview, fds: list[int]) -> None:
        at = 0
        while at < len(data) and not self.over:
            begin = at + _LENGTH.size
            at = begin + int.from_bytes(data[at:begin], "little")
            try:
                if at > len(data):
                    raise msgspec.DecodeError("a packet that is cut")
                message = self._decoder.decode(data[begin:at])
            except msgspec.MsgspecError as error:
                _close(fds)
                self.end(f"it said what it may not: {error}"[:200])
                break
            self._take(message, fds)
            fds = []
        self.taken()

    def drain(self) -> None:
        """Read what a process that has ended had sent before."""
        while not self.over and self._receive():
            pass

    def end(self, why: str) -> None:
        """Let the socket go; who waits for an answer gets none."""
        if self.over:
            return
        self.over = True
        self._watches.remove_reader(self._sock.fileno())
        self._drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sock.close()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ChannelError("worker_gone", f"the other process: {why}"))
                future.exception()  # marks it as seen: nobody may be waiting
        self._on_end(why)


def _nothing() -> None:
    pass


def _none() -> None:
    return None


def _rights(fds: tuple[int, ...]) -> list[tuple[int, int, "array.array[int]"]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return list(fds)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _whole(descriptor: int, most: int) -> bytes | None:
    """What a memfd of at most so many bytes holds; None for anything else, which might have to be waited for."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)  # of files in memory alone
        if os.fstat(descriptor).st_size > most:
            return None
        return os.pread(descriptor, most, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
