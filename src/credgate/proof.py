"""The daemon's own read-back of a jail before "go": what the kernel shows of it, against what the plan says.

No attempt is made here, only reading: /proc of pid 1 and of the workload, a netlink dump of both namespaces of the
berth, and the ruleset. Whatever differs, or can't be read, is a difference, and one difference ends the run. They are
sorted by the groups of `jail.guards`, which the guards stand on.
"""

import errno
import hashlib
import os
import sys
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from typing import Any

from jail import berthfacts, inherited, procfile, readback
from jail.guards import GROUPS
from jail.keeper_client import Berth
from jail.overlays import overlay_options
from jail.plan import CANARY_AT, DEVICES, JailSpec, private_trees, rlimit_data, rlimit_processes

# Fields of readback.Facts by the group that guards name.
FIELD_GROUPS = {
    "seccomp": "seccomp",
    "filters": "seccomp",
    "no_new_privs": "no_new_privs",
    "capabilities": "capabilities",
    "uids": "user",
    "gids": "user",
    "groups": "user",
    "uid_map": "user",
    "gid_map": "user",
    "namespaces": "namespaces",
    "routes": "route",
    "addresses6": "ipv6",
    "routes6": "ipv6",
    "mounts": "mounts",
    "limits": "limits",
    "pid": "pid1",
    "start": "pid1",
    "owner": "pid1",
    "ns_pids": "pid1",
    "exe": "pid1",
}
# Sockets and ends of pipes: pid 1 has the daemon's socket, the launcher's, and a pipe to wake itself; the workload has
# its channel.
OF_PID1, OF_WORKLOAD = (2, 2), (1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """`id` names this read-back in the ledger. `groups`: sentences for people by group, empty ones: all as planned."""

    id: str
    groups: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Of a jail's start: pids on the host, the launcher's groups by the kernel's word, pid 1's two serials."""

    groups: tuple[int, ...]
    launcher: int
    pid1: int
    workload: int
    keyring: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What /proc shows of pid 1 and of the workload while they can be read. `inherited`: sentences by group."""

    first: readback.Facts
    second: readback.Facts
    inherited: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """All that was read of a jail. network: the berth, as the keeper dumps it. limits: those that differ, in words."""

    told: Told
    seen: Look
    network: Awaitable[dict[str, Any]]
    limits: Sequence[str]


def look(told: Told) -> Look:
    """Read both processes, before they give up being dumpable: a forked one can be read by nobody after that."""
    first, second = readback.read_facts(told.pid1), readback.read_facts(told.workload)
    return Look(first=first, second=second, inherited=_inherited(told, first, second))


def devices(pid: int) -> tuple[int, int]:
    """Of the jail's own /proc and /dev/pts."""
    proc, terminals = (os.stat(f"/proc/{pid}/root/{path}").st_dev for path in ("proc", "dev/pts"))  # noqa: PTH116
    return proc, terminals


def sealed(seen: Look) -> Look:
    """The same with what shows whether both have given up being dumpable, as it is now."""
    return replace(seen, first=_owner_again(seen.first), second=_owner_again(seen.second))


def read_back(spec: JailSpec, berth: Berth, read: Read, network: dict[str, Any]) -> Shown:
    """Compare what was read with the plan, that both are sealed included."""
    first, second = read.seen.first, read.seen.second
    wanted = expected(spec, berth, read.told.groups)
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    for who, differences in (
        ("pid 1", readback.compare(wanted, first)),
        ("workload", readback.compare(readback.beside(wanted, first, pid_inside=2), second)),
    ):
        for each in differences:
            group = FIELD_GROUPS[each.field.partition(".")[0]]
            groups[group].append(f"{who}: {each.field}: expected {each.expected}, got {each.got}")
    for line in berthfacts.wrong(network, [53, *berth.tcp]):
        groups["berth_firewall" if line.startswith("nft: ") else "berth_links"].append(line)
    groups["pid1"] += _program(first)
    for name, lines in read.seen.inherited.items():
        groups[name] += lines
    groups["limits"] += read.limits
    return Shown(
        id=f"p{_digest(spec.run, first, second, network)[:16]}",
        groups={name: tuple(lines) for name, lines in groups.items()},
    )


def _digest(run: str, first: readback.Facts, second: readback.Facts, network: dict[str, Any]) -> str:
    mounts = (first.mounts, None if second.mounts == first.mounts else second.mounts)  # long, and mostly the same
    return hashlib.sha256(repr((run, first, second, mounts, sorted(network))).encode()).hexdigest()


def _owner_again(facts: readback.Facts) -> readback.Facts:
    """The same with `owner` as it is now. Another process that has the pid by now shows nothing."""
    try:
        owner = os.stat(f"/proc/{facts.pid}/environ").st_uid  # noqa: PTH116
        start = readback.parse_start(procfile.text(f"/proc/{facts.pid}/stat"))
    except OSError as error:
        return replace(facts, owner=readback.NotShown(errno.errorcode.get(error.errno or 0, "error")))
    return replace(facts, owner=owner if start == facts.start else readback.NotShown("ESRCH"))


def _inherited(told: Told, first: readback.Facts, second: readback.Facts) -> Mapping[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {"descriptors": [], "terminal": []}
    known = inherited.shown(told.launcher)
    for who, facts, pid, (sockets, pipes) in (
        ("pid 1", first, told.pid1, OF_PID1),
        ("workload", second, told.workload, OF_WORKLOAD),
    ):
        own = None if isinstance(facts.mounts, readback.NotShown) else {mount.number for mount in facts.mounts}
        found = inherited.descriptors(pid, known, own, sockets=sockets, pipes=pipes)
        groups["descriptors"] += [f"{who}: {line}" for line in found]
        groups["terminal"] += [f"{who}: {line}" for line in inherited.session(pid, told.pid1)]
    return {name: tuple(lines) for name, lines in groups.items()} | {"keyring": tuple(inherited.keyring(told.keyring))}


def expected(spec: JailSpec, berth: Berth, groups: tuple[int, ...]) -> readback.Expected:
    """What /proc must show of pid 1."""
    return readback.Expected(
        pid_inside=1,
        uid=spec.uid,
        gid=spec.gid,
        groups=groups,  # rootless they can't be dropped: the launcher's own, and never more
        namespaces={"user": os.fstat(berth.userns).st_ino, "net": os.fstat(berth.jail_netns).st_ino},
        foreign=readback.own_namespaces(),
        routes=(("jail0", IPv4Network(f"{spec.gateway}/32")),),
        limits={
            "data": rlimit_data(spec.memory),
            "processes": rlimit_processes(spec),
            "open_files": spec.open_files,
            "cpu": spec.cpu,
            "file_size": spec.file_size,
            "core": 0,
        },
        writable=writable(spec),
        mounted=frozenset(protected(spec)),
        overlays=overlays(spec),
        filters=_own_filters() + 1,
    )


def _own_filters() -> int:
    """An outer sandbox's are inherited. 0 where they are not shown: then a jail that has some is not as expected."""
    try:
        status = readback.parse_status(procfile.text("/proc/self/status"))
        return int(status["Seccomp_filters"])
    except (OSError, ValueError, KeyError):
        return 0


def writable(spec: JailSpec) -> frozenset[str]:
    """Mount points that may be writable: the jail's own tmpfs, /proc (its dangerous parts are mounts of their own,
    read-only), the devices, and the work tree where the role says so, with the directories that are pinned in it.
    """
    devices = {f"/dev/{name}" for name in DEVICES}
    work = {spec.workdir, *spec.protected.pins} if spec.workdir_write else set()
    kept = {inside for _, inside in spec.private}
    return frozenset({*private_trees(spec.home), "/proc", *devices, *work, *kept})


def overlays(spec: JailSpec) -> dict[str, frozenset[str]]:
    """What the mount table must show of a copy: the host's tree below, our directory above."""
    if spec.overlay is None:
        return {}
    options = overlay_options(spec.workdir, spec.overlay.upper, spec.overlay.work)
    return {spec.workdir: frozenset(f"{name}={value}" for name, value in options.items() if value is not None)}


def protected(spec: JailSpec) -> Iterator[str]:
    """Mount points that must be there: nothing that is protected or hidden was passed over."""
    yield from (inside for _, inside in spec.private)
    yield from spec.protected.pins
    yield from spec.protected.islands
    yield from (h.path for h in spec.protected.hidden)
    if spec.canary:
        yield CANARY_AT


def _program(first: readback.Facts) -> Iterator[str]:
    """The program of pid 1 is our interpreter and nothing of the work tree's."""
    ours = os.path.realpath(sys.executable)
    if first.exe != ours:
        yield f"pid 1: exe: expected {ours}, got {first.exe}"
