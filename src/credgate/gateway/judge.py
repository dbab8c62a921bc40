"""From a head to a verdict, and from Allow to what is sent. The order is the promise: nothing is fetched before the
rules said yes, nothing is injected before the ledger has it on disk, nothing is sent before both.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mitmproxy.http import Headers, HTTPFlow

from credgate.gateway import standing
from credgate.gateway.capture import Fingerprints, marks_of
from credgate.gateway.cleaning import is_wanted, plainly
from credgate.gateway.clientcert import Identities, Identity, certificate_of
from credgate.gateway.decoded import Undecodable, decoded
from credgate.gateway.dial import Dialler
from credgate.gateway.digests import Digests
from credgate.gateway.exchange import ClientState, Exchange, Key, Target
from credgate.gateway.leaving import Leaving, leak_of
from credgate.gateway.livedecoys import LiveDecoys
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
from rules.inject import InjectError, authority, injected, path_for_records, rewrite
from rules.parse import parse_request
from rules.policy import PlaceKind
from rules.queries import names_of
from rules.reasons import Reason
from rules.request import Outgoing, Request, Via, Wire
from rules.sources import SourceKind
from rules.values import plain_text
from rules.verdict import Allow, Deny

if TYPE_CHECKING:
    from credgate.vault import Vault

QUICK = 2 << 10  # bytes of a body that are parsed at once; a thread costs more
_MAX_TARGETS = 64  # judged hosts that one client connection remembers beyond its open upstream connections

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
    """Judges one request after the other; holds no state of its own."""

    records: Records
    fingerprints: Fingerprints
    vault: "Vault"
    dialler: Dialler
    known: KnownValues
    minter: Minter
    decoys: LiveDecoys = field(default_factory=LiveDecoys)
    identities: Identities = field(default_factory=Identities)

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
        if not isinstance(verdict, Deny) or verdict.reason is Reason.SECRET_MISPLACED:
            return verdict
        # it goes nowhere, and still tells what is in the jail
        leak = await leak_of(self.known.table(), state.run.policy, wire, None, body)
        return verdict if leak is None else leak

    async def _judge(
        self, state: ClientState, exchange: Exchange, wire: Wire, connected: frozenset[Key], body: bytes | None
    ) -> Outgoing | BodyWanted | LocalAnswer | Deny:
        judged = await self._allow(state.run, exchange, wire, body)
        if not isinstance(judged, tuple):
            return judged
        request, allow = judged
        exchange.path = path_for_records(request, allow)
        state.bindings.update(binding.name for binding in allow.bindings)
        use = standing.use_of(allow, request)
        first: Deny | BodyWanted | None = standing.may(state.run, use)
        if first is None and allow.body_max:
            first = ask(exchange, allow.body_max, request)
        if first is not None:
            return first
        try:
            target = await self._target(state, allow, request, connected)
            if isinstance(target, Deny):
                return target
            exchange.allow, exchange.target = allow, target
            exchange.digests = Digests() if target.endpoint.digest else None
            exchange.pin = state.pins.get(target.key, "") or str(target.addresses[0])
            out, bindings = await self._rewritten(state.run, exchange, request, allow, body)
            # now that its own secrets are known
            leak = await leak_of(self.known.table(), state.run.policy, wire, judged, body)
            if leak is not None:
                return leak
            if (exchange.has_body and body is None) or request.upgrade:
                exchange.leaving = Leaving(self.known.table(), wire.headers)
            exchange.quoted = Quoted(state.run.decoys) if exchange.has_body and state.run.decoys else None
            exchange.query_names = names_of(out.target.partition("?")[2])
            marks = marks_of(state.run.id, allow.endpoint, request, out)
            noted = await self._noted(state, exchange, marks, bindings, use)
            return replace(out, fields=marks.put(out.fields, exchange.intent_seq)) if noted is None else noted
        except SecretUnavailable as error:
            return deny(Reason.SECRET_UNAVAILABLE, f"{error.code}: {error.detail}")
        except InjectError as error:
            return unfit(error)
        except LedgerError:
            return deny(Reason.LEDGER_UNAVAILABLE)

    async def _allow(
        self, run: Run, exchange: Exchange, wire: Wire, body: bytes | None
    ) -> _Judged | BodyWanted | LocalAnswer | Deny:
        closed = standing.closed(run)
        if closed is not None:
            return closed
        if exchange.fault is not None:
            return deny(exchange.fault)
        request = parse_request(wire)
        if isinstance(request, Deny):
            return request
        exchange.request = request
        own = answer(run, exchange, request, body)
        if own is not None:
            return own
        others = self.decoys.others(run)
        if body is None:
            return _with(exchange, request, decide(run.policy, run.role, request, run.decoys, others))
        try:
            whole = replace(request, body=decoded(request.headers, body, exchange.body_max))
        except Undecodable as why:
            return body_refused(str(why))
        verdict = await _aside(len(whole.body or b""), lambda: decide(run.policy, run.role, whole, run.decoys, others))
        return _with(exchange, whole, verdict)

    async def _target(
        self, state: ClientState, allow: Allow, request: Request, connected: frozenset[Key]
    ) -> Target | Deny:
        shown = await self._certificate(state.run, allow)
        for known in state.targets.values():
            same = known.endpoint == allow.endpoint and known.host == request.host and known.client == shown
            if known.key in connected and same:
                return known
        secret = await self._proxy_secret(state.run, allow)
        target = await self.dialler.target(allow.endpoint, request.host, state.run.lookups, secret)
        if isinstance(target, Target):
            target = replace(target, client=shown)
            if len(state.targets) >= _MAX_TARGETS:  # a wildcard host has names without end
                state.targets = {key: kept for key, kept in state.targets.items() if key in connected}
            state.targets[target.key] = target
        return target

    async def _certificate(self, run: Run, allow: Allow) -> Identity | None:
        binding = certificate_of(allow)
        return None if binding is None else self.identities.of(await self.fetch(run, binding.secret))

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

    async def _rewritten(
        self, run: Run, exchange: Exchange, request: Request, allow: Allow, body: bytes | None
    ) -> tuple[Outgoing, Mapping[str, str]]:
        """What to send, and the secrets' names by binding of those that are in it."""
        size = len(request.body or b"")
        bound = await _aside(size, lambda: injected(request, allow, run.decoys))
        bindings = {binding.name: binding.secret for binding in bound}
        values: dict[str, str] = {}
        for name in dict.fromkeys(bindings.values()):
            values[name] = (await self.fetch(run, name)).reveal()
        for binding in (b for b in bound if b.place is PlaceKind.BASIC):
            self.known.add(binding.secret, values[binding.secret], basic=plain_text(binding, values))
        exchange.cred_fp = self.fingerprints.of(allow.endpoint, request.host, values.values())
        out = await _aside(size, lambda: rewrite(request, allow, values, run.decoys))
        if is_wanted(run.policy, allow):
            out = replace(out, fields=plainly(out.fields))
        fields = out
        return await _aside(
            size, lambda: signed(request, allow, fields, values, run.decoys, body, self.known)
        ), bindings

    async def _noted(
        self,
        state: ClientState,
        exchange: Exchange,
        marks: Marks,
        bindings: Mapping[str, str],
        use: Use,
    ) -> Deny | None:
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


async def _aside[T](size: int, work: Callable[[], T]) -> T:
    """Do what takes a body of `size` bytes, decoded, apart: of 32 MiB in seconds, in which other runs would wait."""
    return work() if size < QUICK else await asyncio.to_thread(work)


def _with(exchange: Exchange, request: Request, verdict: Allow | Deny) -> _Judged | Deny:
    """An endpoint with several targets: from here on the request is the one that its target gets."""
    if isinstance(verdict, Deny):
        return verdict
    if verdict.sent is not None:
        exchange.asked = f"{request.host}:{request.port}"
        exchange.request = request = verdict.sent
    return request, verdict


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
