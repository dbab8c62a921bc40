"""The messages of a WebSocket's client where rules ask of them: kept until each is whole and was judged. Pure.

What was judged are the very frames that go on. Control frames don't wait: they may stand between the parts of a message
(RFC 6455, 5.4), and carry nothing that a target takes for one.
"""

from dataclasses import dataclass

from credgate.gateway.frames import BINARY, CLOSE, CONTINUATION, Frames

MAX_FRAMES = 4096  # of one message; each may be empty, and its head is kept


class MessageRefused(Exception):
    """A message that no rule can take, seen before it was whole. The text says why, without a byte of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What may go on at once: a control frame, or with `text` a message that has to be judged."""

    raw: bytes  # the frames as they came
    text: bytes | None = None


class Messages(Frames):
    """A client's direction. `limit`: bytes of the longest message that a rule takes."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(masked=True)
        self._limit = limit
        self._control: bytearray | None = None  # the control frame that is coming
        self._raw, self._text = bytearray(), bytearray()
        self._frames = 0
        self._final = False
        self._mask, self._at = b"", 0
        self._pieces: list[Piece] = []

    @property
    def held(self) -> int:
        """Bytes that are kept, of a message that is not whole."""
        return len(self._raw) + len(self._text)

    def take(self, data: bytes) -> list[Piece]:
        """The pieces that the next bytes make whole. Raises FrameError, and MessageRefused as soon as it is certain.

        What came before in `data` is lost then; the socket ends.
        """
        self._pieces = []
        self.feed(data)
        return self._pieces

    def _began(self, head: bytes, opcode: int, length: int) -> None:
        if opcode >= CLOSE:
            self._control = bytearray(head)
        else:
            self._begin_data(head, opcode, length)
        if not length:
            self._ended()

    def _begin_data(self, head: bytes, opcode: int, length: int) -> None:
        if opcode == BINARY:
            raise MessageRefused("a binary message, where the rule asks for text")
        if opcode != CONTINUATION:
            self._frames = 0
        self._frames += 1
        if len(self._text) + length > self._limit:
            raise MessageRefused(f"over max = {self._limit} bytes")
        if self._frames > MAX_FRAMES:
            raise MessageRefused(f"a message of more than {MAX_FRAMES} frames")
        self._final = bool(head[0] & 0x80)
        self._mask, self._at = head[-4:], 0
        self._raw += head

    def _payload(self, data: bytes) -> None:
        if self._control is not None:
            self._control += data
        else:
            self._raw += data
            self._text += unmasked(data, self._mask, self._at)
            self._at += len(data)
        if not self._left:
            self._ended()

    def _ended(self) -> None:
        if self._control is not None:
            self._pieces.append(Piece(raw=bytes(self._control)))
            self._control = None
        elif self._final:
            self._pieces.append(Piece(raw=bytes(self._raw), text=bytes(self._text)))
            self._raw, self._text = bytearray(), bytearray()


def unmasked(data: bytes, mask: bytes, at: int) -> bytes:
    """5.3, in one operation on long numbers; `at` is where in the payload `data` begins."""
    turned = mask[at % 4 :] + mask[: at % 4]
    key = (turned * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(len(data))


def close_frame(code: int, *, masked: bool, reason: str = "") -> bytes:
    """A Close frame (5.5.1) of ours. Masked by zeros: what a mask is for is to hide what an attacker chose."""
    payload = code.to_bytes(2) + reason.encode("ascii")[:123]
    key = b"\0\0\0\0" if masked else b""
    return bytes([0x80 | CLOSE, len(payload) | (0x80 if masked else 0)]) + key + payload
