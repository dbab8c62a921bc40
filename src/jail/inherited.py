"""What a process of a jail has got from those who started it: descriptors, terminal, keyring. Read from outside through
/proc, daemon side; each function yields sentences for what is not as it must be, an unreadable field among them.

/proc/PID/fd of a process that is not dumpable is root's alone; its fdinfo answers whoever may trace it (Linux 5.14).
"""

import errno
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from jail import procfile

_MOUNT = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """Mount ids by what a descriptor of such a mount is. Sockets and pipes have one mount each, kernel-wide."""

    sockets: int
    pipes: int
    terminals: frozenset[int]  # every devpts of whoever started the run


def kinds(launcher: int) -> Kinds:
    """Learn the ids from descriptors of our own, and from the launcher's mount table. Raises OSError, ValueError."""
    sockets, pipes = _kernels()
    mounts = _types(procfile.text(f"/proc/{launcher}/mountinfo"))
    terminals = frozenset(number for number, kind in mounts.items() if kind == "devpts")
    return Kinds(sockets=sockets, pipes=pipes, terminals=terminals)


def shown(launcher: int) -> Kinds | str:
    """The same, or a sentence that says why they are not known."""
    try:
        return kinds(launcher)
    except (OSError, ValueError) as error:
        return _unread("descriptors", error)


@cache
def _kernels() -> tuple[int, int]:
    """The ids of sockets and of pipes, which stay the same until the machine is started again."""
    pipe = os.pipe2(os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            of_sockets, of_pipes = (procfile.text(f"/proc/self/fdinfo/{number}") for number in (sock.fileno(), pipe[0]))
            return _mount_id(of_sockets), _mount_id(of_pipes)
    finally:
        for end in pipe:
            os.close(end)


def _mount_id(fdinfo: str) -> int:
    found = _MOUNT.search(fdinfo)
    if found is None:
        raise ValueError("no mnt_id")
    return int(found.group(1))


@lru_cache(maxsize=4)
def _types(mountinfo: str) -> Mapping[int, str]:
    """File system type by mount id; proc(5): optional fields end with a lone dash, the type is behind it.

    Kept: the launchers of one user mostly show the same text.
    """
    rows = [line.split() for line in mountinfo.splitlines()]
    return {int(row[0]): row[row.index("-", 6) + 1] for row in rows}


def _descriptors(pid: int) -> dict[int, int]:
    """Mount id by descriptor."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fdinfo"):  # noqa: PTH208 - see procfile
        try:
            found[int(name)] = _mount_id(procfile.text(f"/proc/{pid}/fdinfo/{name}"))
        except FileNotFoundError:  # closed since the listing
            continue
    return found


def descriptors(
    pid: int, known: Kinds | str, own: Collection[int] | None, *, sockets: int, pipes: int
) -> Iterator[str]:
    """Beyond 0, 1, 2 at most so many sockets and ends of pipes, and files of the jail's own mounts; and none of 0, 1, 2
    is a terminal of the host. known: as `shown` says. own: ids of the process's mounts, None where they are not shown.
    """
    try:
        found = _descriptors(pid)
    except (OSError, ValueError) as error:
        yield _unread("descriptors", error)
        return
    if own is None or isinstance(known, str):
        yield known if isinstance(known, str) else "descriptors: not shown (mounts)"
        return
    left = {known.sockets: sockets, known.pipes: pipes}
    for number, mount in sorted(found.items()):
        if number <= 2:
            if mount in known.terminals:
                yield f"descriptor {number}: expected a terminal of the jail's own, got one of the host"
        elif left.get(mount, 0) > 0:
            left[mount] -= 1
        elif mount not in own:
            yield f"descriptor {number}: expected none, got one of mount {mount}"


def session(pid: int, leader: int) -> Iterator[str]:
    """The session is that of `leader`, the jail's pid 1: so the controlling terminal of whoever started it is gone."""
    try:
        cells = procfile.content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        found = int(cells[3])  # proc(5): state, ppid, pgrp, session
    except (OSError, ValueError, IndexError) as error:
        yield _unread("session", error)
        return
    if found != leader:
        yield f"session: expected {leader}, got {found}"


def keyring(serials: object) -> Iterator[str]:
    """Serial numbers of the session keyring as pid 1 asked the kernel for them: before it joined a new one, and last.

    /proc shows no keyring of another process, so this is the one field that the jail itself reads.
    """
    match serials:
        case [int(before), int(after)] if 0 < after != before:
            return
        case _:
            yield f"session keyring: expected a new one, got serials {serials!r}"


def _unread(what: str, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return f"{what}: not shown ({errno.errorcode.get(number or 0, 'malformed')})"
