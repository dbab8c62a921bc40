"""What a jail's processes use, summed by its pid 1 from /proc: for hosts that give this user no cgroup.

A sum, so it errs towards killing: pages that are both mapped and in a file count twice. What it doesn't see: memory
files whose only descriptor is in flight on a socket, or held by a process that made itself unreadable; CPU time of
processes whose parent ignores their end; whatever happens between two looks. Standard library only.
"""

import os
import resource

SHARED = b"RssShmem:"
TICKS = os.sysconf("SC_CLK_TCK")


class Usage:
    """One look: bytes (at most), CPU seconds, tasks (processes and their threads)."""

    __slots__ = ("cpu", "memory", "tasks")

    def __init__(self, memory: int, cpu: float, tasks: int) -> None:
        self.memory, self.cpu, self.tasks = memory, cpu, tasks


def look(trees: list[str]) -> Usage:
    """Sum over every process that this /proc shows, and over the tmpfs mounts at `trees`."""
    memory, tasks = in_tmpfs(trees), 0
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime
    for pid in _pids():
        anonymous, shared, threads = parse_status(_read(pid, "status"))
        memory += anonymous + shared
        tasks += threads
        cpu += parse_times(_read(pid, "stat"))
    return Usage(memory, cpu, tasks)


def precise(trees: list[str]) -> int:
    """Bytes again, with pages that several processes map counted once: slower, for the moment before a kill.

    Memory files are in it also where nobody has mapped them.
    """
    total = in_tmpfs(trees) + in_memory_files()
    for pid in _pids():
        shares = parse_rollup(_read(pid, "smaps_rollup"))
        if shares is None:  # not dumpable, or a kernel without the file: what it has mapped, in whole
            anonymous, shared, _ = parse_status(_read(pid, "status"))
            shares = anonymous + shared
        total += shares
    return total


def in_tmpfs(trees: list[str]) -> int:
    """Bytes that files in the jail's own tmpfs mounts hold."""
    total = 0
    for tree in trees:
        facts = os.statvfs(tree)
        total += (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return total


def in_memory_files() -> int:
    """Bytes of memfd files that some readable process of this /proc has open, each file once."""
    probe = os.memfd_create("credgate", os.MFD_CLOEXEC)
    device = os.fstat(probe).st_dev  # of the kernel's own tmpfs, which is mounted nowhere
    os.close(probe)
    blocks: dict[int, int] = {}
    for pid in _pids():
        for descriptor in _listed(f"/proc/{pid}/fd"):
            try:
                facts = os.stat(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH116 - pathlib costs 14 ms here
            except OSError:  # closed or ended in this moment
                continue
            if facts.st_dev == device:
                blocks[facts.st_ino] = facts.st_blocks * 512
    return sum(blocks.values())


def parse_status(text: bytes) -> tuple[int, int, int]:
    """/proc/PID/status: bytes of anonymous and of shared-memory pages, and threads; zeros for a process that ended."""
    found = {b"RssAnon:": 0, SHARED: 0, b"Threads:": 0}
    for line in text.splitlines():
        name, _, rest = line.partition(b"\t")
        if name in found:
            found[name] = int(rest.split()[0])
    return found[b"RssAnon:"] << 10, found[SHARED] << 10, found[b"Threads:"]


def parse_times(text: bytes) -> float:
    """/proc/PID/stat: CPU seconds of the process and of the children that it has waited for (fields 14 to 17)."""
    cells = text.rpartition(b")")[2].split()
    return sum(int(cell) for cell in cells[11:15]) / TICKS


def parse_rollup(text: bytes) -> int | None:
    """/proc/PID/smaps_rollup: bytes of anonymous and shared-memory pages, each divided by those who map it."""
    found = [int(line.split()[1]) for line in text.splitlines() if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))]
    return sum(found) << 10 if len(found) == 2 else None


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib costs 14 ms here


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208
    except OSError:  # ended, or not dumpable
        return []


def _read(pid: str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # ended between the listing and the look, or not readable
        return b""
