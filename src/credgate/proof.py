"""The daemon's own read-back of a jail before "go": what the kernel shows of it, against what the plan says.

No attempt is made here, only reading: /proc of pid 1 and of the workload, a netlink dump of both namespaces of the
berth, and the ruleset. Whatever differs, or can't be read, is a difference, and one difference ends the run.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from jail import berthfacts, readback
from jail.keeper_client import Berth
from jail.plan import DEVICES, JailSpec, private_trees

# What is read back, by the name it has in the ledger. Each stands for fields of readback.Facts or of the berth.
GUARDS = (
    "seccomp",
    "no_new_privs",
    "capabilities",
    "user",
    "namespaces",
    "route",
    "ipv6",
    "mounts",
    "limits",
    "pid1",
    "berth_links",
    "berth_firewall",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """`id` names this read-back in the ledger; `differences` are sentences for people, empty: all as planned."""

    id: str
    guards: tuple[str, ...]
    differences: tuple[str, ...]


def read_back(
    spec: JailSpec, berth: Berth, groups: tuple[int, ...], pids: tuple[int, int], network: dict[str, Any]
) -> Shown:
    """Read both processes and compare.

    groups: the launcher's supplementary groups, by the kernel's word. pids: of pid 1 and of the workload, on the host.
    network: what the berth's holder dumped.
    """
    first, second = readback.read_facts(pids[0]), readback.read_facts(pids[1])
    wanted = expected(spec, berth, groups)
    differences = (
        *_sentences("pid 1", readback.compare(wanted, first)),
        *_sentences("workload", readback.compare(readback.beside(wanted, first, pid_inside=2), second)),
        *_program(first),
        *berthfacts.wrong(network, [53, *berth.tcp]),
    )
    digest = hashlib.sha256(repr((spec.run, first, second, sorted(network))).encode()).hexdigest()
    return Shown(id=f"p{digest[:16]}", guards=tuple(f"{name}=shown" for name in GUARDS), differences=differences)


def expected(spec: JailSpec, berth: Berth, groups: tuple[int, ...]) -> readback.Expected:
    """What /proc must show of pid 1."""
    own = readback.read_facts(os.getpid())
    filters = own.filters if isinstance(own.filters, int) else 0  # an outer sandbox's own are inherited
    return readback.Expected(
        pid_inside=1,
        uid=spec.uid,
        gid=spec.gid,
        groups=groups,  # rootless they can't be dropped: the launcher's own, and never more
        namespaces={"user": os.fstat(berth.userns).st_ino, "net": os.fstat(berth.jail_netns).st_ino},
        foreign=readback.own_namespaces(),
        routes=(("jail0", IPv4Network(f"{spec.gateway}/32")),),
        limits={
            "memory": spec.memory,
            "processes": spec.processes,
            "open_files": spec.open_files,
            "cpu": spec.cpu,
            "file_size": spec.file_size,
            "core": 0,
        },
        writable=writable(spec),
        filters=filters + 1,
    )


def writable(spec: JailSpec) -> frozenset[str]:
    """Mount points that may be writable: the jail's own tmpfs, /proc (its dangerous parts are mounts of their own,
    read-only), the devices, and the work tree where the role says so.
    """
    devices = {f"/dev/{name}" for name in DEVICES}
    work = {spec.workdir} if spec.workdir_write else set()
    return frozenset({*private_trees(spec.home), "/proc", *devices, *work})


def _sentences(who: str, differences: tuple[readback.Difference, ...]) -> Iterator[str]:
    for each in differences:
        yield f"{who}: {each.field}: expected {each.expected}, got {each.got}"


def _program(first: readback.Facts) -> Iterator[str]:
    """The program of pid 1 is our interpreter and nothing of the work tree's."""
    ours = os.path.realpath(sys.executable)
    if first.exe != ours:
        yield f"pid 1: exe: expected {ours}, got {first.exe}"
