"""JSON messages with descriptors over SOCK_SEQPACKET unix sockets, where the kernel keeps message borders.

Launcher and pid 1 import this: standard library only, and little of it (no dataclasses, no typing: 27 ms and more).
"""

import array
import json
import os
import socket
import struct
from collections.abc import Sequence

from jail.errors import JailError

MAX_BYTES = 64 << 10
MAX_FDS = 64  # the kernel's own SCM_MAX_FD is 253
_UCRED = struct.Struct("iII")  # struct ucred of unix(7): pid, uid, gid
_INT = array.array("i").itemsize
_ANCILLARY = socket.CMSG_SPACE(MAX_FDS * _INT) + socket.CMSG_SPACE(_UCRED.size)

type Json = dict[str, object]


class Received:
    """One message: `body`, `fds` (close-on-exec, the receiver's to close), and who sent it.

    `pid`, `uid`, `gid` are the kernel's word, translated into the receiver's namespaces, where the receiving socket
    has SO_PASSCRED (`want_credentials`); else -1 each.
    """

    __slots__ = ("body", "fds", "gid", "pid", "uid")

    def __init__(self, body: Json, fds: list[int], credentials: tuple[int, int, int]) -> None:
        self.body = body
        self.fds = fds
        self.pid, self.uid, self.gid = credentials

    def close(self) -> None:
        """Close every descriptor that is still in `fds`, and empty it."""
        while self.fds:
            os.close(self.fds.pop())


def pair() -> tuple[socket.socket, socket.socket]:
    """Make two connected ends, both close-on-exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def want_credentials(sock: socket.socket) -> None:
    """Have the kernel add its SCM_CREDENTIALS to whatever `sock` receives from now on."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def send(sock: socket.socket, body: Json, fds: Sequence[int] = ()) -> None:
    """Send one message.

    Raises JailError `message_too_big` over 64 KiB or 64 descriptors, OSError as sendmsg does.
    """
    _check_type(sock)
    data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > MAX_BYTES or len(fds) > MAX_FDS:
        raise JailError(
            "message_too_big", f"got {len(data)} bytes and {len(fds)} descriptors, expected {MAX_BYTES} and {MAX_FDS}"
        )
    send_bytes(sock, data, fds)


def send_bytes(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send one message that is no JSON. Raises OSError as sendmsg does."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def recv(sock: socket.socket) -> Received | None:
    """Wait for one message; None at the end of the connection.

    Raises JailError `message_malformed` for one that is cut, has too many descriptors or is no JSON object (its
    descriptors are closed by then), OSError as recvmsg does.
    """
    _check_type(sock)
    data, ancillary, flags, _ = sock.recvmsg(MAX_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    fds, credentials = _take(ancillary)
    if not data and not fds:
        return None
    try:
        return Received(_parse(data, fds, flags), fds, credentials)
    except JailError:
        for fd in fds:
            os.close(fd)
        raise


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Pid, uid and gid of whoever connected `sock` (SO_PEERCRED), as they were then."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def _check_type(sock: socket.socket) -> None:
    # A stream would glue and split messages, and descriptors would then belong to the wrong one.
    if sock.type != socket.SOCK_SEQPACKET:
        raise JailError("message_malformed", f"got a socket of type {sock.type}, expected SOCK_SEQPACKET")


def _take(ancillary: list[tuple[int, int, bytes]]) -> tuple[list[int], tuple[int, int, int]]:
    fds = array.array("i")
    credentials = (-1, -1, -1)
    for level, kind, raw in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            fds.frombytes(raw[: len(raw) - len(raw) % _INT])  # a cut message may end inside a number
        elif kind == socket.SCM_CREDENTIALS and len(raw) == _UCRED.size:
            credentials = _UCRED.unpack(raw)
    return list(fds), credentials


def _parse(data: bytes, fds: list[int], flags: int) -> Json:
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) > MAX_FDS:
        raise JailError("message_malformed", f"message cut: expected at most {MAX_BYTES} bytes, {MAX_FDS} descriptors")
    try:
        body = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # RecursionError: 64 KiB of "[" (the C scanner raises it)
        raise JailError("message_malformed", f"not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise JailError("message_malformed", f"got a JSON {type(body).__name__}, expected an object")
    return body


def _no_constant(name: str) -> object:
    raise ValueError(name)
