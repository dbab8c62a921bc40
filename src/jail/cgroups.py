"""Control groups of runs: where this user may make one, and one run's own with its limits, its counters and its end.

Daemon side. Version 2 holds all in one directory, version 1 has one a controller. Finding and parsing are pure but for
the questions they ask of the file system; a limit that can't be set or read back is an error, never left out.
Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{memory,pids,cpuacct}.rst.
"""

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from jail.errors import JailError

NAME = "credgate"  # of the directory that root's set-up delegates, with one per uid below it
NEEDED = ("memory", "pids")
PAGE = os.sysconf("SC_PAGE_SIZE")
ROUNDS = 3
YOUNG = 60.0  # seconds for which an empty group may be about to be filled
STAY = ("daemon", "launchers")
_PIECE = 1 << 14  # bytes
PATIENCE = 5.0  # seconds for the kernel to let go of a dead jail's group
_MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """A mounted hierarchy: `root` is the group that the mount point shows; `controllers` is empty for version 2."""

    at: str
    root: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory that holds groups of ours, and its path as /proc/PID/cgroup says it. controller "" is version 2."""

    controller: str
    directory: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Where groups of runs are made. `unit`: the systemd unit whose manager has to move processes for us, or ""."""

    version: int
    places: tuple[Place, ...]
    unit: str = ""

    @property
    def name(self) -> str:
        """As banner, ledger and doctor say it."""
        return f"cgroup v{self.version}"

    @property
    def counts_cpu(self) -> bool:
        """Whether the kernel sums the group's CPU time (on version 1 a hierarchy of its own)."""
        return self.version == 2 or any(place.controller == "cpuacct" for place in self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the kernel counted: processes killed for want of memory, forks refused, CPU seconds (None: not summed)."""

    oom_kills: int
    refused_forks: int
    cpu: float | None


@lru_cache(maxsize=4)  # a launch asks four times, of the same text
def hierarchies(mountinfo: str) -> tuple[Hierarchy, ...]:
    """The mounted ones, from the text of /proc/self/mountinfo (proc(5))."""
    found = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        cells, kind = left.split(" "), right.split(" ")
        if kind[0] not in ("cgroup", "cgroup2") or len(cells) < 6 or ".." in cells[3]:
            continue
        options = set(kind[2].split(",")) if kind[0] == "cgroup" and len(kind) > 2 else set()
        found.append(Hierarchy(at=cells[4], root=cells[3], controllers=frozenset(options - {"rw", "ro"})))
    return tuple(found)


def groups_of(text: str) -> dict[str, str]:
    """/proc/PID/cgroup: controller to path; "" is version 2. Raises ValueError for another format."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def choose(uid: int, mountinfo: str, own: str, launcher: str) -> Base | None:
    """Where groups for a run of that launcher can be made; None where nothing is delegated to this user.

    own, launcher: /proc/PID/cgroup of this process and of the launcher. What is found here is used: if it then fails,
    the run is refused.
    """
    mounted = hierarchies(mountinfo)
    mine, theirs = groups_of(own), groups_of(launcher)
    for hierarchy in mounted:
        if not hierarchy.controllers and "" in mine:
            base = _version2(hierarchy, uid, mine[""], theirs.get("", "/"))
            if base is not None:
                return base
    return _version1(mounted, uid, mine)


def _version2(hierarchy: Hierarchy, uid: int, own: str, launcher: str) -> Base | None:
    for shown in (f"/{NAME}/{uid}", *_upwards(own)):
        directory = _directory(hierarchy, shown)
        if directory is None or not _writable(directory):
            continue
        if not set(NEEDED) <= _words(f"{directory}/cgroup.subtree_control"):
            continue
        place = Place(controller="", directory=directory, shown=shown)
        # Moving a process takes the right to write cgroup.procs of the nearest group above both ends.
        common = _directory(hierarchy, os.path.commonpath([shown, launcher]))
        if common is not None and os.access(f"{common}/cgroup.procs", os.W_OK):
            return Base(version=2, places=(place,))
        if _is_scope(shown):  # the user's service manager moves for us
            return Base(version=2, places=(place,), unit=shown.rpartition("/")[2])
    return None


def _version1(mounted: Sequence[Hierarchy], uid: int, own: Mapping[str, str]) -> Base | None:
    places = []
    for controller in (*NEEDED, "cpuacct"):
        place = next(_places1(mounted, uid, controller, own.get(controller, "/")), None)
        if place is not None:
            places.append(place)
        elif controller in NEEDED:
            return None
    return Base(version=1, places=tuple(places))


def _places1(mounted: Sequence[Hierarchy], uid: int, controller: str, own: str) -> Iterator[Place]:
    for hierarchy in mounted:
        if controller not in hierarchy.controllers:
            continue
        for shown in (f"/{NAME}/{uid}", own):
            directory = _directory(hierarchy, shown)
            if directory is not None and _writable(directory):
                yield Place(controller=controller, directory=directory, shown=shown)


def _upwards(path: str) -> Iterator[str]:
    """The path and what is above it, the root left out."""
    while path not in ("/", ""):
        yield path
        path = path.rpartition("/")[0]


def _directory(hierarchy: Hierarchy, shown: str) -> str | None:
    """Where a group lies in the file system; None where the mount doesn't show it."""
    root = hierarchy.root.rstrip("/")
    if ".." in shown or not f"{shown}/".startswith(f"{root}/"):
        return None
    return hierarchy.at + shown[len(root) :].rstrip("/")


def _writable(directory: str) -> bool:
    return os.access(directory, os.W_OK | os.X_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK)


def _words(path: str) -> set[str]:
    try:
        return set(_read(path).split())
    except OSError:
        return set()


# A scope of the user's service manager


def _is_scope(shown: str) -> bool:
    name = shown.rpartition("/")[2]
    return name.startswith(f"{NAME}-") and name.endswith(".scope")


def settle(mountinfo: str, own: str) -> bool:
    """Make the scope that the daemon was started in (credgate.scope) one that can hold groups of runs.

    A group with processes of its own can't hand controllers down (cgroup-v2.rst, "no internal process"), so all that is
    in it (the daemon and what it started: the scope was made for them) moves one down. False where this process is in
    no such scope. Raises OSError where that is refused.
    """
    shown = groups_of(own).get("", "")
    mounted = [h for h in hierarchies(mountinfo) if not h.controllers]
    directory = next((d for h in mounted if (d := _directory(h, shown)) and _writable(d)), "")
    if not _is_scope(shown) or not directory:
        return False
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{directory}/daemon")  # noqa: PTH102 - text
    for _ in range(ROUNDS):  # what is started in the meantime is born in the old place
        for pid in _read(f"{directory}/cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                _write(f"{directory}/daemon/cgroup.procs", pid)
    _write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in NEEDED))
    return True


# One run's group


class Group:
    """One run's own group (on version 1 one in each hierarchy), with its limits set."""

    def __init__(self, base: Base, run: str, *, memory: int, processes: int) -> None:
        """Make it and set its limits. Raises JailError; nothing is left then."""
        self.base = base
        self._files: dict[str, str] = {}
        self.places = tuple(
            Place(controller=p.controller, directory=f"{p.directory}/{run}", shown=f"{p.shown.rstrip('/')}/{run}")
            for p in base.places
        )
        made: list[Place] = []
        try:
            for place in self.places:
                os.mkdir(place.directory, 0o755)  # noqa: PTH102 - text
                made.append(place)
            self.limit(memory, processes)
        except OSError as error:
            for place in made:
                with contextlib.suppress(OSError):  # the first error is the one to tell
                    os.rmdir(place.directory)  # noqa: PTH106 - text
            raise _failed(f"make a group for {run}", error) from error

    def limits(self, memory: int, processes: int) -> bool:
        """Whether these are the limits that were set."""
        return self._files == self._wanted(memory // PAGE * PAGE, processes)

    def limit(self, memory: int, processes: int) -> None:
        """Set the limits. Raises OSError."""
        self._files = self._wanted(memory // PAGE * PAGE, processes)
        for path, value in self._files.items():
            _write(path, value)

    def _of(self, controller: str) -> str:
        wanted = "" if self.base.version == 2 else controller
        return next(place.directory for place in self.places if place.controller == wanted)

    def _wanted(self, most: int, processes: int) -> dict[str, str]:
        """Files and what they must say, in the order in which they can be written."""
        memory = self._of("memory")
        if self.base.version == 2:
            files = {f"{memory}/memory.max": most, f"{memory}/memory.oom.group": 1}
            swap, closed = f"{memory}/memory.swap.max", 0
        else:
            files = {f"{memory}/memory.limit_in_bytes": most}
            swap, closed = f"{memory}/memory.memsw.limit_in_bytes", most  # memory and swap together
        if os.path.exists(swap):  # noqa: PTH110 - absent where the kernel does not account swap
            files[swap] = closed
        files[f"{self._of('pids')}/pids.max"] = processes
        return {path: str(value) for path, value in files.items()}

    @property
    def closes_swap(self) -> bool:
        """Whether the kernel accounts swap to the group, which is then closed."""
        return any("swap.max" in path or "memsw" in path for path in self._files)

    def enter(self, pid: int) -> None:
        """Move a process in. Raises JailError."""
        for place in self.places:
            try:
                if self.base.unit:
                    _attach(self.base.unit, place.shown.rpartition("/")[2], pid)
                else:
                    _write(f"{place.directory}/cgroup.procs", str(pid))
            except OSError as error:
                raise _failed(f"move process {pid} to {place.shown}", error) from error

    def astray(self, pid: int) -> list[str]:
        """Where the kernel shows a process otherwise than in it."""
        try:
            shown = groups_of(_read(f"/proc/{pid}/cgroup"))
        except (OSError, ValueError):
            shown = {}
        return [
            f"cgroup of process {pid}: expected {place.shown}, got {shown.get(place.controller, 'not shown')}"
            for place in self.places
            if shown.get(place.controller) != place.shown
        ]

    def wrong(self, pids: Sequence[int]) -> list[str]:
        """What the kernel shows otherwise: the group of each of these processes, and each limit. Empty: as set."""
        found = [line for pid in pids for line in self.astray(pid)]
        for path, value in self._files.items():
            try:
                got = _read(path).strip()
            except OSError:
                got = "not shown"
            if got != value:
                found.append(f"{path}: expected {value}, got {got}")
        return found

    def counters(self) -> Counters:
        """What was counted so far. Raises OSError or ValueError where a counter can't be read: that is not zero."""
        memory, refused = self._of("memory"), _field(f"{self._of('pids')}/pids.events", "max")
        if self.base.version == 2:
            kills, cpu = _field(f"{memory}/memory.events", "oom_kill"), _field(f"{memory}/cpu.stat", "usage_usec") / 1e6
            return Counters(oom_kills=kills, refused_forks=refused, cpu=cpu)
        seconds = int(_read(f"{self._of('cpuacct')}/cpuacct.usage")) / 1e9 if self.base.counts_cpu else None
        kills = _field(f"{memory}/memory.oom_control", "oom_kill")
        return Counters(oom_kills=kills, refused_forks=refused, cpu=seconds)

    def kill(self) -> None:
        """On version 2: kill all that is in it, at once (Linux 5.14). Elsewhere the pid namespace's end does that."""
        if self.base.version == 2:
            with contextlib.suppress(FileNotFoundError):
                _write(f"{self._of('memory')}/cgroup.kill", "1")

    def close(self) -> None:
        """Remove it, which the kernel does only when nothing is left in it. Raises JailError after PATIENCE seconds."""
        deadline = time.monotonic() + PATIENCE
        for place in self.places:
            while not _removed(place.directory):
                if time.monotonic() > deadline:
                    raise _failed(f"remove {place.shown}", OSError(errno.EBUSY, os.strerror(errno.EBUSY)))
                time.sleep(0.005)


def sweep(base: Base) -> None:
    """Remove what a daemon that was killed has left: empty groups of runs, not so new that another still fills them."""
    for place in base.places:
        for entry in os.scandir(place.directory):
            with contextlib.suppress(OSError):  # gone, or in use: the kernel refuses then
                if entry.is_dir() and entry.name not in STAY and time.time() - entry.stat().st_mtime > YOUNG:
                    os.rmdir(entry.path)  # noqa: PTH106 - text


def _removed(directory: str) -> bool:
    """Remove an empty group; False where the kernel still sees something in it. Raises JailError."""
    try:
        os.rmdir(directory)  # noqa: PTH106 - text
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise _failed(f"remove {directory}", error) from error
        return False
    return True


def _attach(unit: str, below: str, pid: int) -> None:
    """Ask the user's service manager to move a process: from a login session's scope we may not."""
    call = ["busctl", "--user", "--quiet", "call", *_MANAGER.split(), "AttachProcessesToUnit"]
    argv = [*call, "ssau", unit, f"/{below}", "1", str(pid)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, "busctl: no answer in 10 s") from error
    if done.returncode != 0:
        raise OSError(errno.EPERM, f"busctl: {done.stderr.strip() or done.returncode}")


def _field(path: str, name: str) -> int:
    """One number of a file of "NAME NUMBER" lines. Raises OSError, ValueError."""
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    raise ValueError(f"{path} has no {name}")


def _read(path: str) -> str:
    # Four times a second for each live run: a path object and a text file cost five times the system calls.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, _PIECE):  # the kernel gives a long list in parts
            pieces.append(piece)
        return b"".join(pieces).decode()
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    # One write(2): the kernel takes each as a whole. No O_CREAT: a missing file is a missing controller.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _failed(what: str, error: OSError) -> JailError:
    return JailError(
        "cgroup_failed",
        f"could not {what}: {error.strerror or error}",
        "`credgate doctor` says what is delegated; docs/limits.md says how",
        error.errno or 0,
    )
