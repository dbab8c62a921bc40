"""[secret.NAME] and [vault.NAME] tables into values: where each secret's value comes from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rules import load_units
from rules.envnames import ENV_NAME
from rules.policy import Endpoint
from rules.sources import CommandTerms, Output, SecretRule, SourceKind, VaultPlace, VaultServer
from rules.tables import Report, Table, closest, is_name, join, show

SECRET_KEYS = ("source", "args", "env", "output", "timeout", "keep")
VAULT_KEYS = ("endpoint", "token", "approle", "namespace")
_OF_COMMAND = ("args", "env", "output", "timeout")
_KEEPING = {SourceKind.COMMAND, SourceKind.VAULT}
_KEYRING = re.compile(r"[A-Za-z0-9._@-]{1,64}/[A-Za-z0-9._@/-]{1,128}")
_PART = r"[A-Za-z0-9._~-]+"
_VAULT = re.compile(rf"([A-Za-z0-9][A-Za-z0-9_-]{{0,63}})/({_PART}(?:/{_PART}){{0,15}})#([A-Za-z0-9_.-]{{1,64}})")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*/?")
_SECOND_HAND = {SourceKind.VAULT, SourceKind.MINT}
_MAX_TIMEOUT = 60


def load_secrets(tables: Mapping[str, Table]) -> dict[str, SecretRule]:
    """Return the secrets' names and sources; a vault's server is put in by resolve_vaults."""
    return {name: _secret(name, table) for name, table in tables.items()}


def _secret(name: str, table: Table) -> SecretRule:
    text = table.text("source", required=True)
    word, colon, ref = text.partition(":")
    kinds = [k.value for k in SourceKind]
    if not text or not colon or word not in kinds:
        if text:
            table.fault("source", f'got {show(text)}, expected "KIND:WHERE"', closest(word, kinds))
        return SecretRule(name=name, kind=SourceKind.KEYRING, ref="")
    kind = SourceKind(word)
    hint = _ref_hint(kind, ref)
    if hint:
        table.fault("source", f"got {show(text)}", hint)
    for key in _OF_COMMAND:
        if table.has(key) and kind is not SourceKind.COMMAND:
            table.fault(key, f"got it beside {word}:, which starts no command", "take it out")
    if table.has("keep") and kind not in _KEEPING:
        table.fault("keep", f"got it beside {word}:, which is read each time", "take it out")
    terms: CommandTerms | VaultPlace | None = None
    if kind is SourceKind.COMMAND:
        terms = _command(table, ref)
    elif kind is SourceKind.VAULT and not hint:
        terms = _place(ref)
    return SecretRule(name=name, kind=kind, ref=ref, terms=terms, keep=_seconds(table, "keep", 0))


def _ref_hint(kind: SourceKind, ref: str) -> str:
    match kind:
        case SourceKind.KEYRING:
            return "" if _KEYRING.fullmatch(ref) else 'write "keyring:SERVICE/NAME", as in "keyring:credgate/github"'
        case SourceKind.ENV:
            return "" if ENV_NAME.fullmatch(ref) else 'write "env:NAME", NAME being a variable of the caller'
        case SourceKind.FILE:
            return "" if _is_whole(ref) else 'write "file:/whole/path" or "file:~/path"'
        case SourceKind.MINT:
            return "" if is_name(ref) else 'write "mint:NAME", NAME being that of a [mint.NAME]'
        case SourceKind.COMMAND:
            hint = 'write "command:/whole/path/of/the/program", and its arguments into args = [...]'
            return "" if _is_whole(ref) and " " not in ref else hint
        case SourceKind.VAULT:
            found = _VAULT.fullmatch(ref)
            plain = found is not None and {".", ".."}.isdisjoint(found[2].split("/"))
            return "" if plain else 'write "vault:NAME/PATH#FIELD", as in "vault:corp/secret/data/github#token"'


def _is_whole(path: str) -> bool:
    return path.startswith(("/", "~/")) and ".." not in path.split("/") and not path.endswith("/")


def _command(table: Table, program: str) -> CommandTerms:
    args = table.words("args")
    env = table.texts("env")
    for i, name in enumerate(env):
        if not ENV_NAME.fullmatch(name):
            table.report.add(f"{table.at('env')}[{i}]", f"got {show(name)}, expected the name of a variable")
    timeout = _seconds(table, "timeout", 10)
    if timeout > _MAX_TIMEOUT:
        table.fault("timeout", f"got {timeout} s, expected at most {_MAX_TIMEOUT} s: a request waits for it")
    output = table.choice("output", Output, Output.TEXT)
    return CommandTerms(program=program, args=args, env=env, output=output, timeout=timeout)


def _seconds(table: Table, key: str, default: int) -> int:
    text = table.text(key)
    value = load_units.parse_duration(text) if text else default
    if value is None:
        table.fault(key, f"got {show(text)}", load_units.duration_hint(text))
    return default if value is None else value


def _place(ref: str) -> VaultPlace | None:
    found = _VAULT.fullmatch(ref)
    return None if found is None else VaultPlace(name=found[1], path=found[2], field=found[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultDraft:
    """A [vault.NAME] by its names."""

    endpoint: str
    token: str
    role_id: str
    secret_id: str
    mount: str
    namespace: str


def load_vaults(tables: Mapping[str, Table]) -> dict[str, VaultDraft]:
    """Return the servers, by name."""
    return {name: _vault(table) for name, table in tables.items()}


def _vault(table: Table) -> VaultDraft:
    token = table.text("token")
    role = table.table("approle", known=("role_id", "secret", "mount"))
    if table.has("token") == table.has("approle"):
        table.fault("token", "expected one of token and approle", 'add: token = "NAME", the name of a secret')
    named = table.has("approle")
    mount = role.text("mount", "approle")
    namespace = table.text("namespace")
    for key, text, reader in (("mount", mount, role), ("namespace", namespace, table)):
        if text and not _NAMESPACE.fullmatch(text):
            reader.fault(key, f"got {show(text)}, expected names with / between")
    return VaultDraft(
        endpoint=table.text("endpoint", required=True),
        token=token,
        role_id=role.text("role_id", required=named),
        secret_id=role.text("secret", required=named),
        mount=mount.strip("/"),
        namespace=namespace.strip("/"),
    )


def resolve_vaults(
    report: Report,
    drafts: Mapping[str, VaultDraft],
    secrets: Mapping[str, SecretRule],
    endpoints: Mapping[str, Endpoint],
) -> dict[str, SecretRule]:
    """Return the secrets with their servers; what leads nowhere is recorded."""
    servers = {name: _server(report, name, draft, secrets, endpoints) for name, draft in drafts.items()}
    out: dict[str, SecretRule] = {}
    for name, rule in secrets.items():
        place = rule.terms
        if isinstance(place, VaultPlace):
            if place.name not in servers:
                hint = closest(place.name, servers) or f"add: [vault.{place.name}]"
                report.add(f"{join('secret', name)}.source", f"no vault is called {show(place.name)}", hint)
            out[name] = replace(rule, terms=replace(place, server=servers.get(place.name)))
        else:
            out[name] = rule
    return out


def _server(
    report: Report,
    name: str,
    draft: VaultDraft,
    secrets: Mapping[str, SecretRule],
    endpoints: Mapping[str, Endpoint],
) -> VaultServer | None:
    where = join("vault", name)
    endpoint = endpoints.get(draft.endpoint)
    if endpoint is None:
        if draft.endpoint:
            hint = closest(draft.endpoint, endpoints) or f"add: [endpoint.{draft.endpoint}]"
            report.add(f"{where}.endpoint", f"no endpoint is called {show(draft.endpoint)}", hint)
        return None
    if not endpoint.tls or not endpoint.host.exact or endpoint.listen or endpoint.route:
        report.add(f"{where}.endpoint", f"{endpoint.name} is no one host with TLS", "a token goes to one that has it")
    for key, used in (("token", draft.token), ("approle.secret", draft.secret_id)):
        rule = secrets.get(used)
        if used and rule is None:
            report.add(f"{where}.{key}", f"no secret is called {show(used)}", closest(used, secrets))
        elif rule is not None and rule.kind in _SECOND_HAND:
            report.add(f"{where}.{key}", f"{used} is itself had from elsewhere", "take one from a file or a keyring")
    proxy = endpoint.proxy
    return VaultServer(
        name=name,
        endpoint=endpoint,
        token=secrets.get(draft.token),
        role_id=draft.role_id,
        secret_id=secrets.get(draft.secret_id),
        mount=draft.mount,
        namespace=draft.namespace,
        proxy_secret=secrets.get(proxy.secret) if proxy is not None and proxy.secret else None,
    )
