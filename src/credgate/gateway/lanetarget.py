"""The strict lane's side of the targets, and how it answers and ends: what `lane.Lane` is made on."""

from typing import TYPE_CHECKING

from credgate.gateway.deadline import Deadline
from credgate.gateway.framing import Chunked, Counted, chunk
from credgate.gateway.link import Link
from credgate.gateway.refusal import Refusal, deny
from credgate.gateway.turn import Turn, refusal_bytes, request_bytes
from rules.reasons import Reason
from rules.verdict import Deny

if TYPE_CHECKING:
    import asyncio

    from credgate.gateway.client import Client

LINGER = 5.0  # seconds in which a client may still send a body that was refused: it has to see the answer


class TargetSide:
    """Everything of a lane but what its client sends. `_turn` is the one request that is on its way."""

    def __init__(self, client: "Client") -> None:
        self.client = self._client = client  # whose lane it is
        self._pipe, self._steps, self._state = client.pipe, client.steps, client.state
        self._buffer = b""
        self._turn: Turn | None = None
        self._link: Link | None = None
        self._deadline = Deadline()  # for the answer's head
        self._over = False
        self._lingering = False
        self._rest: Counted | Chunked | None = None  # of a request, read and forgotten
        self._goes_on = False  # behind it
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, link: Link) -> None:
        """Something came of a target."""
        raise NotImplementedError

    def answered(self, link: Link, data: bytes) -> bool:
        """Take an answer whole, in one step. False: `heard` is to be told."""
        raise NotImplementedError

    # -- the client's end --------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """End the client's connection; an upstream one that may be used again goes to the pool."""
        if self._over:
            return
        self._over, self._buffer = True, b""
        self._wait(None)
        self._deadline.stop()
        self._park()
        self._pipe.close(notify=True)

    def _send(self, data: bytes) -> None:
        self._pipe.send(data)

    def _wait(self, seconds: float | None) -> None:
        """Close the connection after this time; None: no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._client.later(seconds, self._close)

    def _refuse(self, turn: Turn) -> None:
        """Speak the refusal. Behind a long body that is still to come the connection ends."""
        refusal = turn.exchange.refusal
        if refusal is None:
            raise RuntimeError("refused without a reason")
        self._turn = None
        close = not (turn.client_keeps and (turn.request_done or turn.rest_is_short))
        self._send(refusal_bytes(turn, refusal, close=close))
        if not turn.request_done:
            self._linger(turn.body, goes_on=not close)
        elif close:
            self._close()

    def _linger(
        self, body: Counted | Chunked | None = None, *, goes_on: bool = False, seconds: float | None = None
    ) -> None:
        """Read and forget for a while: a connection closed on unread bytes is reset, and the answer lost with it."""
        self._lingering, self._rest, self._goes_on = True, body, goes_on
        data, self._buffer = self._buffer, b""
        self._wait(LINGER if seconds is None else seconds)
        self._forget(data)

    def _forget(self, data: bytes) -> None:
        """The end of the body ends the wait: measured, Bun sends its next request behind a `connection: close` too."""
        body = self._rest
        if body is None:
            return
        _, behind = body.feed(data)
        if body.done and self._goes_on:
            self._wait(None)
            self._lingering, self._rest, self._buffer = False, None, behind
        elif body.done and not behind:
            self._close()
        elif body.done or body.fault is not None:
            self._rest = None

    # -- the target -------------------------------------------------------------------------------------------------

    def _open(self, turn: Turn) -> None:
        """Get a connection: the one at hand, one that another client connection left or doesn't need, or a new one."""
        target, run = turn.exchange.target, self._state.run
        if target is None:
            raise RuntimeError("no target")
        link, pool = self._link, self._client.pool
        if link is not None and not (link.is_quiet and link.owned.serves(run, target, link.pin)):
            self._park()
        link = self._link or (None if turn.retried else pool.take(run, target))
        if link is None:
            link = Link(run, target, self)
            self._link = turn.link = link
            link.dial(self._client.dialler, self._client.targets, self._steps.timeouts.tls)
            return
        pool.busy(link)
        self._link, link.lane = link, self
        turn.link = link
        self._state.pins[target.key] = turn.exchange.pin = link.pin
        self._send_head(turn)

    def lend(self, link: Link) -> None:
        """Another client connection of the run takes the link, which rests."""
        if link is self._link:
            self._link = None
            self._state.pins.pop(link.owned.target.key, None)

    def _park(self) -> None:
        """Leave the connection to the run's next client connection, if it may be used again."""
        link, self._link = self._link, None
        if link is None:
            return
        self._state.pins.pop(link.owned.target.key, None)
        self._client.pool.busy(link)
        if link.is_quiet and not self._client.dead:
            self._client.pool.put(link)
        else:
            link.close()

    def _drop(self) -> None:
        """Close the connection to the target."""
        link, self._link = self._link, None
        if link is not None:
            self._state.pins.pop(link.owned.target.key, None)
            self._client.pool.busy(link)
            link.close()

    def connected(self, link: Link, peer: str) -> None:
        """The connection to a judged address is there."""
        target = link.owned.target
        self._state.pins[target.key], self._state.targets[target.key] = peer, target
        if self._turn is not None and self._turn.link is link:
            self._turn.exchange.pin = peer

    def blame(self, link: Link, reason: Reason, detail: str = "") -> None:
        """There will be no connection: who waits for it learns why."""
        self._state.blame(link.owned.target.key, reason, detail)

    def _wait_for_answer(self, turn: Turn) -> None:
        link = turn.link
        if link is not None:
            self._steps.await_answer(turn.exchange, connected=link.opened, drop=link.cut, deadline=self._deadline)

    def look_at(self, link: Link) -> None:
        """Go on with what came from a target."""
        turn, data = self._turn, link.taken()
        if turn is None or turn.link is not link:
            if link is self._link and (data or link.closed):  # bytes that nobody asked for, or the end
                self._drop()
        elif not turn.head_sent:
            if link.failed or link.closed or data:
                self._no_answer(turn, Reason.UPSTREAM_INVALID if data else Reason.UPSTREAM_RESET)
            elif link.opened:
                self._send_head(turn)
        else:
            if data:
                self._answer(turn, data)
            if link.closed and self._turn is turn:
                self._ended(turn, link)

    def _send_head(self, turn: Turn) -> None:
        turn.head_sent = True
        self._upload(turn, request_bytes(turn))
        if turn.expects and self._turn is turn and not turn.request_done and not self._buffer:
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _upload(self, turn: Turn, head: bytes = b"") -> None:
        """Send what there is of the request's body, behind its head."""
        body, link = turn.body, turn.link
        if body is None or link is None:
            raise RuntimeError("a body without its length, or without a connection")
        more, self._buffer = body.feed(self._buffer)
        pieces, turn.kept = [*turn.kept, *more], []
        if body.fault is not None:
            self._break_off(turn, deny(Reason.MALFORMED), str(body.fault))
            return
        turn.exchange.look(pieces)
        if turn.exchange.leaving is not None:
            clean = self._steps.leaving(self._state, turn.exchange, b"".join(pieces), last=body.done)
            if isinstance(clean, Deny):
                self._break_off(turn, clean, clean.hint)
                return
            pieces = [clean] if clean else []
        over = self._steps.sent(self._state, turn.exchange, sum(map(len, pieces)))
        if over is not None:
            self._break_off(turn, over, over.hint)
            return
        if turn.exchange.digests is not None:
            turn.exchange.digests.sent(pieces)
        self._wait_for_answer(turn)
        data = chunk(pieces, last=body.done) if isinstance(body, Chunked) else b"".join(pieces)
        if head or data:
            link.send(head + data if data else head)

    def _break_off(self, turn: Turn, why: Deny, detail: str) -> None:
        """The client's body can't go on: the target gets no end of it."""
        self._steps.finish(self._state, turn.exchange, reason=why.reason, detail=detail)
        self._drop()
        turn.body, answered = None, turn.answer is not None
        if answered:
            self._turn = None
            self._close()
            return
        turn.exchange.refusal = Refusal(deny=why)
        self._refuse(turn)

    def _answer(self, turn: Turn, data: bytes) -> None:
        """Take bytes of an answer."""
        raise NotImplementedError

    def _ended(self, turn: Turn, link: Link) -> None:
        """The target closed its connection."""
        raise NotImplementedError

    def _no_answer(self, turn: Turn, default: Reason) -> None:
        """The target gave no answer that may pass: the refusal says why."""
        raise NotImplementedError
