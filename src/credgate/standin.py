"""Whether the starter can stand in for a launcher, and what it has to take over from that one.

A jail is a fork of the starter, where it was a fork of the launcher. What a fork inherits, and the plan doesn't set, is
read here of the launcher by the kernel's word, and either taken over or a reason for the launcher to fork by itself:
groups, an outer sandbox (a filter, no_new_privs, a label, namespaces), limits and priorities beyond the daemon's own.
"""

import logging
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from credgate.errors import CredgateError
from credgate.limits import base_for
from jail import fdpass, procfile
from jail.cgroups import Base
from jail.readback import parse_status
from jail.syscalls import syscall

log = logging.getLogger(__name__)

# Where the two differ, the jail would be in another outer sandbox, or have other rights to files.
SAME = ("Uid", "Gid", "Groups", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NAMESPACES = ("user", "mnt", "pid", "time", "cgroup")
LINKS = ("root", *(f"ns/{name}" for name in NAMESPACES))
ORDINARY = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)
LENT = 5  # descriptors that a launcher lends beside its request: see Borrowed
LIMITS = 16  # RLIM_NLIMITS of asm-generic/resource.h
IOPRIO_WHO_PROCESS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What a process runs with that its children inherit. limits: (soft, hard) by number, -1 for none."""

    status: dict[str, str]
    outer: tuple[str, ...]
    nice: int
    policy: int
    cpus: frozenset[int]
    ioprio: int
    oom_score_adj: int
    limits: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, pid: int) -> "Manner":
        """Read a process of our own user. Raises OSError, ValueError."""
        at = f"/proc/{pid}"
        return cls(
            status=parse_status(procfile.text(f"{at}/status")),
            outer=(*(os.readlink(f"{at}/{name}") for name in LINKS), _label(f"{at}/attr/current")),
            nice=os.getpriority(os.PRIO_PROCESS, pid),
            policy=os.sched_getscheduler(pid),
            cpus=frozenset(os.sched_getaffinity(pid)),
            ioprio=syscall("ioprio_get", IOPRIO_WHO_PROCESS, pid),
            oom_score_adj=int(procfile.content(f"{at}/oom_score_adj")),
            limits=tuple(resource.prlimit(pid, kind) for kind in range(LIMITS)),
        )

    def taken_over(self, own: "Manner") -> dict[str, Any]:
        """What a starter, whose manner is `own`, is told to have."""
        return {
            "umask": int(self.status["Umask"], 8),
            "nice": self.nice,
            "policy": self.policy,
            "cpus": sorted(self.cpus),
            "ioprio": None if self.ioprio == own.ioprio else self.ioprio,
            "oom_score_adj": self.oom_score_adj,
            "limits": [list(bounds) for bounds in self.limits],
        }


def _label(path: str) -> str:
    """Of AppArmor or SELinux; "" where the kernel has neither."""
    try:
        return procfile.text(path)
    except OSError:
        return ""


def differs(launcher: Manner, starter: Manner) -> str:
    """Why the starter can't stand in for this launcher; "" where it can."""
    return next(_differences(launcher, starter), "")


def _differences(launcher: Manner, starter: Manner) -> Iterator[str]:
    for name in SAME:
        if launcher.status.get(name) != starter.status.get(name):
            yield name
    # An unprivileged Landlock domain, which nothing shows, has it; two of them may be different ones.
    if launcher.status.get("NoNewPrivs") != "0":
        yield "NoNewPrivs"
    if launcher.outer != starter.outer:
        yield "namespaces, root directory or label"
    if launcher.policy not in ORDINARY or launcher.nice < starter.nice or launcher.ioprio >> 13 == 1:
        yield "priority"
    if launcher.oom_score_adj < starter.oom_score_adj:
        yield "oom_score_adj"
    if any(_more(mine, its) for (_, mine), (_, its) in zip(launcher.limits, starter.limits, strict=True)):
        yield "limits"


def _more(hard: int, bound: int) -> bool:
    if bound == resource.RLIM_INFINITY:
        return False
    return hard == resource.RLIM_INFINITY or hard > bound


class Borrowed:
    """What a launcher lent for the starter: its socket to pid 1, the waiter's end of `life`, and what becomes 0, 1, 2.

    Closed as soon as the starter has them: a pipe that is held open here would never end for its reader. `ttys`: which
    of 0, 1, 2 are the user's terminal, in whose place the launcher lent /dev/null.
    """

    def __init__(self, descriptors: list[int], ttys: tuple[int, ...]) -> None:
        self.descriptors, self.ttys = descriptors, ttys

    @classmethod
    def take(cls, message: fdpass.Received) -> "Borrowed":
        """Of a `run.open`, which keeps the descriptor of its request. Raises CredgateError for another number."""
        ttys = message.body.get("ttys", [])
        if not isinstance(ttys, list) or not all(type(tty) is int and 0 <= tty <= 2 for tty in ttys):
            raise CredgateError("bad_request", f"got ttys {ttys!r} with run.open", "", 2)
        if len(message.fds) not in (1, 1 + LENT):
            raise CredgateError("bad_request", f"got {len(message.fds)} descriptors with run.open", "", 2)
        lent, message.fds[1:] = message.fds[1:], []
        return cls(lent, tuple(ttys))

    def standard(self) -> list[int]:
        """What becomes 0, 1, 2."""
        return self.descriptors[-3:]

    def close(self) -> None:
        """Close what is still held."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def place(starter: int, launcher: int, borrowed: Borrowed | None) -> tuple[Base | None, dict[str, Any] | None]:
    """Where a group for the run can be made, and what the starter takes over; None where the launcher has to fork.

    Raises JailError.
    """
    if borrowed is None or not borrowed.descriptors:
        return base_for(launcher), None
    try:
        own, its = Manner.of(starter), Manner.of(launcher)
        why = differs(its, own)
        base = None if why else base_for(starter)
        if not why and base is None and group(starter) != group(launcher):
            why = "control group"
    except (OSError, ValueError) as error:
        why = f"not shown ({error})"
    if why:
        log.info("launcher %d starts its jail itself: %s", launcher, why)
        return base_for(launcher), None
    return base, its.taken_over(own)


def group(pid: int) -> str:
    """A process's control groups, as the kernel tells them. Raises OSError."""
    return procfile.text(f"/proc/{pid}/cgroup")
