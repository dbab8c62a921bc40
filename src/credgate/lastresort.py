"""Ending a jail without its pid 1: where that one does not act, or gets no CPU to die.

pid 1's death takes its namespace down, but pid 1 must run for that. Killing the others as well gives it the CPU.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

ROUNDS = 20  # looks for members that were forked meanwhile
PAUSE = 0.1  # seconds between two


class LastResort:
    """Kills a jail that has not ended in time. One for each session; used in its event loop."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None

    def arm(self, pid: int, pidfd: int, seconds: float) -> None:
        """Kill pid 1 and all below it `seconds` from now, or earlier where armed so before.

        pid, pidfd: of pid 1, on the host; the descriptor stays the caller's, open until disarm().
        """
        due = asyncio.get_running_loop().time() + seconds
        if pidfd < 0 or (self._task is not None and self._due <= due):
            return
        if self._task is not None:
            self._task.cancel()
        self._due = due
        self._task = asyncio.get_running_loop().create_task(self._kill(pid, pidfd, seconds))

    async def _kill(self, pid: int, pidfd: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        log.error("run %s: pid 1 did not end its jail in time; killed from outside", self._run)
        await asyncio.to_thread(kill_jail, pid, os.dup(pidfd))

    async def disarm(self) -> None:
        """It is dead: nothing is killed any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def kill_jail(pid: int, pidfd: int) -> None:
    """SIGKILL pid 1 and everything below it, again while something is left, for at most ROUNDS looks.

    pid, pidfd: of the jail's pid 1, on the host; the descriptor is closed at the end.
    """
    try:
        for _ in range(ROUNDS):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            kill_below(pid, pidfd)
            time.sleep(PAUSE)
    except ProcessLookupError:
        pass  # reaped: the kernel has emptied the namespace before
    finally:
        os.close(pidfd)


def kill_below(pid: int, pidfd: int) -> int:
    """SIGKILL every descendant of `pid`; returns how many. Raises ProcessLookupError once `pid` itself is reaped.

    An orphan's parent is its namespace's pid 1 (pid_namespaces(7)), so each member of the jail is one. Its parents are
    read again once it is held by a descriptor, and `pid` is not reaped after that: no pid was given anew meanwhile.
    """
    killed = 0
    for member in below(pid, parents()):
        try:
            descriptor = os.pidfd_open(member)
        except ProcessLookupError:  # ended meanwhile
            continue
        try:
            if _descends(member, pid):
                signal.pidfd_send_signal(pidfd, 0)
                with contextlib.suppress(ProcessLookupError):  # as above
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed += 1
        finally:
            os.close(descriptor)
    return killed


def parents() -> dict[int, int]:
    """The parent of every process of this /proc."""
    found = {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
    return {pid: parent for pid, parent in found.items() if parent}


def parent_of(pid: int) -> int:
    """0 for a process that is gone, or has its parent elsewhere."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(text.rpartition(b")")[2].split()[1])  # proc(5): the name may hold anything, the last ")" ends it


def below(pid: int, of: dict[int, int]) -> Iterable[int]:
    """The descendants of `pid` by the parents `of`."""
    children: dict[int, list[int]] = {}
    for child, parent in of.items():
        children.setdefault(parent, []).append(child)
    todo = [pid]
    while todo:
        for child in children.pop(todo.pop(), []):
            yield child
            todo.append(child)


def _descends(pid: int, ancestor: int) -> bool:
    for _ in range(10_000):  # more than a chain of parents can have with RLIMIT_NPROC
        pid = parent_of(pid)
        if pid in (0, ancestor):
            return pid == ancestor
    return False
