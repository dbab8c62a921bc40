"""The ceiling: a policy that the machine's administrator sets and that no other policy can widen.

Each role of the policy must fit inside one role of the ceiling: the one of the same name, or the ceiling's
default_role. Inside means: each endpoint, allow rule, address, binding, secret, tool and file of the role is covered by
one of that ceiling role. What doesn't fit is an error that names it; nothing is dropped in silence. The ceiling's deny
rules, `readonly`, `hide`, limits, deadline, budget, `on_alarm`, `dns.unlisted` and the ttl, uses and rate of its
bindings are added, since they can only narrow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rules.agentstate import AgentState
from rules.covers import covers_address, covers_host, covers_rule, overlaps, strictness
from rules.hostindex import HostIndex
from rules.intersect import least, least_budget, smaller, sternest
from rules.mint_refs import same_secret
from rules.places import key_of
from rules.policy import (
    AllowRule,
    Binding,
    CorporateProxy,
    DenyRule,
    Endpoint,
    Mode,
    Policy,
    Role,
    Signing,
    Unlisted,
    Workdir,
)
from rules.problems import PolicyError, Problem
from rules.tables import Report, join, show

__all__ = ["narrow"]

_HINT = "the ceiling is set by this machine's administrator; take the entry out, or ask for it there"


def narrow(policy: Policy, ceiling: Policy) -> Policy:
    """Return the policy under the ceiling. Raises PolicyError with everything that reaches above it."""
    report = Report()
    matched = {name: _role_above(report, role, ceiling) for name, role in policy.roles.items()}
    for name, above in matched.items():
        if above is not None:
            _check_role(report, policy, policy.roles[name], ceiling, above)
    if report.problems:
        raise PolicyError(dict.fromkeys(report.problems))
    roles = {name: _narrow_role(policy.roles[name], above) for name, above in matched.items() if above is not None}
    above_hosts = HostIndex((e.host, e) for e in ceiling.endpoints.values())
    nxdomain = Unlisted.NXDOMAIN in (policy.unlisted, ceiling.unlisted)
    return replace(
        policy,
        unlisted=Unlisted.NXDOMAIN if nxdomain else Unlisted.GATEWAY,
        endpoints={name: _with_denies(e, above_hosts) for name, e in policy.endpoints.items()},
        bindings={name: _narrow_binding(b, ceiling.bindings.get(name)) for name, b in policy.bindings.items()},
        roles=roles,
        ceiling_sha256=ceiling.sha256,
    )


def _role_above(report: Report, role: Role, ceiling: Policy) -> Role | None:
    above = ceiling.roles.get(role.name) or ceiling.roles.get(ceiling.default_role)
    if above is None:
        report.add(join("role", role.name), "the ceiling has neither a role of this name nor a default_role", _HINT)
    return above


def _check_role(report: Report, policy: Policy, role: Role, ceiling: Policy, above: Role) -> None:
    where = join("role", role.name)
    reached = HostIndex((e.host, e) for e in (*ceiling.endpoints_of(above.name), *ceiling.targets_of(above.name)))
    for endpoint in {e.name: e for e in (*policy.endpoints_of(role.name), *policy.targets_of(role.name))}.values():
        _check_endpoint(report, endpoint, reached, above)
        if endpoint.proxy is not None and endpoint.proxy.secret:
            _check_proxy(report, policy, endpoint.proxy, ceiling)
    for name in role.bindings:
        _check_binding(report, policy, policy.bindings[name], ceiling, above)
    if list(Workdir).index(role.workdir) > list(Workdir).index(above.workdir):
        told = f'got "{role.workdir}", the ceiling\'s role {above.name} has "{above.workdir}"'
        report.add(f"{where}.workdir", told, _HINT)
    _check_switches(report, role, above)
    _check_lists(report, where, role, above)


def _check_trees(report: Report, where: str, role: Role, above: Role) -> None:
    lists = (("tools", role.tools, above.tools), ("read", role.read, above.read))
    for key, mine, theirs in (*lists, ("state", role.state, (*above.state, *above.read))):
        for path in mine:
            if not any(_below(path, outer) for outer in theirs):
                report.add(f"{where}.{key}", f"{show(path)} is in none of the ceiling's {key}", _HINT)


def _check_lists(report: Report, where: str, role: Role, above: Role) -> None:
    _check_trees(report, where, role, above)
    if role.agent_state is not AgentState.FRESH and above.agent_state is AgentState.FRESH:
        report.add(f"{where}.agent_state", f'got "copy", the ceiling\'s role {above.name} has "fresh"', _HINT)
    for path in role.show:
        if path not in above.show:
            report.add(f"{where}.show", f"{show(path)} is not in the ceiling's show", _HINT)
    for port in role.publish:
        if port not in above.publish:
            report.add(f"{where}.publish", f"{port} is not in the ceiling's publish", _HINT)
    for name in role.env:
        if name not in above.env:
            report.add(f"{where}.env", f"{name} is not in the ceiling's env", _HINT)


def _check_switches(report: Report, role: Role, above: Role) -> None:
    for switch in role.switches():
        if switch not in above.switches():
            where = f"{join('role', role.name)}.{switch}"
            report.add(where, f"got true, the ceiling's role {above.name} has false", _HINT)


def _below(path: str, outer: str) -> bool:
    base = outer.rstrip("/")
    return path.rstrip("/") == base or path.startswith(base + "/")


def _check_endpoint(report: Report, endpoint: Endpoint, reached: HostIndex[Endpoint], above: Role) -> None:
    """Record what keeps the endpoint from fitting the ceiling's endpoint that it comes nearest to."""
    where = join("endpoint", endpoint.name)
    candidates = [e for e in reached.near(endpoint.host) if _same_target(e, endpoint)]
    if not candidates:
        message = f"the ceiling's role {above.name} reaches no endpoint that covers {endpoint.host.text}"
        kind = f"listen = {endpoint.listen}" if endpoint.listen else f"tls = {str(endpoint.tls).lower()}"
        report.add(where, f"{message}, port {endpoint.port}, {kind}", _HINT)
        return
    misfits: list[list[Problem]] = [_misfits(where, endpoint, outer) for outer in candidates]
    nearest: list[Problem] = min(misfits, key=len)
    report.problems += nearest


def _check_proxy(report: Report, policy: Policy, proxy: CorporateProxy, ceiling: Policy) -> None:
    """The proxies are equal, else the endpoint did not fit; the secret's name alone could still mean another value."""
    if policy.secrets[proxy.secret] != ceiling.secrets.get(proxy.secret):
        report.add(f"{join('proxy', proxy.name)}.secret", "differs from the ceiling's secret of this name", _HINT)


def _same_target(outer: Endpoint, inner: Endpoint) -> bool:
    alike = (outer.port, outer.tls, outer.listen) == (inner.port, inner.tls, inner.listen)
    return alike and covers_host(outer.host, inner.host)


def _misfits(where: str, inner: Endpoint, outer: Endpoint) -> list[Problem]:
    report = Report()
    facts: Mapping[str, bool] = {
        "dial_port": inner.dial_port == outer.dial_port,
        "alpn": set(inner.alpn) <= set(outer.alpn),
        "ca": inner.ca in ("", outer.ca),
        "foreign": strictness(inner.foreign) <= strictness(outer.foreign),
        "address": _addresses_fit(inner, outer),
        "spki": not outer.spki or bool(inner.spki and inner.spki <= outer.spki),
        "proxy": inner.proxy == outer.proxy,
        "correlate": inner.correlate >= outer.correlate,
        "digest": inner.digest >= outer.digest,
    }
    for key, fits in facts.items():
        if not fits:
            report.add(f"{where}.{key}", f"reaches beyond the ceiling's endpoint {outer.name}", _HINT)
    for rule in inner.allow:
        if not _covered(rule, outer.allow):
            message = f"no single rule of the ceiling's endpoint {outer.name} covers the rule {show(rule.id)}"
            report.add(f"{where}.allow", message, _HINT)
    return report.problems


def _addresses_fit(inner: Endpoint, outer: Endpoint) -> bool:
    """Pins replace the look-up, so an endpoint that the ceiling pins has to stay pinned."""
    if outer.pins and not inner.pins:
        return False
    return all(covers_address(outer.networks, outer.pins, value) for value in (*inner.networks, *inner.pins))


def _covered(rule: AllowRule, rules: Iterable[AllowRule]) -> bool:
    return any(covers_rule(outer, rule) for outer in rules)


def _check_binding(report: Report, policy: Policy, binding: Binding, ceiling: Policy, above: Role) -> None:
    where = join("binding", binding.name)
    outer = ceiling.bindings[binding.name] if binding.name in above.bindings else None
    if outer is None:
        report.add(where, f"the ceiling's role {above.name} has no binding of this name", _HINT)
        return
    endpoint, target = policy.endpoints[binding.endpoint], ceiling.endpoints[outer.endpoint]
    facts: Mapping[str, bool] = {
        "secret": same_secret(policy, binding.secret, ceiling, outer.secret),
        "endpoint": _same_target(target, endpoint),
        "place": (binding.place, key_of(binding)) == (outer.place, key_of(outer)),
        "format": binding.format == outer.format,
        "sign": _sign_fits(binding.sign, outer.sign),
        "mode": binding.mode is outer.mode or outer.mode is Mode.OVERWRITE,
        "foreign": strictness(binding.foreign) <= strictness(outer.foreign),
        "response.scrub": binding.scrub or not outer.scrub,
        "response.alarm": binding.scrub_alarm or not outer.scrub_alarm,
        "response.set_cookie": binding.drop_set_cookie or not outer.drop_set_cookie,
    }
    for key, fits in facts.items():
        if not fits:
            report.add(
                f"{where}.{key}", f"differs from the ceiling's binding {outer.name}, or reaches beyond it", _HINT
            )
    bound = [rule for rule in target.allow if rule.id in outer.rules]
    for rule in endpoint.allow:
        if rule.id in binding.rules and not _covered(rule, [b for b in bound if _same_segment(binding, rule, b)]):
            message = f"no single rule that the ceiling binds covers the rule {show(rule.id)}"
            report.add(f"{where}.rules", message, _HINT)


def _sign_fits(inner: Signing | None, outer: Signing | None) -> bool:
    """What the ceiling leaves to the client may be said; what it says stays as it is."""
    if inner is None or outer is None:
        return inner is outer
    within = not outer.operations or (bool(inner.operations) and set(inner.operations) <= set(outer.operations))
    within = within and (outer.copy or not inner.copy)
    return within and all(
        theirs in ("", mine) for mine, theirs in ((inner.service, outer.service), (inner.region, outer.region))
    )


def _same_segment(binding: Binding, rule: AllowRule, outer: AllowRule) -> bool:
    """Whether a secret in the path is written into the segment that the ceiling says; the names of it are equal."""
    mine, above = ({hole for p in r.paths for hole in p.holes if hole[0] == binding.slot} for r in (rule, outer))
    return mine <= above


def _with_denies(endpoint: Endpoint, above: HostIndex[Endpoint]) -> Endpoint:
    """Add the deny rules of every endpoint of the ceiling that shares a host with this one."""
    near = above.near(endpoint.host)
    shared = [e for e in near if e.port == endpoint.port and overlaps(e.host, endpoint.host)]
    added = tuple(_renamed(rule, e) for e in shared for rule in e.deny)
    return replace(endpoint, deny=(*endpoint.deny, *added))


def _renamed(rule: DenyRule, endpoint: Endpoint) -> DenyRule:
    return replace(rule, id=f"ceiling/{endpoint.name}/{rule.id}")


def _narrow_role(role: Role, above: Role) -> Role:
    return replace(
        role,
        readonly=tuple(dict.fromkeys((*role.readonly, *above.readonly))),
        hide=tuple(dict.fromkeys((*role.hide, *above.hide))),
        deadline=smaller(role.deadline, above.deadline),
        limits=least(role.limits, above.limits),
        budget=least_budget(role.budget, above.budget),
        on_alarm=sternest(role.on_alarm, above.on_alarm),
    )


def _narrow_binding(binding: Binding, above: Binding | None) -> Binding:
    if above is None:
        return binding
    return replace(
        binding,
        ttl=smaller(binding.ttl, above.ttl),
        max_uses=smaller(binding.max_uses, above.max_uses),
        rates=tuple(dict.fromkeys((*binding.rates, *above.rates))),
    )
