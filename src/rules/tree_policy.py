"""What a policy that lies in the work tree may hold.

Whoever writes the repository, the jailed agent included, writes that file too. It may say what is reachable and how
tight the jail is, but hold nothing that reaches for the user's secrets, files, trust or private network.
"""

from collections.abc import Iterator

from rules.addresses import AddressClass, classify
from rules.agentstate import AgentState
from rules.policy import Endpoint, Policy, Role
from rules.problems import PolicyError, Problem
from rules.tables import join

__all__ = ["check_tree_policy"]


def check_tree_policy(policy: Policy, hint: str) -> None:
    """Raise PolicyError with everything that a policy of the work tree can't define. `hint` says where it can."""
    problems = [
        Problem(where=where, message=f"a policy in the work tree can't {what}", hint=hint)
        for where, what in _all(policy)
    ]
    if problems:
        raise PolicyError(problems)


def _all(policy: Policy) -> Iterator[tuple[str, str]]:
    for name in policy.secrets:
        yield join("secret", name), "define a secret"
    for name in policy.vaults:
        yield join("vault", name), "name a vault"
    for name in policy.mints:
        yield join("mint", name), "mint a token"
    for name in policy.bindings:
        yield join("binding", name), "bind a secret"
    for name in policy.proxies:
        yield join("proxy", name), "name a proxy"
    for endpoint in policy.endpoints.values():
        yield from _endpoint(endpoint)
    for role in policy.roles.values():
        yield from _role(role)


def _endpoint(endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    where = join("endpoint", endpoint.name)
    if endpoint.ca:
        yield f"{where}.ca", "add a ca"
    if endpoint.networks or any(classify(pin) is not AddressClass.PUBLIC for pin in endpoint.pins):
        yield f"{where}.address", "open an address that is not public"


def _role(role: Role) -> Iterator[tuple[str, str]]:
    where = join("role", role.name)
    if role.agent is not None:
        yield f"{where}.agent", "say what is written into the home"
    if role.state or role.agent_state is not AgentState.FRESH:
        yield f"{where}.{'state' if role.state else 'agent_state'}", "copy files of the home"
    if role.read:
        yield f"{where}.read", "bind files of the host"
    if role.tools:
        yield f"{where}.tools", "bind install trees of the host"
    if role.show:
        yield f"{where}.show", "show files that are hidden"
    if role.publish:
        yield f"{where}.publish", "open a port of the host's loopback"
    for switch in role.switches():
        yield f"{where}.{switch}", "open what the jail closes"
