"""One HTTP/1.1 connection to a target, and the pool in which it waits for the next client connection of its run.

Who gets what it reads, its lane, changes. Without a lane a byte is one that nobody asked for, and closes the connection
as the target's own end does.
"""

import asyncio
import ssl
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from credgate.errors import CredgateError
from credgate.gateway.deadline import Deadline
from credgate.gateway.dial import DialError, Dialler
from credgate.gateway.exchange import Target
from credgate.gateway.pipe import Pipe
from credgate.gateway.targettls import TargetTls, pinned
from credgate.gateway.wire import Wire
from credgate.runs import Run
from rules.addresses import unmap
from rules.reasons import Reason

if TYPE_CHECKING:
    from credgate.gateway.lanetarget import TargetSide

IDLE = 60.0  # seconds in the pool; a target that says less by Keep-Alive is believed
MAX_IDLE_RUN, MAX_IDLE = 16, 128  # connections in the pool: of one run, of all


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Whose connection it is: it is used again for the very same run, policy and endpoint, host and pin alone."""

    run: Run
    generation: int  # of the policy: a reload leaves no connection behind that the new one did not make
    target: Target

    def serves(self, run: Run, target: Target, pin: str) -> bool:
        """Whether a request of `run` that was judged to go to `target` may use a connection to `pin`."""
        mine = self.target
        if self.run is not run or self.generation != run.generation:
            return False
        if mine is target:
            return True
        return (
            mine.endpoint == target.endpoint
            and mine.host == target.host
            and mine.client == target.client
            and pin in {str(address) for address in target.addresses}
        )


class Link:
    """One connection, the end of its pipe. A lane reads `opened`, `failed`, `closed` and `inbox` when it is told."""

    def __init__(self, run: Run, target: Target, lane: "TargetSide") -> None:
        self.owned = Owned(run=run, generation=run.generation, target=target)
        self.lane: TargetSide | None = lane
        self.opened = self.failed = False
        self.closed = False  # the target's end: no more bytes come
        self.broken = False  # by a reset, not by an end
        self.over = False  # closed on both sides
        self.uses = 0  # answers that came whole
        self.idle = IDLE
        self.pin = ""
        self.inbox: list[bytes] = []
        self.waits = Deadline()  # for the pool to close it
        self.timer: asyncio.TimerHandle | None = None
        self._pipe: Pipe | None = None
        self._task: asyncio.Task[None] | None = None

    # -- the way to it ------------------------------------------------------------------------------------------------

    def dial(self, dialler: Dialler, contexts: TargetTls, patience: float) -> None:
        """Connect to a judged address, and shake hands within `patience` seconds. The lane is told when it is done."""
        self._task = asyncio.get_running_loop().create_task(self._dial(dialler, contexts, patience))
        self._task.add_done_callback(self._dialled)

    async def _dial(self, dialler: Dialler, contexts: TargetTls, patience: float) -> None:
        target, context = self.owned.target, None
        try:
            if target.endpoint.tls:
                context = await contexts.context(target.endpoint, target.client)
            target = await dialler.fresh(target, self.owned.run.lookups)
            self.owned = replace(self.owned, target=target)
            found = await dialler.reach(target, self._asked)
        except CredgateError as error:  # a CA file that is gone; without it there is no handshake
            self._fail(Reason.UPSTREAM_TLS, error.detail)
            return
        except DialError as error:
            self._fail(error.reason, error.detail)
            return
        pipe = self._pipe = Pipe(self)
        ahead = b""
        if isinstance(found, tuple):
            ahead = pipe.adopt(found)
        else:
            Wire(found, pipe, heeds=True).attach()
        name = pipe.info("peername")
        if name is None:  # it was reset since: there is no telling where it went, and nothing to send on
            self._fail(Reason.UPSTREAM_RESET)
            return
        peer = unmap(ip_address(name[0]))
        if peer not in target.addresses:  # whatever moved the connection, the address was not judged
            raise RuntimeError("the peer's address is not the pin")
        if self.lane is None or self.over:
            self.close()
            return
        self.pin = str(peer)
        self.lane.connected(self, self.pin)
        if context is None:
            self.opened = True
            if ahead:
                self.received(pipe, ahead)
            self._tell()
            return
        self.timer = asyncio.get_running_loop().call_later(patience, self._late)
        pipe.start_tls(partial(context.wrap_bio, server_hostname=target.host), ahead)

    def _asked(self, at: str) -> None:
        if self.lane is not None:
            self.lane.client.state.asked(self.owned.target.key, at)

    def _dialled(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A fault of ours: it ends the client's connection too."""
        lane = self.lane
        self.close()
        if lane is not None:
            lane.client.failed(error)

    def _late(self) -> None:
        self._fail(Reason.UPSTREAM_TIMEOUT)

    def _fail(self, reason: Reason, detail: str = "") -> None:
        """There is no connection, and there won't be one."""
        lane, self.failed = self.lane, True
        if lane is not None:
            lane.blame(self, reason, detail)
        self.close()
        self._tell(lane)

    # -- the end of its pipe ------------------------------------------------------------------------------------------

    def received(self, _pipe: Pipe, data: bytes) -> None:
        """Bytes of an answer, or ones that nobody asked for."""
        lane = self.lane
        if lane is not None:
            lane.client.heard(lane, self, data)
        else:
            self.close()

    def secured(self, pipe: Pipe) -> None:
        """The certificate was good; now the keys that the endpoint pins, and the protocol."""
        self._disarm()
        try:
            good = pinned(pipe.tls, self.owned.target.endpoint.spki)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a check: nothing passes
            self._failed(error)
            return
        if not good:
            self._fail(Reason.UPSTREAM_TLS)
            return
        self.opened = True
        self._tell()

    def insecure(self, pipe: Pipe, _error: ssl.SSLError) -> None:
        """No handshake: those who wait learn why, and the next request may try again."""
        self._disarm()
        pipe.flush()
        self._fail(Reason.UPSTREAM_TLS)

    def ended(self, pipe: Pipe) -> None:
        """The target closed it, or something on the way did."""
        self._disarm()
        self.closed, self.broken = True, pipe.broken
        if self.owned.target.endpoint.tls and not pipe.secure:
            self._fail(Reason.UPSTREAM_RESET)
        else:
            self._tell()
            self.close()

    def crowded(self, pipe: Pipe, full: bool) -> None:
        """Sending is behind, or no longer so."""
        if self.lane is not None:
            self.lane.client.crowded(pipe, full)

    def lost(self, _pipe: Pipe) -> None:
        """The socket is closed."""
        self.over = True

    def _tell(self, lane: "TargetSide | None" = None) -> None:
        lane = lane or self.lane
        if lane is not None:
            lane.client.heard(lane, self)
        else:
            self.close()

    # -- what a lane and the pool ask for -----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes to the target."""
        if self._pipe is not None:
            self._pipe.send(data)

    def taken(self) -> bytes:
        """What came since the last call."""
        inbox = self.inbox
        if not inbox:
            return b""
        self.inbox = []
        return inbox[0] if len(inbox) == 1 else b"".join(inbox)

    @property
    def is_quiet(self) -> bool:
        """Whether it can carry a request: open, and nothing came that was not asked for."""
        return self.opened and not (self.over or self.closed or self.failed or self.inbox)

    @property
    def is_full(self) -> bool:
        """Whether sending is behind."""
        return self._pipe is not None and self._pipe.full

    def pause(self, stop: bool) -> None:
        """Read nothing of the target for now, or go on."""
        if self._pipe is not None:
            self._pipe.pause(stop)

    def cut(self) -> None:
        """End it although an answer is waited for, whose exchange learns of it as of any other end."""
        lane = self.lane
        self.closed = True
        self.close()
        self._tell(lane)

    def close(self) -> None:
        """Close it for good; the lane hears nothing more of it."""
        self._end(reset=False)

    def reset(self) -> None:
        """The same by RST."""
        self._end(reset=True)

    def _end(self, *, reset: bool) -> None:
        self._disarm()
        self.waits.stop()
        self.lane, self.over = None, True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._pipe is not None:
            if reset:
                self._pipe.reset()
            else:
                self._pipe.close()

    def _disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Pool:
    """Connections that wait, bounded in number and time. Not thread-safe: it lives on the daemon's loop.

    Those that rest are still a client connection's, which has no request on its way; another one may take them.
    """

    def __init__(self) -> None:
        self._idle: list[Link] = []
        self._resting: dict[Link, None] = {}

    def __len__(self) -> int:
        return len(self._idle)

    def put(self, link: Link) -> None:
        """Keep a connection that has no lane any more; the one that waited longest makes room."""
        for ended in [other for other in self._idle if other.over]:
            self._forget(ended)
        link.lane = None
        link.pause(False)
        self._idle.append(link)
        link.waits.later(link.idle, partial(self._discard, link))
        mine = [other for other in self._idle if other.owned.run is link.owned.run]
        if len(mine) > MAX_IDLE_RUN:
            self._discard(mine[0])
        if len(self._idle) > MAX_IDLE:
            self._discard(self._idle[0])

    def rest(self, link: Link) -> None:
        """Its client connection has no request on its way."""
        self._resting[link] = None

    def busy(self, link: Link) -> None:
        """It rests no more."""
        self._resting.pop(link, None)

    def take(self, run: Run, target: Target) -> Link | None:
        """The connection that was used last, of those that may be used."""
        for link in reversed(self._idle):
            if link.is_quiet and link.owned.serves(run, target, link.pin):
                self._forget(link)
                return link
        for link in self._resting:
            if link.is_quiet and link.owned.serves(run, target, link.pin):
                if link.lane is not None:
                    link.lane.lend(link)
                return link
        return None

    def close(self, run: Run) -> None:
        """Close all of a run's that no client connection has."""
        for link in tuple(self._idle):
            if link.owned.run is run:
                self._discard(link)

    def _discard(self, link: Link) -> None:
        self._forget(link)
        link.close()

    def _forget(self, link: Link) -> None:
        link.waits.cancel()
        if link in self._idle:
            self._idle.remove(link)
