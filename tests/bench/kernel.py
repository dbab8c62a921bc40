"""What the kernel says of processes: CPU time, memory, and who descends from whom."""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path


def cpu_of(pid: int) -> float:
    """Seconds of CPU that all threads of a process took so far, ended ones too.

    The clock of another process (clock_getcpuclockid(3)): nanoseconds, where /proc/PID/stat has hundredths.
    """
    return time.clock_gettime((~pid << 3) | 2)


def cpu(pids: Iterable[int]) -> float:
    return sum(cpu_of(pid) for pid in pids)


def children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def tree(pid: int) -> list[int]:
    """The process and all that descend from it."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def ours(daemon: int, depth: int = 3) -> list[int]:
    """A daemon, its helpers, and of each jail the waiter and pid 1 (daemon, starter, waiter, pid 1).

    The commands of the jails are below those, and not ours.
    """
    return [daemon, *(below for child in children(daemon) if depth for below in ours(child, depth - 1))]


def runs(pid: int, module: str) -> bool:
    """Whether a process is Python's with that module."""
    with contextlib.suppress(OSError):
        return module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def pin(pids: Iterable[int], core: int) -> None:
    """Every thread of each process to one core; those they start later are there too."""
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), {core})


def memory(pid: int, field: str) -> int:
    """Bytes, by the name of smaps_rollup's line (Rss, Pss); 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def peak(pid: int) -> int:
    """Bytes of the most that was resident since its start, or since 5 was written to its clear_refs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("VmHWM")
