"""The rights of a child run: what its own role and its parent's both give, never more than either.

Lists are intersected (but for `readonly` and `hide`, which close: they are joined), bounds are the smaller ones,
switches need both. Requests are not computed here but judged: `within` names both roles, and `decide` lets pass what
each of them lets pass. A deny rule, an ambiguity or a foreign credential that one of the two refuses so stays refused,
however the endpoints of the two overlap.
"""

from dataclasses import fields, replace

from rules.agentstate import AgentState
from rules.covers import covers_tree
from rules.policy import Budget, Limits, OnAlarm, Policy, Role, Workdir, reached_by

__all__ = ["child_policy", "intersect", "least"]


def child_policy(policy: Policy, parent: str, child: str) -> Policy:
    """The policy of a child run: role `child` in it is the intersection with `parent`, everything else is as it was.

    `policy` is the parent's own, so that a grandchild lies within all of them. Raises KeyError for an unknown role.
    """
    mine, above = policy.roles[child], policy.roles[parent]
    # Names of a file hold letters, digits, - and _ alone, so these can't be taken.
    kept = {f"{child}/{len(policy.roles)}": mine, f"{parent}/{len(policy.roles) + 1}": above}
    narrowed = replace(intersect(mine, above, policy), within=tuple(kept))
    return replace(policy, roles={**policy.roles, **kept, child: narrowed})


def intersect(child: Role, parent: Role, policy: Policy) -> Role:
    """What both roles give. `within` is left empty: child_policy sets it."""
    bindings = _common(child.bindings, parent.bindings)
    bound = reached_by(Role(name="", bindings=bindings), policy.bindings, policy.endpoints)
    reached = [reached_by(role, policy.bindings, policy.endpoints) for role in (child, parent)]
    return Role(
        name=child.name,
        bindings=bindings,
        endpoints=tuple(n for n in policy.endpoints if n in reached[0] and n in reached[1] and n not in bound),
        workdir=min(child.workdir, parent.workdir, key=list(Workdir).index),
        tools=_paths(child.tools, parent.tools),
        read=_paths(child.read, parent.read),
        readonly=tuple(dict.fromkeys((*child.readonly, *parent.readonly))),
        hide=tuple(dict.fromkeys((*child.hide, *parent.hide))),
        show=_common(child.show, parent.show),
        env=_common(child.env, parent.env),
        allow_debug=child.allow_debug and parent.allow_debug,
        allow_userns=child.allow_userns and parent.allow_userns,
        publish=(),  # a port of the host is one program's, and the parent was asked about its own
        children=child.children,  # each of them is intersected with this role again
        deadline=smaller(child.deadline, parent.deadline),
        limits=least(child.limits, parent.limits),
        budget=least_budget(child.budget, parent.budget),
        on_alarm=sternest(child.on_alarm, parent.on_alarm),
        agent=child.agent,
        agent_state=_agent_state(child, parent),
        state=_paths(child.state, parent.state),
        route=child.route,  # where the parent's leads elsewhere the two roles don't both allow, and it is refused
    )


def _agent_state(child: Role, parent: Role) -> AgentState:
    """Another agent's files are not the parent's to lend."""
    same = child.agent == parent.agent and child.agent_state == parent.agent_state
    return child.agent_state if same else AgentState.FRESH


def least(one: Limits, other: Limits) -> Limits:
    """The smaller of each bound."""
    return Limits(**{f.name: min(getattr(one, f.name), getattr(other, f.name)) for f in fields(Limits)})


def least_budget(one: Budget, other: Budget) -> Budget:
    """The smaller of each bound that is set."""
    return Budget(
        requests=smaller(one.requests, other.requests),
        bytes_out=smaller(one.bytes_out, other.bytes_out),
    )


def smaller(one: int | None, other: int | None) -> int | None:
    """The smaller of two bounds, of which None is none."""
    return min((value for value in (one, other) if value is not None), default=None)


def sternest(one: OnAlarm, other: OnAlarm) -> OnAlarm:
    """The one that does more."""
    return max(one, other, key=list(OnAlarm).index)


def _common(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(mine) if name in theirs)


def _paths(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """The trees that lie in a tree of each: of two that nest, the inner one. "~" and its expansion are two spellings
    and so have nothing in common, which is less than they have, and never more.
    """
    both = [_inner(a, b) for a in mine for b in theirs]
    return tuple(dict.fromkeys(path for path in both if path))


def _inner(one: str, other: str) -> str:
    return one if covers_tree(other, one) else other if covers_tree(one, other) else ""
