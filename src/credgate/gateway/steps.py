"""What both lanes do with one exchange, and nothing that only one of them does: there is one judgement, one record.

Deny first: `admit` and `answered` stamp a denial, which the lane lifts once it has taken over what they returned.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from credgate.apart import BODIES
from credgate.gateway import standing, waiting
from credgate.gateway.again import UNAUTHORIZED, Again
from credgate.gateway.atonce import at_once
from credgate.gateway.capture import collect_ids
from credgate.gateway.cleaning import Cleaning, Unreadable, is_alarming, is_wanted, named
from credgate.gateway.deadline import Deadline
from credgate.gateway.exchange import ClientState, Exchange, Key
from credgate.gateway.judge import QUICK, Judge, over
from credgate.gateway.leaving import Leak, misplaced
from credgate.gateway.refusal import HEADER, Refusal, deny, stamp
from credgate.gateway.waiting import BodyWanted
from credgate.ledger.record import LedgerError
from credgate.minting.jailcall import LocalAnswer
from credgate.runs import Run
from rules.decide import decide_connect
from rules.grants import Use
from rules.messages import misfit
from rules.reasons import Reason
from rules.request import Outgoing, Request, Wire
from rules.scrub import Table
from rules.upgrades import accepts
from rules.verdict import Deny, Tunnel

type Fields = tuple[tuple[bytes, bytes], ...]

_PORT = re.compile(rb"[1-9][0-9]{0,4}")
_NEVER_BACK = frozenset({b"alt-svc", b"upgrade", b"proxy-authenticate", HEADER})
_COOKIES = frozenset({b"set-cookie"})
# of an answer, by whether it is an upgrade, and whether cookies are taken out
_NOT_BACK = {
    (upgraded, cookies): _NEVER_BACK - ({b"upgrade"} if upgraded else set()) | (_COOKIES if cookies else set())
    for upgraded in (False, True)
    for cookies in (False, True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds."""

    connect: float = 10.0
    tls: float = 10.0  # one handshake, on either side
    first_byte: float = 120.0  # from the last progress of the request to the response's head
    resolve: float = 10.0
    names: float = 30.0  # how long an answer of the host's resolver counts
    idle: float = 3600.0  # a connection on which nothing moves; an event stream may be quiet for long


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of an exchange, in their order."""

    judge: Judge
    timeouts: Timeouts

    def bad_head(self, state: ClientState, *, http: bool, detail: str) -> Refusal:
        """Record what is no HTTP head, of which nothing is known."""
        reason = Reason.MALFORMED if http else Reason.NOT_HTTP
        refusal = Refusal(deny=deny(reason))
        state.run.denied += 1
        self.judge.records.connection(state, reason, detail=detail, request_id=refusal.request_id)
        return refusal

    def open_tunnel(self, state: ClientState, authority: bytes) -> Deny | None:
        """Judge a CONNECT line; None opens the tunnel, and `state` has its host and port."""
        host, _, port = authority.rpartition(b":")
        verdict: Tunnel | Deny = deny(Reason.MALFORMED)
        if _PORT.fullmatch(port) and int(port) <= 0xFFFF and not state.connect_port:
            verdict = decide_connect(state.run.policy, state.run.role, host, int(port))
        if isinstance(verdict, Deny):
            return verdict
        state.connect_host, state.connect_port = host, int(port)
        return None

    async def admit(
        self,
        state: ClientState,
        exchange: Exchange,
        wire: Wire,
        connected: frozenset[Key],
        body: bytes | None = None,
    ) -> Outgoing | BodyWanted | None:
        """What to send; None where the request is refused. The stamp is the caller's to lift.

        BodyWanted: nothing is sent yet. The lane keeps the body, as far as `hold` lets it, and asks again with it.
        """
        exchange.refusal = stamp()
        verdict = await self.judge.judge(state, exchange, wire, connected, body)
        if isinstance(verdict, BodyWanted):
            return verdict
        if isinstance(verdict, LocalAnswer):
            waiting.let_go(state, exchange)
            self.judge.records.answered(state, exchange, verdict.mint)
            exchange.refusal = verdict
            return None
        if isinstance(verdict, Deny):
            self.refuse(state, exchange, wire, verdict)
            return None
        state.run.allowed += 1
        return verdict

    def at_once(
        self, state: ClientState, exchange: Exchange, wire: Wire, connected: frozenset[Key]
    ) -> Use | Deny | None:
        """As admit, up to where it waits for the disk, behind which `written` is asked. None: ask `admit`."""
        exchange.refusal = stamp()
        return at_once(self.judge, state, exchange, wire, connected)

    async def written(self, state: ClientState, exchange: Exchange, wire: Wire, noted: Use | Deny) -> Outgoing | None:
        """What to send of a request that `at_once` wrote down, now on the disk; None where it is refused."""
        sent, refused = exchange.sent, noted if isinstance(noted, Deny) else None
        if sent is None:
            raise RuntimeError("written before it was judged")
        try:
            if not isinstance(noted, Deny):
                if sent.names:
                    await self.judge.records.ledger.durable(exchange.intent_seq)
                refused = over(state, noted)
        except LedgerError:
            refused = deny(Reason.LEDGER_UNAVAILABLE)
        if refused is not None:
            self.refuse(state, exchange, wire, await self.judge.denied(state, wire, refused))
            return None
        state.run.allowed += 1
        return sent.numbered(exchange.intent_seq)

    def refuse(self, state: ClientState, exchange: Exchange, wire: Wire | None, verdict: Deny) -> None:
        """Make a Deny the answer, and record it."""
        waiting.let_go(state, exchange)
        state.run.denied += 1
        exchange.refusal = Refusal(deny=verdict)
        try:
            if exchange.intent_seq:
                self.judge.records.outcome(state, exchange, reason=verdict.reason)
            else:
                self.judge.records.deny(state, exchange, exchange.refusal, wire)
        except LedgerError:
            exchange.refusal = Refusal(deny=deny(Reason.LEDGER_UNAVAILABLE))

    def hold(self, state: ClientState, exchange: Exchange, wire: Wire, size: int) -> bool:
        """Count bytes of a body that is kept to be judged; True: the request is refused for them."""
        over = waiting.hold(state, exchange, size)
        if over is not None:
            self.refuse(state, exchange, wire, over)
        return over is not None

    def await_answer(
        self, exchange: Exchange, *, connected: bool, drop: Callable[[], None], deadline: Deadline | None = None
    ) -> None:
        """Wait for the answer's head from now on; `drop` ends the upstream connection when it is late."""
        exchange.disarm()
        if exchange.status or exchange.finished:
            return
        wait = self.timeouts.first_byte
        if not connected:
            wait += self.timeouts.connect + self.timeouts.tls
        later = asyncio.get_running_loop().call_later if deadline is None else deadline.later
        exchange.timer = later(wait, partial(_late, exchange, drop))

    def await_coding(self, exchange: Exchange, drop: Callable[[], None], deadline: Deadline) -> None:
        """Wait as long once more, and no longer, until what an answer is coded in makes a first byte of its body."""
        exchange.timer = deadline.later(self.timeouts.first_byte, partial(_late, exchange, drop))

    def leaving(self, state: ClientState, exchange: Exchange, data: bytes, *, last: bool) -> bytes | Deny:
        """What may go out now of a request's body that is streamed. Deny: it holds a secret, and the rest must not."""
        if exchange.leaving is None:
            return data
        try:
            out = exchange.leaving.feed(data) if data else b""
            return out + exchange.leaving.finish() if last else out
        except Leak as leak:
            return misplaced(state.run.policy, leak.names, "body")

    def sent(self, state: ClientState, exchange: Exchange, size: int) -> Deny | None:
        """Count bytes of the request's body that are about to go out. Deny: they must not, the connection ends."""
        refused = standing.sent(state.run, size)
        if refused is None:
            exchange.req_bytes += size
        return refused

    def answered(self, state: ClientState, exchange: Exchange, status: int, fields: Fields) -> Fields | None:
        """The answer's headers for the client; None where it is none that may pass. The caller lifts the stamp."""
        exchange.refusal = stamp()
        exchange.disarm()
        request = exchange.request
        upgraded = status == 101 and request is not None and bool(request.upgrade) and accepts(request.headers, fields)
        if status < 200 and not upgraded:
            self._withhold(state, exchange, Reason.UPSTREAM_INVALID)
            return None
        try:
            fields = self._cleaned(state, exchange, status, fields)
        except Unreadable as why:
            self._withhold(state, exchange, Reason.RESPONSE_UNREADABLE, str(why))
            return None
        exchange.status, exchange.ids = status, collect_ids(fields)
        if status == UNAUTHORIZED and exchange.sent is not None:
            self.judge.doubt(state.run, exchange.sent.secrets)
        drop = _NOT_BACK[upgraded, _drops_cookies(exchange)]
        return tuple([f for f in fields if f[0].lower() not in drop])

    def _withhold(self, state: ClientState, exchange: Exchange, reason: Reason, detail: str = "") -> None:
        """An answer that may not pass: the client is told why."""
        exchange.failure = reason
        exchange.refusal = Refusal(deny=deny(reason))
        self.finish(state, exchange, reason=reason, detail=detail)

    def _cleaned(self, state: ClientState, exchange: Exchange, status: int, fields: Fields) -> Fields:
        """An answer's headers without secrets, and how its body will be searched. Raises Unreadable."""
        request, allow = exchange.request, exchange.allow
        if request is None or allow is None or not is_wanted(state.run.policy, allow):
            return fields
        cleaning = exchange.cleaning = _cleaning(self.judge.known.table(), state.run, exchange, request)
        bodiless = request.method == "HEAD" or status in (101, 204, 304)
        return cleaning.head(status, fields, bodiless=bodiless)

    def answered_again(self, state: ClientState, exchange: Exchange, again: Again) -> bool:
        """As `answered`, for a head of which all is known. False: by now other secrets are searched for."""
        table, request = again.table, exchange.request
        if table is not None:
            if request is None or self.judge.known.table() is not table:
                return False
            exchange.cleaning = _cleaning(table, state.run, exchange, request)
        exchange.disarm()
        exchange.status, exchange.ids = again.status, again.ids
        return True

    def passed(self, state: ClientState, exchange: Exchange, outward: bool, size: int) -> str:
        """Count bytes of a WebSocket, `outward` to the target. A text: they may not pass, and the socket ends."""
        if not outward:
            self.received(exchange, size)
            return ""
        over = self.sent(state, exchange, size)
        return "" if over is None else f"{over.reason.value}: {over.hint or over.message}"

    async def judge_message(self, run: Run, exchange: Exchange, text: bytes) -> str:
        """Hold a WebSocket's message against what its handshake was allowed with. A text: why it may not go on."""
        if exchange.allow is None:
            return "nothing was allowed"
        messages = exchange.allow.messages
        return misfit(messages, text) if len(text) < QUICK else await BODIES.do(run.id, partial(misfit, messages, text))

    def received(self, exchange: Exchange, size: int) -> None:
        """Count bytes of the answer's body that go to the client."""
        exchange.resp_bytes += size

    def finish(self, state: ClientState, exchange: Exchange, *, reason: Reason | None = None, detail: str = "") -> None:
        """Record how a forwarded request ended; nothing for one that was not forwarded."""
        waiting.let_go(state, exchange)
        exchange.disarm()
        if exchange.intent_seq:
            self.judge.records.outcome(state, exchange, reason=reason, detail=detail)

    def broke(self, state: ClientState, exchange: Exchange) -> None:
        """An exchange broke: record how, and have the refusal ready that is spoken if nothing was yet."""
        if exchange.client_gone or exchange.failure is None:  # nobody is left to be told
            self.finish(state, exchange, detail="client closed the connection")
            return
        exchange.refusal = exchange.refusal or Refusal(deny=deny(exchange.failure))
        self.finish(state, exchange, reason=exchange.failure)


def _late(exchange: Exchange, drop: Callable[[], None]) -> None:
    exchange.failure = exchange.failure or Reason.UPSTREAM_TIMEOUT
    drop()


def _cleaning(table: Table, run: Run, exchange: Exchange, request: Request) -> Cleaning:
    scrubbed = exchange.scrubbed  # not the exchange, which will have what has this: no cycle for each request

    def report(secret: str, where: str) -> None:
        found = f"{named(run.policy, secret)} in {where}"
        scrubbed.append(found)
        if is_alarming(run.policy, secret):
            run.alarm("secret_scrubbed", f"{found} of the answer to {request.method} {request.host}")

    return Cleaning(table=table, report=report)


def _drops_cookies(exchange: Exchange) -> bool:
    return exchange.allow is not None and any(b.drop_set_cookie for b in exchange.allow.bindings)
