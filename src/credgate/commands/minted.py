"""What `credgate secret` says of secrets that mints use, and of those that mints give."""

from collections.abc import Iterable, Iterator

from credgate.minting.journal import Journal
from credgate.paths import Places
from rules.mint_refs import endpoint_of, mint_of, secrets_of
from rules.mints import Mint
from rules.policy import Policy
from rules.sources import SecretRule, SourceKind


def mint_targets(policy: Policy, names: Iterable[str]) -> Iterator[dict[str, object]]:
    """Where secrets go by mints: rows like those of bindings; a key that only signs goes nowhere."""
    wanted = frozenset(names)
    for mint in policy.mints.values():
        for name in sorted(wanted.intersection(secrets_of(mint))):
            endpoint = endpoint_of(policy, mint)
            yield {
                "secret": name,
                "binding": f"mint.{mint.name}",
                "endpoint": "" if endpoint is None else endpoint.name,
                "host": "this machine" if endpoint is None else endpoint.host.text,
                "port": 0 if endpoint is None else endpoint.port,
                "place": "mint",
                "mode": "overwrite",
                "rules": [],
                "roles": _roles(policy, mint),
            }


def _roles(policy: Policy, mint: Mint) -> list[str]:
    minted = {rule.name for rule in policy.secrets.values() if mint_of(policy, rule) == mint}
    return [r.name for r in policy.roles.values() if any(policy.bindings[b].secret in minted for b in r.bindings)]


def kept(policy: Policy, rules: Iterable[SecretRule]) -> list[SecretRule]:
    """The secrets that are kept somewhere, in place of those that are minted from them."""
    found: list[SecretRule] = []
    for rule in rules:
        mint = mint_of(policy, rule)
        found += [rule] if mint is None else [policy.secrets[name] for name in secrets_of(mint)]
    return found


def uncertain(places: Places, rule: SecretRule, value: str) -> list[str]:
    """What is wrong with a refresh token that was sent and whose use had no known end. Raises PlaceError."""
    if rule.kind is not SourceKind.KEYRING or not Journal(places=places, ref=rule.ref).is_uncertain(value):
        return []
    return [f"secret {rule.name!r}: its refresh token was sent, and whether the provider replaced it is not known"]
