"""What loads but was hardly meant: said as a warning by `policy check`, never a reason to refuse."""

from collections.abc import Iterator

from rules.mint_refs import endpoint_of, secrets_of, uses
from rules.policy import Policy
from rules.problems import Problem
from rules.tables import join

__all__ = ["warnings"]


def warnings(policy: Policy) -> tuple[Problem, ...]:
    """Return what a reader of the policy should look at again."""
    return (*_unused(policy), *_unfilled(policy), *_too_little(policy), *_too_much(policy))


def _warn(where: str, message: str, hint: str) -> Problem:
    return Problem(where=where, message=message, hint=hint)


def _unused(policy: Policy) -> Iterator[Problem]:
    bound = {name for role in policy.roles.values() for name in role.bindings}
    reached = {e.name for role in policy.roles for e in policy.endpoints_of(role)}
    reached |= {e.name for role in policy.roles for e in policy.targets_of(role)}
    secrets = {b.secret for b in policy.bindings.values()} | {p.secret for p in policy.proxies.values()}
    secrets |= {name for mint in policy.mints.values() for name in secrets_of(mint)}
    reached |= _called(policy)
    for name in policy.mints.keys() - uses(policy.secrets.values()):
        yield _warn(
            join("mint", name), "no secret comes from it", f'write source = "mint:{name}" in one, or take it out'
        )
    used = {e.proxy.name for e in policy.endpoints.values() if e.proxy is not None}
    for name in policy.secrets:
        if name not in secrets:
            yield _warn(join("secret", name), "no binding uses it", "bind it, or take it out")
    for name in policy.proxies:
        if name not in used:
            yield _warn(join("proxy", name), "no endpoint goes through it", "write proxy = ... there, or take it out")
    for name in policy.bindings:
        if name not in bound:
            yield _warn(join("binding", name), "no role has it", "add it to a role's bindings")
    for name in policy.endpoints:
        if name not in reached:
            yield _warn(join("endpoint", name), "no role reaches it", "add it to a role's endpoints, or bind a secret")


def _called(policy: Policy) -> set[str]:
    """Endpoints of calls of the gateway's own, which need no rule."""
    return {endpoint.name for mint in policy.mints.values() if (endpoint := endpoint_of(policy, mint))}


def _unfilled(policy: Policy) -> Iterator[Problem]:
    for endpoint in policy.endpoints.values():
        bound = {(rule, b.slot) for b in policy.bindings.values() if b.endpoint == endpoint.name for rule in b.rules}
        for rule in endpoint.allow:
            names = {name for path in rule.paths for name, _ in path.holes}
            for name in sorted(name for name in names if (rule.id, name) not in bound):
                where = f"{join('endpoint', endpoint.name)}.allow"
                message = f'the rule "{rule.id}" names a segment {{{name}}}, which no binding fills'
                yield _warn(where, message, f'bind it with place = "path:{name}", or write "*"')


def _too_little(policy: Policy) -> Iterator[Problem]:
    called = _called(policy)
    for endpoint in policy.endpoints.values():
        if not endpoint.allow and not endpoint.listen and endpoint.name not in called:
            where = join("endpoint", endpoint.name)
            yield _warn(where, "it allows nothing", f"add [[{where}.allow]] with id, methods and paths")
    if not policy.roles:
        yield _warn("role", "there is none, so nothing can run", "add [role.dev]")


def _too_much(policy: Policy) -> Iterator[Problem]:
    for proxy in policy.proxies.values():
        if proxy.secret and not proxy.tls:
            yield _warn(
                join("proxy", proxy.name),
                f"{proxy.secret} goes to it in clear text",
                "write tls = true where the proxy speaks it",
            )
    for binding in policy.bindings.values():
        endpoint = policy.endpoints[binding.endpoint]
        for rule in endpoint.allow:
            writes = not rule.methods <= {"GET", "HEAD", "OPTIONS"}
            if rule.id in binding.rules and writes and any(path.segments == ("**",) for path in rule.paths):
                yield _warn(
                    f"{join('endpoint', endpoint.name)}.allow",
                    f'the rule "{rule.id}" lets {binding.secret} be used for writing on every path',
                    "name the paths, and deny the minting of credentials by a pack",
                )
