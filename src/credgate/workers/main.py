"""A worker: accepts on the sockets that it is given, judges, forwards; all that it may not decide it asks the daemon.

Started as `python -I -m credgate.workers.main FD` with a clean environment. Confined before it is told a secret: no
core, not dumpable, no file can be written, made or removed, no signal sent (Landlock). It leaves with the daemon.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from credgate import ownaddresses
from credgate.ca import Authority
from credgate.gateway.accepting import Share
from credgate.gateway.capture import Fingerprints
from credgate.gateway.dial import Dialler
from credgate.gateway.hooks import Hooks
from credgate.gateway.mode import CredgateInstance
from credgate.gateway.pins import Pins
from credgate.gateway.serving import GatewayError, Serving
from credgate.gateway.upstream import UpstreamTls
from credgate.ledger.record import LedgerError
from credgate.loops import new_loop
from credgate.runs import Listener, Run
from credgate.startup import harden
from credgate.workers import given
from credgate.workers import messages as m
from credgate.workers.channel import GONE
from credgate.workers.knowing import SharedValues
from credgate.workers.line import Line
from credgate.workers.remote import RemoteJudge, records
from jail import landlock
from jail.syscalls import prctl
from rules.grants import Spent

if TYPE_CHECKING:
    from rules.policy import Address

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


class Worker(Serving):
    """What a worker serves: the runs that it was given."""

    def __init__(self, setup: given.Setup, line: Line, share: Share) -> None:
        super().__init__()
        self.line, self.share = line, share
        self.runs: dict[str, Run] = {}
        self._gateways: frozenset[Address] = frozenset()
        self.known = SharedValues()
        for value in setup.known:
            self.known.take(value)
        self.known.tell = lambda value: line.channel.post(m.Known(*value))
        limits = setup.timeouts
        upstream = UpstreamTls(Path(setup.system_roots))
        dialler = Dialler(
            pins=Pins(ownaddresses.resolve, limits.names),
            own_addresses=ownaddresses.Own(),
            listeners=lambda: self._gateways,
            resolve_timeout=limits.resolve,
            connect_timeout=limits.connect,
            bundle=str(upstream.bundle),
        )
        elsewhere: Any = None  # vault and minter: RemoteJudge.fetch asks the daemon
        judge = RemoteJudge(
            records=records(line, self.runs, self.known),
            fingerprints=Fingerprints(key=setup.fingerprint_key),
            vault=elsewhere,
            dialler=dialler,
            known=self.known,
            minter=elsewhere,
            line=line,
        )
        authority = Authority.from_pem(setup.ca_key, setup.ca)
        self._hooks = Hooks(judge=judge, authority=authority, upstream=upstream, timeouts=limits)

    def begin(self, told: given.Run) -> Run:
        """Know a run, whether its listeners come here or not: its placeholders and address count for the others."""
        run = Run(
            id=told.id,
            policy=told.policy,
            role=told.role,
            gateway_ip=told.gateway_ip,
            proxy_port=told.proxy_port,
            decoys=told.decoys,
            proof=told.proof,
            revoked=told.revoked,
            revoked_bindings=set(told.revoked_bindings),
            paused=told.paused,
            generation=told.generation,
            spent=Spent(started=told.started),
            parent=told.parent,
        )
        run.alarm = lambda kind, detail: self._alarm(run, kind, detail)
        if told.parent in self.runs:
            self.runs[told.parent].adopt(run)
        self.runs[run.id] = run
        self._know_gateways()
        return run

    def _know_gateways(self) -> None:
        self._gateways = frozenset(ip_address(run.gateway_ip) for run in self.runs.values())

    def _alarm(self, run: Run, kind: str, detail: str) -> None:
        try:
            self.line.push(m.Alarm(run.id, kind, detail))
        except LedgerError as error:  # nothing passes any more, then
            log.error("worker: an alarm is not told: %s", error.code)

    async def close(self, run_id: str) -> None:
        """As Serving.close; the run is forgotten."""
        await super().close(run_id)
        run = self.runs.pop(run_id, None)
        if run is None:
            return
        self._know_gateways()
        if run.above is not None:
            run.above.part(run)
        self.line.counted(run)
        self.line.forget(run_id)

    def swap(self, told: given.Swap) -> None:
        """Another policy for a run: every connection of the old one ends."""
        run = self.runs[told.id]
        run.policy, run.generation = told.policy, told.generation
        self.cut(run.id, "the policy was reloaded")

    async def narrow(self, told: given.Swap) -> None:
        """Leave the listeners that a new policy gives another sense to."""
        kept = self._instances.get(told.id, [])
        for instance in tuple(kept):
            if isinstance(instance, CredgateInstance) and instance.listener.port not in told.ports:
                kept.remove(instance)
                await instance.shut()


class Process:
    """The worker's loop: takes what the daemon says."""

    def __init__(self, sock: socket.socket) -> None:
        self._line = Line(sock, self._take, _leave)
        self._worker: Worker | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _take(self, message: m.FromDaemon, fds: list[int]) -> None:
        """One message. Outermost frame: whatever fails here ends the process, and the daemon starts another one."""
        try:
            if isinstance(message, m.Setup):
                self._set_up(message, fds)
            elif self._worker is None:
                raise GatewayError("worker_order", f"got {type(message).__name__} before the setup")
            else:
                self._told(self._worker, message, fds)
        except Exception:
            log.exception("worker: %s failed", type(message).__name__)
            os._exit(1)

    def _set_up(self, message: m.Setup, fds: list[int]) -> None:
        setup = given.unpack(given.Setup, message.given)
        share = Share(fds[0], setup.slot)
        os.close(fds[0])
        self._worker = Worker(setup, self._line, share)
        self._spawn(self._start(self._worker, share))

    async def _start(self, worker: Worker, share: Share) -> None:
        await worker.start()
        share.enter()
        self._line.channel.post(m.Ready())

    def _told(self, worker: Worker, message: m.FromDaemon, fds: list[int]) -> None:  # noqa: C901 - a case a message
        match message:
            case m.Passed() | m.Given() | m.Noted() | m.Refused() | m.Stale() | m.Failed():  # nearly each one
                self._line.answered(message)
            case m.Begin():
                self._begin(worker, message, fds)
            case m.Swap():
                told = given.unpack(given.Swap, message.given)
                worker.swap(told)
                self._spawn(self._answer(message, worker.narrow(told)))
            case m.State():
                self._state(worker.runs[message.run], message)
            case m.Cut():
                self._done(message, worker.cut(message.run, message.detail, message.binding))
            case m.End():
                self._spawn(self._answer(message, worker.close(message.run)))
            case m.Known():
                worker.known.take((message.name, message.value, message.basic))
            case m.Broken():
                self._line.broken = LedgerError(message.code, message.detail, message.hint)
            case m.Ping():
                self._done(message)
            case m.Stop():
                os._exit(0)
            case m.Setup():
                raise GatewayError("worker_order", "got a second setup")
            case _:
                assert_never(message)

    def _begin(self, worker: Worker, message: m.Begin, fds: list[int]) -> None:
        told = given.unpack(given.Run, message.given)
        run = worker.begin(told)
        socks = [socket.socket(fileno=fd) for fd in fds]
        listeners = [
            Listener(sock=sock, port=port, proxy=proxy) for sock, (port, proxy) in zip(socks, told.ports, strict=True)
        ]
        self._spawn(self._answer(message, worker.serve(run, listeners)))

    def _state(self, run: Run, state: m.State) -> None:
        run.proof, run.revoked, run.paused = state.proof, state.revoked, state.paused
        run.revoked_bindings.update(state.revoked_bindings)
        self._done(state)

    async def _answer(self, message: m.Message, work: Coroutine[Any, Any, None]) -> None:
        await work
        self._done(message)

    def _done(self, message: m.Message, count: int = 0) -> None:
        if message.ask:
            self._line.channel.post(m.Done(count, ask=message.ask))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # it is not what the daemon believes it to be
            log.error("worker: %s", error, exc_info=error)
            os._exit(1)


def _leave(why: str) -> None:
    """The daemon is gone, and every run with it; or it said what is not understood."""
    if why != GONE:
        log.error("worker: the daemon: %s", why)
    os._exit(0 if why == GONE else 1)


def confine() -> None:
    """Before a second thread and before any secret: from here on this process reads files and changes none."""
    harden()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    plan = landlock.plan_for(landlock.abi(), read=["/"], write=[], execute_all=False, dev_write=[], tcp_ports=None)
    landlock.restrict(plan)


async def main_async(descriptor: int) -> None:
    """Serve until the daemon says otherwise, or is gone."""
    process = Process(socket.socket(fileno=descriptor))
    await asyncio.get_running_loop().create_future()
    del process


def main(arguments: list[str]) -> int:
    """Entry of the process; what goes wrong is in the daemon's log."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    confine()
    asyncio.run(main_async(int(arguments[0])), loop_factory=new_loop)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
