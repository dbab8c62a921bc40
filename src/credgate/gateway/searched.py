"""WebSocket's frames as they pass, searched for secrets: a target's are written over, a client's refused. Pure.

Heads and control frames go on as they came, in their place among the payloads: where bytes are held back, what came
behind them waits too. A message's end lets go what is held, as its reader may wait for nothing else; what matched so
far counts on in the next one.
"""

from collections import deque

from credgate.gateway.cleaning import Cleaning
from credgate.gateway.frames import CLOSE, FrameError, Frames
from credgate.gateway.leaving import Leak
from credgate.gateway.messages import unmasked
from rules.scrub import Scrubber, Table

MAX_BEHIND = 64 << 10  # bytes of heads and control frames that wait behind what may be a secret's beginning


class _Searched(Frames):
    """One direction. `_filter` and `_end_of_message` say which payload bytes may go on."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__(masked=masked)
        self._queue: deque[bytes | int] = deque()  # what goes on as it is, or how many bytes of payload
        self._behind = 0  # bytes of the former
        self._ready = bytearray()  # payload that may go on
        self._control = self._final = False

    @property
    def between(self) -> bool:
        """Whether what went on ends with a whole frame."""
        return super().between and not self._queue

    def through(self, data: bytes) -> bytes:
        """The bytes that may go on. Raises FrameError, and Leak; nothing of `data` may be sent on then."""
        self.feed(data)
        out = bytearray()
        while self._queue:
            part = self._queue.popleft()
            if isinstance(part, bytes):
                out += part
                self._behind -= len(part)
                continue
            size = min(part, len(self._ready))
            out += self._ready[:size]
            del self._ready[:size]
            if size < part:
                self._queue.appendleft(part - size)
                break
        if self._behind > MAX_BEHIND:
            raise FrameError("frames without end behind a message that does not go on")
        return bytes(out)

    def _began(self, head: bytes, opcode: int, length: int) -> None:
        self._control = opcode >= CLOSE
        self._wait(head)
        if not self._control:
            self._final = bool(head[0] & 0x80)
            self._begin_payload(head)
        if not length:
            self._ended()

    def _payload(self, data: bytes) -> None:
        if self._control:
            self._wait(data)
        else:
            self._queue.append(len(data))
            self._ready += self._filter(data)
        if not self._left:
            self._ended()

    def _wait(self, data: bytes) -> None:
        self._queue.append(data)
        self._behind += len(data)

    def _ended(self) -> None:
        if self._final and not self._control:
            self._ready += self._end_of_message()

    def _begin_payload(self, head: bytes) -> None:
        """A data frame begins."""

    def _filter(self, data: bytes) -> bytes:
        raise NotImplementedError

    def _end_of_message(self) -> bytes:
        raise NotImplementedError


class CleanFrames(_Searched):
    """A target's direction."""

    def __init__(self, cleaning: Cleaning) -> None:
        super().__init__(masked=False)
        self._cleaning = cleaning

    def _filter(self, data: bytes) -> bytes:
        return self._cleaning.message(data)

    def _end_of_message(self) -> bytes:
        return self._cleaning.pause()


class LeavingFrames(_Searched):
    """A client's direction: its frames go on masked as they came, or not."""

    def __init__(self, table: Table) -> None:
        super().__init__(masked=True)
        self._scrubber = Scrubber(table)
        self._held = bytearray()
        self._mask, self._at = b"", 0

    def _begin_payload(self, head: bytes) -> None:
        self._mask, self._at = head[-4:], 0

    def _filter(self, data: bytes) -> bytes:
        self._held += data
        passed = self._scrubber.feed(unmasked(data, self._mask, self._at))
        self._at += len(data)
        if self._scrubber.hits:
            raise Leak(frozenset(self._scrubber.hits))
        return self._let_go(len(passed))

    def _end_of_message(self) -> bytes:
        return self._let_go(len(self._scrubber.flush()))

    def _let_go(self, size: int) -> bytes:
        out = bytes(self._held[:size])
        del self._held[:size]
        return out
