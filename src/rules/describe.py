"""A policy in sentences: what each role may send where, one line a fact, so that two policies can be compared."""

import base64
from collections.abc import Iterator
from dataclasses import fields

from rules.correlate import DEFAULT
from rules.mint_refs import mint_of
from rules.places import place_text
from rules.policy import AllowRule, Binding, BodyTerm, CorporateProxy, Endpoint, OnAlarm, Policy, Role

__all__ = ["describe", "describe_role"]


def describe(policy: Policy) -> tuple[str, ...]:
    """Return one line for each thing that each role may do, sorted within its role."""
    return tuple(f"{name}: {line}" for name in policy.roles for line in describe_role(policy, name))


def describe_role(policy: Policy, name: str) -> tuple[str, ...]:
    """Return the lines of one role."""
    role = policy.roles[name]
    lines = [line for e in policy.endpoints_of(name) for line in _endpoint(policy, role, e)]
    return (*lines, *_mints(policy, role), *_jail(role))


def _mints(policy: Policy, role: Role) -> Iterator[str]:
    """How the role's minted secrets are had: a wider one is a wider role."""
    for name in dict.fromkeys(policy.bindings[binding].secret for binding in role.bindings):
        mint = mint_of(policy, policy.secrets[name])
        if mint is not None:
            terms = {f.name: getattr(mint, f.name) for f in fields(mint) if f.name not in ("name", "placeholder")}
            told = ", ".join(f"{key} {_told(value)}" for key, value in terms.items() if value)
            yield f"mint secret {name}: {type(mint).__name__} ({told})"


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return "|".join(word if isinstance(word, str) else ":".join(word) for word in value)
    return str(value)


def _endpoint(policy: Policy, role: Role, endpoint: Endpoint) -> Iterator[str]:
    bindings = [policy.bindings[b] for b in role.bindings if policy.bindings[b].endpoint == endpoint.name]
    for rule in endpoint.allow:
        for path in rule.paths:
            yield f"allow {_methods(rule.methods)} {_url(endpoint)}{path.text}{_terms(rule)}{_secrets(rule, bindings)}"
    if endpoint.listen:
        yield f"pipe port {endpoint.listen} to {_url(endpoint)}, opaque"
    yield from _routes(policy, role, endpoint)
    yield from _denies(endpoint)
    for key, value in _dialled(endpoint):
        yield f"dial {_url(endpoint)} with {key} = {value}"


def _routes(policy: Policy, role: Role, endpoint: Endpoint) -> Iterator[str]:
    """Where a routed endpoint leads this role, and what that target allows in its turn."""
    target = policy.endpoints.get(endpoint.behind(role.route)) if endpoint.route else None
    if target is not None:
        way = f"route {_url(endpoint)} by {role.route}:"
        yield f"{way} to {target.name}"
        yield from (f"{way} {line}" for line in _endpoint(policy, role, target))


def _denies(endpoint: Endpoint) -> Iterator[str]:
    for pack in dict.fromkeys(rule.pack for rule in endpoint.deny if rule.pack):
        yield f"deny {_url(endpoint)} pack {pack}"
    for rule in endpoint.deny:
        if not rule.pack:
            yield from (f"deny {_methods(rule.methods)} {_url(endpoint)}{path.text}" for path in rule.paths)


def _methods(methods: frozenset[str] | None) -> str:
    return "every method" if methods is None else "|".join(sorted(methods))


def _url(endpoint: Endpoint) -> str:
    scheme = "tcp" if endpoint.listen else "https" if endpoint.tls else "http"
    return f"{scheme}://{endpoint.host.text}:{endpoint.port}"


def _terms(rule: AllowRule) -> str:
    query = "" if rule.query is None else f" query {{{', '.join(sorted(rule.query))}}}"
    switches = (" encoded_slash" if rule.encoded_slash else "") + (" upgrade" if rule.upgrade else "")
    return query + switches + ("" if rule.body is None else _body(rule.body))


def _body(term: BodyTerm) -> str:
    parts = [f"max {term.max}"]
    parts += [f"{t.path.text} = {' | '.join(map(repr, t.values)) or 'absent'}" for t in term.tests]
    parts += [] if term.keys is None else [f"keys {'|'.join(sorted(term.keys))}"]
    parts += [f"operations {'|'.join(sorted(term.operations))}"] if term.operations else []
    return f" body {term.type} {{{', '.join(parts)}}}"


def _secrets(rule: AllowRule, bindings: list[Binding]) -> str:
    parts = [f" + secret {b.secret} ({_place(b)}, {b.mode}{_bounds(b)})" for b in bindings if rule.id in b.rules]
    return "".join(parts)


def _bounds(binding: Binding) -> str:
    bounds = {"ttl": binding.ttl, "max_uses": binding.max_uses}
    texts = [f", {key} {value}" for key, value in bounds.items() if value is not None]
    return "".join([*texts, *(f", rate {rate.count}/{rate.seconds}s" for rate in binding.rates)])


def _place(binding: Binding) -> str:
    if binding.sign is None:
        return place_text(binding)
    copy = ", copies" if binding.sign.copy else ""
    only = f", only {'|'.join(sorted(binding.sign.operations))}" if binding.sign.operations else ""
    return f"sigv4 for {binding.sign.service or 'any service'} in {binding.sign.region or 'any region'}{only}{copy}"


def _dialled(endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    yield from _where(endpoint)
    if endpoint.spki:
        yield "spki", ", ".join(sorted(f"sha256/{base64.b64encode(pin).decode()}" for pin in endpoint.spki))
    if endpoint.correlate != DEFAULT:
        yield "correlate", ", ".join(sorted(endpoint.correlate)) or "nothing"
    if endpoint.fingerprint is not None:
        yield "fingerprint", endpoint.fingerprint
    if endpoint.digest:
        yield "digest", "SHA-256 of bodies goes into the ledger"
    if endpoint.proxy is not None:
        yield "proxy", _proxy(endpoint.proxy)
    if endpoint.foreign != "strip":
        yield "foreign", endpoint.foreign


def _where(endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    if endpoint.origin is not None:
        yield "host_from", str(endpoint.origin)
    addresses = [*endpoint.networks, *endpoint.pins]
    if addresses:
        yield "address", ", ".join(map(str, addresses))
    if endpoint.dial_port != endpoint.port:
        yield "dial_port", str(endpoint.dial_port)
    if endpoint.ca:
        yield "ca", endpoint.ca
    if endpoint.alpn != ("http/1.1",):
        yield "alpn", ", ".join(endpoint.alpn)


def _proxy(proxy: CorporateProxy) -> str:
    address = "".join(f", address {value}" for value in (*proxy.networks, *proxy.pins))
    secret = f", secret {proxy.secret} of {proxy.user}" if proxy.secret else ""
    ca = f", ca {proxy.ca}" if proxy.ca else ""
    return f"{proxy.name} ({'https' if proxy.tls else 'http'}://{proxy.host}:{proxy.port}{address}{ca}{secret})"


def _lists(role: Role) -> tuple[tuple[str, tuple[str, ...]], ...]:
    files = (("readonly", role.readonly), ("hide", role.hide), ("show", role.show))
    return (("tools", role.tools), ("read", role.read), ("state", role.state), *files, ("env", role.env))


def _jail(role: Role) -> Iterator[str]:
    yield f"work tree: {role.workdir}"
    if role.agent is not None:
        yield f"agent: {role.agent.name}, its own files {role.agent_state}"
    for key, values in _lists(role):
        for value in values:
            yield f"{key}: {value}"
    yield from (f"{switch}: true" for switch in role.switches())
    yield from (f"publish: {port}" for port in role.publish)
    yield from (f"children: {child}" for child in role.children)
    limits = role.limits
    yield (
        f"limits: memory {limits.memory}, processes {limits.processes}, open_files {limits.open_files}, "
        f"cpu {limits.cpu}, file_size {limits.file_size}"
    )
    for key, bound in (("requests", role.budget.requests), ("bytes_out", role.budget.bytes_out)):
        if bound is not None:
            yield f"budget: {key} {bound}"
    if role.on_alarm is not OnAlarm.NOTIFY:
        yield f"on_alarm: {role.on_alarm}"
    if role.deadline is not None:
        yield f"deadline: {role.deadline}"
