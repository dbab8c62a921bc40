"""From a head to a verdict, and from Allow to what is sent. The order is the promise: nothing is fetched before the
rules said yes, nothing is injected before the ledger has it on disk, nothing is sent before both.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mitmproxy.http import Headers, HTTPFlow
from msgspec import structs

from credgate.apart import BODIES
from credgate.gateway import standing
from credgate.gateway.capture import Fingerprints, marks_of
from credgate.gateway.cleaning import is_wanted, plainly
from credgate.gateway.clientcert import Identities, Identity
from credgate.gateway.decoded import Undecodable, decoded
from credgate.gateway.dial import Dialler
from credgate.gateway.digests import Digests
from credgate.gateway.exchange import ClientState, Exchange, Key, Target
from credgate.gateway.leaving import Leaving, leak_of
from credgate.gateway.livedecoys import LiveDecoys
from credgate.gateway.noting import Notes, OwnNotes
from credgate.gateway.prepared import Heads, Prepared, Sent
from credgate.gateway.quoted import Quoted
from credgate.gateway.records import Records
from credgate.gateway.refusal import deny
from credgate.gateway.signing import signed, unfit
from credgate.gateway.waiting import BodyWanted, ask
from credgate.gateway.waiting import refused as body_refused
from credgate.known import KnownValues
from credgate.ledger.record import LedgerError
from credgate.minting.jailcall import LocalAnswer, answer
from credgate.minting.minter import Minter
from credgate.runs import Run
from credgate.secretvalue import Secret, SecretUnavailable
from rules.correlate import Marks
from rules.decide import decide
from rules.grants import Use
from rules.inject import InjectError, authority, injected, rewrite
from rules.parse import parse_request
from rules.policy import Binding, PlaceKind
from rules.reasons import Reason
from rules.request import Outgoing, Request, Via, Wire
from rules.sources import SourceKind
from rules.values import plain_text
from rules.verdict import Allow, Deny

if TYPE_CHECKING:
    from credgate.vault import Vault

QUICK = 2 << 10  # bytes of a body that are parsed at once; a thread costs more

type _Judged = tuple[Request, Allow]  # the request with its body, where that was read


def wire_of(flow: HTTPFlow, state: ClientState, exchange: Exchange) -> Wire:
    """The raw facts of one request, none of them from mitmproxy's own reading of hosts."""
    data = flow.request.data
    return Wire(
        via=Via.CONNECT if state.connect_port else Via.DIRECT,
        http_version=data.http_version.decode("latin-1"),
        method=data.method,
        target=data.path,
        headers=tuple(data.headers.fields),
        tls=flow.client_conn.tls_established,
        authority=exchange.authority,
        scheme=exchange.scheme if exchange.h2 or exchange.authority else b"",
        connect_host=state.connect_host,
        connect_port=state.connect_port,
        sni=flow.client_conn.sni,
        listen_port=state.listener.port,
        has_body=exchange.has_body,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges one request after the other; what it remembers of one is what would be found anew."""

    is_here: ClassVar[bool] = True  # so are the secrets' values, the ledger, and what is spent

    records: Records
    fingerprints: Fingerprints
    vault: "Vault"
    dialler: Dialler
    known: KnownValues
    minter: Minter
    decoys: LiveDecoys = field(default_factory=LiveDecoys)
    identities: Identities = field(default_factory=Identities)
    heads: Heads = field(default_factory=Heads)

    def notes(self) -> Notes[Any] | None:
        """How lines of known requests are written; None where each one has to be judged."""
        ledger = self.records.tells
        return None if ledger is None else OwnNotes(self.records, ledger)

    def forget(self, run_id: str) -> None:
        """A run has ended: neither its placeholders nor its requests are remembered."""
        self.decoys.drop(run_id)
        self.heads.drop(run_id)

    async def judge(
        self,
        state: ClientState,
        exchange: Exchange,
        wire: Wire,
        connected: frozenset[Key],
        body: bytes | None = None,
    ) -> Outgoing | BodyWanted | LocalAnswer | Deny:
        """What to send, or the refusal. After an Outgoing came back the intent is in the ledger.

        `body` is the whole one as it was sent, once it was asked for by BodyWanted.
        """
        verdict = await self._judge(state, exchange, wire, connected, body)
        return await self.denied(state, wire, verdict, body) if isinstance(verdict, Deny) else verdict

    async def denied(self, state: ClientState, wire: Wire, verdict: Deny, body: bytes | None = None) -> Deny:
        """What is said of a request that is refused: it goes nowhere, and still tells what is in the jail."""
        if verdict.reason is Reason.SECRET_MISPLACED:
            return verdict
        leak = await leak_of(self.known.table(), state.run, wire, None, body)
        return verdict if leak is None else leak

    async def _judge(
        self, state: ClientState, exchange: Exchange, wire: Wire, connected: frozenset[Key], body: bytes | None
    ) -> Outgoing | BodyWanted | LocalAnswer | Deny:
        known = self._found(state.run, exchange, wire, body)
        ready = await self._prepared(state.run, exchange, wire, body) if known is None else known
        if not isinstance(ready, Prepared):
            return ready
        # the body was judged with it, and goes its own way: what was read of it is not kept while the target answers
        exchange.request = ready.request if body is None else replace(ready.request, body=None)
        exchange.path = ready.path
        exchange.asked = ready.asked or exchange.asked
        state.bindings.update(ready.names)
        first: Deny | BodyWanted | None = standing.may(state.run, ready.use)
        if first is None and ready.allow.body_max:
            first = ask(exchange, ready.allow.body_max, ready.request)
        if first is not None:
            return first
        try:
            return await self._out(state, exchange, wire, connected, ready, body)
        except SecretUnavailable as error:
            return deny(Reason.SECRET_UNAVAILABLE, f"{error.code}: {error.detail}")
        except InjectError as error:
            return unfit(error)
        except LedgerError:
            return deny(Reason.LEDGER_UNAVAILABLE)

    async def _out(
        self,
        state: ClientState,
        exchange: Exchange,
        wire: Wire,
        connected: frozenset[Key],
        ready: Prepared,
        body: bytes | None,
    ) -> Outgoing | Deny:
        """What to send of a request that is allowed, its intent written down."""
        request, allow, run = ready.request, ready.allow, state.run
        shown = None if ready.shows is None else self.identities.of(await self.fetch(run, ready.shows.secret))
        open_to = at_hand(state, allow, request, connected, shown)
        target = open_to or await self._target(state, allow, request, connected, shown)
        if isinstance(target, Deny):
            return target
        exchange.allow = allow if allow.sent is None else replace(allow, sent=None)  # it may hold the body, as above
        exchange.target = target
        exchange.digests = Digests() if target.endpoint.digest else None
        exchange.pin = state.pins.get(target.key, "") or target.first
        sent = await self._sent(run, ready, body)
        exchange.cred_fp, exchange.query_names = sent.cred_fp, sent.query_names
        table = self.known.table()  # now that its own secrets are known
        if ready.clean is not table:
            leak = await leak_of(table, run, wire, (request, allow), body)
            if leak is not None:
                return leak
            ready.clean = table
        if (exchange.has_body and body is None) or request.upgrade:
            exchange.leaving = Leaving(table, wire.headers)
        exchange.quoted = Quoted(run.decoys) if exchange.has_body and run.decoys else None
        exchange.sent = sent
        noted = await self._noted(state, exchange, sent.marks, sent.names, ready.use)
        return sent.numbered(exchange.intent_seq) if noted is None else noted

    def _found(self, run: Run, exchange: Exchange, wire: Wire, body: bytes | None) -> Prepared | Deny | None:
        """What is known of this head by now, or why nothing of the run may pass. None: it has to be judged."""
        closed = standing.closed(run)
        if closed is not None:
            return closed
        if exchange.fault is not None:
            return deny(exchange.fault)
        return self.heads.find(run, self.decoys.others(run), wire) if body is None else None

    async def _prepared(
        self, run: Run, exchange: Exchange, wire: Wire, body: bytes | None
    ) -> Prepared | BodyWanted | LocalAnswer | Deny:
        others = self.decoys.others(run)
        judged = await self._allow(run, exchange, wire, body, others)
        if not isinstance(judged, tuple):
            return judged
        ready = Prepared.of(*judged)
        if body is None:
            self.heads.keep(run, others, wire, ready)
        return ready

    async def _allow(
        self, run: Run, exchange: Exchange, wire: Wire, body: bytes | None, others: Collection[str]
    ) -> _Judged | BodyWanted | LocalAnswer | Deny:
        """The verdict of the rules alone, and whether the request is one that is answered here."""
        request = parse_request(wire)
        if isinstance(request, Deny):
            return request
        exchange.request = request
        own = answer(run, exchange, request, body)
        if own is not None:
            return own
        if body is None:
            verdict = decide(run.policy, run.role, request, run.decoys, others)
            return verdict if isinstance(verdict, Deny) else (request, verdict)
        try:
            plain = await _aside(run.id, len(body), lambda: decoded(request.headers, body, exchange.body_max))
        except Undecodable as why:
            return body_refused(str(why))
        whole = replace(request, body=plain)
        verdict = await _aside(run.id, len(plain), lambda: decide(run.policy, run.role, whole, run.decoys, others))
        return verdict if isinstance(verdict, Deny) else (whole, verdict)

    async def _target(
        self,
        state: ClientState,
        allow: Allow,
        request: Request,
        connected: frozenset[Key],
        shown: Identity | None,
    ) -> Target | Deny:
        secret = await self._proxy_secret(state.run, allow)
        target = await self.dialler.target(allow.endpoint, request.host, state.run.lookups, secret)
        if isinstance(target, Target):
            target = target if shown is None else replace(target, client=shown)
            state.know(target, connected)
        return target

    async def _proxy_secret(self, run: Run, allow: Allow) -> Secret | None:
        proxy = allow.endpoint.proxy
        if proxy is None or not proxy.secret:
            return None
        return await self.fetch(run, proxy.secret)

    async def fetch(self, run: Run, name: str) -> Secret:
        """A secret's value now; from here on it is looked for in what passes."""
        rule = run.policy.secrets[name]
        minted = rule.kind is SourceKind.MINT
        secret = await (self.minter.token(run, rule) if minted else self.vault.fetch(rule, run.caller_env))
        self.known.add(name, secret.reveal())
        return secret

    def kept(self, run: Run, name: str) -> Secret | None:
        """A secret's value where it is known without waiting, as `fetch` would give it."""
        rule = run.policy.secrets[name]
        if rule.kind is SourceKind.MINT:
            return self.minter.kept(run, rule)
        return self.vault.kept(rule, run.caller_env)

    def asking(self, run: Run, name: str) -> Callable[[], Secret | None]:
        """Asks that, of a run whose policy stays."""
        rule = run.policy.secrets[name]
        if rule.kind is SourceKind.MINT:
            return partial(self.minter.kept, run, rule)
        return self.vault.asking(rule, run.caller_env)

    def doubt(self, run: Run, sent: Mapping[str, Secret]) -> None:
        """The target refused a request with these secrets."""
        self.minter.doubt(run, sent)

    async def _sent(self, run: Run, ready: Prepared, body: bytes | None) -> Sent:
        """The request with the values of now: the one that was made of them before, where it is the same."""
        bound = ready.bound
        if bound is None:
            size = len(ready.request.body or b"")
            bound = await _aside(run.id, size, lambda: injected(ready.request, ready.allow, run.decoys))
            ready.bound = bound
        fetched: dict[str, Secret] = {}
        for binding in bound:
            if binding.secret not in fetched:
                fetched[binding.secret] = await self.fetch(run, binding.secret)
        for binding in bound:
            if binding.place is not PlaceKind.BASIC:
                continue
            values = {name: secret.reveal() for name, secret in fetched.items()}
            self.known.add(binding.secret, values[binding.secret], basic=plain_text(binding, values))
        if ready.sent is not None and ready.sent.holds(fetched):
            return ready.sent
        sent = await self._rewritten(run, ready, bound, fetched, body)
        if ready.is_spelt_alike:
            ready.sent = sent
        return sent

    async def _rewritten(
        self, run: Run, ready: Prepared, bound: tuple[Binding, ...], fetched: Mapping[str, Secret], body: bytes | None
    ) -> Sent:
        request, allow, size = ready.request, ready.allow, len(ready.request.body or b"")
        values = {name: secret.reveal() for name, secret in fetched.items()}
        fingerprint = self.fingerprints.of(allow.endpoint, request.host, values.values())
        out = await _aside(run.id, size, lambda: rewrite(request, allow, values, run.decoys))
        if is_wanted(run.policy, allow):
            out = structs.replace(out, fields=plainly(out.fields))
        plain = out
        out = await _aside(run.id, size, lambda: signed(request, allow, plain, values, run.decoys, body, self.known))
        return Sent.of(
            request,
            out,
            secrets=fetched,
            names={binding.name: binding.secret for binding in bound},
            cred_fp=fingerprint,
            marks=marks_of(run.id, allow.endpoint, request, out),
        )

    async def _noted(
        self, state: ClientState, exchange: Exchange, marks: Marks, bindings: Mapping[str, str], use: Use
    ) -> Deny | None:
        """Spend a request and write its intent down: on the disk when this returns, where a secret is in it."""
        closed = over(state, use)  # fetching took its time
        if closed is None:
            closed = standing.charge(state.run, use)
        if closed is not None:
            return closed
        exchange.intent_seq = self.records.intent(state, exchange, tuple(bindings), tuple(bindings.values()), marks)
        state.exchanges.add(exchange)
        if bindings:
            await self.records.ledger.durable(exchange.intent_seq)
        return over(state, use)


def at_hand(
    state: ClientState, allow: Allow, request: Request, connected: frozenset[Key], shown: Identity | None
) -> Target | None:
    """The target of a connection that is open, and that this request may use again."""
    for known in state.targets.values():
        same = known.endpoint is allow.endpoint or known.endpoint == allow.endpoint
        if known.key in connected and same and known.host == request.host and known.client == shown:
            return known
    return None


async def _aside[T](run: str, size: int, work: Callable[[], T]) -> T:
    """Do what takes a body of `size` bytes, decoded, apart: of 32 MiB in seconds, in which other runs would wait."""
    return work() if size < QUICK else await BODIES.do(run, work)


def over(state: ClientState, use: Use) -> Deny | None:
    """What has changed since this request was judged: a reload closes every connection, a revocation some."""
    return deny(Reason.REVOKED) if state.closed else standing.closed(state.run, use)


def apply(flow: HTTPFlow, exchange: Exchange, out: Outgoing) -> None:
    """Make mitmproxy's request what was judged, byte for byte, with the secret in its place."""
    request, target = exchange.request, exchange.target
    if request is None or target is None:
        raise RuntimeError("applied before it was judged")
    data = flow.request.data
    data.method = request.method.encode("ascii")
    data.path = out.target.encode("ascii")
    data.scheme = request.scheme.encode("ascii")
    data.authority = authority(request) if exchange.h2 else b""
    data.host, data.port = target.key
    data.headers = Headers(out.fields)
    if out.body is not None:
        data.content = out.body
