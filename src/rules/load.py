"""Bytes of a policy file into a Policy: every fault at once, each with its place and the right spelling.

Order: TOML, keys and values table by table, then what the tables say about each other (load_refs).
"""

import hashlib
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from rules.load_agents import AGENT_KEYS, load_agents
from rules.load_bindings import BINDING_KEYS, BINDING_LATER, load_bindings
from rules.load_endpoints import KEYS as ENDPOINT_KEYS
from rules.load_endpoints import LATER as ENDPOINT_LATER
from rules.load_endpoints import Context, load_endpoints
from rules.load_mints import MINT_KEYS, load_mints
from rules.load_proxies import PROXY_KEYS, load_proxies
from rules.load_refs import Draft, check_refs, with_pack_rules
from rules.load_registries import Registries
from rules.load_roles import ROLE_KEYS, ROLE_LATER, TEST_KEYS, load_roles, load_tests
from rules.load_sources import SECRET_KEYS, VAULT_KEYS, load_secrets, load_vaults, resolve_vaults
from rules.policy import CorporateProxy, Policy, Unlisted
from rules.problems import PolicyError
from rules.tables import Report, Table
from rules.tomltext import MAX_BYTES, read_toml

__all__ = ["MAX_BYTES", "VERSION", "load_policy"]

VERSION = 1
ROOT_KEYS = (
    "version",
    "default_role",
    "dns",
    "secret",
    "mint",
    "vault",
    "proxy",
    "endpoint",
    "binding",
    "agent",
    "role",
    "test",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sections:
    secrets: dict[str, Table]
    mints: dict[str, Table]
    vaults: dict[str, Table]
    proxies: dict[str, Table]
    endpoints: dict[str, Table]
    bindings: dict[str, Table]
    agents: dict[str, Table]
    roles: dict[str, Table]
    tests: list[Table]


def load_policy(
    data: bytes,
    *,
    packs: Mapping[str, str],
    base_dir: str,
    registries: Registries | None = None,
    agents: Mapping[str, str] | None = None,
) -> Policy:
    """Return the policy in `data`.

    `packs` and `agents` map names to texts; `base_dir` is the absolute directory that a relative `ca` starts from;
    `registries` is what each client was found to be configured for, of those that registries.clients_of names.
    Raises PolicyError with all faults, ValueError where `base_dir` isn't absolute.
    """
    if not posixpath.isabs(base_dir):
        raise ValueError(f"base_dir must be absolute, got {base_dir!r}")
    report = Report(ends=True)
    root = _root(data, report)
    sections = _sections(root)
    default_role = root.text("default_role")
    proxies = load_proxies(sections.proxies, base_dir)
    context = Context(packs=packs, base_dir=base_dir, proxies=proxies, registries=registries or {}, agents=agents or {})
    draft = _draft(report, sections, context, proxies, default_role)
    check_refs(root, default_role, draft)
    unlisted = root.table("dns", known=("unlisted",)).choice("unlisted", Unlisted, Unlisted.GATEWAY)
    if report.problems:
        raise PolicyError(tuple(report.problems))
    return Policy(
        sha256=hashlib.sha256(data).hexdigest(),
        default_role=default_role,
        unlisted=unlisted,
        secrets=draft.secrets,
        vaults=tuple(sections.vaults),
        mints=draft.mints,
        proxies=draft.proxies,
        endpoints=draft.endpoints,
        bindings=draft.bindings,
        roles=draft.roles,
        tests=draft.tests,
    )


def _root(data: bytes, report: Report) -> Table:
    root = Table(read_toml(data), "", report, known=frozenset(ROOT_KEYS), later=frozenset())
    _version(root)
    return root


def _draft(
    report: Report, sections: _Sections, context: Context, proxies: dict[str, CorporateProxy], default_role: str
) -> Draft:
    endpoints = load_endpoints(sections.endpoints, context)
    agents = load_agents(sections.agents, context.agents)
    return Draft(
        secrets=resolve_vaults(report, load_vaults(sections.vaults), load_secrets(sections.secrets), endpoints),
        mints=load_mints(sections.mints),
        proxies=proxies,
        endpoints=endpoints,
        bindings=with_pack_rules(load_bindings(sections.bindings), endpoints),
        roles=load_roles(sections.roles, agents),
        tests=load_tests(sections.tests, default_role),
    )


def _sections(root: Table) -> _Sections:
    return _Sections(
        secrets=root.named("secret", known=SECRET_KEYS),
        mints=root.named("mint", known=MINT_KEYS),
        vaults=root.named("vault", known=VAULT_KEYS),
        proxies=root.named("proxy", known=PROXY_KEYS),
        endpoints=root.named("endpoint", known=ENDPOINT_KEYS, later=ENDPOINT_LATER),
        bindings=root.named("binding", known=BINDING_KEYS, later=BINDING_LATER),
        agents=root.named("agent", known=AGENT_KEYS),
        roles=root.named("role", known=ROLE_KEYS, later=ROLE_LATER),
        tests=root.tables("test", known=TEST_KEYS),
    )


def _version(root: Table) -> None:
    if not root.has("version"):
        root.fault("version", "missing, expected 1", f"add: version = {VERSION}")
    elif root.number("version", VERSION) != VERSION:
        root.fault("version", f"got {root.number('version', VERSION)}, expected {VERSION}")
