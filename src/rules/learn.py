"""From refused requests to the narrowest rules that would have let them pass, or the reason why none is proposed.

Nothing here allows anything. What is proposed was asked for: this method (HEAD goes with GET), this host, port and
scheme, this path but for ids that differed, these query names. A new endpoint has no binding, and a rule that is added
to an endpoint is named by none, so no proposal gives a secret to a request that had none.

Each proposal is tried by `decide` before it is made: the policy with it has to allow each request that it is for.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rules.asked import Asked, Known, Learned, Proposal, Told, request_of
from rules.decide import decide
from rules.hosts import HostPattern
from rules.idsegments import patterns
from rules.learn_target import Target, closed_host
from rules.packhosts import find_known
from rules.policy import Endpoint, Policy
from rules.reasons import Reason
from rules.request import Request
from rules.unproposed import PROPOSABLE, why_not
from rules.verdict import Allow, Deny

__all__ = ["applied", "learn"]

PATHS = 32  # proposals for one target; what asks for more is better written by hand
TARGETS = 32  # those most asked for; each new endpoint makes the next trial slower
QUERY = 32  # names of one rule
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.$:@\[\]~-]{1,64}")  # of a parameter: what TOML and a person read in one way
_BY_DENY = "a pack that knows this host denies it: it makes a credential, or hides what it does"
_ABOVE = "the role of the run that asked for this one has to allow it too"


@dataclass(slots=True)
class _Sorted:
    fit: list[Asked] = field(default_factory=list)
    told: list[tuple[Asked, str]] = field(default_factory=list)
    passing: list[Asked] = field(default_factory=list)

    def tell(self, asked: Iterable[Asked], why: str) -> None:
        self.told += [(each, why) for each in asked]


def learn(policy: Policy, role: str, asked: Iterable[Asked], known: Mapping[tuple[str, ...], Known]) -> Learned:
    """Propose rules for `role` of `policy`, those most asked for first. `known`: as packhosts.known_hosts gives it."""
    found = _Sorted()
    for each in asked:
        _sort(policy, role, each, found)
    groups: dict[tuple[str, str, int], list[Asked]] = {}
    for each in sorted(found.fit, key=lambda a: -a.count):
        groups.setdefault((each.scheme, each.host, each.port), []).append(each)
    proposals: list[Proposal] = []
    ranked = sorted(groups.values(), key=lambda group: -sum(each.count for each in group))
    for number, group in enumerate(ranked):
        if number >= TARGETS:
            found.tell(group, f"more than {TARGETS} hosts were asked for: write an endpoint for it by hand")
            continue
        made = _of_target(policy, role, group, find_known(known, group[0].host), found)
        policy = applied(policy, role, made)
        proposals += made
    return Learned(proposals=tuple(proposals), told=_grouped(found.told), passing=tuple(found.passing))


def _sort(policy: Policy, role: str, asked: Asked, found: _Sorted) -> None:
    """Tell what a rule could let pass from the rest."""
    request = request_of(asked)
    if asked.reason not in PROPOSABLE or isinstance(request, Deny):
        found.tell([asked], why_not(asked.reason))
        return
    unfit = _unfit(asked, request)
    if unfit:
        found.tell([asked], unfit)
        return
    match decide(policy, role, request):
        case Allow():
            found.passing.append(asked)
        case Deny(reason=reason) if reason in PROPOSABLE:
            found.fit.append(asked)
        case Deny(reason=reason):
            found.tell([asked], why_not(reason))


def _unfit(asked: Asked, request: Request) -> str:
    """Why a request can't be written as a rule; "": it can."""
    if (request.path, request.host, request.port) != (asked.path, asked.host, asked.port):
        return why_not(asked.reason)
    if "*" in asked.path:
        return 'its path holds "*", which in a rule means any segment'
    if len(asked.query) > QUERY or not all(_PLAIN_NAME.fullmatch(name) for name in asked.query):
        return "its query has names that a rule can't list"
    return ""


def _of_target(policy: Policy, role: str, group: list[Asked], known: Known | None, found: _Sorted) -> list[Proposal]:
    """The rules for one scheme, host and port, one for each pattern and set of query names."""
    target = Target.of(policy, role, group[0])
    why = closed_host(group[0].host, known) if target.new else ""
    why = why or target.why_not
    if why:
        found.tell(group, why)
        return []
    made: list[Proposal] = []
    for asked in _by_rule(group):
        if len(made) == PATHS:
            found.tell(asked, f"more than {PATHS} paths of this host were asked for: write a rule for them by hand")
            continue
        proposal = target.proposal(asked, len(made))
        if judge := target.judged_by(proposal):
            found.tell(asked, f"rule {judge} judges the body there, which a rule beside it would undo: change that one")
            continue
        refused = _tried(policy, role, [*made, proposal], known)
        found.told += refused
        still = {each for each, _ in refused}
        if allowed := [each for each in asked if each not in still]:
            made.append(target.proposal(allowed, len(made)) if still else proposal)
    return made


def _by_rule(group: list[Asked]) -> list[tuple[Asked, ...]]:
    """What goes into one rule: the same pattern and the same names in the query, by any of the methods."""
    rules: dict[tuple[str, frozenset[str]], list[Asked]] = {}
    for method in dict.fromkeys(each.method for each in group):
        mine = [each for each in group if each.method == method]
        for pattern, paths in patterns(each.path for each in mine).items():
            alike = [each for each in mine if each.path in paths]
            rules.setdefault((pattern, frozenset().union(*(a.query for a in alike))), []).extend(alike)
    return sorted((tuple(asked) for asked in rules.values()), key=lambda asked: -sum(a.count for a in asked))


def _tried(policy: Policy, role: str, made: list[Proposal], known: Known | None) -> list[tuple[Asked, str]]:
    """Those requests of the last proposal that don't pass with it, or that a pack for this host denies, and why."""
    after = applied(policy, role, made)
    if known is not None:
        endpoint = after.endpoints[made[-1].endpoint]
        closed = replace(endpoint, deny=(*endpoint.deny, *known.deny))
        after = replace(after, endpoints={**after.endpoints, endpoint.name: closed})
    refused = []
    for asked in made[-1].asked:
        request = request_of(asked)
        verdict = request if isinstance(request, Deny) else decide(after, role, request)
        if isinstance(verdict, Deny):
            by_pack = known is not None and verdict.reason is Reason.DENY_RULE
            above = _ABOVE if policy.roles[role].within else why_not(verdict.reason)
            refused.append((asked, _BY_DENY if by_pack else above))
    return refused


def applied(policy: Policy, role: str, proposals: Iterable[Proposal]) -> Policy:
    """The policy with these proposals taken. Raises PathError or HostError for what `learn` did not make."""
    endpoints, reached = dict(policy.endpoints), list(policy.roles[role].endpoints)
    for proposal in proposals:
        if proposal.endpoint not in endpoints:
            reached.append(proposal.endpoint)
            endpoints[proposal.endpoint] = Endpoint(
                name=proposal.endpoint,
                host=HostPattern.parse(proposal.host),
                port=proposal.port,
                dial_port=proposal.port,
                tls=proposal.scheme == "https",
            )
        old = endpoints[proposal.endpoint]
        endpoints[proposal.endpoint] = replace(old, allow=(*old.allow, proposal.rule()))
    roles = {**policy.roles, role: replace(policy.roles[role], endpoints=tuple(reached))}
    return replace(policy, endpoints=endpoints, roles=roles)


def _grouped(told: list[tuple[Asked, str]]) -> tuple[Told, ...]:
    """One entry for what differs in ids alone, those most asked for first."""
    alike: dict[tuple[str, ...], list[Asked]] = {}
    for asked, why in told:
        key = (why, asked.reason, asked.method, asked.scheme, asked.host, str(asked.port))
        alike.setdefault(key, []).append(asked)
    out: list[Told] = []
    for (why, *_), group in alike.items():
        for pattern, paths in patterns(each.path for each in group).items():
            out.append(Told(asked=tuple(a for a in group if a.path in paths), path=pattern, why=why))
    return tuple(sorted(out, key=lambda each: -each.count))
