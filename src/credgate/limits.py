"""The limits of one run in the daemon: by what they are held, moving the jail in, watching, and why a run ended."""

import logging
import os
from collections.abc import Sequence

from credgate.ticks import tick
from jail import procfile
from jail.cgroups import Base, Counters, Group, choose, settle, sweep
from jail.errors import JailError
from jail.plan import JailSpec

log = logging.getLogger(__name__)

SAMPLE = 0.25  # seconds between two looks at the counters
UNCOUNTED = 0.25  # CPU seconds that the command's process may have used before it was moved in
ITSELF = ("exited", "signaled", "killed")  # ends that nobody else gave a reason for


def base_for(launcher: int, *, clear: bool = False) -> Base | None:
    """Where a group for a run of this launcher can be made, None where pid 1 has to sum. Raises JailError.

    clear: also remove what a daemon that was killed has left there.
    """
    try:
        theirs = procfile.text(f"/proc/{launcher}/cgroup")
        mounts = procfile.text("/proc/self/mountinfo")
        own = procfile.text("/proc/self/cgroup")
        if _settle(mounts, own):
            own = procfile.text("/proc/self/cgroup")
        base = choose(os.geteuid(), mounts, own, theirs)
        if base is not None and clear:
            sweep(base)
        return base
    except (OSError, ValueError) as error:
        raise JailError("cgroup_unknown", f"control groups of launcher {launcher}: {error}") from error


def _settle(mounts: str, own: str) -> bool:
    """Once, in a scope of our own: whether that was done now. Where it is refused there is no base, and pid 1 sums:
    which is said.
    """
    try:
        return settle(mounts, own)
    except OSError as error:
        log.warning("the daemon's scope can't hold groups of runs: %s", error)
        return True


def sums(base: Base | None) -> tuple[str, ...]:
    """What pid 1 of the jail has to sum itself."""
    if base is None:
        return ("memory", "processes", "cpu")
    return () if base.counts_cpu else ("cpu",)


def held_by(base: Base | None, *, closes_swap: bool = True) -> tuple[str, ...]:
    """Each limit of a whole jail with its mechanism, as ledger and doctor say it."""
    if base is None:
        return ("memory=summed by pid 1", "processes=RLIMIT_NPROC", "cpu=summed by pid 1", "deadline=pid 1")
    cpu = base.name if base.counts_cpu else "summed by pid 1"
    memory = base.name if closes_swap else f"{base.name}, swap not closed"
    return (f"memory={memory}", f"processes={base.name}", f"cpu={cpu}", "deadline=pid 1")


class RunLimits:
    """From the move into the group to its removal. Without a base pid 1 does it all, and this does nothing."""

    def __init__(self, base: Base | None, spec: JailSpec, group: Group | None = None) -> None:
        """group: one that was made ahead, of that base."""
        self.base, self.spec, self.group = base, spec, group

    def hold(self, pids: Sequence[int]) -> bool:
        """Whether there is nothing to confine: a group that was made ahead has these processes, and these limits."""
        if self.base is None:
            return True
        group, spec = self.group, self.spec
        return group is not None and group.limits(spec.memory, spec.processes) and not any(map(group.astray, pids))

    def confine(self, pids: Sequence[int]) -> None:
        """Make the group and move these in, which must be all there is of the jail. Raises JailError, OSError."""
        if self.base is not None:
            spec = self.spec
            if self.group is None:
                self.group = Group(self.base, spec.run, memory=spec.memory, processes=spec.processes)
            elif not self.group.limits(spec.memory, spec.processes):
                self.group.limit(spec.memory, spec.processes)
            for pid in pids:
                if self.group.astray(pid):
                    self.group.enter(pid)

    def wrong(self, pids: Sequence[int]) -> list[str]:
        """What the kernel shows otherwise than it was set."""
        return self.group.wrong(pids) if self.group is not None else []

    def names(self) -> tuple[str, ...]:
        """Each limit with what holds it, as it came out."""
        return held_by(self.base, closes_swap=self.group is None or self.group.closes_swap)

    async def exceeded(self) -> str:
        """Return the reason when a limit was passed that ends the run: "oom", "timeout"; "alarm" for no counters."""
        while True:
            await tick(SAMPLE)
            if self.group is None:
                continue
            try:
                counters = self.group.counters()
            except (OSError, ValueError) as error:
                log.error("run %s: its group can't be read any more: %s", self.spec.run, error)
                return "alarm"
            if counters.oom_kills:
                return "oom"
            if counters.cpu is not None and counters.cpu > self.spec.cpu:
                return "timeout"

    def reason(self, status: int, reason: str) -> str:
        """Why a jail that nobody ended has ended. Called after its death, before close()."""
        if self.group is None:
            return reason
        try:
            return judged(self.group.counters(), self.spec.cpu, status, reason)
        except (OSError, ValueError) as error:
            log.error("run %s: its counters can't be read: %s", self.spec.run, error)
            return reason

    def close(self) -> None:
        """Kill what may be left and remove the group. Raises JailError where the kernel keeps it."""
        if self.group is not None:
            self.group.kill()
            self.group.close()
            self.group = None


def judged(counters: Counters, cpu: int, status: int, reason: str) -> str:
    """The word for an end after a limit was passed; a command that succeeded all the same has "exited"."""
    if status == 0 or reason not in ITSELF:
        return reason
    if counters.oom_kills:
        return "oom"
    if counters.cpu is not None and counters.cpu >= cpu - UNCOUNTED:
        return "timeout"
    return "processes" if counters.refused_forks else reason
