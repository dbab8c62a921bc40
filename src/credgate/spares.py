"""Half a jail that waits for its run: a berth, and a pid 1 in it that has made what no run decides (`jail.ahead`).

One is kept, and made anew once a run is over or its command has run for a moment. It is nobody's until a run takes it;
its proof is made then, by that run, as any other's. Where what it was made of is no longer so, or its launcher's jail
can't be a fork of the starter's, its pid 1 ends unused, and the run takes its berth.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from credgate.errors import CredgateError
from credgate.limits import base_for
from credgate.peer import Peer, channel
from credgate.prepare import SYSTEM, Person, entries
from credgate.standin import Borrowed, group
from jail import fdpass, procfile
from jail.cgroups import Base, Group
from jail.errors import JailError
from jail.keeper_client import Berth, KeeperProcess
from jail.mounts import AHEAD
from jail.plan import ETC_ALLOWED, JailSpec, common, under
from jail.ready import readable
from rules.policy import Limits

if TYPE_CHECKING:
    from credgate.parts import Parts
    from credgate.session import Session

log = logging.getLogger(__name__)

AFTER = 0.2  # seconds that a command may run before the next one is made: the run has the CPU first
STEP = 10.0  # seconds that one may take to stand


def table() -> bytes:
    """The host's mounts, as this process sees them. Raises OSError."""
    return procfile.content("/proc/self/mountinfo")


@dataclass(slots=True, kw_only=True)
class Process:
    """Its pid 1, and how it is spoken to. control, reins: to that one and to its waiter. operations: of its root.
    host: the mounts before it was made. seen: path, device and inode of what it mounted.
    """

    control: Peer
    reins: socket.socket
    operations: list[dict[str, Any]]
    host: bytes
    seen: Sequence[tuple[str, int, int]] = ()
    pidfd: int = -1
    pid: int = 0

    def stale(self) -> str:
        """Why it would not be what the starter makes now; "" for nothing. Raises OSError."""
        if readable(self.pidfd, 0):
            return "it has died"
        if table() != self.host:
            return "the host's mounts have changed"
        return next((f"{path} was replaced" for path, *was in self.seen if _identity(path) != was), "")

    def suits(self, planned: list[dict[str, Any]]) -> bool:
        """Whether a plan begins as this root was begun, and mounts nothing of where that one waits."""
        made = len(self.operations)
        return planned[:made] == self.operations and not any(
            under(op["from"], AHEAD) for op in planned[made:] if "from" in op
        )

    def close(self) -> None:
        """Let go of it: it ends unless it has had its order."""
        self.control.close()
        self.reins.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)


@dataclass(slots=True, kw_only=True)
class Spare:
    """What a run begins with: its number, its berth, and where one was made ahead its pid 1 with a control group."""

    run: str
    berth: Berth
    base: Base | None = None
    group: Group | None = None
    process: Process | None = None

    def stale(self, starter: int, base: Base | None) -> bool:
        """Whether it would not be what is made now. Blocks."""
        try:
            why = "" if self.process is None else self.process.stale()
            if base != self.base or (base is None and self.process and group(self.process.pid) != group(starter)):
                why = "it is in another control group"
        except OSError as error:
            why = f"not shown ({error.strerror})"
        if why:
            log.info("half a jail is not used: %s", why)
        return bool(why)

    def without_process(self) -> "Spare":
        """What is left of it for a jail that is made as if there were none. Blocks."""
        self._end()
        return bare(self.berth)

    def give_back(self, keeper: KeeperProcess) -> None:
        """End it, and its berth. Blocks."""
        self._end()
        self.berth.close()
        with contextlib.suppress(JailError):  # the keeper died, and every berth with it; or it let this one go
            keeper.release(self.berth.id)

    def _end(self) -> None:
        self.drop()
        if self.group is not None:
            try:
                self.group.close()
            except JailError as error:
                log.error("half a jail: %s", error)
            self.group = None

    def drop(self) -> None:
        """Let go of its pid 1, which ends unless it has had its order. Berth and group stay."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def launch(
        self, mounts: list[dict[str, Any]], fds: Sequence[int], borrowed: Borrowed, manner: Mapping[str, Any]
    ) -> bool:
        """Give it its order; False where it can't be the jail of a plan with these mounts. It is used up in both cases.

        fds: the plan, the daemon's channel, the workload's.
        """
        peer, life, *standard = borrowed.descriptors
        try:
            if self.process is None or not self.process.suits(mounts):
                return False
            fdpass.send(self.process.reins, {"op": "live"}, [life])
            fdpass.send(self.process.control.sock, {**manner, "ttys": list(borrowed.ttys)}, [*fds, peer, *standard])
        except OSError as error:  # it died in this moment
            log.info("half a jail was not used: %s", error)
            return False
        finally:
            self.drop()
        return True


def bare(berth: Berth) -> Spare:
    """A berth alone, for a new run."""
    return Spare(run=f"r{secrets.token_hex(6)}", berth=berth)


def _identity(path: str) -> list[int]:
    facts = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - surrogates, and one a mount
    return [facts.st_dev, facts.st_ino]


class Spares:
    """The one that waits, and the making of the next. Used in the daemon's event loop, with its task group."""

    def __init__(self) -> None:
        self._parts: Parts | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._spare: Spare | None = None
        self._making: asyncio.Task[None] | None = None

    def begin(self, parts: "Parts", tasks: asyncio.TaskGroup) -> None:
        """Make the first one, and from now on others."""
        self._parts, self._tasks = parts, tasks
        self.refill(None)

    def take(self) -> Spare | None:
        """The one that waits; the caller's from now on, its berth too."""
        spare, self._spare = self._spare, None
        return spare

    def refill(self, after: "Session | None") -> None:
        """Make one where none waits, when that run is over or runs."""
        if self._tasks is not None and self._spare is None and self._making is None:
            self._making = self._tasks.create_task(self._make(after))

    async def stop(self) -> None:
        """End the one that waits; no other is made."""
        self._tasks = None
        if self._making is not None:  # not cancelled: what a thread of it has made would stay
            await asyncio.wait([self._making], timeout=STEP)
        if (spare := self.take()) is not None:
            await self._throw_away(spare)

    async def _make(self, after: "Session | None") -> None:
        """Outermost frame of its task: where none can be made, runs start without."""
        try:
            if after is not None:
                await after.started.wait()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(after.over.wait(), AFTER)
            if self._parts is not None and self._tasks is not None:
                self._spare = await self._made(self._parts)
        except (CredgateError, JailError, OSError) as error:
            log.warning("nothing of a jail could be made ahead: %s", error)
        finally:
            self._making = None

    async def _made(self, parts: "Parts") -> Spare:
        spare = await asyncio.to_thread(_begun, parts)
        try:
            control, theirs = channel()
            reins, waiters = fdpass.pair()
            with theirs, waiters:
                operations = common(await asyncio.to_thread(_bare, parts.person, spare.berth.gateway))
                spare.process = Process(control=control, reins=reins, operations=operations, host=table())
                fds = [spare.berth.userns, spare.berth.jail_netns, theirs.fileno(), waiters.fileno()]
                parts.starter.prepare(fds, operations)
            await _stands(spare.process)
            if spare.base is not None:
                await asyncio.to_thread(_group, spare, spare.process.pid)
        except BaseException:
            spare.give_back(parts.keeper)
            raise
        return spare

    async def _throw_away(self, spare: Spare) -> None:
        if self._parts is not None:
            await asyncio.to_thread(spare.give_back, self._parts.keeper)


def _bare(person: Person, gateway: str) -> JailSpec:
    """What all jails of this user begin with on this host, as it is now."""
    return JailSpec(
        run="",
        uid=person.uid,
        gid=person.gid,
        user=person.name,
        home=person.home,
        workdir="",
        workdir_write=False,
        cwd="",
        argv=(),
        exe="",
        env=(),
        system=entries(SYSTEM),
        etc=entries([f"/etc/{name}" for name in ETC_ALLOWED]),
        gateway=gateway,
    )


def _begun(parts: "Parts") -> Spare:
    # The daemon's processes move once, before there is one more of them.
    base = base_for(parts.starter.pid, clear=True)
    spare = bare(parts.keeper.claim())
    spare.base = base
    return spare


def _group(spare: Spare, pid: int) -> None:
    """Make its group, with the limits of a role that names none, and have its pid 1 in there: moving a process waits
    for every other of the machine (cgroup_threadgroup_rwsem), milliseconds of a launch.
    """
    if spare.base is not None:
        usual = Limits()
        spare.group = Group(spare.base, spare.run, memory=usual.memory, processes=usual.processes)
        spare.group.enter(pid)


async def _stands(process: Process) -> None:
    """Wait until its pid 1 has said what it mounted. Raises JailError."""
    try:
        async with asyncio.timeout(STEP):
            message = await process.control.recv()
    except TimeoutError:
        raise JailError("ahead", f"no answer within {STEP:.0f} s") from None
    if message is None or message.body.get("ev") != "prepared":
        raise JailError("ahead", "it ended" if message is None else str(message.body.get("detail")))
    message.close()
    process.pid, process.pidfd = message.pid, os.pidfd_open(message.pid)
    seen = message.body["seen"]
    if not isinstance(seen, list):
        raise JailError("ahead", "got nothing of what was mounted")
    process.seen = [(str(path), int(device), int(inode)) for path, device, inode in seen]
