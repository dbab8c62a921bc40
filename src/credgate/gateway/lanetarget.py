"""The strict lane's side of the targets, and how it answers and ends: what `lane.Lane` is made on."""

from dataclasses import replace
from typing import TYPE_CHECKING

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context

from credgate.gateway.cleaning import Unreadable
from credgate.gateway.exchange import Exchange
from credgate.gateway.framing import Chunked, Counted, FramingError, UntilClose, chunk, response_body, tokens
from credgate.gateway.head import HeadError, ResponseHead, cut, parse_response_head
from credgate.gateway.link import Link
from credgate.gateway.refusal import Refusal, deny
from credgate.gateway.turn import Turn, answer_bytes, closes, keeps, refusal_bytes, request_bytes
from rules.reasons import Reason
from rules.verdict import Deny

if TYPE_CHECKING:
    from credgate.gateway.handler import GateHandler

LINGER = 5.0  # seconds in which a client may still send a body that was refused: it has to see the answer
MAX_INTERIM = 16  # 1xx answers to one request

type Commands = layer.CommandGenerator[None]


class TargetSide(layer.Layer):
    """Everything of a lane but what its client sends. `_turn` is the one request that is on its way."""

    def __init__(self, context: Context, handler: "GateHandler") -> None:
        super().__init__(context)
        self._handler, self._steps, self._state = handler, handler.steps, handler.state
        self._buffer = b""
        self._turn: Turn | None = None
        self._link: Link | None = None
        self._over = False
        self._lingering = False
        self._rest: Counted | Chunked | None = None  # of a request, read and forgotten
        self._goes_on = False  # behind it
        self._timer: commands.RequestWakeup | None = None
        self._asked: dict[int, Link] = {}  # by the id of a command, whose answer goes to the link that gave it

    # -- the client's end --------------------------------------------------------------------------------------------

    def _close(self) -> Commands:
        """End the client's connection; an upstream one that may be used again goes to the pool."""
        if self._over:
            return
        self._over, self._buffer = True, b""
        self._park()
        if self.context.client.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.context.client)

    def _send(self, data: bytes) -> Commands:
        if self.context.client.state & ConnectionState.CAN_WRITE:
            yield commands.SendData(self.context.client, data)

    def _refuse(self, turn: Turn) -> Commands:
        """Speak the refusal. Behind a long body that is still to come the connection ends."""
        refusal = turn.exchange.refusal
        if refusal is None:
            raise RuntimeError("refused without a reason")
        self._turn = None
        close = not (turn.client_keeps and (turn.request_done or turn.rest_is_short))
        yield from self._send(refusal_bytes(turn, refusal, close=close))
        if not turn.request_done:
            yield from self._linger(turn.body, goes_on=not close)
        elif close:
            yield from self._close()

    def _linger(
        self, body: Counted | Chunked | None = None, *, goes_on: bool = False, seconds: float | None = None
    ) -> Commands:
        """Read and forget for a while: a connection closed on unread bytes is reset, and the answer lost with it."""
        self._lingering, self._rest, self._goes_on = True, body, goes_on
        data, self._buffer = self._buffer, b""
        self._timer = commands.RequestWakeup(LINGER if seconds is None else seconds)
        yield self._timer
        yield from self._forget(data)

    def _forget(self, data: bytes) -> Commands:
        """The end of the body ends the wait: measured, Bun sends its next request behind a `connection: close` too."""
        body = self._rest
        if body is None:
            return
        _, behind = body.feed(data)
        if body.done and self._goes_on:
            self._lingering, self._rest, self._timer, self._buffer = False, None, None, behind
        elif body.done and not behind:
            yield from self._close()
        elif body.done or body.fault is not None:
            self._rest = None

    # -- the target -------------------------------------------------------------------------------------------------

    def _open(self, turn: Turn) -> Commands:
        """Get a connection: the one at hand, one of the pool, or a new one."""
        target, run = turn.exchange.target, self._state.run
        if target is None:
            raise RuntimeError("no target")
        link = self._link
        if link is not None and not (link.is_quiet and link.owned.serves(run, target, link.pin)):
            self._park()
        link = self._link or (None if turn.retried else self._handler.take(target, self))
        made = link is None
        if link is None:
            link = self._handler.new_link(Link.make(self.context, run, target, self._handler), self)
        self._link = turn.link = link
        if made:
            yield from self._from_link(link, events.Start())
        else:
            turn.exchange.pin = link.pin
            yield from self._send_head(turn)

    def _park(self) -> None:
        """Leave the connection to the run's next client connection, if it may be used again."""
        if self._link is not None:
            self._handler.park(self._link)
            self._link = None

    def _drop(self) -> Commands:
        """Close the connection to the target."""
        link, self._link = self._link, None
        if link is not None:
            yield commands.CloseConnection(link.server)

    def _wait_for_answer(self, turn: Turn) -> None:
        link = turn.link
        if link is not None:
            self._steps.await_answer(turn.exchange, connected=link.opened, drop=lambda: self._handler.drop(link.server))

    def _from_link(self, link: Link, event: events.Event) -> Commands:
        for command in link.handle(event):
            if command.blocking:
                self._asked[id(command)] = link
            yield command
        yield from self._look_at(link)

    def _look_at(self, link: Link) -> Commands:
        """Go on with what came from a target."""
        turn, data = self._turn, link.taken()
        if turn is None or turn.link is not link:
            if link is self._link and (data or link.closed):  # bytes that nobody asked for, or the end
                yield from self._drop()
        elif not turn.head_sent:
            if link.failed or link.closed or data:
                yield from self._no_answer(turn, Reason.UPSTREAM_INVALID if data else Reason.UPSTREAM_RESET)
            elif link.opened:
                yield from self._send_head(turn)
        else:
            if data:
                yield from self._answer(turn, data)
            if link.closed and self._turn is turn:
                yield from self._ended(turn, link)

    def _send_head(self, turn: Turn) -> Commands:
        turn.head_sent = True
        yield from self._upload(turn, request_bytes(turn))
        if turn.expects and self._turn is turn and not turn.request_done and not self._buffer:
            yield from self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _upload(self, turn: Turn, head: bytes = b"") -> Commands:
        """Send what there is of the request's body, behind its head."""
        body, link = turn.body, turn.link
        if body is None or link is None:
            raise RuntimeError("a body without its length, or without a connection")
        more, self._buffer = body.feed(self._buffer)
        pieces, turn.kept = [*turn.kept, *more], []
        if body.fault is not None:
            yield from self._break_off(turn, deny(Reason.MALFORMED), str(body.fault))
            return
        turn.exchange.look(pieces)
        if turn.exchange.leaving is not None:
            clean = self._steps.leaving(self._state, turn.exchange, b"".join(pieces), last=body.done)
            if isinstance(clean, Deny):
                yield from self._break_off(turn, clean, clean.hint)
                return
            pieces = [clean] if clean else []
        over = self._steps.sent(self._state, turn.exchange, sum(map(len, pieces)))
        if over is not None:
            yield from self._break_off(turn, over, over.hint)
            return
        if turn.exchange.digests is not None:
            turn.exchange.digests.sent(pieces)
        self._wait_for_answer(turn)
        data = chunk(pieces, last=body.done) if isinstance(body, Chunked) else b"".join(pieces)
        if head or data:
            yield from link.send(head + data)

    def _break_off(self, turn: Turn, why: Deny, detail: str) -> Commands:
        """The client's body can't go on: the target gets no end of it."""
        self._steps.finish(self._state, turn.exchange, reason=why.reason, detail=detail)
        yield from self._drop()
        turn.body, answered = None, turn.answer is not None
        if answered:
            self._turn = None
            yield from self._close()
            return
        turn.exchange.refusal = Refusal(deny=why)
        yield from self._refuse(turn)

    def _answer(self, turn: Turn, data: bytes) -> Commands:
        """Take bytes of an answer: interim heads are swallowed, we answer Expect ourselves."""
        if turn.answer is not None:
            yield from self._download(turn, data)
            return
        turn.held += data
        try:
            while (raw := cut(turn.held, turn.seen)) is not None:
                turn.held, turn.seen = turn.held[len(raw) + 4 :], 0
                head = parse_response_head(raw)
                if head.status >= 200:
                    yield from self._answer_head(turn, head)
                    return
                if head.status == 101:
                    raise HeadError("an upgrade that nobody asked for")
                turn.interim += 1
                if turn.interim > MAX_INTERIM:
                    raise HeadError("interim answers without end")
        except (HeadError, FramingError):
            yield from self._no_answer(turn, Reason.UPSTREAM_INVALID)
            return
        turn.seen = len(turn.held)

    def _answer_head(self, turn: Turn, head: ResponseHead) -> Commands:
        """Let an answer through. Raises FramingError where it has no one end."""
        body = response_body(turn.head.method, head.status, head.fields, head.version)
        if isinstance(body, Chunked) and turn.head.version != b"HTTP/1.1":
            raise FramingError("chunks for a client of HTTP/1.0")
        fields = self._steps.answered(self._state, turn.exchange, head.status, head.fields)
        if fields is None:
            yield from self._no_answer(turn, Reason.UPSTREAM_INVALID)
            return
        cleaning = turn.exchange.cleaning
        turn.chunked = isinstance(body, Chunked)
        if cleaning is not None:
            head = replace(head, phrase=cleaning.text(head.phrase, "the reason phrase"))
            turn.chunked |= cleaning.decodes and isinstance(body, Counted) and turn.head.version == b"HTTP/1.1"
        turn.answer, turn.keep = body, _persists(turn, head)
        held, turn.held, turn.unsent = turn.held, b"", answer_bytes(turn, head, fields)
        yield from self._download(turn, held)

    def _download(self, turn: Turn, data: bytes) -> Commands:
        """Send what there is of the answer's body, behind its head; the last of it once its end is in the ledger."""
        body = turn.answer
        if body is None:
            raise RuntimeError("a body before its head")
        pieces, rest = body.feed(data)
        if rest:
            turn.keep, turn.detail = False, "bytes behind the end of the answer"
        try:
            yield from self._pass(turn, pieces, last=body.done)
        except Unreadable as why:
            yield from self._unreadable(turn, str(why))
            return
        if body.fault is not None:
            yield from self._truncated(turn)
        elif body.done:
            yield from self._done(turn)

    def _pass(self, turn: Turn, pieces: list[bytes], *, last: bool) -> Commands:
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
        head, turn.unsent, turn.exchange.refusal = turn.unsent, b"", None
        out = head + (chunk(pieces, last=last) if turn.chunked else b"".join(pieces))
        if last:
            self._steps.finish(self._state, turn.exchange, detail=turn.detail)
        if out:
            yield from self._send(out)

    def _unreadable(self, turn: Turn, detail: str) -> Commands:
        """An answer turns out to be none that can be searched."""
        turn.exchange.failure, turn.exchange.why = Reason.RESPONSE_UNREADABLE, detail
        if turn.unsent:
            turn.exchange.status, turn.exchange.refusal = 0, None
            yield from self._no_answer(turn, Reason.RESPONSE_UNREADABLE)
        elif isinstance(turn.answer, UntilClose):  # a FIN would be its proper end
            self._handler.end(Reason.RESPONSE_UNREADABLE, detail)
        else:
            yield from self._truncated(turn)

    def _done(self, turn: Turn) -> Commands:
        """An answer is whole and in the ledger."""
        self._turn = None
        if turn.link is not None:
            turn.link.uses += 1
        if not (turn.keep and turn.request_done):
            yield from self._drop()
        if not turn.request_done:
            yield from self._linger(turn.body)
        elif closes(turn):
            yield from self._close()

    def _ended(self, turn: Turn, link: Link) -> Commands:
        """The target closed its connection."""
        if turn.may_retry:
            yield from self._send_again(turn)
        elif turn.answer is None:
            yield from self._no_answer(turn, Reason.UPSTREAM_INVALID if turn.held else Reason.UPSTREAM_RESET)
        elif not isinstance(turn.answer, UntilClose):
            yield from self._truncated(turn)
        elif link.broken or turn.exchange.failure is not None:
            # a FIN would be the proper end of a body without length
            self._handler.end(turn.exchange.failure or Reason.UPSTREAM_RESET, "an answer without length was reset")
        else:
            yield from self._closed_well(turn)

    def _closed_well(self, turn: Turn) -> Commands:
        """An answer without length is whole."""
        try:
            yield from self._pass(turn, [], last=True)
        except Unreadable as why:
            yield from self._unreadable(turn, str(why))
        else:
            yield from self._done(turn)

    def _send_again(self, turn: Turn) -> Commands:
        """Have the request judged anew and sent on a new connection: the target may have had it twice, so each sending
        has its own intent, tag and outcome.
        """
        self._steps.finish(self._state, turn.exchange, reason=Reason.UPSTREAM_RESENT)
        before = turn.exchange
        turn.exchange = Exchange(authority=before.authority, scheme=before.scheme, body_max=before.body_max)
        turn.retried, turn.head_sent, self._link, self._turn = True, False, None, None
        yield from self._judge(turn)

    def _judge(self, turn: Turn) -> Commands:
        """Ask the rules, and go on with the request or refuse it."""
        raise NotImplementedError

    def _truncated(self, turn: Turn) -> Commands:
        """The client has a head and no whole body: its connection ends before the body does."""
        self._turn = None
        reason = turn.exchange.failure or Reason.UPSTREAM_INVALID
        self._steps.finish(self._state, turn.exchange, reason=reason)
        yield from self._drop()
        yield from self._close()

    def _no_answer(self, turn: Turn, default: Reason) -> Commands:
        """The target gave no answer that may pass: the refusal says why."""
        turn.exchange.failure = turn.exchange.failure or default
        self._steps.broke(self._state, turn.exchange)
        yield from self._drop()
        yield from self._refuse(turn)


def _persists(turn: Turn, head: ResponseHead) -> bool:
    """Whether the target keeps the connection; how long, if it says so (no standard, but many servers do)."""
    for member in tokens(head.fields, b"keep-alive"):
        name, _, seconds = member.partition(b"=")
        if name == b"timeout" and seconds.isdigit() and len(seconds) < 6 and turn.link is not None:
            turn.link.idle = min(turn.link.idle, max(0.0, int(seconds) - 1.0))
    both = keeps(head.version, head.fields) and turn.head.version == b"HTTP/1.1"
    return both and not isinstance(turn.answer, UntilClose)
