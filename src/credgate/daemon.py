"""The gateway daemon: one per user, started by the first run, leaves when idle. Serves the control socket.

Started as `python -I -m credgate.daemon READY_FD IDLE_SECONDS [WORKERS]` with a clean environment and cwd `/`. It alone
imports keyring, it and its workers import mitmproxy, and it starts the berth keeper before it has read any secret.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from credgate import hostlimits, ownaddresses
from credgate.ca import Authority
from credgate.children import attach
from credgate.errors import CredgateError
from credgate.front import Front, request
from credgate.gateway.server import Gateway
from credgate.ledger.settings import FILE as LEDGER_SETTINGS
from credgate.ledger.settings import load_settings
from credgate.ledger.writer import Ledger
from credgate.loops import new_loop
from credgate.opening import clear_left as clear_sockets
from credgate.opening import open_session
from credgate.parts import Parts
from credgate.paths import Places, private_dir
from credgate.peer import UNASKED, Peer, accept
from credgate.policyfile import Effective, find_for_run
from credgate.prepare import Asked, Person
from credgate.proving import Wanted, prove
from credgate.reserved import Reserved
from credgate.resolverevents import ResolverEvents
from credgate.rights import reload, resume, revoke
from credgate.session import Session
from credgate.stand import StandProcess, clear_left, limits_of
from credgate.standin import Borrowed
from credgate.startup import EXIT_CANNOT, check_sealed, harden, listen, lock, say, start_resolver
from credgate.trust import prepare as prepare_trust
from credgate.vault import Vault
from credgate.warm import Computed, Pool, Wish, wish
from credgate.workers.settings import FILE as WORKER_SETTINGS
from credgate.workers.settings import load_processes, parse_processes
from jail import fdpass
from jail.errors import JailError
from jail.guards import needed
from jail.keeper_client import KeeperProcess
from jail.starter_client import StarterProcess
from resolver.client import ResolverProcess
from resolver.errors import ResolverError
from rules.policy import Limits
from rules.problems import PolicyError

log = logging.getLogger(__name__)

MAX_REQUEST = 4 << 20  # bytes of a run.open: the caller's whole environment is in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Where the daemon lives, for whom, and the processes that were started before any secret was loaded."""

    places: Places
    person: Person
    keeper: KeeperProcess
    starter: StarterProcess
    stand: StandProcess
    processes: int  # that accept, this one among them


class Daemon:
    """State of the running daemon: its parts, and the live sessions by run id."""

    def __init__(self, places: Places, parts: Parts, idle: float) -> None:
        self.places, self.parts, self.idle = places, parts, idle
        self.sessions: dict[str, Session] = {}
        self.stopping = asyncio.Event()
        self._shut = asyncio.Event()  # nobody finds this daemon any more
        self.pool: Pool  # once it serves
        self._reloading = asyncio.Lock()
        self._unasked: dict[asyncio.Task[None], None] = {}  # who serve a connection that has asked nothing yet
        self._busy = 0  # connections being served
        self._since = 0.0  # loop time of the last connection's end

    async def serve(self, listener: socket.socket) -> None:
        """Accept until stopped or idle; then end what still runs."""
        loop = asyncio.get_running_loop()
        # Without one of these no run can start; a new daemon makes new ones. Live runs end closed.
        helpers = (self.parts.keeper, self.parts.starter)
        for helper in helpers:
            loop.add_reader(helper.pidfd, self._helper_died, type(helper).__name__)
        self._rest()
        async with asyncio.TaskGroup() as tasks:
            accepting = tasks.create_task(self._accept(listener, tasks))
            tasks.create_task(_warm(self.parts.stand))
            self.pool = Pool(self.parts, tasks)
            self.parts.spares.begin(self.parts, tasks)
            await self.stopping.wait()
            for helper in helpers:
                loop.remove_reader(helper.pidfd)
            await self._close_door(listener, accepting)
            for session in list(self.sessions.values()):
                await session.end("gateway")
            await self.pool.stop()
            await self.parts.spares.stop()

    async def _close_door(self, listener: socket.socket, accepting: asyncio.Task[None]) -> None:
        """Take no more questions. Who asks by now hears of a reset (thinclient.asked), and finds this one no more."""
        accepting.cancel()
        await asyncio.wait([accepting])  # it lets go of the listener
        self.places.control.unlink(missing_ok=True)
        listener.close()
        self._shut.set()
        for task in self._unasked:
            task.cancel()

    def _helper_died(self, name: str) -> None:
        log.error("%s has died", name)
        self.stopping.set()

    def _rest(self) -> None:
        """Note that nothing is being served; leave when that stays so for the idle time."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        loop.call_later(self.idle, self._leave_if_idle, self._since)

    def _leave_if_idle(self, since: float) -> None:
        if not self._busy and since == self._since:
            self.stopping.set()

    async def _accept(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        while True:
            sock = await accept(listener)
            _, uid, _ = fdpass.peer_credentials(sock)
            if uid != os.geteuid():  # the directory's mode keeps others out already; this is the kernel's own word
                log.warning("control socket: uid %d turned away", uid)
                sock.close()
                continue
            tasks.create_task(self._connection(Peer(sock)))

    async def _connection(self, peer: Peer) -> None:
        """One client. Outermost frame of its task: what goes wrong is answered and logged, the others go on."""
        self._busy += 1
        try:
            await self._answer(peer)
        except (CredgateError, JailError, PolicyError, ResolverError) as error:
            await self._refuse(peer, error)
        except OSError as error:
            log.warning("control socket: %s", error)
            await self._refuse(peer, hostlimits.shown(error, "the daemon"))
        except Exception:
            log.exception("a control connection failed")
            await self._refuse(peer, CredgateError("internal", "the daemon failed; its log says more", exit_status=125))
        finally:
            peer.close()
            self._busy -= 1
            self._rest()

    async def _refuse(self, peer: Peer, error: CredgateError | JailError | PolicyError | ResolverError) -> None:
        status = error.exit_status if isinstance(error, CredgateError) else 125
        body: fdpass.Json = {"ev": "refused", "code": error.code, "detail": error.detail, "hint": error.hint}
        with contextlib.suppress(OSError):  # nobody left to tell
            await peer.send({**body, "exit": status})

    async def _question(self, peer: Peer) -> fdpass.Received | None:
        """What a client asks; unread, and None, once this daemon ends."""
        task = asyncio.current_task()
        if task is None or self.stopping.is_set():
            await self._shut.wait()
            return None
        self._unasked[task] = None
        if len(self._unasked) > UNASKED:
            next(iter(self._unasked)).cancel()
        try:
            return await peer.recv()
        finally:
            self._unasked.pop(task, None)

    async def _answer(self, peer: Peer) -> None:
        message = await self._question(peer)
        if message is None:
            return
        try:
            match message.body.get("op"):
                case "run.open" | "run.front":
                    await self._run(peer, message, _reader(peer, message))
                case "prove.open":
                    await prove(self.parts, peer, Wanted.parse(_json(_payload(message))))
                case "status":
                    await peer.send(await self._status())
                case "kill":
                    await peer.send(await self._kill(str(message.body.get("run"))))
                case "revoke":
                    name, only = str(message.body.get("name")), str(message.body.get("run") or "")
                    await peer.send(await revoke(self.sessions, name, only))
                case "resume":
                    await peer.send(await resume(self.sessions, str(message.body.get("run"))))
                case "reload":
                    async with self._reloading:
                        await peer.send(await reload(self.sessions))
                case "stop":
                    await peer.send({"ok": True, "runs": len(self.sessions)})
                    self.stopping.set()
                case other:
                    raise CredgateError("bad_request", f"got op {other!r}", "client and daemon differ in version", 2)
        finally:
            message.close()

    async def _run(self, peer: Peer, message: fdpass.Received, read: Callable[[bytes], fdpass.Json]) -> None:
        with contextlib.closing(Borrowed.take(message)) as borrowed:
            asked = Asked.parse(read(_payload(message)), peer.groups())
            warm = message.body.get("warm") is True
            chosen, wanted, computed = await asyncio.to_thread(self._chosen, peer, asked, borrowed, warm=warm)
            session = await self._session(peer, asked, chosen, borrowed, wanted, computed)
            self.sessions[session.run.id] = session
            await self._drive(session)

    def _chosen(
        self, peer: Peer, asked: Asked, borrowed: Borrowed, *, warm: bool
    ) -> tuple[Effective, Wish | None, Computed | None]:
        """What is found out of the host first, in one change of threads."""
        chosen = find_for_run(asked, self.places)
        wanted = wish(self.parts, peer, asked, chosen, borrowed) if warm else None
        return chosen, wanted, None if wanted is None else self.pool.computed(wanted)

    async def _session(
        self,
        peer: Peer,
        asked: Asked,
        chosen: Effective,
        borrowed: Borrowed,
        wanted: Wish | None,
        computed: Computed | None,
    ) -> Session:
        """A jail that waits for such a run where it asks for one and there is one, else a new one."""
        session = await self.pool.claim(wanted, peer, borrowed, computed) if wanted is not None else None
        if session is None:
            session = await open_session(self.parts, peer, asked, chosen, borrowed=borrowed)
        if wanted is not None:
            self.pool.refill(wanted, session)
        return session

    async def _drive(self, session: Session) -> None:
        attach(session, self.sessions)
        try:
            await session.drive()
        finally:
            del self.sessions[session.run.id]

    async def _status(self) -> fdpass.Json:
        workers, runs = self.parts.gateway.processes(), [_row(session) for session in self.sessions.values()]
        return {"ok": True, "pid": os.getpid(), "runs": runs, "ledger": str(self.places.ledger), **workers}

    async def _kill(self, run: str) -> fdpass.Json:
        session = self.sessions.get(run)
        if session is None:
            raise CredgateError("run_unknown", f"no run {run!r}", "see `credgate ps`", 1)
        await session.end("killed")
        return {"ok": True, "run": run}


def _row(session: Session) -> fdpass.Json:
    """One live run, with what the kernel has counted of it so far."""
    run, seen = session.run, session.evidence()
    named = {"run": run.id, "parent": run.parent, "role": run.role, "workdir": session.spec.workdir}
    named |= {"state": run.state}
    return {**named, **run.requests(), **seen.to_json()}


def _payload(message: fdpass.Received) -> bytes:
    if len(message.fds) != 1:
        raise CredgateError("bad_request", f"got {len(message.fds)} descriptors with run.open, expected 1", "", 2)
    size = os.fstat(message.fds[0]).st_size
    if size > MAX_REQUEST:
        raise CredgateError("bad_request", f"got a request of {size} bytes, expected at most {MAX_REQUEST}", "", 2)
    return os.pread(message.fds[0], size, 0)


def _reader(peer: Peer, message: fdpass.Received) -> Callable[[bytes], fdpass.Json]:
    """What reads the request of a run, as this launcher writes it. Raises CredgateError."""
    if message.body.get("op") == "run.open":
        return _json
    peer.front = Front.of(message.body)
    return request


def _json(raw: bytes) -> fdpass.Json:
    try:
        body = json.loads(raw)
    except ValueError:
        raise CredgateError("bad_request", "run.open: not JSON", "", 2) from None
    if not isinstance(body, dict):
        raise CredgateError("bad_request", "run.open: not an object", "", 2)
    return body


async def main_async(ready: int, idle: float, workers: str) -> None:
    """Build every part, say ready, serve, and take every part down in the other order."""
    places = Places.from_env(os.environ)
    asked = parse_processes(workers, "--workers") if workers else load_processes(places.config / WORKER_SETTINGS)
    private_dir(places.state)
    held = lock(places)
    person = Person.current(os.environ)
    keeper = await asyncio.to_thread(KeeperProcess.start, sys.executable)  # before any secret is loaded
    starter: StarterProcess | None = None
    stand: StandProcess | None = None
    try:
        starter = StarterProcess.start(sys.executable)  # likewise
        clear_left(places)
        stand = await asyncio.to_thread(StandProcess.start, places)  # likewise
        await asyncio.to_thread(clear_sockets, places)
        apart = Apart(places=places, person=person, keeper=keeper, starter=starter, stand=stand, processes=asked)
        await _with_gateway(apart, ready, idle)
    finally:
        if stand is not None:
            await asyncio.to_thread(stand.stop)
        if starter is not None:
            await asyncio.to_thread(starter.stop)
        await asyncio.to_thread(keeper.stop)
        os.close(held)


async def _with_gateway(apart: Apart, ready: int, idle: float) -> None:
    places = apart.places
    ledger = Ledger.open(places.ledger, settings=load_settings(places.config / LEDGER_SETTINGS))
    authority = Authority.load_or_create(places.ca)
    await asyncio.to_thread(check_sealed, places)
    gateway = Gateway(
        authority=authority,
        ledger=ledger,
        vault=Vault(places, os.environ),
        resolve=ownaddresses.resolve,
        own_addresses=ownaddresses.Own(),
    )
    await gateway.start(apart.processes)
    trust = await asyncio.to_thread(prepare_trust, authority.ca_pem, places.state)
    async with asyncio.TaskGroup() as tasks:
        events = ResolverEvents(ledger)
        resolver = ResolverProcess(events)
        await start_resolver(resolver, tasks)
        parts = Parts(
            places=places,
            person=apart.person,
            ledger=ledger,
            gateway=gateway,
            resolver=resolver,
            keeper=apart.keeper,
            starter=apart.starter,
            trust=trust,
            stand=apart.stand,
            reserved=await asyncio.to_thread(Reserved.open, places),
        )
        await _serve(Daemon(places, parts, idle), events, ready)
        await resolver.stop()
    await gateway.stop()
    ledger.close()


async def _serve(daemon: Daemon, events: ResolverEvents, ready: int) -> None:
    events.sessions = daemon.sessions
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, daemon.stopping.set)
    listener = listen(daemon.places)
    say(ready, {"ok": True})
    await daemon.serve(listener)


async def _warm(stand: StandProcess) -> None:
    """Run the cheap controls before the first run asks for them; what fails here is said to that run."""
    with contextlib.suppress(CredgateError):
        await asyncio.to_thread(stand.controls, needed(per_run=True, copy=True), limits_of(Limits()))


def main(arguments: list[str]) -> int:
    """Entry of the daemon process; errors of the start go to the one who started it, and to the log."""
    ready, idle, workers, status = int(arguments[0]), float(arguments[1]), "".join(arguments[2:3]), 0
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        harden()
        asyncio.run(main_async(ready, idle, workers), loop_factory=new_loop)
    except* (CredgateError, JailError, ResolverError) as group:
        error = group.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        log.error("%s", error)
        body = {"code": error.code, "detail": error.detail, "hint": error.hint}
        with contextlib.suppress(OSError):  # said ready already: the log has it
            say(ready, {"ok": False, **body})
        status = EXIT_CANNOT
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
