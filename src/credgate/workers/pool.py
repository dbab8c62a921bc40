"""The daemon's workers: started, given the live runs, told of what changes, started again when they die."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from credgate.errors import CredgateError
from credgate.gateway.accepting import Share, make_loads
from credgate.gateway.judge import Judge
from credgate.gateway.steps import Timeouts
from credgate.gateway.tunnel import is_shared
from credgate.ledger.record import LedgerError
from credgate.runs import Listener, Run
from credgate.workers import given
from credgate.workers import messages as m
from credgate.workers.channel import Channel, ChannelError
from credgate.workers.desk import Desk
from credgate.workers.knowing import SharedValues, Value
from rules.reasons import Reason

if TYPE_CHECKING:
    from credgate.ca import Authority

log = logging.getLogger(__name__)

START = 30.0  # seconds until a worker is ready
BEAT = 10.0  # seconds between two looks at whether a worker is stuck
ANSWER = 10.0  # seconds for an order; a worker that is slower is ended: it may serve what it should no longer
_SHORT_PAUSE, _LAST_PAUSE = 0.05, 5.0  # seconds before the next start, doubled after each one that did not last
_STABLE = 10.0  # seconds that a worker has to live for the pause to be short again
_MOST = 4 << 20  # bytes of a worker's message: a line of the ledger, before it is cut
_CPUCLOCK_SCHED = 2  # kernel: posix-timers.h, MAKE_PROCESS_CPUCLOCK

type Make = Callable[[int], m.Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What workers need to be the gateway that the daemon is."""

    judge: Judge
    known: SharedValues
    authority: "Authority"
    system_roots: str
    timeouts: Timeouts


@dataclass(slots=True, kw_only=True)
class _Served:
    run: Run
    listeners: tuple[Listener, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class _Live:
    """One process. `up`: it was given all runs, and gets what comes."""

    slot: int
    process: asyncio.subprocess.Process
    desk: Desk
    channel: Channel
    up: bool = False
    why: str = ""
    began: float = field(default_factory=time.monotonic)


class Workers:
    """`count` processes beside the daemon's own. Lives on the daemon's loop."""

    def __init__(self, count: int, terms: Terms) -> None:
        self._terms = terms
        self._loads = make_loads()
        self.share = Share(self._loads, 0)
        self.share.enter()
        self.died = 0
        self._count = count
        self._live: dict[int, _Live] = {}
        self._runs: dict[str, _Served] = {}
        self._keepers: set[asyncio.Task[None]] = set()
        terms.known.tell = self._tell_value

    async def start(self) -> None:
        """Start them all. Raises CredgateError where one does not start."""
        loop = asyncio.get_running_loop()
        slots = range(1, self._count + 1)
        try:
            async with asyncio.TaskGroup() as tasks:
                started = [tasks.create_task(self._start(slot)) for slot in slots]
        except* CredgateError as group:
            await self.stop()
            raise group.exceptions[0] from None
        for slot, task in zip(slots, started, strict=True):
            keeper = loop.create_task(self._keep(slot, task.result()))
            self._keepers.add(keeper)
            keeper.add_done_callback(_kept)

    async def stop(self) -> None:
        """End them all; their connections are cut."""
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers)
        for worker in tuple(self._live.values()):
            worker.channel.post(m.Stop())
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(1.0):
                    await worker.process.wait()
            except TimeoutError:
                worker.process.kill()
                await worker.process.wait()
            self._lost(worker, told=False)
        if self._loads >= 0:
            os.close(self._loads)
            self._loads = -1

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def begin(self, run: Run, listeners: Sequence[Listener]) -> None:
        """Have a run served by all workers."""
        self._runs[run.id] = served = _Served(run=run, listeners=tuple(listeners))
        for worker in self._live.values():
            if worker.up:  # the others are given all that there is when they are
                worker.desk.runs[run.id] = run
        await self._ask_all(run.id, lambda ask: _begin(served, ask), _socks(served))

    async def finish(self, run_id: str) -> None:
        """Have a run forgotten: when this returns all that it did is written."""
        self._runs.pop(run_id, None)
        await self._ask_all(run_id, lambda ask: m.End(run_id, ask=ask))
        for worker in self._live.values():
            worker.desk.forget(run_id)

    def tell(self, run: Run) -> None:
        """Say what of a run's rights is in force."""
        for worker in self._having(run.id):
            worker.channel.post(_state(run))

    async def told(self, run: Run) -> None:
        """Say it, and wait until every worker has heard."""
        await self._ask_all(run.id, lambda ask: _state(run, ask))

    def cut(self, run_id: str, detail: str, binding: str) -> None:
        """Have connections end, as soon as it is heard."""
        for worker in self._having(run_id):
            worker.channel.post(m.Cut(run_id, detail, binding))

    async def cut_now(self, run: Run, detail: str, binding: str) -> int:
        """Have connections end; how many they were, by all workers, which know the run's rights by then."""
        self.tell(run)
        done = await self._ask_all(run.id, lambda ask: m.Cut(run.id, detail, binding, ask=ask))
        return sum(answer.count for answer in done)

    async def swapped(self, run: Run) -> None:
        """Have a run's new policy in force everywhere, and the connections of the old one ended."""
        served = self._runs.get(run.id)
        if served is not None:
            ports = frozenset(listener.port for listener in _shared(served))
            told = given.pack(given.Swap(id=run.id, policy=run.policy, generation=run.generation, ports=ports))
            await self._ask_all(run.id, lambda ask: m.Swap(told, ask=ask))

    def _having(self, run_id: str) -> list[_Live]:
        return [worker for worker in self._live.values() if run_id in worker.desk.runs]

    async def _ask_all(self, run_id: str, make: Make, fds: Sequence[int] = ()) -> list[m.Done]:
        """Ask all that have a run. One that dies meanwhile has nothing left to be ended."""

        async def ask(worker: _Live) -> m.Done:
            try:
                answer: m.Done = await worker.channel.ask(make, fds, ANSWER)
            except ChannelError as error:
                log.warning("%s: %s", worker.desk.name, error.detail)
                return m.Done()
            return answer

        return await asyncio.gather(*(ask(worker) for worker in self._having(run_id)))

    def _tell_value(self, value: Value) -> None:
        for worker in self._live.values():
            worker.channel.post(m.Known(*value))

    # -- processes ----------------------------------------------------------------------------------------------------

    async def _start(self, slot: int) -> _Live:
        """A process that has been given everything. Raises CredgateError."""
        worker = await self._spawned(slot)
        self._live[slot] = worker
        try:
            setup = given.pack(self._setup(slot))
            worker.channel.post(m.Setup(setup), [self._loads])
            async with asyncio.timeout(START):
                await _ready(worker)
            await self._give_all(worker)
        except BaseException as error:
            worker.process.kill()
            await worker.process.wait()
            self._lost(worker, told=False)
            if isinstance(error, TimeoutError | ChannelError):
                detail = f"worker {slot} does not start, status {worker.process.returncode}"
                raise CredgateError("worker_start", detail, "the daemon's log says more", 125) from error
            raise
        return worker

    async def _spawned(self, slot: int) -> _Live:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-m", "credgate.workers.main", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={"LANG": "C.UTF-8"},
                    cwd="/",
                )
            except OSError as error:
                ours.close()
                raise CredgateError("worker_start", f"{sys.executable}: {error.strerror}", "", 125) from error
        desk = Desk(judge=self._terms.judge, known=self._terms.known, name=f"worker {slot}")
        worker: _Live

        def ended(why: str) -> None:
            worker.why = why
            desk.ready.set()  # whoever waits sees that it is over
            if process.returncode is None:
                process.kill()

        desk.channel = Channel(ours, m.for_daemon, desk.take, ended, _MOST)
        desk.channel.taken = desk.taken
        worker = _Live(slot=slot, process=process, desk=desk, channel=desk.channel)
        return worker

    def _setup(self, slot: int) -> given.Setup:
        terms = self._terms
        key, certificate = terms.authority.to_pem()
        return given.Setup(
            slot=slot,
            ca_key=key,
            ca=certificate,
            fingerprint_key=terms.judge.fingerprints.key,
            system_roots=terms.system_roots,
            timeouts=terms.timeouts,
            known=terms.known.values(),
        )

    async def _give_all(self, worker: _Live) -> None:
        """Give a new process every run, parents first; runs may begin and end meanwhile, so until nothing is left."""
        while True:
            todo = [served for run_id, served in self._runs.items() if run_id not in worker.desk.runs]
            if not todo:
                worker.up = True  # no await since the look: what comes from here on is told to it as to all
                return
            served = min(todo, key=lambda served: len(served.run.levels()))
            await self._give(worker, served)

    async def _give(self, worker: _Live, served: _Served) -> None:
        run_id = served.run.id
        worker.desk.runs[run_id] = served.run
        await worker.channel.ask(lambda ask: _begin(served, ask), _socks(served), ANSWER)
        if run_id not in self._runs:
            await worker.channel.ask(lambda ask: m.End(run_id, ask=ask), (), ANSWER)
            worker.desk.forget(run_id)

    async def _keep(self, slot: int, worker: _Live) -> None:
        """See that one is there until `stop`."""
        pause = _SHORT_PAUSE
        while True:
            await _end_of(worker)
            self._lost(worker, told=True)
            while True:
                lasted = time.monotonic() - worker.began > _STABLE
                pause = _SHORT_PAUSE if lasted else min(pause * 2, _LAST_PAUSE)
                await asyncio.sleep(pause)
                try:
                    worker = await self._start(slot)
                    break
                except CredgateError as error:
                    log.error("%s", error)

    def _lost(self, worker: _Live, *, told: bool) -> None:
        """Write down what a process that is gone had said and left open, and that it is gone."""
        worker.up = False
        if self._live.get(worker.slot) is worker:
            del self._live[worker.slot]
        self.share.leave(worker.slot)
        worker.desk.leave()
        worker.channel.drain()
        worker.channel.end("it has ended")
        status = worker.process.returncode
        why = f"{worker.desk.name} died: pid {worker.process.pid}, status {status}"
        try:
            left = worker.desk.close(why)
            if told:
                self.died += 1
                log.error("gateway: %s, %s; %d requests were open", why, worker.why, left)
                self._terms.judge.records.ledger.append(
                    "alarm",
                    reason=Reason.WORKER_DIED.value,
                    detail=f"{why}; requests that were open: {left}",
                    verdict="notify",
                )
        except LedgerError as error:
            log.error("gateway: %s, and the ledger can't be written: %s", why, error.code)

    def rows(self) -> list[dict[str, object]]:
        """What `gateway status` says of each process, the daemon's own first."""
        loads = self.share.loads()
        rows: list[dict[str, object]] = [_row(os.getpid(), loads[0])]
        for slot, worker in sorted(self._live.items()):
            desk = worker.desk
            rows.append({**_row(worker.process.pid, loads[slot]), "requests": desk.requests, "open": len(desk.open)})
        return rows


def _kept(keeper: "asyncio.Task[None]") -> None:
    error = None if keeper.cancelled() else keeper.exception()
    if error is not None:
        log.error("gateway: a worker is no longer looked after", exc_info=error)


async def _end_of(worker: _Live) -> None:
    """Wait for a process's end, and see now and then that it is not stuck: then its channel ends, and it is killed."""
    while True:
        try:
            async with asyncio.timeout(BEAT):
                await worker.process.wait()
        except TimeoutError:
            with contextlib.suppress(ChannelError):
                await worker.channel.ask(lambda ask: m.Ping(ask=ask), (), ANSWER)
        else:
            return


async def _ready(worker: _Live) -> None:
    await worker.desk.ready.wait()
    if worker.channel.over:
        raise ChannelError("worker_gone", f"the worker: {worker.why}")


def _row(pid: int, connections: int | None) -> dict[str, object]:
    try:
        cpu = time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    except OSError:  # it died in this moment
        cpu = 0.0
    return {"pid": pid, "connections": connections, "cpu_s": round(cpu, 3)}


def _shared(served: _Served) -> list[Listener]:
    """The listeners that workers accept at."""
    return [one for one in served.listeners if one.sock.fileno() >= 0 and is_shared(served.run, one)]


def _socks(served: _Served) -> list[int]:
    return [listener.sock.fileno() for listener in _shared(served)]


def _state(run: Run, ask: int = 0) -> m.State:
    return m.State(run.id, run.proof, run.revoked, run.paused, sorted(run.revoked_bindings), ask=ask)


def _begin(served: _Served, ask: int) -> m.Begin:
    run = served.run
    told = given.Run(
        id=run.id,
        policy=run.policy,
        role=run.role,
        gateway_ip=run.gateway_ip,
        proxy_port=run.proxy_port,
        decoys=dict(run.decoys),
        parent=run.parent,
        started=run.spent.started,
        generation=run.generation,
        proof=run.proof,
        revoked=run.revoked,
        paused=run.paused,
        revoked_bindings=frozenset(run.revoked_bindings),
        ports=tuple((listener.port, listener.proxy) for listener in _shared(served)),
    )
    return m.Begin(given.pack(told), ask=ask)
