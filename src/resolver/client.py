"""The daemon's side: one resolver process, started again when it dies, with the live runs given to it once more."""

import asyncio
import logging
import socket
from dataclasses import dataclass

from resolver.errors import ResolverError
from resolver.link import Link, OnEvent, open_link
from rules.names import NameTable, to_json

RESTART_SECONDS = 10.0  # how long an order waits for a process that is being started again
_SHORT_PAUSE, _LAST_PAUSE = 0.5, 5.0  # seconds before the next start, doubled after each failure
_FIRST_PAUSE, _STABLE_SECONDS = 0.02, 10.0  # the pause after a process that had lived that long

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Live:
    """A run that is to be served, whatever happens to the process."""

    table: str
    socks: tuple[socket.socket, socket.socket]
    revoked: bool = False

    def close(self) -> None:
        """Close our duplicates."""
        for sock in self.socks:
            sock.close()


class ResolverProcess:
    """Start, feed and end the resolver. `on_event` gets each record as the dict of Event.to_json.

    It also gets {"event": "restart", "code": "dns.restart", "alarm": True, "status": N} when the process died by
    itself; counters and caps of the live runs then begin anew.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._runs: dict[str, _Live] = {}
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it serves."""
        return self._link.pid if self._link and self._up.is_set() else None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the process; a task of `tasks` keeps it running until stop(). Raises ResolverError."""
        self._link = await open_link(self._on_event)
        self._up.set()
        self._keeper = tasks.create_task(self._keep())

    async def stop(self) -> None:
        """End the process and forget all runs."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._link:
            await self._link.close()
        for run in list(self._runs):
            self._forget(run)

    async def add(self, run: str, table: NameTable, udp: socket.socket, tcp: socket.socket) -> None:
        """Have a run served on duplicates of two sockets; the caller's own may be closed. Raises ResolverError."""
        if run in self._runs:
            raise ResolverError("run_known", f"run {run!r} is served already")
        live = _Live(table=to_json(table), socks=(udp.dup(), tcp.dup()))
        try:
            await self._give(await self._running(), run, live)
        except BaseException:
            live.close()
            raise
        # Only now: a process that died meanwhile must not leave a run that its caller believes to have failed.
        self._runs[run] = live

    async def revoke(self, run: str) -> None:
        """Answer NXDOMAIN to this run from now on, also after a restart. Raises ResolverError."""
        self._known(run).revoked = True
        await self._settle("revoke", run)

    async def replace(self, run: str, table: NameTable) -> None:
        """Answer by another table from now on, also after a restart. Raises ResolverError."""
        live = self._known(run)
        before, live.table = live.table, to_json(table)
        try:
            await self._settle("table", run, {"table": live.table})
        except ResolverError:
            live.table = before  # a process that is started again would not take this one either
            raise

    async def remove(self, run: str) -> None:
        """Stop serving a run; its totals come as events before this returns. Raises ResolverError."""
        self._known(run)
        self._forget(run)
        await self._settle("remove", run)

    async def _settle(self, op: str, run: str, more: dict[str, object] | None = None) -> None:
        try:
            await (await self._running()).ask(op, run, more=more)
        except ResolverError as error:
            # A process that ends serves nobody, and the next one is given the runs as they are by now.
            if error.code not in {"resolver_died", "resolver_silent", "run_unknown"}:
                raise

    def _known(self, run: str) -> _Live:
        if run not in self._runs:
            raise ResolverError("run_unknown", f"no run {run!r} is served")
        return self._runs[run]

    def _forget(self, run: str) -> None:
        self._runs.pop(run).close()

    async def _running(self) -> Link:
        try:
            await asyncio.wait_for(self._up.wait(), RESTART_SECONDS)
        except TimeoutError:
            raise ResolverError("resolver_down", "the resolver doesn't start again", "see the daemon's log") from None
        assert self._link is not None
        return self._link

    async def _give(self, link: Link, run: str, live: _Live) -> None:
        # In one order with the add: between two, a revoked name would have its address for a moment.
        more = {"table": live.table, "revoked": live.revoked}
        await link.ask("add", run, more=more, fds=[sock.fileno() for sock in live.socks])

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._link is not None:
            began = loop.time()
            status = await self._link.ended()
            self._up.clear()
            _log.warning("the resolver ended with status %s; starting it again", status)
            self._on_event({"event": "restart", "code": "dns.restart", "alarm": True, "status": status})
            pause = _FIRST_PAUSE if loop.time() - began > _STABLE_SECONDS else _SHORT_PAUSE
            self._link = await self._again(pause)
            self._up.set()

    async def _again(self, pause: float) -> Link:
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)
            try:
                return await self._replacement()
            except ResolverError as error:
                _log.warning("the resolver doesn't start again: %s", error)

    async def _replacement(self) -> Link:
        link = await open_link(self._on_event)
        try:
            await self._restore(link)
        except BaseException:
            await link.close()
            raise
        return link

    async def _restore(self, link: Link) -> None:
        """Give all live runs to a new process; runs may be revoked or removed meanwhile, so until nothing is left."""
        given: set[str] = set()
        revoked: set[str] = set()
        while True:
            for run in set(self._runs) - given:
                if run not in self._runs:  # removed while another was given
                    continue
                # Told in the add, or, where it is revoked while we wait for the reply, below.
                if self._runs[run].revoked:
                    revoked.add(run)
                given.add(run)
                await self._give(link, run, self._runs[run])
            # No await from the last look at the runs to the return: what is asked later goes to the new link itself.
            todo = {run for run, live in self._runs.items() if live.revoked} - revoked
            if not todo and not set(self._runs) - given:
                return
            for run in todo:
                await link.ask("revoke", run)
                revoked.add(run)
