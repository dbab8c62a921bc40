"""Another jail: what it puts up to be reached by (`put_up`), and the attempts to reach it.

The same things are put up by an ordinary process outside: of both, the control reaches that one.
"""

import errno
import os
import signal
import socket

from jail.probes import DONE, Attempt, Context
from jail.probes.unixpath import below
from jail.syscalls import call

_SHMGET = {"x86_64": 29, "aarch64": 194}
_SHMCTL = {"x86_64": 31, "aarch64": 195}
IPC_CREAT, IPC_RMID = 0o1000, 0


class Standing:
    """What was put up, and `close` to take it down."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.paths: list[str] = []
        self.segment = -1

    def close(self) -> None:
        """Take everything down."""
        for sock in self.sockets:
            sock.close()
        for path in self.paths:
            os.unlink(path)
        if self.segment >= 0:
            call(_SHMCTL[os.uname().machine], self.segment, IPC_RMID, 0)


def put_up(context: Context) -> Standing:
    """Make a file in /tmp, one in /dev/shm, a System V segment, an abstract socket, a server, a socket in the tree.

    The server is a jail's alone: outside the lab has one. The last is left out where it is refused, as it must be.
    """
    up = Standing()
    for path in (f"/tmp/{context['neighbour']['name']}", f"/dev/shm/{context['neighbour']['name']}"):  # noqa: S108 - the jail's
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        up.paths.append(path)
    up.segment = call(_SHMGET[os.uname().machine], context["neighbour"]["key"], 4096, IPC_CREAT | 0o600)
    up.sockets.append(_listening(b"\0" + context["neighbour"]["abstract"].encode()))
    if context["neighbour"]["serves"]:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.bind((b"0.0.0.0", context["neighbour"]["port"]))  # of a jail: its one address is not reachable
        server.listen()
        up.sockets.append(server)
    try:
        with below(context["tree"], f"{context['neighbour']['name']}.sock") as path:
            up.sockets.append(_listening(os.fsencode(path)))
            up.paths.append(f"{context['tree']}/{context['neighbour']['name']}.sock")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
    return up


def _listening(name: bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(name)
    except OSError:
        sock.close()
        raise
    sock.listen()
    return sock


def neighbour_tmp(context: Context) -> str:
    """Open a file that the other has in /tmp."""
    os.close(os.open(f"/tmp/{context['neighbour']['name']}", os.O_RDONLY | os.O_CLOEXEC))  # noqa: S108 - the jail's
    return DONE


def neighbour_shm(context: Context) -> str:
    """Open a file that the other has in /dev/shm."""
    os.close(os.open(f"/dev/shm/{context['neighbour']['name']}", os.O_RDONLY | os.O_CLOEXEC))  # noqa: S108 - the jail's
    return DONE


def neighbour_sysv(context: Context) -> str:
    """Find a System V segment of the other's by its key."""
    call(_SHMGET[os.uname().machine], context["neighbour"]["key"], 4096, 0)
    return DONE


def neighbour_abstract(context: Context) -> str:
    """Connect to an abstract socket of the other's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(b"\0" + context["neighbour"]["abstract"].encode())
    return DONE


def neighbour_signal(context: Context) -> str:
    """Send the other a signal."""
    os.kill(context["neighbour"]["pid"], signal.SIGCONT)
    return DONE


def neighbour_tree(context: Context) -> str:
    """Connect to a socket of the other's in a tree that both have."""
    with (
        below(context["tree"], f"{context['neighbour']['name']}.sock") as path,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock,
    ):
        sock.connect(path)
    return DONE


ATTEMPTS: dict[str, Attempt] = {
    "neighbour_tmp": neighbour_tmp,
    "neighbour_shm": neighbour_shm,
    "neighbour_sysv": neighbour_sysv,
    "neighbour_abstract": neighbour_abstract,
    "neighbour_signal": neighbour_signal,
    "neighbour_tree": neighbour_tree,
}
