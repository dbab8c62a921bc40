"""An answer of a target's on its way through the strict lane: its head, its body, its end, and how it breaks."""

from msgspec.structs import replace

from credgate.gateway.again import Again, is_steady, known
from credgate.gateway.cleaning import Unreadable
from credgate.gateway.exchange import Exchange
from credgate.gateway.framing import Body, Chunked, Counted, FramingError, UntilClose, chunk, response_body, tokens
from credgate.gateway.head import HeadError, ResponseHead, take_response
from credgate.gateway.lanetarget import TargetSide
from credgate.gateway.link import IDLE, Link
from credgate.gateway.turn import Turn, answer_lines, closes, ended, keeps
from rules.reasons import Reason

MAX_INTERIM = 16  # 1xx answers to one request


class Answering(TargetSide):
    """What a lane does with what its target says to the one request that is on its way."""

    def _answer(self, turn: Turn, data: bytes) -> None:
        """Take bytes of an answer: interim heads are swallowed, we answer Expect ourselves."""
        if turn.answer is not None:
            self._download(turn, data)
            return
        turn.held += data
        again = known(turn.exchange, turn.held, self._state.run.policy)
        if again is not None and self._steps.answered_again(self._state, turn.exchange, again):
            self._answer_again(turn, again)
            return
        try:
            while (taken := take_response(turn.held, turn.seen)) is not None:
                head, size = taken
                raw, turn.held, turn.seen = turn.held[:size], turn.held[size:], 0
                if head.status >= 200:
                    self._answer_head(turn, head, raw)
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

    def _answer_again(self, turn: Turn, again: Again) -> None:
        """Let an answer through whose head is the last one's, byte by byte."""
        turn.answer, turn.chunked, turn.keep = again.body(), again.chunked, again.keep
        if turn.link is not None:
            turn.link.idle = min(turn.link.idle, again.idle)
        held, turn.held, turn.unsent = turn.held, b"", ended(turn, again.lines)
        self._download(turn, held[len(again.raw) :])

    def _answer_head(self, turn: Turn, head: ResponseHead, raw: bytes) -> None:
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
        turn.answer, turn.keep, idle = body, _persists(turn, head, body), _idle(head)
        if turn.link is not None:
            turn.link.idle = min(turn.link.idle, idle)
        lines = answer_lines(turn, head, fields)
        if not isinstance(body, UntilClose):
            self._remember(turn, body, raw, lines, idle)
        held, turn.held, turn.unsent = turn.held, b"", ended(turn, lines)
        self._download(turn, held)

    def _remember(self, turn: Turn, body: Counted | Chunked, raw: bytes, lines: bytes, idle: float) -> None:
        exchange = turn.exchange
        if exchange.sent is not None and is_steady(exchange, raw):
            exchange.sent.again = Again(
                raw=raw,
                policy=self._state.run.policy,
                table=None if exchange.cleaning is None else exchange.cleaning.table,
                status=exchange.status,
                ids=exchange.ids,
                length=body.left if isinstance(body, Counted) else None,
                chunked=turn.chunked,
                keep=turn.keep,
                idle=idle,
                lines=lines,
            )

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
        elif (
            turn.unsent and turn.exchange.timer is None and turn.link is not None
        ):  # once: each byte would begin it anew
            self._steps.await_coding(turn.exchange, turn.link.cut, self._deadline)

    def _pass(self, turn: Turn, pieces: list[bytes], *, last: bool) -> None:
        """Send pieces of an answer's body as far as they may go. Raises Unreadable; nothing of them is sent then."""
        cleaning = turn.exchange.cleaning
        if cleaning is not None:
            body = b"".join(pieces)
            if last:
                clean = cleaning.whole(body) if turn.unsent else cleaning.feed(body) + cleaning.finish()
            else:
                clean = cleaning.feed(body)
            pieces = [clean] if clean else []
            if cleaning.decodes and turn.unsent and not (pieces or last):
                return
        self._steps.received(turn.exchange, sum(map(len, pieces)))
        if turn.exchange.digests is not None:
            turn.exchange.digests.received(pieces)
        head, turn.unsent = turn.unsent, b""
        if turn.exchange.timer is not None:
            turn.exchange.disarm()
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
            self._unsaid(turn)
        elif isinstance(turn.answer, UntilClose):  # a FIN would be its proper end
            self._client.end(Reason.RESPONSE_UNREADABLE, detail)
        else:
            self._truncated(turn)

    def _unsaid(self, turn: Turn) -> None:
        """An answer of which nothing has gone on is none: the refusal says why."""
        turn.exchange.status, turn.exchange.refusal = 0, None
        self._no_answer(turn, Reason.UPSTREAM_INVALID)

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
        elif turn.unsent and turn.exchange.failure is not None:
            self._unsaid(turn)
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


def _idle(head: ResponseHead) -> float:
    """How long the target keeps the connection, if it says so (no standard, but many servers do)."""
    idle = IDLE
    for member in tokens(head.fields, b"keep-alive"):
        name, _, seconds = member.partition(b"=")
        if name == b"timeout" and seconds.isdigit() and len(seconds) < 6:
            idle = min(idle, max(0.0, int(seconds) - 1.0))
    return idle


def _persists(turn: Turn, head: ResponseHead, body: Body) -> bool:
    """Whether the target keeps the connection."""
    both = keeps(head.version, head.fields) and turn.head.version == b"HTTP/1.1"
    return both and not isinstance(body, UntilClose)
