"""What the tables of a policy say about each other: names that lead nowhere, and secrets where none may be."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from rules.agents import needs_decoy
from rules.load_fit import check_place
from rules.mint_refs import mint_problems
from rules.mints import Mint, OAuthRefresh
from rules.places import overlap, place_text
from rules.policy import Binding, CorporateProxy, Endpoint, Foreign, Role, TestCase, reached_by
from rules.sources import SecretRule, SourceKind
from rules.tables import Report, Table, closest, join, show

_MOST_SECRETS = 32  # of one request: each pair of them is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The parts of a policy before they are checked against each other."""

    secrets: dict[str, SecretRule]
    mints: dict[str, Mint]
    proxies: dict[str, CorporateProxy]
    endpoints: dict[str, Endpoint]
    bindings: dict[str, Binding]
    roles: dict[str, Role]
    tests: tuple[TestCase, ...]


def with_pack_rules(bindings: Mapping[str, Binding], endpoints: Mapping[str, Endpoint]) -> dict[str, Binding]:
    """The bindings with each pack that `rules` names replaced by its rules at that endpoint."""
    return {
        name: replace(binding, rules=_spread(binding.rules, endpoints[binding.endpoint]))
        if binding.endpoint in endpoints
        else binding
        for name, binding in bindings.items()
    }


def _spread(rules: frozenset[str], endpoint: Endpoint) -> frozenset[str]:
    packs: dict[str, set[str]] = {}
    for rule in endpoint.allow:
        pack, slash, _ = rule.id.partition("/")
        if slash:
            packs.setdefault(pack, set()).add(rule.id)
    return frozenset(each for rule in rules for each in packs.get(rule, {rule}))


def check_refs(root: Table, default_role: str, draft: Draft) -> None:
    """Record every fault between tables."""
    report = root.report
    if default_role:
        _ref(report, "default_role", default_role, draft.roles, "role")
    for proxy in draft.proxies.values():
        if proxy.secret:
            _ref(report, f"{join('proxy', proxy.name)}.secret", proxy.secret, draft.secrets, "secret")
    for problem in mint_problems(draft.mints, draft.secrets, draft.endpoints, draft.bindings, draft.proxies):
        report.add(problem.where, problem.message, problem.hint)
    for binding in draft.bindings.values():
        _binding(report, binding, draft)
    for endpoint in draft.endpoints.values():
        _route(report, endpoint, draft)
    named = _by_table(draft.endpoints)
    sources = {rule.ref: rule.name for rule in draft.secrets.values() if rule.kind is SourceKind.ENV}
    for role in draft.roles.values():
        _role(report, role, draft)
        _passed(report, role, sources)
        reached = reached_by(role, draft.bindings, draft.endpoints)
        _targets(report, role, [each for name in named if name in reached for each in named[name]])
    for i, case in enumerate(draft.tests):
        if case.role:
            _ref(report, f"test[{i}].role", case.role, draft.roles, "role")


def _ref(report: Report, where: str, name: str, known: Mapping[str, object], kind: str) -> bool:
    if name in known:
        return True
    report.add(where, f"no {kind} is called {show(name)}", closest(name, known) or f"add: [{kind}.{name}]")
    return False


def _binding(report: Report, binding: Binding, draft: Draft) -> None:
    where = join("binding", binding.name)
    if binding.secret:
        _ref(report, f"{where}.secret", binding.secret, draft.secrets, "secret")
    if binding.endpoint:
        _ref(report, f"{where}.endpoint", binding.endpoint, draft.endpoints, "endpoint")
    endpoint = draft.endpoints.get(binding.endpoint)
    if endpoint is not None and endpoint.listen:
        place = f"{where}.endpoint"
        report.add(place, f'{endpoint.name} has protocol = "tcp", which is opaque', "bind it to an http endpoint")
    elif endpoint is not None:
        _bound_rules(report, f"{where}.rules", binding, endpoint, draft)
        _bound_endpoint(report, where, endpoint, draft)
        check_place(report, binding, endpoint)


def _bound_rules(report: Report, where: str, binding: Binding, endpoint: Endpoint, draft: Draft) -> None:
    own = {rule.id for rule in endpoint.allow if rule.id}
    for rule in sorted(binding.rules - own):
        others = [e.name for e in draft.endpoints.values() if e is not endpoint and any(a.id == rule for a in e.allow)]
        if others:
            message = f"{show(rule)} is a rule of another endpoint ({', '.join(others)}), not of {endpoint.name}"
            report.add(where, message, f"rules of {endpoint.name}: {', '.join(sorted(own)) or 'none'}")
        else:
            report.add(where, f"{endpoint.name} has no allow rule {show(rule)}", closest(rule, own))


def _bound_endpoint(report: Report, where: str, endpoint: Endpoint, draft: Draft) -> None:
    """Refuse a secret where it could be read on the way, or go to whoever owns a name under a wildcard."""
    place = f"{where}.endpoint"
    if endpoint.route:
        report.add(place, f"{endpoint.name} has a route, and a secret is one target's", "bind it to the targets")
    if not endpoint.tls:
        report.add(place, f"{endpoint.name} has tls = false, which carries no secret", "bind it to a tls endpoint")
    if not endpoint.host.exact:
        report.add(
            place,
            f"{endpoint.name} has the host {show(endpoint.host.text)}, and a secret goes to one exact host",
            "write an endpoint for each host that gets it",
        )
    if f"{endpoint.name}~2" in draft.endpoints:
        hosts = [e.host.text for n, e in draft.endpoints.items() if n.partition("~")[0] == endpoint.name]
        report.add(
            place,
            f"{endpoint.name} was resolved to several hosts ({', '.join(hosts)}), and a secret goes to one",
            "write an endpoint with host = ... for the one that gets it",
        )
    if endpoint.foreign is Foreign.ALLOW:
        where_endpoint = f"{join('endpoint', endpoint.name)}.foreign"
        report.add(
            where_endpoint,
            f'got "allow", but {where} injects there, and the client\'s own credential would go beside it',
            'write "strip" or "deny"',
        )


def _route(report: Report, endpoint: Endpoint, draft: Draft) -> None:
    """Refuse a route that leads to no single target, or to one that is spoken to in another way."""
    for word, name in endpoint.route:
        where = join(f"{join('endpoint', endpoint.name)}.route", word)
        if not _ref(report, where, name, draft.endpoints, "endpoint"):
            continue
        target = draft.endpoints[name]
        if target.route or target.listen or f"{name}~2" in draft.endpoints:
            report.add(where, f"{name} is no single target of HTTP", "name an endpoint with host, and without a route")
        elif target.host.labels and not target.host.exact:
            report.add(where, f"{name} has the host {show(target.host.text)}, expected one host")
        elif target.alpn != endpoint.alpn and target.tls:
            message = f"{name} speaks {', '.join(target.alpn)}, {endpoint.name} {', '.join(endpoint.alpn)}"
            report.add(where, message, "give both the same alpn: HTTP/2 is never turned into HTTP/1.1")
        elif not target.tls and "h2" in endpoint.alpn:
            report.add(where, f"{name} has tls = false, which speaks HTTP/1.1 alone", "take alpn out")


def _role_route(report: Report, role: Role, reached: Iterable[Endpoint]) -> None:
    """Refuse a role whose word an endpoint doesn't know: no request may go another way in silence."""
    routed = [endpoint for endpoint in reached if endpoint.route]
    where = f"{join('role', role.name)}.route"
    for endpoint in routed:
        if not endpoint.behind(role.route):
            words = [word for word, _ in endpoint.route]
            report.add(where, f"{endpoint.name} has no route {show(role.route)}", closest(role.route, words))
    if role.route != "default" and not routed:
        report.add(where, "no endpoint of this role has a route", "take it out, or list the endpoint that has one")


def _role(report: Report, role: Role, draft: Draft) -> None:
    where = join("role", role.name)
    for i, name in enumerate(role.bindings):
        _ref(report, f"{where}.bindings[{i}]", name, draft.bindings, "binding")
    for i, name in enumerate(role.endpoints):
        _ref(report, f"{where}.endpoints[{i}]", name, draft.endpoints, "endpoint")
    for i, name in enumerate(role.children):
        _ref(report, f"{where}.children[{i}]", name, draft.roles, "role")
    bindings = [draft.bindings[n] for n in role.bindings if n in draft.bindings]
    _places(report, f"{where}.bindings", bindings)
    _variables(report, f"{where}.bindings", bindings)
    for binding in bindings:
        if binding.placeholder and binding.placeholder.env in role.env:
            message = f"{binding.placeholder.env} is passed from the caller and holds the placeholder of {binding.name}"
            report.add(f"{where}.env", message, "take it out of env")
    _agent(report, where, role, bindings, draft)


def _passed(report: Report, role: Role, sources: Mapping[str, str]) -> None:
    """Refuse a variable that holds a secret's value: the jail would have it."""
    for i, name in enumerate(role.env):
        if name in sources:
            message = f"{name} is where the secret {sources[name]} comes from, and the jail would have its value"
            report.add(f"{join('role', role.name)}.env[{i}]", message, "take it out of env")


def _by_table(endpoints: Mapping[str, Endpoint]) -> dict[str, list[Endpoint]]:
    """The endpoints that each table of the file stands for."""
    found: dict[str, list[Endpoint]] = {}
    for name, endpoint in endpoints.items():
        found.setdefault(name.partition("~")[0], []).append(endpoint)
    return found


def _targets(report: Report, role: Role, reached: Sequence[Endpoint]) -> None:
    _role_route(report, role, reached)
    for first, second in _alike(reached):
        _one_target(report, join("role", role.name), first, second)


def _alike(endpoints: Sequence[Endpoint]) -> Iterator[tuple[Endpoint, Endpoint]]:
    """Those that may be one target, or one port of the gateway's. Of 10,000 there are fifty million pairs: each is held
    against the first of its kind, since what is alike to one and the same is alike.
    """
    first: dict[Hashable, Endpoint] = {}
    by_entry: dict[int, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_entry.setdefault(endpoint.entry, []).append(endpoint)
        known = endpoint if endpoint.listen else first.setdefault((endpoint.host, endpoint.port), endpoint)
        if known is not endpoint:
            yield known, endpoint
    for group in by_entry.values():
        opaque = next((each for each in group if each.listen), None)
        if opaque is not None:
            yield from ((opaque, each) for each in group if each is not opaque)


def _agent(report: Report, where: str, role: Role, bindings: Iterable[Binding], draft: Draft) -> None:
    """A profile that writes the key into a file needs exactly one decoy to write there; that of a login one more."""
    if role.agent is None or not needs_decoy(role.agent):
        return
    names, hint = role.agent.key_names(), f"see: credgate init {role.agent.name} --print"
    found = {(b.secret, b.placeholder): b for b in bindings if b.placeholder and b.placeholder.env in names}
    if len(found) != 1:
        said = f"{len(found)} ({', '.join(b.name for b in found.values())})" if found else "none"
        message = f"{role.agent.name} reads its key from {' or '.join(sorted(names))}: got {said}, expected one binding"
        report.add(f"{where}.agent", f"{message} with that placeholder", hint)
        return
    login = role.agent.login
    if login is not None and not any(_refreshes(draft, name, login.env) for name, _ in found):
        message = f"{role.agent.name} keeps a refresh token too: no mint of its key has the placeholder {login.env}"
        report.add(f"{where}.agent", message, hint)


def _refreshes(draft: Draft, secret: str, env: str) -> bool:
    """Whether a secret is minted by one whose decoy refresh token is in this variable."""
    rule = draft.secrets.get(secret)
    mint = draft.mints.get(rule.ref) if rule is not None and rule.kind is SourceKind.MINT else None
    return isinstance(mint, OAuthRefresh) and mint.placeholder is not None and mint.placeholder.env == env


def _one_target(report: Report, where: str, one: Endpoint, other: Endpoint) -> None:
    """Refuse two ways of dialling one target: the rules of both count, but a connection is made before any is asked."""
    if (one.listen or other.listen) and one.entry == other.entry:
        report.add(
            where,
            f"{one.name} and {other.name} are both at the gateway's port {one.entry}, and what is opaque has its own",
            "give it another listen",
        )
        return
    if not one.host.labels or one.host != other.host or one.port != other.port or one.listen or other.listen:
        return
    keys = ("tls", "dial_port", "alpn", "ca", "networks", "pins", "spki", "proxy", "route")
    differ = [key for key in keys if getattr(one, key) != getattr(other, key)]
    if differ:
        names = ", ".join("address" if key in ("networks", "pins") else key for key in differ)
        report.add(
            where,
            f"{one.name} and {other.name} are one target ({one.host.text}, port {one.port}) with a different {names}",
            "make them equal, or put the rules into one endpoint",
        )


def _places(report: Report, where: str, bindings: Iterable[Binding]) -> None:
    """Refuse two secrets for one place of one request."""
    groups: dict[tuple[str, str], list[int]] = {}
    numbered = list(bindings)
    for number, binding in enumerate(numbered):
        for rule in binding.rules:
            groups.setdefault((binding.endpoint, rule), []).append(number)
    pairs: set[tuple[int, int]] = set()
    for (endpoint, rule), group in groups.items():
        if len(group) > _MOST_SECRETS:
            message = f"got {len(group)} for the rule {show(rule)} of {endpoint}, expected at most {_MOST_SECRETS}"
            report.add(where, message, "give them different rules or roles")
        else:
            pairs.update(combinations(group, 2))
    for first, second in sorted(pairs):
        one, other = numbered[first], numbered[second]
        if overlap(one, other):
            report.add(
                where,
                f"{one.name} and {other.name} write one place ({place_text(one)}) for the rule "
                f"{', '.join(sorted(one.rules & other.rules))}",
                "give them different rules, places or roles",
            )


def _variables(report: Report, where: str, bindings: Iterable[Binding]) -> None:
    """Refuse two decoys for one variable. One token in the jail may be for all hosts that take it, and one pair of keys
    for all services of an account.
    """
    first: dict[str, Binding] = {}
    for binding in bindings:
        if binding.placeholder is None:
            continue
        one = first.setdefault(binding.placeholder.env, binding)
        if (one.secret, one.placeholder) != (binding.secret, binding.placeholder):
            report.add(
                where,
                f"{one.name} and {binding.name} put their placeholder into one variable ({binding.placeholder.env})",
                "give each an env of its own",
            )
