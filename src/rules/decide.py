"""The judgement: policy and request in, verdict out.

Order: metadata, host, port, upgrade, deny rules of every endpoint that shares host and port, allow rules, their body
terms, bindings, decoys, the client's own credentials. Deny wins whatever the order of the rules. What no rule allows is
refused.

What the client sent in a place that a secret goes to, and its own credentials elsewhere, are taken out or refuse the
request. A segment of a path and a field of a body can't be taken out, so a credential there always refuses.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from rules import bodies, sigv4
from rules.foreign import check_credentials
from rules.forms import read_form
from rules.hosts import AddressLiteral, HostError, is_metadata_name, labels_of, normalize_host
from rules.inject import injected
from rules.messages import Messages
from rules.parse import bracketed
from rules.paths import readings_of
from rules.places import overlap
from rules.policy import AllowRule, Binding, BodyTerm, BodyType, DenyRule, Endpoint, Policy
from rules.reasons import Reason
from rules.request import Request
from rules.upgrades import is_websocket
from rules.verdict import Allow, Deny, Tunnel, Verdict

__all__ = ["decide", "decide_connect", "endpoint_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    endpoint: Endpoint
    rule: AllowRule

    @property
    def name(self) -> str:
        return f"{self.endpoint.name}.{self.rule.id}"


def decide(
    policy: Policy,
    role: str,
    request: Request,
    decoys: Mapping[str, str] | None = None,
    others: Collection[str] = (),
) -> Verdict:
    """Judge one request of a run. `decoys` holds the run's placeholder values by binding's name, `others` all those of
    the other runs.

    In a child run the roles that its own lies within are asked too, and each of them must allow.
    """
    verdict = _decide(policy, role, request, decoys or {}, others)
    for outer in policy.roles[role].within:
        if isinstance(verdict, Deny):
            break
        verdict = _and(verdict, decide(policy, outer, request, decoys, others))
    return verdict


def _and(mine: Allow, above: Verdict) -> Verdict:
    """What both allow: with the secrets of the narrower one, and only where both would dial the same way."""
    if isinstance(above, Deny):
        return above
    keys = ("dial_port", "alpn", "ca", "networks", "pins", "spki", "proxy")
    ways = [None if a.sent is None else (a.sent.scheme, a.sent.host, a.sent.port) for a in (mine, above)]
    if ways[0] != ways[1] or any(getattr(mine.endpoint, key) != getattr(above.endpoint, key) for key in keys):
        return Deny(
            reason=Reason.HOST_UNLISTED,
            message="The policy does not list this host for this role.",
            hint=f"endpoints {mine.endpoint.name!r} and {above.endpoint.name!r} dialled in the same way",
        )
    messages = tuple(dict.fromkeys((*mine.messages, *above.messages)))
    return replace(mine, body_max=max(mine.body_max, above.body_max), messages=messages)


def _decide(policy: Policy, role: str, request: Request, decoys: Mapping[str, str], others: Collection[str]) -> Verdict:
    here = _endpoints_here(policy, role, request)
    if isinstance(here, Deny):
        return here
    if request.upgrade and not _may_upgrade(here, request):
        return Deny(
            reason=Reason.UPGRADE_REFUSED,
            message="Upgrades are refused; use plain HTTP.",
            status=426,
            hint="upgrade = true on a rule with this path lets WebSocket through",
        )
    allow = _ruled(policy, role, here, request)
    if isinstance(allow, Allow) and allow.endpoint.route:
        allow = _routed(policy, role, allow, request)
    if isinstance(allow, Allow):
        allow = _signed(allow.sent or request, allow, decoys)
    if isinstance(allow, Deny):
        return allow
    return check_credentials(request, allow, decoys, others)


def _signed(request: Request, allow: Allow, decoys: Mapping[str, str]) -> Allow | Deny:
    """Where a binding signs: whether it can, and how much of a body it has to read first."""
    if all(binding.sign is None for binding in allow.bindings):
        return allow
    signing = injected(request, allow, decoys)
    missing = sigv4.why_not(request, allow.bindings, signing)
    if missing:
        return Deny(
            reason=Reason.SIGNATURE_REFUSED,
            message="The request is signed in a way that the gateway does not sign anew.",
            hint=missing,
        )
    return replace(allow, body_max=max(allow.body_max, sigv4.needed(request, signing)))


def _ruled(policy: Policy, role: str, here: tuple[Endpoint, ...], request: Request) -> Allow | Deny:
    """What the rules of these endpoints say: deny, allow, body terms, bindings."""
    denied = _denied(here, request)
    if denied is not None:
        return denied
    matches = _matches(here, request)
    if not isinstance(matches, Deny):
        matches = _closed(here, matches, request)
    if isinstance(matches, Deny):
        return matches
    bodied = _by_body(_bindings_at(policy, role, matches), matches, request)
    if isinstance(bodied, Deny):
        return bodied
    allow = _bound(policy, role, bodied.matches)
    return allow if isinstance(allow, Deny) else replace(allow, body_max=bodied.need, messages=bodied.messages)


def _routed(policy: Policy, role: str, front: Allow, request: Request) -> Allow | Deny:
    """Judge the request as the target that the role's route leads to would get it: by that one's rules and bindings
    alone. Nothing of the request has a say in which one it is.
    """
    word = policy.roles[role].route
    target = policy.endpoints.get(front.endpoint.behind(word))
    if target is None:  # the load refuses it
        return Deny(
            reason=Reason.HOST_UNLISTED,
            message="The policy does not list this host for this role.",
            rule=front.rule,
            hint=f"{word} in the route of endpoint {front.endpoint.name!r}",
        )
    scheme = "https" if target.tls else "http"
    sent = replace(request, host=target.host.text, port=target.port, scheme=scheme)
    inner = _ruled(policy, role, (target,), sent)
    if isinstance(inner, Deny):
        return inner
    return replace(
        inner,
        rule=front.rule,
        route=f"{word}: {inner.rule}",
        sent=sent,
        body_max=max(front.body_max, inner.body_max),
        messages=tuple(dict.fromkeys((*front.messages, *inner.messages))),
    )


def decide_connect(policy: Policy, role: str, host: bytes, port: int) -> Tunnel | Deny:
    """Judge a CONNECT line. On 443 and on each port of the role's endpoints any host gets its tunnel, addresses too:
    a refusal inside it is shown by the client, a refused CONNECT is retried. What is inside is judged by decide.
    """
    try:
        name = normalize_host(bracketed(host))
    except HostError as error:
        return Deny(
            reason=Reason.HOST_INVALID, message="The host of the request is not valid.", status=400, hint=error.detail
        )
    reach = policy.reach(role)
    if port != 443 and port not in reach.ports:
        return _port_unlisted(port)
    if isinstance(name, AddressLiteral) or is_metadata_name(labels_of(name)):
        return Tunnel()
    return Tunnel(endpoint=next((e for e in reach.at(labels_of(name)) if e.port == port), None))


def endpoint_for(policy: Policy, role: str, host: str, port: int, tls: bool) -> Endpoint | None:
    """The first endpoint of the role with this host (in normal form), port and scheme; None for a metadata name."""
    labels = labels_of(host)
    if is_metadata_name(labels):
        return None
    return next((e for e in policy.reach(role).at(labels) if _is_at(e, port, tls)), None)


def _is_at(endpoint: Endpoint, port: int, tls: bool) -> bool:
    return endpoint.port == port and endpoint.tls == tls


def _endpoints_here(policy: Policy, role: str, request: Request) -> tuple[Endpoint, ...] | Deny:
    labels = labels_of(request.host)
    if is_metadata_name(labels):
        return Deny(reason=Reason.METADATA, message="Metadata names are closed.")
    named = policy.reach(role).at(labels)
    if not named:
        return Deny(
            reason=Reason.HOST_UNLISTED,
            message="The policy does not list this host for this role.",
            hint=f'an endpoint with host = "{request.host}" in role {role!r}',
        )
    here = tuple(e for e in named if _is_at(e, request.port, request.scheme == "https"))
    return here or _port_unlisted(request.port)


def _port_unlisted(port: int) -> Deny:
    return Deny(
        reason=Reason.PORT_UNLISTED,
        message="The policy does not list this port and scheme for this host.",
        hint=f"an endpoint with port = {port}, and tls = false for plain http",
    )


def _denied(here: tuple[Endpoint, ...], request: Request) -> Deny | None:
    readings = readings_of(request.path)
    for endpoint in here:
        for rule in endpoint.deny:
            if rule.unless is None and _denies(rule, request, readings):
                return _by_rule(endpoint, rule, "deny rules win over allow rules")
    return None


def _closed(here: tuple[Endpoint, ...], matches: tuple[_Match, ...], request: Request) -> tuple[_Match, ...] | Deny:
    """Of what a deny rule closes "unless a body rule covers it" only the allow rules that judge the body are left."""
    if not any(rule.unless for endpoint in here for rule in endpoint.deny):
        return matches
    readings = readings_of(request.path)
    for endpoint in here:
        for rule in endpoint.deny:
            if rule.unless is not None and _denies(rule, request, readings):
                matches = tuple(m for m in matches if m.rule.body is not None and m.rule.body.type is rule.unless)
                if not matches:
                    return _by_rule(endpoint, rule, f'an allow rule with body = {{ type = "{rule.unless}", ... }}')
    return matches


def _by_rule(endpoint: Endpoint, rule: DenyRule, hint: str) -> Deny:
    return Deny(
        reason=Reason.DENY_RULE,
        message="A deny rule of the policy covers this request.",
        rule=f"{endpoint.name}.{rule.id}",
        hint=hint,
    )


def _denies(rule: DenyRule, request: Request, readings: frozenset[str]) -> bool:
    """HEAD goes with GET, and a path counts in every way in which a server could read it."""
    meant = {request.method, "GET"} if request.method == "HEAD" else {request.method}
    if rule.methods is not None and rule.methods.isdisjoint(meant):
        return False
    if rule.hosts and not any(_is_host(labels, labels_of(request.host)) for labels in rule.hosts):
        return False
    return any(pattern.could_mean(readings) for pattern in rule.paths)


def _is_host(pattern: tuple[str, ...], labels: tuple[str, ...]) -> bool:
    return len(pattern) == len(labels) and all(p in ("*", label) for p, label in zip(pattern, labels, strict=True))


def _matches(here: tuple[Endpoint, ...], request: Request) -> tuple[_Match, ...] | Deny:
    by_path = [_Match(endpoint=e, rule=r) for e in here for r in e.allow if _covers(r, request)]
    if not by_path:
        return Deny(
            reason=Reason.NO_RULE,
            message="No rule of the policy allows this method and path.",
            hint=f'a rule in endpoint {here[0].name!r} with methods = ["{request.method}"] and this path in paths',
        )
    if request.upgrade:
        by_path = [m for m in by_path if m.rule.upgrade]
    by_slash = [m for m in by_path if m.rule.encoded_slash or not request.encoded_slash]
    if not by_slash:
        return Deny(
            reason=Reason.PATH_AMBIGUOUS,
            message="The path can be read in more than one way.",
            hint=f"encoded_slash = true in rule {by_path[0].name}",
        )
    matches = tuple(m for m in by_slash if m.rule.query is None or m.rule.query.issuperset(request.query_names))
    return matches or Deny(
        reason=Reason.QUERY_REFUSED,
        message="The query holds a name that the rule does not list.",
        hint=f"the name in query = {{ allow = [...] }} of rule {by_slash[0].name}",
    )


def _covers(rule: AllowRule, request: Request) -> bool:
    goes_with_get = request.method == "HEAD" and "GET" in rule.methods
    if request.method not in rule.methods and not goes_with_get:
        return False
    return any(pattern.matches(request.path) for pattern in rule.paths)


def _may_upgrade(here: tuple[Endpoint, ...], request: Request) -> bool:
    rules = [rule for endpoint in here for rule in endpoint.allow if rule.upgrade]
    return is_websocket(request) and any(_covers(rule, request) for rule in rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bodied:
    """Matches after their body terms were asked; `need` as Allow.body_max, `messages` as Allow.messages."""

    matches: tuple[_Match, ...]
    need: int = 0
    messages: Messages = ()


def _by_body(bindings: tuple[Binding, ...], matches: tuple[_Match, ...], request: Request) -> _Bodied | Deny:
    """Ask the body terms. Of a body that isn't read yet it is taken that it fits, and said that it is needed.

    Where a rule without a term matches too and no binding hangs on the others, the body is nobody's business.
    """
    free = tuple(m for m in matches if m.rule.body is None)
    asking = tuple(m for m in matches if m.rule.body is not None)
    if not asking or (free and not any(_names(b, m) for b in bindings for m in asking)):
        return _Bodied(matches=free)
    if request.upgrade:
        return _by_messages(bindings, matches, request)
    if request.body is None:
        return _Bodied(matches=matches, need=max(m.rule.body.max for m in asking if m.rule.body))
    document = bodies.read(request)
    why = {
        m.name: bodies.beside(m.rule, m.rule.body, request) or _misfit(m.rule.body, request, document)
        for m in asking
        if m.rule.body
    }
    fitting = tuple(m for m in matches if not why.get(m.name))
    return _Bodied(matches=fitting) if fitting else _body_refused(asking[0], why[asking[0].name])


def _by_messages(bindings: tuple[Binding, ...], matches: tuple[_Match, ...], request: Request) -> _Bodied | Deny:
    """Of a handshake: what its rules ask of each message to come. It has no body, but it has a query."""
    why = {m.name: bodies.beside(m.rule, m.rule.body, request) for m in matches if m.rule.body}
    fitting = tuple(m for m in matches if not why.get(m.name))
    if not fitting:
        return _body_refused(matches[0], why[matches[0].name])
    named = [tuple(m for m in fitting if _names(binding, m)) for binding in bindings]
    asked = [part for part in named if part] or [fitting]
    terms = [tuple(m.rule.body for m in part if m.rule.body) for part in asked if all(m.rule.body for m in part)]
    return _Bodied(matches=fitting, messages=tuple(dict.fromkeys(terms)))


def _body_refused(asking: _Match, why: str) -> Deny:
    return Deny(
        reason=Reason.BODY_REFUSED,
        message="The body is not what the rule allows.",
        hint=f"a body that rule {asking.name} takes; this one: {why}",
    )


def _misfit(term: BodyTerm, request: Request, document: bodies.Document | bodies.Unreadable) -> str:
    if term.type is BodyType.FORM:
        return bodies.form_misfit(term, len(request.body or b""), read_form(request))
    return bodies.misfit(term, document)


def _bound(policy: Policy, role: str, matches: tuple[_Match, ...]) -> Allow | Deny:
    """The deciding rule is the first that a binding names, else the first. Its endpoint says where to dial."""
    bindings = tuple(b for b in _bindings_at(policy, role, matches) if any(_names(b, match) for match in matches))
    deciding = next((m for m in matches if any(_names(b, m) for b in bindings)), matches[0])
    shared = any(overlap(*pair) for pair in combinations(bindings, 2))
    if shared or any(b.endpoint != deciding.endpoint.name for b in bindings):
        return Deny(
            reason=Reason.BINDING_AMBIGUOUS,
            message="Two bindings of the policy claim this request.",
            hint="bindings " + " and ".join(repr(b.name) for b in bindings),
        )
    return Allow(rule=deciding.name, endpoint=deciding.endpoint, bindings=bindings)


def _bindings_at(policy: Policy, role: str, matches: tuple[_Match, ...]) -> tuple[Binding, ...]:
    """The role's bindings that could name one of these, in its order."""
    return policy.reach(role).bindings(match.endpoint.name for match in matches)


def _names(binding: Binding, match: _Match) -> bool:
    return binding.endpoint == match.endpoint.name and match.rule.id in binding.rules
