"""One run in the daemon: hand the plan over, read the jail back, say go, watch, and close everything at the end.

The only module that knows gateway, resolver, berth and jail together.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from credgate import proof
from credgate.errors import CredgateError
from credgate.evidence import Evidence
from credgate.gateway.server import Gateway
from credgate.ledger.writer import Ledger
from credgate.limits import RunLimits, base_for, held_by, sums
from credgate.mountwatch import MountWatch
from credgate.paths import Places
from credgate.peer import Peer, wake
from credgate.policyfile import Effective
from credgate.prepare import Asked, Network, Person, filter_of, jail_spec, program_digest
from credgate.roleneeds import decoy_environment, decoys_of, extra_ports
from credgate.runs import Listener, Run
from credgate.stand import StandProcess, inside, limits_of, words
from credgate.trust import Trust
from jail import fdpass
from jail.errors import JailError
from jail.guards import needed
from jail.keeper_client import Berth, KeeperProcess
from jail.plan import JailSpec, build_plan
from jail.verdict import Row, State, judge
from resolver.client import ResolverProcess
from resolver.errors import ResolverError
from rules.names import table_for

log = logging.getLogger(__name__)

STEP = 30.0  # seconds that pid 1, the read-back and the look from inside may take each
DEATH = 10.0  # seconds for the kernel to take a pid namespace down after its KILL
REFUSED = 125


class Refusal(CredgateError):
    """The run does not start; exit_status 125 (126, 127 where the command is at fault)."""

    def __init__(self, code: str, detail: str, hint: str = "", exit_status: int = REFUSED) -> None:
        super().__init__(code, detail, hint, exit_status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the daemon lends to every session."""

    places: Places
    person: Person
    ledger: Ledger
    gateway: Gateway
    resolver: ResolverProcess
    keeper: KeeperProcess
    trust: Trust
    stand: StandProcess


@dataclass(slots=True, kw_only=True)
class Ending:
    """How the jail ended: `status` as the shell says it (128+n for a signal), `reason` of the contract's list."""

    status: int
    reason: str
    filter_kills: int | None = None  # as pid 1 counted them; None where it could not say


def clear_of(mine: JailSpec, role: str, others: "list[Session]") -> None:
    """Two live runs of different roles don't share a writable tree: one could lend the other its connection."""
    for other in others:
        theirs = other.spec
        overlap = mine.workdir.startswith(theirs.workdir + "/") or theirs.workdir.startswith(mine.workdir + "/")
        shared = overlap or mine.workdir == theirs.workdir
        if shared and (mine.workdir_write or theirs.workdir_write) and other.run.role != role:
            raise Refusal(
                "tree_shared",
                f"{mine.workdir}: run {other.run.id} of role {other.run.role} shares it, and one of them may write",
                "wait for its end, or use another work tree",
            )


class Session:
    """A run from the claimed berth to its end. Made by open_session."""

    def __init__(self, parts: Parts, peer: Peer, run: Run, berth: Berth, spec: JailSpec, limits: RunLimits) -> None:
        self.parts, self.peer, self.run, self.berth, self.spec = parts, peer, run, berth, spec
        self.limits = limits
        self.pid1, self.theirs_pid1 = _channel()
        self.work, self.theirs_work = _channel()
        self.pid = 0  # of the jail's pid 1, on the host
        self.pidfd = -1
        self.ready = False
        self.guards = needed(per_run=True, switches=frozenset(self.switches()))
        self.tried = 0  # addresses without a route that our own attempts asked for
        self._ended_for = ""
        self._mounts: MountWatch | None = None

    async def drive(self) -> None:
        """Everything from the hand-over to the end; tells the launcher how it went. Never raises for a jail's fault."""
        ending = Ending(status=128 + signal.SIGKILL, reason="gateway")
        try:
            await self._serve()
            await self._hand_over()
            self._mounts = await self._prove()
            await self._go()
            ending = await self._watch(self._mounts)
        except (CredgateError, JailError, ResolverError) as error:
            status = error.exit_status if isinstance(error, CredgateError) else REFUSED
            ending = Ending(status=status, reason=error.code)
            await self._tell(_refused(error))
        except BaseException:  # ours, and raised again: the run ends closed, and whoever waits for it is told
            if not self.ready:
                ending = Ending(status=REFUSED, reason="internal")
                await self._tell(_refused(Refusal("internal", "the daemon failed", "its log says more")))
            raise
        finally:
            await self._close(ending)

    async def _serve(self) -> None:
        run, berth = self.run, self.berth
        await self.parts.resolver.add(
            run.id, table_for(run.policy, run.role, berth.gateway), berth.dns_udp, berth.dns_tcp
        )
        listeners = [Listener(sock=s, port=p, proxy=p == berth.proxy_port) for p, s in berth.tcp.items()]
        await self.parts.gateway.serve(run, listeners)

    async def _hand_over(self) -> None:
        plan = os.memfd_create("plan", os.MFD_CLOEXEC)
        try:
            os.write(plan, json.dumps(self._plan()).encode())
            fds = [plan, self.berth.userns, self.berth.jail_netns, self.theirs_pid1.fileno(), self.theirs_work.fileno()]
            await self.peer.send({"ev": "plan", "run": self.run.id}, fds)
        finally:
            os.close(plan)
            self.theirs_pid1.close()
            self.theirs_work.close()

    def _plan(self) -> dict[str, Any]:
        context = inside(self.parts.stand.context, self.spec, proof.writable(self.spec))
        return build_plan(self.spec) | {"probes": {"guards": [g.id for g in self.guards], "context": context}}

    async def _expect(self, channel: Peer, event: str) -> fdpass.Received:
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
            raise _failure(message.body)
        if message.uid != self.spec.uid:
            raise Refusal("wrong_uid", f"got a message of uid {message.uid}, expected {self.spec.uid}")
        return message

    async def _prove(self) -> MountWatch:
        """Compare what the kernel says of pid 1 and of the workload with the plan; no proof, no secret.

        Returns the watch of the mount table as it was read back.
        """
        first = await self._expect(self.pid1, "pid1")
        self.pid = first.pid
        self.pidfd = os.pidfd_open(first.pid)
        armed = await self._expect(self.work, "armed")
        mounts = MountWatch.of(first.pid)
        facts = await asyncio.to_thread(self.parts.keeper.facts, self.berth.id)
        pids = (first.pid, armed.pid)  # all that there is of the jail before "go"
        await asyncio.to_thread(self.limits.confine, pids)
        told = proof.Told(
            groups=self.peer.groups(),
            launcher=self.peer.pid(),
            pid1=first.pid,
            workload=armed.pid,
            keyring=first.body.get("keyring"),
        )
        shown = proof.read_back(self.spec, self.berth, told, facts)
        differences = (*shown.differences, *self.limits.wrong(pids))
        if differences:
            raise Refusal("proof_failed", "; ".join(differences), "`credgate doctor` says what this host can do")
        rows = await self.try_guards(shown)
        self._require(rows)
        seq = self.parts.ledger.append(
            "proof",
            run=self.run.id,
            proof=shown.id,
            guards=[f"{row.guard}={row.state}" for row in rows],
            limits=list(self.limits.names()),
            switches=list(self.switches()) or None,
            pid=first.pid,
            verdict="shown",
        )
        await self.parts.ledger.durable(seq)
        self.run.proof = shown.id
        return mounts

    async def try_guards(self, shown: proof.Shown) -> tuple[Row, ...]:
        """Have the workload try what each guard forbids, and judge that beside the controls."""
        await self.work.send({"op": "probe"})
        tried = await self._expect(self.work, "probed")
        control = await asyncio.to_thread(self.parts.stand.controls, self.guards, limits_of(self.spec))
        self.tried = self.berth.off_route()
        return judge(self.guards, shown.groups, words(tried.body.get("words")), control)

    def _require(self, rows: tuple[Row, ...]) -> None:
        failed = [f"{row.guard}: {row.why}" for row in rows if row.state is State.NOT_SHOWN]
        if failed:
            raise Refusal("proof_failed", f"not shown: {'; '.join(failed)}", "`credgate prove` tries every guard")

    def switches(self) -> tuple[str, ...]:
        """What the role opened."""
        return self.run.policy.roles[self.run.role].switches()

    async def _go(self) -> None:
        await self.work.send({"op": "go"})
        await self._expect(self.work, "exec")
        async with asyncio.timeout(STEP):
            after = await self.work.recv()
        if after is not None:  # a success closes the channel, which is close-on-exec
            raise _failure(after.body)
        self.ready = True
        self.run.unasked = self.run.denied
        await self._tell(
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
                "endpoints": len(self.run.policy.endpoints_of(self.run.role)),
            }
        )

    async def _watch(self, mounts: MountWatch) -> Ending:
        """Wait for pid 1's exit report, while the launcher's end or a changed mount table begins the end."""
        async with asyncio.TaskGroup() as tasks:
            others = (self._launcher_leaves(), self._mounts_change(mounts), self._limit_passed())
            watching = [tasks.create_task(other) for other in others]
            try:
                report = await self.pid1.recv()
            except JailError as error:  # nothing that pid 1 would say: it is no longer ours
                log.error("run %s: pid 1: %s", self.run.id, error)
                report = None
            for task in watching:
                task.cancel()
        if report is None or report.body.get("ev") != "exit":  # pid 1 itself was killed
            return Ending(status=128 + signal.SIGKILL, reason=self._ended_for or "killed")
        kills = report.body.get("filter_kills")
        return Ending(
            status=int(str(report.body["status"])),
            reason=str(report.body["reason"]),
            filter_kills=kills if isinstance(kills, int) else None,
        )

    async def _launcher_leaves(self) -> None:
        with contextlib.suppress(JailError):
            await self.peer.recv()  # it has nothing to say: whatever comes is its end
        await self.end("killed")

    async def _limit_passed(self) -> None:
        await self.end(await self.limits.exceeded())

    async def _mounts_change(self, mounts: MountWatch) -> None:
        await mounts.changed()
        with self._going_on("record the alarm"):
            self.parts.ledger.append("alarm", run=self.run.id, reason="mount_changed", verdict="kill")
        await self.end("alarm")

    async def end(self, reason: str) -> None:
        """Ask pid 1 to end the jail (TERM, grace, KILL) for a reason of the contract's list."""
        self._ended_for = self._ended_for or reason
        try:
            await self.pid1.send({"op": "end", "reason": reason})
        except OSError:
            log.info("run %s: pid 1 is gone already", self.run.id)

    async def _tell(self, body: fdpass.Json) -> None:
        try:
            await self.peer.send(body)
        except OSError:
            log.info("run %s: the launcher is gone", self.run.id)

    async def _close(self, ending: Ending) -> None:
        """Death first, confirmed; then nothing listens for this run; then the last record, then the launcher hears.

        A step that fails (the keeper died, the disk is full) is logged and keeps none of the others from being done.
        """
        self.run.revoked = True
        if self._mounts is not None:
            self._mounts.close()
        self.pid1.close()
        self.work.close()
        with self._going_on("confirm the death of pid 1"):
            await self._confirm_death()
        if not self._ended_for:
            ending.reason = self.limits.reason(ending.status, ending.reason)
        with self._going_on("remove the control group"):
            await asyncio.to_thread(self.limits.close)
        with self._going_on("close the listeners"):
            await self.parts.gateway.close(self.run.id)
        with self._going_on("take the names back"):
            await self.parts.resolver.remove(self.run.id)
        seen = await self.evidence(ending)
        with self._going_on("record the end"):
            self._record_end(ending, seen)
        self.berth.close()
        with self._going_on("end the berth"):
            await asyncio.to_thread(self.parts.keeper.release, self.berth.id)
        await self._tell_end(ending, seen)
        self.peer.close()

    @contextlib.contextmanager
    def _going_on(self, step: str) -> Iterator[None]:
        try:
            yield
        except (CredgateError, JailError, ResolverError, OSError) as error:
            log.error("run %s: can't %s: %s", self.run.id, step, error)

    async def evidence(self, ending: Ending | None = None) -> Evidence:
        """What was tried so far outside the one route; a count that can't be read is None."""
        off_route: int | None = None
        counters: dict[str, int] | None = None
        with self._going_on("read the attempts without a route"):
            off_route = self.berth.off_route() - self.tried
        with self._going_on("read the counters"):
            counters = await asyncio.to_thread(self.parts.keeper.counters, self.berth.id)
        kills = None if ending is None else ending.filter_kills
        return Evidence(off_route=off_route, counters=counters, filter_kills=kills)

    def _record_end(self, ending: Ending, seen: Evidence) -> None:
        counted = {name: str(count) for name, count in seen.attempts().items()}
        if seen.off_route or counted or seen.filter_kills:
            self.parts.ledger.append(
                "off_route",
                run=self.run.id,
                count=seen.off_route,
                counters=counted,
                filter_kills=seen.filter_kills,
                detail=seen.sentence(),
            )
        self.parts.ledger.append(
            "run.end",
            run=self.run.id,
            role=self.run.role,
            status=ending.status,
            reason=ending.reason,
            count=seen.off_route,
        )

    async def _tell_end(self, ending: Ending, seen: Evidence) -> None:
        body = {"ev": "ended", "run": self.run.id, "status": ending.status, "reason": ending.reason}
        told = {"requests": self.run.requests(), "seen": seen.sentence(), **seen.to_json()}
        await self._tell(body | told)

    async def _confirm_death(self) -> None:
        """Wait until pid 1 is dead (its namespace is empty then). Raises Refusal where the kernel does not show it."""
        if self.pidfd < 0:
            return
        loop = asyncio.get_running_loop()
        dead: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self.pidfd, wake, dead)
        try:
            async with asyncio.timeout(DEATH):
                await dead
        except TimeoutError:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            log.error("run %s: pid 1 outlived its channels; killed", self.run.id)
            async with asyncio.timeout(DEATH):
                await dead
        finally:
            loop.remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1


def _channel() -> tuple[Peer, socket.socket]:
    mine, theirs = fdpass.pair()
    fdpass.want_credentials(mine)
    return Peer(mine), theirs


def _refused(error: CredgateError | JailError | ResolverError) -> fdpass.Json:
    """The message to the launcher; its words are those of the error."""
    status = error.exit_status if isinstance(error, CredgateError) else REFUSED
    return {"ev": "refused", "code": error.code, "detail": error.detail, "hint": error.hint, "exit": status}


def _failure(body: fdpass.Json) -> Refusal:
    """What pid 1 or the workload said went wrong, as a refusal."""
    if body.get("ev") != "failed":
        return Refusal("jail_protocol", f"got {str(body)[:200]} from the jail")
    status = body.get("status", REFUSED)
    exit_status = status if isinstance(status, int) else REFUSED
    return Refusal(str(body.get("code")), str(body.get("detail")), str(body.get("hint", "")), exit_status)


async def open_session(parts: Parts, peer: Peer, asked: Asked, chosen: Effective, live: "list[Session]") -> Session:
    """Claim a berth, compute the jail, record run.start. Raises CredgateError or JailError; nothing is left then."""
    policy, role = chosen.policy, chosen.policy.roles[chosen.role]
    berth = await asyncio.to_thread(parts.keeper.claim, extra_ports(policy, role.name))
    try:
        network = Network(gateway=berth.gateway, jail=berth.jail, proxy_port=berth.proxy_port)
        decoys = decoys_of(policy, role.name)
        run_id = f"r{secrets.token_hex(6)}"
        named = decoy_environment(policy, decoys)
        spec = jail_spec(run_id, asked, chosen, parts.person, parts.places, parts.trust, named, network)
        base = await asyncio.to_thread(base_for, peer.pid())
        spec = replace(spec, sums=sums(base))
        clear_of(spec, role.name, live)
        run = Run(
            id=run_id,
            policy=policy,
            role=role.name,
            gateway_ip=berth.gateway,
            proxy_port=berth.proxy_port,
            caller_env=asked.env,
            decoys=decoys,
        )
        seq = parts.ledger.append(
            "run.start",
            run=run_id,
            role=role.name,
            program=spec.exe,
            program_sha256=await asyncio.to_thread(program_digest, spec.exe),
            policy_sha256=policy.sha256,
            seccomp_sha256=filter_of(role).sha256,
            limits=list(held_by(base)),
            switches=list(role.switches()) or None,
        )
        await parts.ledger.durable(seq)
    except BaseException:
        berth.close()
        await asyncio.to_thread(parts.keeper.release, berth.id)
        raise
    return Session(parts, peer, run, berth, spec, RunLimits(base, spec))
