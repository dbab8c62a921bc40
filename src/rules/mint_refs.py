"""What [mint.NAME] says about the rest of a policy: names that lead nowhere, and where a minted secret can't stand."""

from collections.abc import Iterable, Iterator, Mapping

from rules.mints import GcpJwt, Mint, OAuthRefresh
from rules.policy import Binding, CorporateProxy, Endpoint, PlaceKind, Policy
from rules.problems import Problem
from rules.sources import SecretRule, SourceKind
from rules.tables import closest, is_name, join, show

__all__ = ["client_secret_of", "endpoint_of", "mint_of", "mint_problems", "same_secret", "secrets_of", "uses"]


def mint_of(policy: Policy, rule: SecretRule) -> Mint | None:
    """The mint that a secret comes from, None for one of another source."""
    return policy.mints[rule.ref] if rule.kind is SourceKind.MINT else None


def endpoint_of(policy: Policy, mint: Mint) -> Endpoint | None:
    """The target of its calls, None where it makes none."""
    return None if isinstance(mint, GcpJwt) else policy.endpoints[mint.endpoint]


def secrets_of(mint: Mint) -> tuple[str, ...]:
    """Names of the secrets that it uses."""
    return tuple(filter(None, (mint.secret, client_secret_of(mint))))


def client_secret_of(mint: Mint) -> str:
    """The name of the secret by which the client shows who it is, "" for none."""
    return mint.client_secret if isinstance(mint, OAuthRefresh) else ""


def uses(secrets: Iterable[SecretRule]) -> frozenset[str]:
    """Names of the mints that secrets come from."""
    return frozenset(rule.ref for rule in secrets if rule.kind is SourceKind.MINT)


def same_secret(policy: Policy, name: str, other: Policy, its: str) -> bool:
    """Whether two policies mean the same by a secret's name, the call included that a minted one is had by."""
    mine, theirs = policy.secrets[name], other.secrets.get(its)
    if theirs is None or mine != theirs:
        return False
    mint, outer = mint_of(policy, mine), mint_of(other, theirs)
    if mint is None or outer is None:
        return True
    alike = mint == outer and _same_target(endpoint_of(policy, mint), endpoint_of(other, outer))
    return alike and all(same_secret(policy, used, other, used) for used in secrets_of(mint))


def _same_target(one: Endpoint | None, other: Endpoint | None) -> bool:
    keys = ("host", "port", "dial_port", "tls", "ca", "networks", "pins", "spki", "proxy")
    return all(getattr(one, key, None) == getattr(other, key, None) for key in keys)


def mint_problems(
    mints: Mapping[str, Mint],
    secrets: Mapping[str, SecretRule],
    endpoints: Mapping[str, Endpoint],
    bindings: Mapping[str, Binding],
    proxies: Mapping[str, CorporateProxy],
) -> Iterator[Problem]:
    """Every fault between mints and the other tables."""
    for mint in mints.values():
        yield from _mint(mint, secrets, endpoints)
    for rule in secrets.values():
        if rule.kind is SourceKind.MINT and is_name(rule.ref) and rule.ref not in mints:
            hint = closest(rule.ref, mints) or f"add: [mint.{rule.ref}]"
            yield _problem(join("secret", rule.name), "source", f"no mint is called {show(rule.ref)}", hint)
    for proxy in proxies.values():
        yield from _unminted(secrets, proxy.secret, join("proxy", proxy.name), "a proxy's password")
    for binding in bindings.values():
        if binding.place in {PlaceKind.SIGV4, PlaceKind.CERTIFICATE}:
            yield from _unminted(secrets, binding.secret, join("binding", binding.name), f"the place {binding.place}")


def _problem(where: str, key: str, message: str, hint: str) -> Problem:
    return Problem(where=f"{where}.{key}", message=message, hint=hint)


def _unminted(secrets: Mapping[str, SecretRule], name: str, where: str, what: str) -> Iterator[Problem]:
    rule = secrets.get(name)
    if rule is not None and rule.kind is SourceKind.MINT:
        yield _problem(where, "secret", f"{show(name)} is minted, which {what} can't be", "name one that is kept")


def _mint(mint: Mint, secrets: Mapping[str, SecretRule], endpoints: Mapping[str, Endpoint]) -> Iterator[Problem]:
    where = join("mint", mint.name)
    for key, name in (("secret", mint.secret), ("client_secret", client_secret_of(mint))):
        if name and name not in secrets:
            yield _problem(
                where, key, f"no secret is called {show(name)}", closest(name, secrets) or f"add: [secret.{name}]"
            )
        elif name:
            yield from _kept(where, key, secrets[name], durable=key == "secret" and isinstance(mint, OAuthRefresh))
    if not isinstance(mint, GcpJwt) and mint.endpoint:
        yield from _called(f"{where}.endpoint", mint.endpoint, endpoints)


def _kept(where: str, key: str, rule: SecretRule, *, durable: bool) -> Iterator[Problem]:
    """A rotated refresh token has to be written back to where it came from."""
    if rule.kind is SourceKind.MINT:
        yield _problem(where, key, f"{show(rule.name)} is minted itself", "name a secret that is kept")
    elif durable and rule.kind is not SourceKind.KEYRING:
        hint = f'write source = "keyring:credgate/{rule.name}"'
        yield _problem(where, key, f"{show(rule.name)} comes from {rule.kind}:, where a new one can't be kept", hint)


def _called(where: str, name: str, endpoints: Mapping[str, Endpoint]) -> Iterator[Problem]:
    endpoint = endpoints.get(name)
    if endpoint is None:
        hint = closest(name, endpoints) or f"add: [endpoint.{name}]"
        yield Problem(where=where, message=f"no endpoint is called {show(name)}", hint=hint)
    elif not endpoint.tls or endpoint.listen:
        yield Problem(where=where, message=f"{name} speaks no TLS, and a secret goes there", hint="name another one")
    elif not endpoint.host.exact:
        message = f"{name} has the host {show(endpoint.host.text)}, and a secret goes to one exact host"
        yield Problem(where=where, message=message, hint="write an endpoint for it")
