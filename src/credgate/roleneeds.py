"""What a role's bindings and endpoints ask of a run beside its jail: decoys, their variables, ports to listen on."""

import secrets
from collections.abc import Mapping

from rules.load_signing import AWS_SECRET_ENV
from rules.placeholders import make_decoy
from rules.policy import Placeholder, Policy

ALWAYS_OPEN = frozenset({53, 80, 443})


def decoys_of(policy: Policy, role: str) -> dict[str, str]:
    """A fresh decoy for each binding of the role that has a placeholder, by binding name.

    Bindings that sign with one secret have one decoy: the SDKs of AWS know one pair of keys.
    """
    bindings = [policy.bindings[name] for name in policy.roles[role].bindings]
    made = {b.name: make_decoy(b.placeholder.shape, secrets.randbelow) for b in bindings if b.placeholder}
    shared: dict[tuple[str, Placeholder], str] = {}
    for binding in bindings:
        if binding.sign is not None and binding.placeholder is not None:
            made[binding.name] = shared.setdefault((binding.secret, binding.placeholder), made[binding.name])
    return made


def decoy_environment(policy: Policy, decoys: Mapping[str, str]) -> dict[str, str]:
    """The decoys by the environment variable that the policy names for each."""
    env: dict[str, str] = {}
    for name, value in decoys.items():
        binding = policy.bindings[name]
        if binding.placeholder is not None:
            env[binding.placeholder.env] = value
        if binding.sign is not None:  # the SDKs want a pair; with what the client signs is nobody's business
            env[AWS_SECRET_ENV] = f"{value}{value}".ljust(40, "0")[:40]
    return env


def extra_ports(policy: Policy, role: str) -> list[int]:
    """Ports that the gateway must listen on beyond those of every berth, for clients that ignore the proxy."""
    return sorted({e.entry for e in policy.endpoints_of(role)} - ALWAYS_OPEN)
