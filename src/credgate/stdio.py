"""What of 0, 1 and 2 may go into a jail as it is, and words on 2. Standard library only: the launcher asks here first.

A network socket keeps the namespace that it was made in: with one as its stdin (inetd, `Accept=yes`, `nc -e`) a jailed
program disconnected it and connected to another address of the host's network (found by attack).
"""

import os
import stat

from credgate.errors import CredgateError

CANNOT = 125
SO_DOMAIN = 39  # asm-generic/socket.h; the socket module lacks it
BYTES = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFCHR)


def check_standard() -> None:
    """Open /dev/null where one is closed; raise CredgateError for one that carries more than bytes."""
    for number in (0, 1, 2):
        try:
            kind = stat.S_IFMT(os.fstat(number).st_mode)
        except OSError:  # closed: the next open() would become the jail's stdin
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            continue
        if kind not in BYTES and not (kind == stat.S_IFSOCK and _is_pair(number)):
            raise CredgateError(
                "standard_descriptor",
                f"descriptor {number}: got {_name(kind)}, expected a file, a pipe or a terminal",
                "put a pipe between: ... | cat | credgate run ...",
                CANNOT,
            )


def _is_pair(number: int) -> bool:
    """A connected unix stream: what node and others make in place of a pipe. It can't be connected elsewhere."""
    import socket  # noqa: PLC0415

    with socket.socket(fileno=os.dup(number)) as sock:
        domain, kind = (sock.getsockopt(socket.SOL_SOCKET, option) for option in (SO_DOMAIN, socket.SO_TYPE))
        if (domain, kind) != (socket.AF_UNIX, socket.SOCK_STREAM):
            return False
        try:
            sock.getpeername()
        except OSError:
            return False
        return True


def _name(kind: int) -> str:
    names = {stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory", stat.S_IFBLK: "a block device"}
    return names.get(kind, f"kind {kind:o}")


def say(text: str) -> None:
    """Onto stderr; that nobody reads it ends no run."""
    try:
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:
        return  # nobody reads our messages; the run goes on
