"""Whether the sources of a policy's secrets are there, without starting a program, asking a client or making a call."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from credgate.backends import BackendKind, choose_backend
from credgate.commandsource import check_program
from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.policyfile import Found, asked_by, find_policy, load_unasked
from credgate.vault import Vault
from rules.policy import Policy
from rules.sources import CommandTerms, SecretRule, SourceKind, VaultPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFault:
    """A secret that requests would wait for in vain. No text holds a value."""

    secret: str
    detail: str
    mend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What was looked at: the policy's file, how many secrets there are of each kind, and what is wrong."""

    path: Path
    kinds: Mapping[SourceKind, int]
    faults: tuple[SourceFault, ...]


def check_sources(places: Places, env: Mapping[str, str], cwd: Path, policy: str | None = None) -> Sources:
    """Look at the policy that a run in `cwd` would use. Raises CredgateError: there is none, or it does not load."""
    found = find_policy(explicit=policy, env=env, cwd=cwd, workdir=cwd, config_dir=places.config)
    found = asked_by(found, env, places, str(cwd))
    loaded = load_unasked(found)
    kinds = [rule.kind for rule in loaded.secrets.values()]
    return Sources(
        path=found.path,
        kinds={kind: kinds.count(kind) for kind in SourceKind if kind in kinds},
        faults=tuple(_faults(loaded, found, places, env)),
    )


def _faults(policy: Policy, found: Found, places: Places, env: Mapping[str, str]) -> Iterator[SourceFault]:
    vault, logins = Vault(places, env), _logins(policy)
    # A desktop's keyring would ask its user to unlock it.
    readable = choose_backend(places, env).kind is BackendKind.SEALED
    for name, rule in sorted(policy.secrets.items()):
        try:
            _check(rule, vault, env, found.caller.written, keyring=readable)
        except CredgateError as error:
            used = f"; [vault.{logins[name]}] logs in with it" if name in logins else ""
            mend = error.hint or "mend the file, or name another one in the policy"
            yield SourceFault(secret=name, detail=error.detail + used, mend=mend)


def _check(rule: SecretRule, vault: Vault, env: Mapping[str, str], written: tuple[str, ...], *, keyring: bool) -> None:
    """Raise SecretUnavailable for what can be seen from here. What is read is dropped."""
    match rule.kind:
        case SourceKind.COMMAND:
            if isinstance(rule.terms, CommandTerms):
                check_program(rule, rule.terms, env, written)
        case SourceKind.ENV | SourceKind.FILE:
            vault.read(rule, env)
        case SourceKind.KEYRING:
            if keyring:
                vault.read(rule, env)
        case SourceKind.VAULT | SourceKind.MINT:
            return  # by a call; what it is made with is a secret of its own
        case _:
            assert_never(rule.kind)


def _logins(policy: Policy) -> dict[str, str]:
    """Which secret opens which vault."""
    servers = [rule.terms.server for rule in policy.secrets.values() if isinstance(rule.terms, VaultPlace)]
    pairs = [(server.token or server.secret_id, server.name) for server in servers if server is not None]
    return {login.name: name for login, name in pairs if login is not None}
