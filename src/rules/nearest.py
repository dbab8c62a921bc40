"""The rule or endpoint that comes nearest to a refused request, and what is different there: for `policy explain`."""

from dataclasses import dataclass
from difflib import get_close_matches

from rules.hosts import HostPattern
from rules.paths import PathPattern
from rules.policy import AllowRule, Endpoint, Policy
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Deny

__all__ = ["Nearest", "nearest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """`rule` is "ENDPOINT.ID", or an endpoint's name where no rule came into question; `why` it did not match."""

    rule: str
    why: str


def nearest(policy: Policy, role: str, request: Request, deny: Deny) -> Nearest | None:
    """None where the reason is not that something is missing, or nothing comes near."""
    match deny.reason:
        case Reason.NO_RULE:
            return _rule(policy, role, request)
        case Reason.PORT_UNLISTED:
            return _port(policy, role, request)
        case Reason.HOST_UNLISTED:
            return _host(policy, role, request)
        case _:
            return None


def _rule(policy: Policy, role: str, request: Request) -> Nearest | None:
    scored = [
        (_score(rule, request, path), endpoint, rule, path)
        for endpoint in policy.endpoints_of(role)
        if endpoint.host.matches(request.host) and endpoint.port == request.port
        for rule in endpoint.allow
        for path in rule.paths
    ]
    if not scored:
        return None
    _, endpoint, rule, path = max(scored, key=lambda each: each[0])
    return Nearest(rule=f"{endpoint.name}.{rule.id}", why=_why(rule, request, path))


def _score(rule: AllowRule, request: Request, path: PathPattern) -> tuple[bool, float, bool]:
    """The path counts more than the method: a method is missing in a rule more often than a rule's path is meant."""
    segments = request.path.split("/")[1:]
    pairs = zip(path.segments, segments, strict=False)
    alike = sum(p in ("*", "**", s) for p, s in pairs)
    close = sum(bool(get_close_matches(s, [p], cutoff=0.7)) for p, s in zip(path.segments, segments, strict=False))
    longer = max(len(path.segments), len(segments))
    return path.matches(request.path), (alike + close / 2) / longer, request.method in rule.methods


def _why(rule: AllowRule, request: Request, path: PathPattern) -> str:
    methods = ", ".join(sorted(rule.methods))
    if path.matches(request.path):
        return f"its methods are {methods}"
    return f"its path is {path.text}" + ("" if request.method in rule.methods else f", its methods are {methods}")


def _port(policy: Policy, role: str, request: Request) -> Nearest | None:
    for endpoint in policy.endpoints_of(role):
        if endpoint.host.matches(request.host):
            return Nearest(
                rule=endpoint.name, why=f"it is {'https' if endpoint.tls else 'http'} on port {endpoint.port}"
            )
    return None


def _host(policy: Policy, role: str, request: Request) -> Nearest | None:
    """The same host where the role doesn't reach it, else one that is spelt nearly so."""
    reached = {endpoint.name for endpoint in policy.endpoints_of(role)}
    others = [e for e in policy.endpoints.values() if e.name not in reached and e.host.matches(request.host)]
    if others:
        return Nearest(rule=others[0].name, why="it has this host, and the role does not reach it")
    by_host: dict[str, Endpoint] = {_bare(endpoint.host): endpoint for endpoint in policy.endpoints_of(role)}
    close = get_close_matches(request.host, by_host, n=1, cutoff=0.7)
    return Nearest(rule=by_host[close[0]].name, why=f"its host is {by_host[close[0]].host.text}") if close else None


def _bare(host: HostPattern) -> str:
    return ".".join(host.labels)
