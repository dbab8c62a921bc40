"""`jail.fdpass` for the launcher, which is an interpreter's start each time: the same messages, with no module imported
that costs milliseconds (`socket` with its enums, `json` with `re`: 16 ms of CPU together, measured).

What it stands on instead are the C modules below those two, which CPython has had since 3.2; a test holds both ways of
writing and reading equal.
"""

import _json
import _socket
import os
import struct

from jail.errors import JailError

MAX_BYTES, MAX_FDS = 64 << 10, 64  # as jail.fdpass
_INT = struct.calcsize("i")
_ANCILLARY = _socket.CMSG_SPACE(MAX_FDS * _INT)
_UCRED = struct.Struct("iII")

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from collections.abc import Sequence

    type Json = dict[str, object]
    type Socket = _socket.socket


class Message:
    """One message: `body`, and `fds`, close-on-exec and the receiver's to close."""

    __slots__ = ("body", "fds")

    def __init__(self, body: "Json", fds: list[int]) -> None:
        self.body, self.fds = body, fds

    def close(self) -> None:
        """Close every descriptor that is still in `fds`, and empty it."""
        while self.fds:
            os.close(self.fds.pop())


class _Strictly:
    """What `json.loads` gives its scanner."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    memo: "dict[str, str]" = {}  # noqa: RUF012 - the scanner's own attribute

    @staticmethod
    def parse_constant(name: str) -> object:
        """NaN and its like are no JSON."""
        raise ValueError(name)


_scan = _json.make_scanner(_Strictly())  # type: ignore[arg-type] # any object with these attributes


def _unknown(value: object) -> object:
    raise TypeError(f"got {type(value).__name__}, expected what JSON has")


def dumps(body: "Json") -> bytes:
    """JSON in ASCII, without spaces."""
    encode = _json.make_encoder(None, _unknown, _json.encode_basestring_ascii, None, ":", ",", False, False, False)
    return "".join(encode(body, 0)).encode()


def loads(data: bytes) -> "Json":
    """The object that `data` is, which has no space around it. Raises JailError."""
    try:
        text = data.decode()
        body, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError) as error:
        raise JailError("message_malformed", f"not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict) or end != len(text):
        raise JailError("message_malformed", f"got a JSON {type(body).__name__}, expected an object alone")
    return body


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Make two connected ends, both close-on-exec."""
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


def adopted(descriptor: int) -> _socket.socket:
    """A socket of a descriptor that came in a message."""
    return _socket.socket(fileno=descriptor)


def send(sock: _socket.socket, body: "Json", fds: "Sequence[int]" = ()) -> None:
    """Send one message. Raises JailError where it is too big, OSError as sendmsg does."""
    data = dumps(body)
    if len(data) > MAX_BYTES or len(fds) > MAX_FDS:
        raise JailError("message_too_big", f"got {len(data)} bytes and {len(fds)} descriptors")
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    sock.sendmsg([data], rights, _socket.MSG_NOSIGNAL)


def recv(sock: _socket.socket) -> Message | None:
    """Wait for one message; None at the end of the connection. Raises JailError, OSError as recvmsg does."""
    data, ancillary, flags, _ = sock.recvmsg(MAX_BYTES, _ANCILLARY, _socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(raw) // _INT}i", raw[: len(raw) // _INT * _INT])
    if not data and not fds:
        return None
    message = Message({}, fds)
    try:
        if flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
            raise JailError("message_malformed", "message cut")
        message.body = loads(data)
    except JailError:
        message.close()
        raise
    return message


def peer(sock: _socket.socket) -> tuple[int, int]:
    """Pid and uid of whoever made the other end (SO_PEERCRED)."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _UCRED.size))
    return pid, uid
