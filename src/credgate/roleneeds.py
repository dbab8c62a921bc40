"""What a role's bindings and endpoints ask of a run beside its jail: decoys, their variables, ports to listen on."""

import secrets
from collections.abc import Callable, Mapping

from rules.load_signing import AWS_SECRET_ENV
from rules.mint_refs import mint_of
from rules.mints import OAuthRefresh, decoy_key
from rules.placeholders import make_decoy
from rules.policy import Placeholder, Policy, Role
from rules.registries import EXTRA, Client, Registry

_INDEXES = {Client.PIP: ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), Client.UV: ("UV_DEFAULT_INDEX", "UV_INDEX")}
ALWAYS_OPEN = frozenset({53, 80, 443})


def decoys_of(policy: Policy, role: str) -> dict[str, str]:
    """A fresh decoy for each binding of the role that has a placeholder, by binding name.

    Bindings of one secret with one placeholder have one decoy: a client knows one token for all hosts that take it.
    """
    made = sample_decoys(policy, role, secrets.randbelow)
    for mint in _refreshed(policy, role):
        if mint.placeholder is not None:
            made[decoy_key(mint.name)] = make_decoy(mint.placeholder.shape, secrets.randbelow)
    return made


def sample_decoys(policy: Policy, role: str, random: Callable[[int], int]) -> dict[str, str]:
    """Those of the bindings alone, by binding name; `random` as make_decoy has it."""
    shared: dict[tuple[str, Placeholder], str] = {}
    made: dict[str, str] = {}
    for binding in (policy.bindings[name] for name in policy.roles[role].bindings):
        if (held := binding.placeholder) is not None:
            key = (binding.secret, held)
            if key not in shared:
                shared[key] = make_decoy(held.shape, random, held.claims)
            made[binding.name] = shared[key]
    return made


def refresh_placeholders(policy: Policy, role: str) -> frozenset[str]:
    """Keys of the decoys that stand for refresh tokens of a role's mints."""
    return frozenset(decoy_key(mint.name) for mint in _refreshed(policy, role) if mint.placeholder is not None)


def _refreshed(policy: Policy, role: str) -> list[OAuthRefresh]:
    """The mints of the role whose clients may refresh by themselves: their decoys are here, the tokens are not."""
    rules = (policy.secrets[policy.bindings[name].secret] for name in policy.roles[role].bindings)
    found = {mint.name: mint for rule in rules if isinstance(mint := mint_of(policy, rule), OAuthRefresh)}
    return list(found.values())


def decoy_environment(policy: Policy, decoys: Mapping[str, str]) -> dict[str, str]:
    """The decoys by the environment variable that the policy names for each."""
    env: dict[str, str] = {}
    for mint in policy.mints.values():
        if isinstance(mint, OAuthRefresh) and mint.placeholder is not None and decoy_key(mint.name) in decoys:
            env[mint.placeholder.env] = decoys[decoy_key(mint.name)]
    for name, value in decoys.items():
        if name not in policy.bindings:
            continue
        binding = policy.bindings[name]
        if binding.placeholder is not None:
            env[binding.placeholder.env] = value
        if binding.sign is not None:  # the SDKs want a pair; with what the client signs is nobody's business
            env[AWS_SECRET_ENV] = f"{value}{value}".ljust(40, "0")[:40]
    return env


def agent_environment(role: Role) -> dict[str, str]:
    """What the role's agent needs to be told: its own updates off, its own sandbox off, and the like."""
    return dict(role.agent.env) if role.agent is not None else {}


def registry_environment(policy: Policy, role: str) -> dict[str, str]:
    """What tells a client inside where its registry is: its configuration on the host is not in the jail.

    A variable of npm's for one scope has a name that dash drops: a command that sh starts doesn't see it.
    """
    found: dict[Client, list[Registry]] = {}
    for endpoint in policy.endpoints_of(role):
        if endpoint.origin is not None:
            found.setdefault(endpoint.origin.client, []).append(endpoint.origin.registry)
    env: dict[str, str] = {}
    for registry in found.get(Client.NPM, ()):
        env[f"npm_config_{registry.scope}:registry" if registry.scope else "NPM_CONFIG_REGISTRY"] = registry.url
    for client, (first, more) in _INDEXES.items():
        urls = {scope: [r.url for r in found.get(client, ()) if r.scope == scope] for scope in ("", EXTRA)}
        env |= {first: urls[""][0]} if urls[""] else {}
        env |= {more: " ".join(urls[EXTRA])} if urls[EXTRA] else {}
    return env


def extra_ports(policy: Policy, role: str) -> list[int]:
    """Ports that the gateway must listen on beyond those of every berth, for clients that ignore the proxy."""
    return sorted({e.entry for e in policy.endpoints_of(role)} - ALWAYS_OPEN)
