"""The strict lane's side of the targets, and how it answers and ends: what `lane.Lane` is made on."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from credgate.gateway.cleaning import Unreadable
from credgate.gateway.deadline import Deadline
from credgate.gateway.exchange import Exchange
from credgate.gateway.framing import Chunked, Counted, FramingError, UntilClose, chunk, response_body, tokens
from credgate.gateway.head import HeadError, ResponseHead, take_response
from credgate.gateway.link import Link
from credgate.gateway.refusal import Refusal, deny
from credgate.gateway.turn import Turn, answer_bytes, closes, keeps, refusal_bytes, request_bytes
from rules.reasons import Reason
from rules.verdict import Deny

if TYPE_CHECKING:
    import asyncio

    from credgate.gateway.client import Client

LINGER = 5.0  # seconds in which a client may still send a body that was refused: it has to see the answer
MAX_INTERIM = 16  # 1xx answers to one request


class TargetSide:
    """Everything of a lane but what its client sends. `_turn` is the one request that is on its way."""

    def __init__(self, client: "Client") -> None:
        self._client, self._pipe, self._steps, self._state = client, client.pipe, client.steps, client.state
        self._buffer = b""
        self._turn: Turn | None = None
        self._link: Link | None = None
        self._deadline = Deadline()  # for the answer's head
        self._over = False
        self._lingering = False
        self._rest: Counted | Chunked | None = None  # of a request, read and forgotten
        self._goes_on = False  # behind it
        self._timer: asyncio.TimerHandle | None = None

    @property
    def client(self) -> "Client":
        """Whose connection it is."""
        return self._client

    def heard(self, link: Link) -> None:
        """Something came of a target."""
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
        """Take bytes of an answer: interim heads are swallowed, we answer Expect ourselves."""
        if turn.answer is not None:
            self._download(turn, data)
            return
        turn.held += data
        try:
            while (taken := take_response(turn.held, turn.seen)) is not None:
                head, size = taken
                turn.held, turn.seen = turn.held[size:], 0
                if head.status >= 200:
                    self._answer_head(turn, head)
                    return
                if head.status == 101:
                    raise HeadError("an upgrade that nobody asked for")
                turn.interim += 1
                if turn.interim > MAX_INTERIM:
                    raise HeadError("interim answers without end")
        except (HeadError, FramingError):
            self._no_answer(turn, Reason.UPSTREAM_INVALID)
            return
        turn.seen = len(turn.held)

    def _answer_head(self, turn: Turn, head: ResponseHead) -> None:
        """Let an answer through. Raises FramingError where it has no one end."""
        body = response_body(turn.head.method, head.status, head.fields, head.version)
        if isinstance(body, Chunked) and turn.head.version != b"HTTP/1.1":
            raise FramingError("chunks for a client of HTTP/1.0")
        fields = self._steps.answered(self._state, turn.exchange, head.status, head.fields)
        if fields is None:
            self._no_answer(turn, Reason.UPSTREAM_INVALID)
            return
        cleaning = turn.exchange.cleaning
        turn.chunked = isinstance(body, Chunked)
        if cleaning is not None:
            phrase = cleaning.text(head.phrase, "the reason phrase")
            if phrase != head.phrase:
                head = replace(head, phrase=phrase)
            turn.chunked |= cleaning.decodes and isinstance(body, Counted) and turn.head.version == b"HTTP/1.1"
        turn.answer, turn.keep = body, _persists(turn, head)
        held, turn.held, turn.unsent = turn.held, b"", answer_bytes(turn, head, fields)
        self._download(turn, held)

    def _download(self, turn: Turn, data: bytes) -> None:
        """Send what there is of the answer's body, behind its head; the last of it once its end is in the ledger."""
        body = turn.answer
        if body is None:
            raise RuntimeError("a body before its head")
        pieces, rest = body.feed(data)
        if rest:
            turn.keep, turn.detail = False, "bytes behind the end of the answer"
        try:
            self._pass(turn, pieces, last=body.done)
        except Unreadable as why:
            self._unreadable(turn, str(why))
            return
        if body.fault is not None:
            self._truncated(turn)
        elif body.done:
            self._done(turn)

    def _pass(self, turn: Turn, pieces: list[bytes], *, last: bool) -> None:
        """Send pieces of an answer's body as far as they may go. Raises Unreadable; nothing of them is sent then."""
        cleaning = turn.exchange.cleaning
        if cleaning is not None:
            clean = cleaning.feed(b"".join(pieces)) + (cleaning.finish() if last else b"")
            pieces = [clean] if clean else []
            if cleaning.decodes and turn.unsent and not (pieces or last):
                return
        self._steps.received(turn.exchange, sum(map(len, pieces)))
        if turn.exchange.digests is not None:
            turn.exchange.digests.received(pieces)
        head, turn.unsent = turn.unsent, b""
        turn.exchange.pass_on()
        out = head + (chunk(pieces, last=last) if turn.chunked else b"".join(pieces))
        if last:
            self._steps.finish(self._state, turn.exchange, detail=turn.detail)
        if out:
            self._send(out)

    def _unreadable(self, turn: Turn, detail: str) -> None:
        """An answer turns out to be none that can be searched."""
        turn.exchange.failure, turn.exchange.why = Reason.RESPONSE_UNREADABLE, detail
        if turn.unsent:
            turn.exchange.status, turn.exchange.refusal = 0, None
            self._no_answer(turn, Reason.RESPONSE_UNREADABLE)
        elif isinstance(turn.answer, UntilClose):  # a FIN would be its proper end
            self._client.end(Reason.RESPONSE_UNREADABLE, detail)
        else:
            self._truncated(turn)

    def _done(self, turn: Turn) -> None:
        """An answer is whole and in the ledger."""
        self._turn = None
        if turn.link is not None:
            turn.link.uses += 1
        if not (turn.keep and turn.request_done):
            self._drop()
        elif self._link is not None:
            self._client.pool.rest(self._link)
        if not turn.request_done:
            self._linger(turn.body)
        elif closes(turn):
            self._close()

    def _ended(self, turn: Turn, link: Link) -> None:
        """The target closed its connection."""
        if turn.may_retry:
            self._send_again(turn)
        elif turn.answer is None:
            self._no_answer(turn, Reason.UPSTREAM_INVALID if turn.held else Reason.UPSTREAM_RESET)
        elif not isinstance(turn.answer, UntilClose):
            self._truncated(turn)
        elif link.broken or turn.exchange.failure is not None:
            # a FIN would be the proper end of a body without length
            self._client.end(turn.exchange.failure or Reason.UPSTREAM_RESET, "an answer without length was reset")
        else:
            self._closed_well(turn)

    def _closed_well(self, turn: Turn) -> None:
        """An answer without length is whole."""
        try:
            self._pass(turn, [], last=True)
        except Unreadable as why:
            self._unreadable(turn, str(why))
        else:
            self._done(turn)

    def _send_again(self, turn: Turn) -> None:
        """Have the request judged anew and sent on a new connection: the target may have had it twice, so each sending
        has its own intent, tag and outcome.
        """
        self._steps.finish(self._state, turn.exchange, reason=Reason.UPSTREAM_RESENT)
        before = turn.exchange
        turn.exchange = Exchange(authority=before.authority, scheme=before.scheme, body_max=before.body_max)
        turn.retried, turn.head_sent, self._link, self._turn = True, False, None, None
        self._judge(turn)

    def _judge(self, turn: Turn) -> None:
        """Ask the rules, and go on with the request or refuse it."""
        raise NotImplementedError

    def _truncated(self, turn: Turn) -> None:
        """The client has a head and no whole body: its connection ends before the body does."""
        self._turn = None
        reason = turn.exchange.failure or Reason.UPSTREAM_INVALID
        self._steps.finish(self._state, turn.exchange, reason=reason)
        self._drop()
        self._close()

    def _no_answer(self, turn: Turn, default: Reason) -> None:
        """The target gave no answer that may pass: the refusal says why."""
        turn.exchange.failure = turn.exchange.failure or default
        self._steps.broke(self._state, turn.exchange)
        self._drop()
        self._refuse(turn)


def _persists(turn: Turn, head: ResponseHead) -> bool:
    """Whether the target keeps the connection; how long, if it says so (no standard, but many servers do)."""
    for member in tokens(head.fields, b"keep-alive"):
        name, _, seconds = member.partition(b"=")
        if name == b"timeout" and seconds.isdigit() and len(seconds) < 6 and turn.link is not None:
            turn.link.idle = min(turn.link.idle, max(0.0, int(seconds) - 1.0))
    both = keeps(head.version, head.fields) and turn.head.version == b"HTTP/1.1"
    return both and not isinstance(turn.answer, UntilClose)
