"""Secrets that a jail could read where they come from: such a run is refused, since the gateway would guard a copy."""

import os
from collections.abc import Mapping

from credgate.errors import CredgateError
from jail.plan import JailSpec, under
from rules.policy import Policy
from rules.sources import SourceKind

REFUSED = 125


class InReachError(CredgateError):
    """A secret's file lies in a tree of the jail's; exit_status 125."""


def refuse(policy: Policy, role: str, env: Mapping[str, str], spec: JailSpec) -> None:
    """Raise InReachError for a `file:` that lies in a tree of the jail's and in nothing hidden there, or in what
    the role has a copy of.

    Of all roles: the value of one that another role uses is a secret too. `env`: the caller's, as the vault reads it.
    """
    state = [os.path.realpath(spec.home + path[1:]) for path in policy.roles[role].state]
    trees = [spec.workdir, *(tree.path for tree in spec.trees), *state]
    for rule in policy.secrets.values():
        if rule.kind is not SourceKind.FILE:
            continue
        real = _real(rule.ref, env)
        tree = next((tree for tree in trees if under(real, tree)), None)
        if tree is not None and not any(under(real, each.path) for each in spec.protected.hidden):
            raise InReachError(
                "secret_in_reach",
                f"secret {rule.name!r}: {real} lies in {tree}, where the jail reads it",
                f"move it out of there; or `credgate secret set {rule.name} < {real}`, remove the file, and write "
                f'source = "keyring:credgate/{rule.name}"',
                REFUSED,
            )


def _real(path: str, env: Mapping[str, str]) -> str:
    if path.startswith("~/"):
        path = os.path.join(env.get("HOME", "/"), path[2:])  # noqa: PTH118 - surrogates
    return os.path.realpath(path)
