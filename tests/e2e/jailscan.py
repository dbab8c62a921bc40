"""Looks for the site's secrets, in each of their spellings, in all that a jail holds, writes and shows.

A thread looks at the jails of this test process while they run, from outside: environment, command line, descriptors,
memory and the files that each has of its own. What a run printed is looked at when it ended, and the whole home (work
tree, state, logs, ledger) when the site is closed. What a target sent reaches a jail through these alone.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from rules.needles import needles
from rules.scrub import Table

PAUSE = 0.25  # seconds between two looks
MAX_FILE, MAX_FILES = 1 << 20, 300  # of one process, in one look
MAX_MEMORY = 24 << 20  # bytes of one process, which is read at its second look and once
OWN_TREES = ("tmp", "run", "dev/shm")


def table_of(secrets: Mapping[str, str]) -> Table:
    """What is looked for."""
    return Table({form: name for name, value in secrets.items() for form in needles(value)})


def _jailed(ancestor: int) -> Iterator[int]:
    """Descendants of a process that are in another pid namespace than we."""
    parents: dict[int, int] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError, IndexError):
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    mine = os.readlink("/proc/self/ns/pid")
    for pid in parents:
        above, steps = pid, 0
        while above in parents and above != ancestor and steps < 64:
            above, steps = parents[above], steps + 1
        with contextlib.suppress(OSError):
            if above == ancestor and pid != ancestor and os.readlink(f"/proc/{pid}/ns/pid") != mine:
                yield pid


class Scan(threading.Thread):
    """`found` has what was found where. `secrets` may grow while it runs."""

    def __init__(self, home: Path) -> None:
        super().__init__(name="jailscan", daemon=True)
        self.secrets: dict[str, str] = {}
        self.found: set[tuple[str, str]] = set()
        self.looks = 0  # at processes
        self._home = home
        self._table, self._known = table_of({}), 0
        self._over = threading.Event()
        self._seen: dict[int, int] = {}

    def add(self, name: str, value: str) -> None:
        """Look for a value from now on."""
        self.secrets[name] = value
        if not self.is_alive() and not self._over.is_set():
            self.start()

    def run(self) -> None:
        while not self._over.wait(PAUSE):
            for pid in _jailed(os.getpid()):
                with contextlib.suppress(OSError):
                    self._process(pid)

    def look(self, where: str, data: bytes) -> None:
        """Look through bytes."""
        if len(self.secrets) != self._known:
            self._table, self._known = table_of(self.secrets), len(self.secrets)
        self.found.update((where, name) for name in self._table.found(data))

    def printed(self, *texts: str | bytes | None) -> None:
        """Look through what a run printed."""
        for text in texts:
            self.look("output", text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text or b"")

    def close(self) -> None:
        """End it, and look through the home. Raises AssertionError where anything was found."""
        self._over.set()
        if self.is_alive():
            self.join()
        if self.secrets:
            self._files(self._home, "home", MAX_FILE * 64)
        assert not self.found, f"secrets in the jail: {sorted(self.found)}"

    def _process(self, pid: int) -> None:
        if os.path.samestat(os.stat(f"/proc/{pid}/root/"), os.stat("/")):
            return  # pid 1 that has not built its root yet: what it sees is the host's /tmp, with our targets' files
        self.looks += 1
        self._seen[pid] = self._seen.get(pid, 0) + 1
        for name in ("environ", "cmdline"):
            self.look(name, Path(f"/proc/{pid}/{name}").read_bytes())
        for tree in (*OWN_TREES, str(self._home).lstrip("/")):
            self._files(Path(f"/proc/{pid}/root") / tree, "a file", MAX_FILE)
        if self._seen[pid] == 2:
            self._memory(pid)

    def _files(self, root: Path, where: str, largest: int) -> None:
        count = 0
        for top, _, names in os.walk(root):
            for name in names:
                with contextlib.suppress(OSError):
                    path = os.path.join(top, name)
                    facts = os.lstat(path)
                    if stat.S_ISREG(facts.st_mode) and facts.st_size <= largest:
                        self.look(where, Path(path).read_bytes())
                        count += 1
                if count > MAX_FILES and largest == MAX_FILE:
                    return

    def _memory(self, pid: int) -> None:
        left = MAX_MEMORY
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                span, mode = line.split()[:2]
                start, end = (int(part, 16) for part in span.split("-"))
                if not mode.startswith("rw") or end - start > left:
                    continue
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(start)
                    self.look("memory", memory.read(end - start))
                    left -= end - start
