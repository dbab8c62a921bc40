"""One run in the daemon: hand the plan over, read the jail back, say go, watch, and close everything at the end.

The only module that knows gateway, resolver, berth and jail together.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from credgate import hostlimits, proof
from credgate.alarms import Alarms
from credgate.closing import INSIST, close
from credgate.errors import CredgateError
from credgate.evidence import Evidence
from credgate.lastresort import LastResort
from credgate.limits import RunLimits
from credgate.mountwatch import MountWatch
from credgate.parts import REFUSED, Ending, Parts, Refusal, failure, refused, together
from credgate.peer import Peer, channel
from credgate.policyfile import Effective
from credgate.protect import banner
from credgate.runs import Listener, Run
from credgate.stand import inside, limits_of
from credgate.standin import Borrowed
from credgate.treelook import TreeLook
from credgate.trying import tried
from credgate.watching import until_exit
from jail import fdpass
from jail.errors import JailError
from jail.guards import needed
from jail.keeper_client import Berth
from jail.plan import JailSpec, build_plan
from jail.verdict import Row, against, judge
from resolver.errors import ResolverError
from rules.names import table_for

if TYPE_CHECKING:
    from credgate.children import Children
    from credgate.spares import Spare
    from jail.probes import Context

log = logging.getLogger(__name__)

STEP = 30.0  # seconds that pid 1, the read-back and the look from inside may take each
GRACE = 3.0  # seconds that pid 1 leaves between TERM and KILL


class Session:
    """A run from the claimed berth to its end. Made by opening.open_session, which sets what is set there alone.

    chosen: the policy as it counts. caller: who asked, for groups and limits; of a child the first run's launcher.
    look: what the work tree held. borrowed, manner: of the launcher, where the starter stands in for it. spare: half of
    this jail, made ahead. above: the run whose child this is. listener: of the socket for children, where the role has
    any.
    """

    chosen: Effective
    caller: Peer
    look: TreeLook
    above: "Session | None" = None
    borrowed: Borrowed | None = None
    spare: "Spare | None" = None
    manner: dict[str, Any] | None = None
    listener: socket.socket | None = None

    def __init__(self, parts: Parts, peer: Peer, run: Run, berth: Berth, spec: JailSpec, limits: RunLimits) -> None:
        self.parts, self.peer, self.run, self.berth, self.spec = parts, peer, run, berth, spec
        self.limits = limits
        self.pid1, self.theirs_pid1 = channel()
        self.work, self.theirs_work = channel()
        self.pid = 0  # of the jail's pid 1, on the host
        self.pidfd = -1
        self.workload = 0  # likewise
        self.namespace = 0  # inode of the jail's pid namespace
        self.devices = (0, 0)  # of the jail's /proc and /dev/pts
        self.ready = False
        self.guards = needed(per_run=True, switches=frozenset(self.switches()), copy=spec.overlay is not None)
        self.probing: Context = {}  # what attempts of this jail are told beyond the stand's context
        self.tried = 0  # addresses without a route that our own attempts asked for
        self.children: Children | None = None
        self.ends: float | None = None  # loop time of the deadline
        self.ending = Ending(status=REFUSED, reason="gateway")
        self.why = ""  # in words, where it never became ready
        self.alarms = run.alarm = Alarms(self)
        self.ended_for = ""  # the reason that began the end, where one did
        self.last_resort = LastResort(run.id)
        self.mounts: MountWatch | None = None
        self.shown: proof.Shown | None = None  # once every guard of this jail is
        self.rows: tuple[Row, ...] = ()
        self.recorded = False  # whether the ledger has the run's start
        self.stood = 0.0  # loop time of that
        self.started = asyncio.Event()  # the command runs, or never will
        self.over = asyncio.Event()  # nothing of it is left

    async def drive(self) -> None:
        """Everything from the hand-over to the end; tells the launcher how it went. Never raises for a jail's fault."""
        ending = Ending(status=128 + signal.SIGKILL, reason="gateway")
        try:
            stood = self.shown is not None
            if not stood:
                await self.stand()
            await self._prove(ahead=stood)
            if stood:
                await self._adopt()
            await self._go()
            ending = await self._watch()
        except (CredgateError, JailError, ResolverError) as error:
            status = error.exit_status if isinstance(error, CredgateError) else REFUSED
            ending, self.why = Ending(status=status, reason=error.code), error.detail
            await self.tell(refused(error))
        except OSError as error:  # this run's: a limit of the user's is used up, or the jail vanished in that moment
            log.exception("run %s", self.run.id)
            cause = hostlimits.shown(error, "the run")
            ending, self.why = Ending(status=REFUSED, reason=cause.code), cause.detail
            await self.tell(refused(cause))
        except BaseException:  # ours, and raised again: the run ends closed, and whoever waits for it is told
            if not self.ready:
                ending = Ending(status=REFUSED, reason="internal")
                await self.tell(refused(Refusal("internal", "the daemon failed", "its log says more")))
            raise
        finally:
            self.ending = ending
            self.started.set()
            await close(self, ending)
            self.over.set()

    async def stand(self) -> None:
        """Build the jail and have its guards shown; nothing of it is recorded yet. Raises Refusal and others."""
        await together(self.hand_over(), self.serve())  # the jail asks for nothing before "look"
        read, self.mounts = await self._read()
        # Both sealed, and were looked at: what else was read is compared while the workload makes its attempts.
        told, shown = await together(tried(self), self._compared(read))
        self.rows = await self._judged(shown, told)
        wrong = against(self.rows, shown.groups)
        if wrong:
            raise Refusal("proof_failed", "; ".join(wrong), "`credgate prove` tries every guard")
        self.shown, self.stood = shown, asyncio.get_running_loop().time()

    async def _adopt(self) -> None:
        """Give a jail that stands the command that was asked for now, and its descriptors."""
        if self.borrowed is None:
            raise Refusal("internal", "a jail was claimed without descriptors")
        body: fdpass.Json = {"op": "adopt", "exe": self.spec.exe, "argv": list(self.spec.argv)}
        try:
            await self.work.send(body, self.borrowed.standard())
        finally:
            self.borrowed.close()
        await self.pid1.send({"op": "begin"})

    async def serve(self) -> None:
        """Have resolver and gateway answer at the berth's sockets."""
        run, berth = self.run, self.berth
        await self.parts.resolver.add(
            run.id, table_for(run.policy, run.role, berth.gateway), berth.dns_udp, berth.dns_tcp
        )
        listeners = [Listener(sock=s, port=p, proxy=p == berth.proxy_port) for p, s in berth.tcp.items()]
        await self.parts.gateway.serve(run, listeners)
        await self.parts.gateway.publish(run, run.role_rule.publish, self._socket_inside)

    async def _socket_inside(self) -> socket.socket:
        return await asyncio.to_thread(self.parts.keeper.jail_socket, self.berth.id)

    async def hand_over(self) -> None:
        """Have the jail started: by the starter, or by the launcher, which gets the plan and the berth then."""
        plan = os.memfd_create("plan", os.MFD_CLOEXEC)
        try:
            planned = self._plan()
            os.write(plan, json.dumps(planned).encode())
            channels = [self.theirs_pid1.fileno(), self.theirs_work.fileno()]
            fds = [plan, self.berth.userns, self.berth.jail_netns, *channels]
            spare, borrowed = self.spare, self.borrowed
            if borrowed is None or self.manner is None:
                await self.peer.send({"ev": "plan", "run": self.run.id}, fds)
                return
            if spare is None or not spare.launch(planned["mounts"], [plan, *channels], borrowed, self.manner):
                self.parts.starter.launch([*fds, *borrowed.descriptors], borrowed.ttys, self.manner)
            await self.peer.send({"ev": "plan", "run": self.run.id})
        finally:
            os.close(plan)
            if self.borrowed is not None:
                self.borrowed.close()
            self.theirs_pid1.close()
            self.theirs_work.close()

    def _plan(self) -> dict[str, Any]:
        context = inside(self.parts.stand.context, self.spec, self.run.role_rule.limits, proof.writable(self.spec))
        probes = {"guards": [g.id for g in self.guards], "context": context | self.probing}
        return build_plan(self.spec) | {"probes": probes}

    async def expect(self, channel: Peer, event: str) -> fdpass.Received:
        """The next message of a channel, which must be `event`. Raises Refusal with what the jail says went wrong."""
        try:
            async with asyncio.timeout(STEP):
                message = await channel.recv()
        except TimeoutError:
            raise Refusal("jail_silent", f"no {event!r} from the jail within {STEP:.0f} s") from None
        if message is None:
            raise Refusal("jail_gone", f"the jail ended before it said {event!r}")
        message.close()
        if message.body.get("ev") != event:
            raise failure(message.body)
        if message.uid != self.spec.uid:
            raise Refusal("wrong_uid", f"got a message of uid {message.uid}, expected {self.spec.uid}")
        return message

    async def read_back(self) -> tuple[proof.Shown, MountWatch]:
        """Compare what the kernel says of pid 1 and of the workload with the plan.

        Returns that, and the watch of the mount table as it was read back.
        """
        read, mounts = await self._read()
        return await self._compared(read), mounts

    async def _compared(self, read: proof.Read) -> proof.Shown:
        return proof.read_back(self.spec, self.berth, read, await read.network)

    async def _read(self) -> tuple[proof.Read, MountWatch]:
        """Read pid 1 and the workload, have them sealed, and look whether they are."""
        first = await self.expect(self.pid1, "pid1")
        self.pid = first.pid
        self.pidfd = os.pidfd_open(first.pid)
        armed = await self.expect(self.work, "armed")
        self.workload = armed.pid
        mounts = MountWatch.of(first.pid)
        self.devices = proof.devices(first.pid)
        pids = (first.pid, armed.pid)  # all that there is of the jail before "go"
        told = proof.Told(
            groups=self.caller.groups(),
            launcher=self.peer.pid(),
            pid1=first.pid,
            workload=armed.pid,
            keyring=first.body.get("keyring"),
        )
        # From here on neither process has a capability over the berth: it is dumped while the rest is read and tried.
        network = asyncio.get_running_loop().run_in_executor(None, self.parts.keeper.facts, self.berth.id)
        seen = await self._confined_and_sealed(pids, told)
        limits = self.limits.wrong(pids)
        return proof.Read(told=told, seen=proof.sealed(seen), network=network, limits=limits), mounts

    async def _confined_and_sealed(self, pids: tuple[int, int], told: proof.Told) -> proof.Look:
        if not self.limits.hold(pids):
            await asyncio.to_thread(self.limits.confine, pids)
        seen = proof.look(told)
        self.namespace = os.stat(f"/proc/{pids[0]}/ns/pid").st_ino  # noqa: PTH116
        await self._seal()
        return seen

    async def _seal(self) -> None:
        """Have both give up being dumpable, now that they were read."""
        for process in (self.pid1, self.work):
            await process.send({"op": "seal"})
        for process in (self.pid1, self.work):
            await self.expect(process, "sealed")

    async def _prove(self, *, ahead: bool) -> None:
        """Record what was shown of this very jail; no proof, no secret. run.start goes to the disk with it: until "go"
        nothing runs in the jail but our own code, and a daemon that dies takes the jail with it.
        """
        if self.shown is None:
            raise Refusal("internal", "a jail without a proof")
        seq = self.parts.ledger.append(
            "proof",
            run=self.run.id,
            proof=self.shown.id,
            guards=[f"{row.guard}={row.state}" for row in self.rows],
            limits=list(self.limits.names()),
            switches=list(self.switches()) or None,
            pid=self.pid,
            verdict="shown",
            detail=self._age() if ahead else None,
        )
        await together(self.parts.ledger.durable(seq), self._look_around())
        self.run.proof = self.shown.id
        await self.parts.gateway.told(self.run)

    async def _look_around(self) -> None:
        await self.work.send({"op": "look"})
        await self.expect(self.work, "looked")

    def _age(self) -> str:
        age = asyncio.get_running_loop().time() - self.stood
        return f"shown {age:.0f} s before its command was asked for"

    async def _judged(self, shown: proof.Shown, told: Mapping[str, str]) -> tuple[Row, ...]:
        """What the workload tried and what was read, judged beside the controls."""
        stand, limits = self.parts.stand, limits_of(self.run.role_rule.limits)
        control = stand.known(self.guards) or await asyncio.to_thread(stand.controls, self.guards, limits)
        self.tried = self.berth.off_route()
        return judge(self.guards, shown.groups, told, control)

    def switches(self) -> tuple[str, ...]:
        """What the role opened."""
        return self.run.policy.roles[self.run.role].switches()

    async def _go(self) -> None:
        await self.work.send({"op": "go"})
        await self.expect(self.work, "exec")
        async with asyncio.timeout(STEP):
            after = await self.work.recv()
        if after is not None:  # a success closes the channel, which is close-on-exec
            raise failure(after.body)
        self.ready = True
        self.started.set()
        if self.spec.deadline is not None:
            self.ends = asyncio.get_running_loop().time() + self.spec.deadline
        self.run.unasked = self.run.denied
        await self.tell(
            {
                "ev": "ready",
                "run": self.run.id,
                "proof": self.run.proof,
                "pid": self.pid,
                "gateway": self.berth.gateway,
                "ledger": str(self.parts.places.ledger),
                "role": self.run.role,
                "guards": len(self.guards),
                "limits": self.limits.base.name if self.limits.base else "pid 1's sums",
                "opened": "".join(f"{switch} ON, " for switch in self.switches()),
                "files": banner(self.look, self.spec.protected),
                "endpoints": len(self.run.policy.endpoints_of(self.run.role)),
            }
        )

    async def _watch(self) -> Ending:
        """Wait for the end, children's runs included: none of them outlives this one."""
        mounts = self.mounts
        if mounts is None:
            raise Refusal("internal", "a jail whose mounts nobody watches")
        if self.children is None:
            return await until_exit(self, mounts)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.children.serve())
            try:
                return await until_exit(self, mounts)
            finally:
                self.children.stop()

    @property
    def depth(self) -> int:
        """1 for a run that a user started, one more for each child below it."""
        return len(self.lineage())

    def lineage(self) -> tuple[str, ...]:
        """Ids of this run and of those that it is a child of."""
        return (self.run.id, *(self.above.lineage() if self.above is not None else ()))

    def live(self) -> "list[Session]":
        """This session, and those of the live child runs below it."""
        children = () if self.children is None else self.children.live
        return [self, *(each for child in children for each in child.live())]

    async def end(self, reason: str, *, grace: float = GRACE) -> None:
        """Ask pid 1 to end the jail (TERM, grace, KILL) for a reason of the contract's list; then insist."""
        self.ended_for = self.ended_for or reason
        self.last_resort.arm(self.pid, self.pidfd, grace + INSIST)
        try:
            await self.pid1.send({"op": "end", "reason": reason})
        except OSError:
            log.info("run %s: pid 1 is gone already", self.run.id)

    async def signal(self, number: int) -> None:
        """Have pid 1 pass a signal on to the workload."""
        with contextlib.suppress(OSError):  # it is gone already
            await self.pid1.send({"op": "signal", "number": number})

    async def tell(self, body: fdpass.Json) -> None:
        """Say something to the launcher, if it is still there."""
        try:
            await self.peer.send(body)
        except OSError:
            log.info("run %s: the launcher is gone", self.run.id)

    @contextlib.contextmanager
    def going_on(self, step: str) -> Iterator[None]:
        """A step of the end whose failure is logged and keeps none of the others from being done."""
        try:
            yield
        except (CredgateError, JailError, ResolverError, OSError) as error:
            log.error("run %s: can't %s: %s", self.run.id, step, error)

    def evidence(self, ending: Ending | None = None) -> Evidence:
        """What was tried so far outside the one route; a count that can't be read is None."""
        off_route: int | None = None
        counters: dict[str, int] | None = None
        with self.going_on("read the attempts without a route"):
            off_route = self.berth.off_route() - self.tried
        with self.going_on("read the counters"):
            counters = self.berth.counters()
        kills = None if ending is None else ending.filter_kills
        return Evidence(off_route=off_route, counters=counters, filter_kills=kills)
