"""WebSocket's frames (RFC 6455 section 5) as they pass by: checked, neither kept nor changed. Pure.

No extension was agreed on, so a reserved bit means nothing and is refused; so is whatever would let two readers take
the stream apart in different ways. A payload is counted, however long: a frame of gigabytes needs no more memory.
"""

CONTINUATION, TEXT, BINARY = 0x0, 0x1, 0x2
CLOSE, PING, PONG = 0x8, 0x9, 0xA
_OPCODES = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_MAX_CONTROL = 125
_LONGEST = 1 << 63  # 5.2: the most significant bit is 0


class FrameError(Exception):
    """What came is no frame, or none that may come now. The text says why, without a byte of it."""


class Frames:
    """One direction. `masked`: the client's, whose frames are masked, and the server's are not (5.1)."""

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._head = b""  # of an unfinished frame head
        self._left = 0  # of the payload
        self._in_message = False  # a message is unfinished: only its continuation, or a control frame, may come
        self._closing = False  # a Close frame began, behind whose payload nothing comes

    @property
    def closed(self) -> bool:
        """Whether a Close frame has come whole."""
        return self._closing and not self._left

    @property
    def between(self) -> bool:
        """Whether what came ends with a whole frame."""
        return not self._left and not self._head

    def feed(self, data: bytes) -> None:
        """Look at the next bytes. Raises FrameError; nothing of `data` may be sent on then."""
        start = 0
        while start < len(data):
            if self._left:
                taken = min(self._left, len(data) - start)
                self._left -= taken
                self._payload(data[start : start + taken])
                start += taken
                continue
            if self._closing:
                raise FrameError("bytes behind a close frame")
            need = self._size(self._head) - len(self._head)
            self._head += data[start : start + need]
            start += need
            if len(self._head) == self._size(self._head):
                self._begin(self._head)
                self._head = b""

    def through(self, data: bytes) -> bytes:
        """The same, and what may go on."""
        self.feed(data)
        return data

    def _size(self, head: bytes) -> int:
        """How long a frame's head is, as far as its beginning tells."""
        if len(head) < 2:
            return 2
        length = head[1] & 0x7F
        return 2 + (2 if length == 126 else 8 if length == 127 else 0) + (4 if self._masked else 0)

    def _begin(self, head: bytes) -> None:
        opcode, final, length = head[0] & 0x0F, bool(head[0] & 0x80), head[1] & 0x7F
        if head[0] & 0x70:
            raise FrameError("a reserved bit, though no extension was agreed on")
        if opcode not in _OPCODES:
            raise FrameError("an opcode that does not exist")
        if bool(head[1] & 0x80) is not self._masked:
            raise FrameError("a frame without its mask" if self._masked else "a masked frame of a server")
        if length >= 126:
            short, length = length == 126, int.from_bytes(head[2 : 4 if length == 126 else 10])
            if length < 126 or length >= _LONGEST or (not short and length < 1 << 16):
                raise FrameError("a length that is not the shortest form")
        self._follow(opcode, final, length)
        self._left = length
        self._began(head, opcode, length)

    def _began(self, head: bytes, opcode: int, length: int) -> None:
        """A frame's head was seen, and may come. For who keeps more than this class."""

    def _payload(self, data: bytes) -> None:
        """Bytes of the frame's payload, as they were sent."""

    def _follow(self, opcode: int, final: bool, length: int) -> None:
        """Whether this frame may come now (5.4, 5.5)."""
        if opcode >= CLOSE:
            if not final or length > _MAX_CONTROL:
                raise FrameError("a control frame in parts, or over 125 bytes")
            self._closing = opcode == CLOSE
            return
        if (opcode == CONTINUATION) is not self._in_message:
            raise FrameError("a continuation of nothing, or a message within another one")
        self._in_message = not final
