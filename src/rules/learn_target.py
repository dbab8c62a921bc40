"""Where a proposed rule goes: into an endpoint that the role has for exactly this target, else into a new one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rules.asked import Asked, Known, Proposal
from rules.covers import paths_meet
from rules.hosts import HostError, HostPattern, labels_of
from rules.idsegments import patterns
from rules.names import NameTable, NameVerdict, decide_name
from rules.policy import Endpoint, Policy
from rules.reasons import Reason

__all__ = ["Target", "closed_host"]

ID = "learned"
LONGEST = 56  # characters of a name before what makes it unique; a name has at most 64
_BODIES = frozenset({"POST", "PUT", "PATCH", "QUERY"})
_DIALLED = ("alpn", "ca", "networks", "pins", "spki", "proxy")  # equal in endpoints of one target (load_refs)


def closed_host(host: str, known: Known | None) -> str:
    """Why no endpoint is proposed for a host; "": one is."""
    if known is not None:
        return f"known to the pack {known.packs[0]}, which denies the making of credentials: write it with that pack"
    try:
        labels = HostPattern.parse(host).labels
    except HostError as error:
        return error.detail
    verdict = decide_name(NameTable(gateway_ip="", exact=frozenset({labels})), tuple(s.encode() for s in labels))
    if verdict is not NameVerdict.ALLOW:
        return "a name that has no address of its own: only an endpoint with address = [...], by hand, opens it"
    return "" if len(labels) > 1 else "a name without a dot is found by the host's search list alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`endpoint`: the name of the one that gets the rules. `why_not`: why none of them does."""

    policy: Policy
    role: str
    endpoint: str
    new: bool
    why_not: str = ""

    @classmethod
    def of(cls, policy: Policy, role: str, asked: Asked) -> "Target":
        """Look for the endpoint of what was asked."""
        tls = asked.scheme == "https"
        here = [e for e in policy.endpoints_of(role) if e.host.matches(asked.host) and e.port == asked.port]
        for endpoint in here:
            if endpoint.host.exact and endpoint.tls == tls and not (endpoint.origin or endpoint.listen):
                why = "its endpoint has several targets, and each of them needs the rule" if endpoint.route else ""
                return cls(policy=policy, role=role, endpoint=endpoint.name, new=False, why_not=why)
        plain = Endpoint(name="", host=HostPattern(text="", labels=()), port=asked.port, dial_port=asked.port, tls=tls)
        other = next((e for e in here if not _alike(e, plain)), None)
        why = "" if other is None else f"endpoint {other.name} has it too, dialled in a way of its own: add it there"
        return cls(policy=policy, role=role, endpoint=_name_for(policy, asked), new=True, why_not=why)

    def proposal(self, asked: Sequence[Asked], made: int) -> Proposal:
        """One rule for requests of one pattern; `made` are made for this target already."""
        first = asked[0]
        old = self.policy.endpoints.get(self.endpoint)
        free = (f"{ID}-{n}" for n in range(1, 1 << 20))
        taken = {rule.id for rule in old.allow} if old else set()
        ids = (each for each in free if each not in taken)
        for _ in range(made):
            next(ids)
        name = next(ids)
        path = next(iter(patterns(each.path for each in asked)))
        methods = tuple(sorted({each.method for each in asked}))
        return Proposal(
            endpoint=self.endpoint,
            new=self.new,
            scheme=first.scheme,
            host=first.host,
            port=first.port,
            id=name,
            methods=methods,
            path=path,
            query=tuple(sorted(frozenset().union(*(each.query for each in asked)))),
            encoded_slash="%2f" in path.lower(),
            asked=tuple(asked),
            notes=tuple(self._notes(asked, name)),
            aside=self._aside(first.host),
        )

    def judged_by(self, proposal: Proposal) -> str:
        """A rule that reads the body, or the messages, of something that the proposal would let pass unread; "": none.

        Where a rule without a body term matches too, no body is judged (decide._by_body): the proposal would undo it.
        """
        rule = proposal.rule()
        for endpoint in self.policy.endpoints_of(self.role):
            here = endpoint.host.matches(proposal.host) and endpoint.port == proposal.port
            for old in endpoint.allow if here else ():
                meets = any(paths_meet(mine, path) for mine in rule.paths for path in old.paths)
                if old.body is not None and old.methods & rule.methods and meets:
                    return f"{endpoint.name}.{old.id}"
        return ""

    def _notes(self, asked: Sequence[Asked], rule: str) -> Iterator[str]:
        """What the user has to know before saying yes."""
        bindings = [b for b in self.policy.roles[self.role].bindings if self._binds(b)]
        if bindings:
            names = " or ".join(bindings)
            yield f'no secret goes with it; to send one, add "{rule}" to the rules of binding {names} by hand'
            if decoys := " or ".join(b for b in bindings if self.policy.bindings[b].placeholder):
                yield f"a request that holds the placeholder of {decoys} stays refused until then, with an alarm"
        elif self.new:
            yield "no secret goes there, and the client's own credentials are taken out"
        others = [e.name for e in self.policy.endpoints.values() if self.new and e.host.matches(asked[0].host)]
        reached = {e.name for e in self.policy.endpoints_of(self.role)}
        if unreached := [name for name in others if name not in reached]:
            yield f"endpoint {unreached[0]} has this host, and the role does not reach it"
        if agent := self._aside(asked[0].host):
            yield f"{agent} asks for this host by itself, and does without it"
        if asked[0].scheme == "http":
            yield "plain http: anybody on the way can read and change it"
        if not _BODIES.isdisjoint(each.method for each in asked):
            yield "bodies are not in the ledger: any body passes, unless you add body = { ... }"
        if any(each.reason == Reason.QUERY_REFUSED for each in asked):
            yield "beside the rule of this path, which lists other query names"

    def _aside(self, host: str) -> str:
        """The role's agent, where its profile says that it asks for this host by itself."""
        agent = self.policy.roles[self.role].agent
        return agent.name if agent is not None and self.new and host in agent.side_hosts else ""

    def _binds(self, binding: str) -> bool:
        return self.policy.bindings[binding].endpoint == self.endpoint


def _alike(one: Endpoint, other: Endpoint) -> bool:
    """Whether two endpoints of one target could be dialled by one connection."""
    same = all(getattr(one, key) == getattr(other, key) for key in _DIALLED)
    return same and not one.route and one.tls == other.tls and one.dial_port == other.dial_port


def _name_for(policy: Policy, asked: Asked) -> str:
    """A name for a new endpoint, that of its host; a port that is not the scheme's own stands behind it."""
    usual = {"https": 443, "http": 80}.get(asked.scheme)
    text = "-".join(labels_of(asked.host)) + ("" if asked.port == usual else f"-{asked.port}")
    base = re.sub(r"[^a-z0-9-]", "-", text)[:LONGEST]
    taken = {name.partition("~")[0] for name in policy.endpoints}
    return next(name for name in (base, *(f"{base}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)
