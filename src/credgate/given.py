"""What a caller gave, or forgot to keep: told before a run begins, where it would otherwise fail far from its cause."""

import os
from collections.abc import Mapping, Sequence

from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.secretindex import SERVICE, read_index
from credgate.secretvalue import SecretUnavailable
from credgate.vault import Vault
from rules.envnames import credential_argument
from rules.policy import Policy, Role
from rules.sources import SecretRule, SourceKind

REFUSED = 125
# What is read at once, and asks nobody: no command, no server.
_HERE = frozenset({SourceKind.KEYRING, SourceKind.ENV, SourceKind.FILE})


def check_arguments(argv: Sequence[str]) -> None:
    """Raises CredgateError for a credential on the command line: every process of the host, and the agent, reads it."""
    for number, word in enumerate(argv):
        if credential_argument(word):
            raise CredgateError(
                "argument_credential",
                f"argument {number} of the command looks like a credential",
                "keep it by: credgate secret set NAME, and bind it; the jail gets a decoy in its variable",
                REFUSED,
            )


async def check_key(policy: Policy, role: Role, places: Places, env: Mapping[str, str]) -> None:
    """Raises CredgateError where the role's agent has a binding for its key, and no value is kept for that."""
    for rule in _keys(policy, role):
        if rule.kind in _HERE and not _indexed(rule, places):
            try:
                await Vault(places, os.environ).fetch(rule, env)
            except SecretUnavailable as error:
                name = role.agent.name if role.agent is not None else ""
                raise CredgateError("agent_without_key", f"agent {name}: {error.detail}", error.hint, REFUSED) from None


def _keys(policy: Policy, role: Role) -> list[SecretRule]:
    if role.agent is None:
        return []
    names = role.agent.key_names()
    bindings = [policy.bindings[name] for name in role.bindings]
    return [policy.secrets[b.secret] for b in bindings if b.placeholder is not None and b.placeholder.env in names]


def _indexed(rule: SecretRule, places: Places) -> bool:
    """Whether `secret set` kept it, so that no keyring needs to be asked."""
    service, _, name = rule.ref.partition("/")
    index = read_index(places) if rule.kind is SourceKind.KEYRING and service == SERVICE else None
    return index is not None and name in index.entries
