"""One client connection, from its accept on: what it speaks, its lane in HTTP/1.1, and how it ends.

HTTP/2, and everything from a first WebSocket handshake on, is handed to mitmproxy's engine (`handler`). Nothing that
fails in here is passed on: the outermost frame of each call ends the connection.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from credgate.gateway import waiting
from credgate.gateway.connects import Connects
from credgate.gateway.deadline import Deadline
from credgate.gateway.dial import Dialler
from credgate.gateway.ending import Ending, where
from credgate.gateway.exchange import ClientState, Key
from credgate.gateway.front import Front, Hello, unread
from credgate.gateway.hooks import Hooks
from credgate.gateway.lane import ESTABLISHED, Lane
from credgate.gateway.lanetarget import TargetSide
from credgate.gateway.leaves import Leaves
from credgate.gateway.link import Link, Pool
from credgate.gateway.pipe import NOBODY, Pipe
from credgate.gateway.refusal import Refusal, deny
from credgate.gateway.targettls import TargetTls
from credgate.gateway.turn import Turn
from credgate.gateway.waiting import BodyWanted
from credgate.gateway.ways import Ways
from credgate.ledger.record import LedgerError
from rules.grants import Use
from rules.reasons import Reason
from rules.verdict import Deny

logger = logging.getLogger(__name__)


class Door(Protocol):
    """What accepted a client connection."""

    front: Front
    connects: Connects
    leaves: Leaves
    ways: Ways

    def hand_over(self, client: "Client", data: bytes) -> None:
        """Have mitmproxy's engine go on with a connection; `data` came of it already."""

    def gone(self, client: "Client") -> None:
        """A connection that was accepted is closed."""


class Client(Ending):
    """The end of a client's pipe. `state.run` is the listener's run: nothing that the client says changes it."""

    def __init__(self, door: Door, state: ClientState, hooks: Hooks) -> None:
        self.state, self.steps = state, hooks.steps
        self.sni: str | None = None
        self.ways = door.ways
        self.pipe = Pipe(self)
        self._door, self._hooks = door, hooks
        self._loop = asyncio.get_running_loop()
        self._lane: Lane | None = None
        self._next: Lane | None = None  # ready for when something comes of the client
        self._outer = state.listener.proxy  # the explicit proxy's port, of which nothing was read
        self._progress = Deadline()
        self._judging: dict[Turn, asyncio.Task[None] | None] = {}
        self._is_lost = False
        self._moved = monotonic()
        self._watch = Deadline().later(self.steps.timeouts.idle, self._look)
        if not state.listener.proxy:
            self._expect_progress()

    # -- the end of its pipe ------------------------------------------------------------------------------------------

    def received(self, _pipe: Pipe, data: bytes) -> None:
        """Bytes of the client's."""
        self._moved = monotonic()
        lane = self._lane
        try:
            if lane is not None:
                if not lane.again(data):
                    lane.received(data)
            elif self._outer:
                self._ask(data)
            else:
                self._begin(data)
        except Exception as error:  # noqa: BLE001 - the outermost frame of the lane: it ends the connection
            self.failed(error)

    def secured(self, pipe: Pipe) -> None:
        """The handshake is done, with a leaf for the name that was asked for."""
        self._progressed()
        try:
            if pipe.alpn == "h2":
                self.hand_over(b"")
            else:  # while the client makes its request
                self._next = Lane(self, outer=False)
        except Exception as error:  # noqa: BLE001 - as in received
            self.failed(error)

    def insecure(self, pipe: Pipe, error: ssl.SSLError) -> None:
        """The client gave up, sent no TLS behind the first byte, or could not be shown a leaf."""
        self._progressed()
        made = pipe.tls
        if isinstance(made, Hello) and made.fault is not None:
            self.failed(made.fault)
            return
        unreadable = unread(made, error)
        if not unreadable:
            pipe.flush()
        self._no_handshake(unreadable)

    def ended(self, pipe: Pipe) -> None:
        """The client sends nothing more."""
        try:
            if self._lane is not None:
                self._lane.left()
            elif pipe.tls is not None and not pipe.secure:
                self._no_handshake(False)
            else:
                self.pipe.close()
        except Exception as error:  # noqa: BLE001 - as in received
            self.failed(error)

    def crowded(self, _pipe: Pipe, full: bool) -> None:
        """Sending to the client is behind, or to its target, or no longer so."""
        try:
            if self._lane is not None:
                self._lane.crowded(full)
        except Exception as error:  # noqa: BLE001 - as in received
            self.failed(error)

    def lost(self, _pipe: Pipe) -> None:
        """The socket is closed: so are the exchanges that were on their way."""
        self._is_lost = True
        self._watch.stop()
        self._progress.stop()
        if not self._judging:
            self._settle()

    def _settle(self) -> None:
        try:
            for exchange in tuple(self.state.exchanges):
                self.steps.finish(self.state, exchange, detail="client closed the connection")
            waiting.let_all_go(self.state)
        except Exception as error:  # noqa: BLE001 - as in received
            self.failed(error)
        self._door.gone(self)
        # Not left to the garbage collector: what it would walk over is cold by then, and holds TLS's buffers.
        self.pipe.end, self._lane, self._next = NOBODY, None, None
        if isinstance(self.pipe.tls, Hello):
            self.pipe.tls.forget()

    # -- how it begins ------------------------------------------------------------------------------------------------

    def _begin(self, data: bytes) -> None:
        """Tell TLS from HTTP by the first byte; what is neither gets no second one through."""
        if data[0] == 0x16 and self.pipe.tls is None:
            self._expect_progress()
            self.pipe.start_tls(self._door.front.handshake(self._leaf), data)
        elif data[:1].isalpha() or data[:1] == b"\r":
            self._progressed()
            self._lane, self._next = self._next or Lane(self, outer=False), None
            self._lane.begin(data)
        else:
            self._hooks.judge.records.connection(self.state, Reason.NOT_HTTP, detail="neither TLS nor HTTP")
            self._finish()

    def _ask(self, data: bytes) -> None:
        """Take the first bytes on the explicit proxy's port: a CONNECT line, mostly one that was taken before."""
        self._outer, state = False, self.state
        place = self._door.connects.find(state, data)
        if place is None:
            self._lane = Lane(self, outer=True)
            self._lane.begin(data)
            if state.connect_port:
                self._door.connects.keep(state, data)
            return
        state.connect_host, state.connect_port = place
        self.pipe.send(ESTABLISHED)
        self.tunnelled(b"")

    def tunnelled(self, data: bytes) -> None:
        """A CONNECT was taken: everything begins anew in the tunnel."""
        self._expect_progress()
        self._lane = None
        if data:
            self._begin(data)
        else:  # while the client makes its own
            self.pipe.ready_tls(self._door.front.handshake(self._leaf))

    def _leaf(self, sni: str | None) -> ssl.SSLContext:
        """A leaf for the name that the client asks for."""
        self.sni = sni
        return self._door.leaves.context(self.state, sni)

    def _no_handshake(self, unreadable: bool) -> None:
        records = self._hooks.judge.records
        try:
            if unreadable:
                records.connection(self.state, Reason.NOT_HTTP, detail="neither TLS nor HTTP")
            else:
                records.broken_off(self.state, self.sni or "")
        except Exception as error:  # noqa: BLE001 - as in received
            self.failed(error)
        self._finish()

    def hand_over(self, data: bytes) -> None:
        """Leave the connection to mitmproxy's layers, from these bytes on."""
        self._lane = None
        self._watch.stop()
        self._progress.stop()
        self._door.hand_over(self, data)

    def handed_back(self) -> None:
        """Those are done with it, and the socket is closed."""
        self._door.gone(self)

    # -- what the lane asks for ---------------------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """Connections to targets that wait."""
        return self._hooks.pool

    @property
    def dialler(self) -> Dialler:
        """What connects to targets."""
        return self._hooks.judge.dialler

    @property
    def targets(self) -> TargetTls:
        """What TLS to them is made with."""
        return self._hooks.upstream.targets

    def admit(self, turn: Turn, then: Callable[[Turn], None]) -> bool:
        """Have a request judged, and rewritten where it may go: True where that is done, else `then` is told later."""
        try:
            at_once, connected = self.steps.at_once, self._connected()
            noted = None if turn.collecting else at_once(self.state, turn.exchange, turn.wire, connected)
        except Exception as error:  # noqa: BLE001 - as in _judge
            self._not_judged(turn, error)
            return True
        work = self._judge_and_go_on(turn, then) if noted is None else self._write_and_go_on(turn, noted, then)
        task = asyncio.Task(work, loop=self._loop, eager_start=True)
        if task.done():
            return True
        self._judging[turn] = task
        return False

    def waits(self, turn: Turn) -> None:
        """A request that `admit` was not asked for waits for the disk; `judged` or `written` is next."""
        self._judging[turn] = None

    def written(self, turn: Turn, noted: Use, then: Callable[[Turn], None]) -> None:
        """Such a request may have to wait longer, or not be sent: as `admit` has it."""
        task = asyncio.Task(self._write_and_go_on(turn, noted, then), loop=self._loop, eager_start=True)
        if not task.done():
            self._judging[turn] = task

    def anew(self, turn: Turn, then: Callable[[Turn], None]) -> None:
        """Such a request was not written down after all: whoever judges it from the start finds why."""
        del self._judging[turn]
        if self.dead or self.admit(turn, then):
            self.judged(turn, then)

    async def _judge_and_go_on(self, turn: Turn, then: Callable[[Turn], None]) -> None:
        """Go on in this very task: a callback of its end would cost another turn of the loop."""
        try:
            await self._judge(turn)
        except asyncio.CancelledError:
            self.judged(turn, None)
            raise
        if turn in self._judging:  # it had to wait, and `admit` has returned
            self.judged(turn, then)

    async def _judge(self, turn: Turn) -> None:
        try:
            body = b"".join(turn.kept) if turn.collecting else None
            admitted = await self.steps.admit(self.state, turn.exchange, turn.wire, self._connected(), body)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a judgement: it ends in a denial
            self._not_judged(turn, error)
            return
        if admitted is None:
            return
        turn.collecting = isinstance(admitted, BodyWanted)
        if not isinstance(admitted, BodyWanted):
            turn.take(admitted)
        turn.exchange.pass_on()

    async def _write_and_go_on(self, turn: Turn, noted: Use | Deny, then: Callable[[Turn], None]) -> None:
        """The same for a request that is only to be on the disk: in one coroutine, since nearly each is one."""
        try:
            out = await self.steps.written(self.state, turn.exchange, turn.wire, noted)
            if out is not None:
                turn.take(out)
                turn.exchange.pass_on()
        except asyncio.CancelledError:
            self.judged(turn, None)
            raise
        except Exception as error:  # noqa: BLE001 - as in _judge
            self._not_judged(turn, error)
        if turn in self._judging:
            self.judged(turn, then)

    def judged(self, turn: Turn, then: Callable[[Turn], None] | None) -> None:
        """A request that had to wait doesn't any more; the lane goes on with it, unless all is over."""
        self._judging.pop(turn, None)
        if self.dead:
            self._record_if_dead()
        if then is not None and not self.dead:
            self._moved = monotonic()
            try:
                then(turn)
            except Exception as error:  # noqa: BLE001 - as in received
                self.failed(error)
        if self._is_lost and not self._judging:
            self._settle()

    def _not_judged(self, turn: Turn, error: Exception) -> None:
        """A judgement failed. Its refusal, stamped before, is spoken."""
        exchange, records = turn.exchange, self._hooks.judge.records
        detail = f"judging: {type(error).__name__}"
        logger.error("gateway: %s at %s", detail, where(error))
        exchange.refusal = exchange.refusal or Refusal(deny=deny(Reason.INTERNAL))
        self.state.run.denied += 1
        try:
            if exchange.intent_seq:
                records.outcome(self.state, exchange, reason=Reason.INTERNAL, detail=detail)
            else:
                records.deny(self.state, exchange, exchange.refusal, turn.wire, detail)
        except LedgerError:
            exchange.refusal = Refusal(deny=deny(Reason.LEDGER_UNAVAILABLE))

    def _connected(self) -> frozenset[Key]:
        return self._lane.open_to if self._lane is not None else frozenset()

    def heard(self, lane: TargetSide, link: Link, data: bytes = b"") -> None:
        """Something came of a target, or it ended."""
        self._moved = monotonic()
        try:
            if data:
                if not link.inbox and lane.answered(link, data):
                    return
                link.inbox.append(data)
            lane.heard(link)
        except Exception as error:  # noqa: BLE001 - as in received
            self.failed(error)

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call something of the lane's when it is time."""
        return self._loop.call_later(seconds, self._timed, call)

    def _timed(self, call: Callable[[], None]) -> None:
        if self.dead:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001 - as in received
            self.failed(error)

    # -- how it ends --------------------------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """What was to be done raised: nothing more is sent on any side."""
        logger.error("gateway: lane failed: %s at %s", type(error).__name__, where(error))
        self.end(Reason.INTERNAL, f"lane: {type(error).__name__}")

    def kill(self) -> None:
        """Close the client's connection and the upstream one at once, with nothing more sent on either."""
        self.dead = self.state.closed = True
        self._progressed()
        for exchange in self.state.exchanges:
            exchange.disarm()
        self.pipe.reset()
        if self._lane is not None:
            self._lane.killed()

    def _finish(self) -> None:
        self._progressed()
        self.pipe.close(notify=True)

    def _expect_progress(self) -> None:
        """End the connection unless `_progressed` is called in time."""
        self._progress.later(self.steps.timeouts.tls, self.kill)

    def _progressed(self) -> None:
        self._progress.cancel()

    def _look(self) -> None:
        """End it where nothing has moved for the idle time; else look again when that could be so."""
        left = self._moved + self.steps.timeouts.idle - monotonic()
        if left > 0 or self._judging:
            self._watch.until(self._loop.time() + max(left, 1.0), self._look)
            return
        self.ended(self.pipe)
        self.pipe.close()
