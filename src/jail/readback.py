"""What the kernel says of a process, read from outside through /proc, and its comparison with the plan.

Daemon side. Parsing and comparing are pure. A field that can't be read or parsed is `NotShown`, never zero or empty,
and differs from everything: an absent proof is not a proof. Formats: proc(5), Documentation/filesystems/proc.rst.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

MOST = 4 << 20  # bytes of one file; the longest, mountinfo, has a few hundred a mount
NAMESPACES = ("user", "net", "mnt", "pid", "pid_for_children", "ipc", "uts", "cgroup")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
LIMITS = {
    "data": "Max data size",
    "processes": "Max processes",
    "open_files": "Max open files",
    "cpu": "Max cpu time",
    "file_size": "Max file size",
    "core": "Max core file size",
}
_REJECT = 0x0200  # RTF_REJECT: the kernel's own "unreachable" entry, present without any address


@dataclass(frozen=True, slots=True)
class NotShown:
    """A fact that could not be read: `why` is an errno's name or "malformed"."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo; `options` are the mount's own (ro, nosuid...), not the file system's."""

    number: int
    at: str
    root: str
    options: frozenset[str]
    kind: str
    layers: frozenset[str] = frozenset()  # of an overlay: its file system's own options


type Limit = tuple[int | None, int | None]  # soft, hard; None: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One process as /proc shows it, each field or why it is not shown.

    start: clock ticks since boot, with `pid` the identity of a process. owner: uid that owns /proc/PID/environ; that
    of a process that is not dumpable is not its own. ids: real, effective, saved, file system. ns_pids: the process's
    pid in each pid namespace, outermost first.
    """

    pid: int
    start: int | NotShown
    owner: int | NotShown
    seccomp: int | NotShown
    filters: int | NotShown
    no_new_privs: int | NotShown
    capabilities: Mapping[str, int] | NotShown
    uids: tuple[int, ...] | NotShown
    gids: tuple[int, ...] | NotShown
    groups: tuple[int, ...] | NotShown
    ns_pids: tuple[int, ...] | NotShown
    namespaces: Mapping[str, int] | NotShown
    routes: tuple[tuple[str, IPv4Network], ...] | NotShown
    addresses6: tuple[tuple[str, IPv6Address], ...] | NotShown
    routes6: tuple[tuple[str, IPv6Network], ...] | NotShown
    mounts: tuple[Mount, ...] | NotShown = field(repr=False)
    exe: str | NotShown
    limits: Mapping[str, Limit] | NotShown
    uid_map: tuple[tuple[int, int, int], ...] | NotShown
    gid_map: tuple[tuple[int, int, int], ...] | NotShown


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the plan says. Everything else is fixed: no capability, no_new_privs, filter mode, not dumpable, no IPv6.

    namespaces: inodes that must be these (at least the berth's user and net). foreign: the host's, that no namespace
    may be. groups: None where they could not be dropped (rootless); they are then listed, not judged. limits: the most
    that each of LIMITS may be (core is 0 in any case); compare raises KeyError where one is left out. writable: mount
    points that may be writable. mounted: those that must be there. overlays: options that the overlay at a mount point
    must show. filters: in all, so one more than the daemon has.
    """

    pid_inside: int
    uid: int
    gid: int
    groups: tuple[int, ...] | None
    namespaces: Mapping[str, int]
    foreign: Mapping[str, int]
    routes: tuple[tuple[str, IPv4Network], ...]
    limits: Mapping[str, int]
    writable: frozenset[str]
    mounted: frozenset[str] = frozenset()
    overlays: Mapping[str, frozenset[str]] = field(default_factory=dict)
    filters: int = 1
    start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`field` of Facts, with what was expected and what the kernel shows, as text."""

    field: str
    expected: str
    got: str


# Comparing


def compare(expected: Expected, facts: Facts) -> tuple[Difference, ...]:
    """Every difference, a field that is not shown among them; empty: shown as planned."""
    hidden = tuple(
        Difference(field=f.name, expected="shown", got=f"not shown ({value.why})")
        for f in fields(facts)
        if isinstance(value := getattr(facts, f.name), NotShown)
    )
    return (*hidden, *_exact(expected, facts), *_namespaces(expected, facts), *_bounds(expected, facts))


def _exact(expected: Expected, facts: Facts) -> Iterator[Difference]:
    wanted: dict[str, object] = {
        "seccomp": 2,
        "filters": expected.filters,
        "no_new_privs": 1,
        "capabilities": dict.fromkeys(CAPABILITIES, 0),
        "uids": (expected.uid,) * 4,
        "gids": (expected.gid,) * 4,
        "routes": expected.routes,
        "addresses6": (),
        "routes6": (),
    }
    if expected.groups is not None:
        wanted["groups"] = expected.groups
    if expected.start is not None:
        wanted["start"] = expected.start
    for name, value in wanted.items():
        got = getattr(facts, name)
        if not isinstance(got, NotShown) and got != value:
            yield Difference(field=name, expected=_text(value), got=_text(got))
    if not isinstance(facts.owner, NotShown) and facts.owner == expected.uid:
        yield Difference(field="owner", expected="not dumpable", got=f"environ readable by uid {facts.owner}")
    if not isinstance(facts.ns_pids, NotShown) and (len(facts.ns_pids) < 2 or facts.ns_pids[-1] != expected.pid_inside):
        got = _text(facts.ns_pids)
        yield Difference(field="ns_pids", expected=f"pid {expected.pid_inside} of an inner namespace", got=got)


def _namespaces(expected: Expected, facts: Facts) -> Iterator[Difference]:
    if isinstance(facts.namespaces, NotShown):
        return
    for name, inode in facts.namespaces.items():
        planned = expected.namespaces.get(name)
        if planned is not None and planned != inode:
            yield Difference(field=f"namespaces.{name}", expected=str(planned), got=str(inode))
        if expected.foreign.get(name) == inode:
            yield Difference(field=f"namespaces.{name}", expected="not the host's", got=str(inode))
    for name in NAMESPACES:
        if name not in facts.namespaces or name not in expected.foreign:
            yield Difference(field=f"namespaces.{name}", expected="shown, inside and on the host", got="not shown")


def _bounds(expected: Expected, facts: Facts) -> Iterator[Difference]:
    if not isinstance(facts.limits, NotShown):
        for name, limit in facts.limits.items():
            most = 0 if name == "core" else expected.limits[name]
            if any(value is None or value > most for value in limit):
                yield Difference(field=f"limits.{name}", expected=f"at most {most}", got=_text(limit))
    if not isinstance(facts.mounts, NotShown):
        for mount in facts.mounts:
            if "ro" not in mount.options and mount.at not in expected.writable:
                yield Difference(field=f"mounts.{mount.at}", expected="ro", got=",".join(sorted(mount.options)))
        for at in sorted({"/", *expected.mounted} - {mount.at for mount in facts.mounts}):
            yield Difference(field=f"mounts.{at}", expected="mounted", got="none")
        yield from _overlays(expected, facts.mounts)
    for name, inside in (("uid_map", expected.uid), ("gid_map", expected.gid)):
        rows = getattr(facts, name)
        if not isinstance(rows, NotShown) and [(first, count) for first, _, count in rows] != [(inside, 1)]:
            yield Difference(field=name, expected=f"{inside} alone", got=_text(rows))


def _overlays(expected: Expected, mounts: tuple[Mount, ...]) -> Iterator[Difference]:
    """The topmost mount at each place is the overlay that the plan names, with the layers that it names."""
    shown = {mount.at: mount for mount in mounts}
    for at, wanted in expected.overlays.items():
        mount = shown.get(at)
        if mount is None or mount.kind != "overlay" or not wanted <= mount.layers:
            got = "none" if mount is None else f"{mount.kind} {','.join(sorted(mount.layers))}"
            yield Difference(field=f"mounts.{at}", expected=f"overlay {','.join(sorted(wanted))}", got=got)


def beside(expected: Expected, first: Facts, *, pid_inside: int) -> Expected:
    """The same for the workload, which must be in exactly the namespaces that pid 1 was read back in."""
    shown = {} if isinstance(first.namespaces, NotShown) else first.namespaces
    return replace(expected, pid_inside=pid_inside, namespaces={**shown, **expected.namespaces}, start=None)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item:x}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


# Parsing: each raises ValueError on text that is not of its format


def parse_status(text: str) -> dict[str, str]:
    """/proc/PID/status: names to values. The kernel escapes a newline in Name; a name twice is refused."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon or name in found:
            raise ValueError(f"line {line!r}")
        found[name] = value.strip()
    return found


def parse_start(text: str) -> int:
    """/proc/PID/stat: field 22. The name in brackets may hold anything, brackets too."""
    return int(text.rpartition(")")[2].split()[19])


def parse_routes(text: str) -> tuple[tuple[str, IPv4Network], ...]:
    """/proc/PID/net/route: (interface, network); addresses are words in the host's byte order."""
    head, *rows = text.splitlines() or [""]
    if head and not head.startswith("Iface"):  # a namespace without any route prints its head, or nothing
        raise ValueError(f"head {head!r}")
    return tuple(sorted(_route(row.split()) for row in rows if row.strip()))


def _route(cells: list[str]) -> tuple[str, IPv4Network]:
    if len(cells) < 8:
        raise ValueError("short route")
    destination, mask = (int.from_bytes(bytes.fromhex(cells[i])[::-1]) for i in (1, 7))
    return cells[0], IPv4Network((destination, str(IPv4Address(mask))))


def parse_addresses6(text: str) -> tuple[tuple[str, IPv6Address], ...]:
    """/proc/PID/net/if_inet6: (interface, address)."""
    rows = [row.split() for row in text.splitlines()]
    if any(len(cells) != 6 for cells in rows):
        raise ValueError("expected 6 columns")
    return tuple(sorted((cells[5], IPv6Address(bytes.fromhex(cells[0]))) for cells in rows))


def parse_routes6(text: str) -> tuple[tuple[str, IPv6Network], ...]:
    """/proc/PID/net/ipv6_route: (interface, network), without the entries that refuse."""
    rows = [row.split() for row in text.splitlines()]
    if any(len(cells) != 10 for cells in rows):
        raise ValueError("expected 10 columns")
    used = [cells for cells in rows if not int(cells[8], 16) & _REJECT]
    return tuple(sorted((c[9], IPv6Network((bytes.fromhex(c[0]), int(c[1], 16)))) for c in used))


@lru_cache(maxsize=2)
def parse_mounts(text: str) -> tuple[Mount, ...]:
    """/proc/PID/mountinfo, in its order; octal escapes undone. Kept: pid 1 and workload mostly show the same text."""
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        if not dash or len(cells := left.split(" ")) < 6:
            raise ValueError(f"line {line!r}")
        number, at, root, options = int(cells[0]), _unescaped(cells[4]), _unescaped(cells[3]), cells[5].split(",")
        kind, _, rest = right.partition(" ")
        layers = frozenset(map(_unescaped, rest.rpartition(" ")[2].split(","))) if kind == "overlay" else frozenset()
        found.append(Mount(number=number, at=at, root=root, options=frozenset(options), kind=kind, layers=layers))
    return tuple(found)


def _unescaped(text: str) -> str:
    return text if "\\" not in text else re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found.group(1), 8)), text)


def parse_limits(text: str) -> dict[str, Limit]:
    """/proc/PID/limits: our names to (soft, hard); a limit that is missing is refused."""
    found: dict[str, Limit] = {}
    for name, label in LIMITS.items():
        row = re.search(rf"^{label} +(unlimited|[0-9]+) +(unlimited|[0-9]+) ", text, re.MULTILINE)
        if row is None:
            raise ValueError(f"no {label}")
        soft, hard = (None if value == "unlimited" else int(value) for value in row.groups())
        found[name] = (soft, hard)
    return found


def parse_map(text: str) -> tuple[tuple[int, int, int], ...]:
    """/proc/PID/uid_map: (first inside, first outside, count)."""
    rows = [tuple(int(cell) for cell in line.split()) for line in text.splitlines()]
    if any(len(row) != 3 for row in rows):
        raise ValueError("expected 3 columns")
    return tuple((row[0], row[1], row[2]) for row in rows)


# Reading


def read_facts(pid: int) -> Facts:
    """Read one process. One descriptor of /proc/PID serves all: after its death that answers ESRCH, also if the pid is
    used again. Raises nothing: what fails is NotShown.
    """
    directory = _shown(lambda: os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    if isinstance(directory, NotShown):
        return Facts(pid=pid, **{f.name: directory for f in fields(Facts) if f.name != "pid"})
    try:
        return _facts(pid, directory)
    finally:
        os.close(directory)


def own_namespaces() -> Mapping[str, int]:
    """Inodes of the namespaces of this process, for Expected.foreign. Raises OSError."""
    return {name: _inode(os.readlink(f"/proc/self/ns/{name}")) for name in NAMESPACES}


def _facts(pid: int, at: int) -> Facts:
    status = _shown(lambda: parse_status(_read(at, "status")))

    def of[T](name: str, parse: Callable[[str], T]) -> T | NotShown:
        return status if isinstance(status, NotShown) else _shown(lambda: parse(status[name]))

    return Facts(
        pid=pid,
        start=_shown(lambda: parse_start(_read(at, "stat"))),
        owner=_shown(lambda: os.stat("environ", dir_fd=at).st_uid),
        seccomp=of("Seccomp", int),
        filters=of("Seccomp_filters", int),
        no_new_privs=of("NoNewPrivs", int),
        capabilities=status
        if isinstance(status, NotShown)
        else _shown(lambda: {name: int(status[name], 16) for name in CAPABILITIES}),
        uids=of("Uid", _numbers),
        gids=of("Gid", _numbers),
        groups=of("Groups", _numbers),
        ns_pids=of("NSpid", _numbers),
        namespaces=_shown(lambda: {name: _inode(os.readlink(f"ns/{name}", dir_fd=at)) for name in NAMESPACES}),
        routes=_shown(lambda: parse_routes(_read(at, "net/route"))),
        addresses6=_shown(lambda: parse_addresses6(_read6(at, "net/if_inet6"))),
        routes6=_shown(lambda: parse_routes6(_read6(at, "net/ipv6_route"))),
        mounts=_shown(lambda: parse_mounts(_read(at, "mountinfo"))),
        exe=_shown(lambda: os.readlink("exe", dir_fd=at)),
        limits=_shown(lambda: parse_limits(_read(at, "limits"))),
        uid_map=_shown(lambda: parse_map(_read(at, "uid_map"))),
        gid_map=_shown(lambda: parse_map(_read(at, "gid_map"))),
    )


def _shown[T](read: Callable[[], T]) -> T | NotShown:
    try:
        return read()
    except OSError as error:
        return NotShown(errno.errorcode.get(error.errno or 0, "error"))
    except (ValueError, KeyError, IndexError):
        return NotShown("malformed")


def _read(at: int, name: str) -> str:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=at)
    try:
        data = b""
        while part := os.read(descriptor, 1 << 16):
            data += part
            if len(data) > MOST:
                raise ValueError(f"{name} is longer than {MOST} bytes")
    finally:
        os.close(descriptor)
    return data.decode(errors="surrogateescape")


def _read6(at: int, name: str) -> str:
    """The same for a file that a kernel without IPv6 does not have: then it is not there for us either."""
    try:
        return _read(at, name)
    except FileNotFoundError:
        own = os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)
        try:
            os.stat("net/route", dir_fd=own)
            os.stat("net/if_inet6", dir_fd=own)
        except FileNotFoundError as error:
            if error.filename == "net/if_inet6":
                return ""
            raise
        finally:
            os.close(own)
        raise


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(cell) for cell in text.split())


def _inode(link: str) -> int:
    return int(link.partition("[")[2].removesuffix("]"))
