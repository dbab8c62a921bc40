"""`credgate secret`: set, list, remove and test secrets. A value comes from a prompt or stdin and is never printed."""

import argparse
import asyncio
import getpass
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from credgate.backends import FORCED, BackendKind, choose_backend, is_refused
from credgate.commands.minted import kept, mint_targets, uncertain
from credgate.errors import CredgateError, print_error
from credgate.known import is_searchable
from credgate.paths import Places
from credgate.secretindex import SERVICE, Entry, check_name, read_index
from credgate.secretvalue import MAX_VALUE, SecretUnavailable, check_value
from credgate.text import escape
from credgate.vault import Vault, forget, store
from rules.needles import MIN_LENGTH
from rules.places import place_text
from rules.policy import Binding, Policy
from rules.sources import SecretRule, SourceKind

_EXAMPLES = """examples:
  credgate secret set github                  (asks for the value)
  pass show github | credgate secret set github
  credgate secret import claude               (its login by subscription, from its own file)
  credgate secret test github --policy policy.toml

NAME is `source = "keyring:credgate/NAME"` in a policy.
"""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def main(argv: Sequence[str]) -> int:
    """Run one of the subcommands and return the exit status."""
    options, rest = _parser().parse_known_args(argv)
    try:
        if rest:
            # argparse's own message would repeat what may be the value
            raise CredgateError(
                "value_on_argv",
                f"secret {options.command}: got {len(rest)} more arguments than expected",
                "a value never goes on the command line (ps shows it): give it at the prompt or on stdin",
                exit_status=2,
            )
        return _run(options, Places.from_env(os.environ))
    except CredgateError as error:
        return print_error(error)


def _run(options: argparse.Namespace, places: Places) -> int:
    match options.command:
        case "set":
            return _set(options, places)
        case "rm":
            return _rm(options, places)
        case "test":
            return _test(options, places)
        case "import":
            return _import(options, places)
        case _:
            return _list(options, places)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="credgate secret",
        description="set, list, remove and test secrets",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="one JSON document on stdout")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("name", metavar="NAME")
    policy = argparse.ArgumentParser(add_help=False)
    policy.add_argument("--policy", metavar="FILE", help="the policy to look into (default: the one of this directory)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("set", parents=[common, named], help="keep a value: hidden prompt, or stdin")
    commands.add_parser("list", parents=[common, policy], help="names, backends, fingerprints, ages, where bound")
    commands.add_parser("rm", parents=[common, named], help="remove a value")
    taken = commands.add_parser("import", parents=[common, named], help="take an agent's login by subscription")
    taken.add_argument("--file", metavar="PATH", help="the login's file (default: where the agent keeps it)")
    taken.add_argument("--move", action="store_true", help="remove the file once the login is kept")
    commands.add_parser("test", parents=[common, named, policy], help="is it there, and which endpoints would get it")
    return parser


# --- set, rm


def _set(options: argparse.Namespace, places: Places) -> int:
    name = check_name(options.name)
    value = _read_value(name)
    entry = keep(places, name, value, quiet=options.json)
    if options.json:
        return _print_json({"name": entry.name, "backend": entry.backend, "fingerprint": entry.fingerprint})
    _say(f'in the policy: source = "keyring:{SERVICE}/{entry.name}"')
    return 0


def keep(places: Places, name: str, value: str, *, quiet: bool = False) -> Entry:
    """Keep a value under a name, and say where unless `quiet`. Raises SecretUnavailable, PlaceError."""
    check_value(name, value)
    forced = os.environ.get(FORCED, "")
    if forced:
        why = "it would not keep the value safe" if is_refused(forced) else "the daemon chooses by itself"
        sys.stderr.write(f"note: {FORCED}={escape(forced)} is not followed: {why}\n")
    entry = store(places, os.environ, name, value, _now())
    if not is_searchable(value):
        sys.stderr.write(f"note: {name} has fewer than {MIN_LENGTH} characters: nothing is searched for it\n")
    if not quiet:
        _say(f"{entry.name}: kept in {entry.backend}, fingerprint {entry.fingerprint}")
        if choose_backend(places, os.environ).kind is BackendKind.SEALED:
            note = f"any process of yours can read {places.sealed} (credgate doctor)"
            _say(f"note: no desktop keyring works here; {note}")
    return entry


def _import(options: argparse.Namespace, places: Places) -> int:
    from credgate.commands.secretimport import import_login  # noqa: PLC0415  it imports `keep` from here

    document = import_login(options, places)
    if options.json:
        return _print_json(document)
    command = str(document["command"])
    _say(f"next: credgate init {command} --login")
    _say(f"then: credgate run -- {command}")
    return 0


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        try:
            return getpass.getpass(f"value of {name} (not shown): ")
        except (EOFError, KeyboardInterrupt):
            raise SecretUnavailable("secret_invalid", f"secret {name!r}: no value given, nothing changed") from None
    data = sys.stdin.buffer.read(MAX_VALUE + 2)  # the newline, and one more to see that it is too long
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        # "from None": the error's text holds bytes of the value
        raise SecretUnavailable("secret_invalid", f"secret {name!r}: value is not UTF-8 text") from None


def _rm(options: argparse.Namespace, places: Places) -> int:
    forget(places, os.environ, options.name)
    if options.json:
        return _print_json({"name": options.name, "removed": True})
    _say(f"{options.name}: removed")
    return 0


# --- list


def _list(options: argparse.Namespace, places: Places) -> int:
    index = read_index(places)
    entries = [entry for _, entry in sorted(index.entries.items())] if index is not None else []
    path, policy = _policy_if_any(options.policy, places)
    rows = [_listed(entry, policy) for entry in entries]
    if options.json:
        return _print_json({"secrets": rows, "policy": path})
    if not rows:
        _say("no secrets; keep one: credgate secret set NAME")
        return 0
    _say(f"{'NAME':20}  {'BACKEND':34}  {'FINGERPRINT':12}  {'AGE':>5}  BOUND")
    for row in rows:
        bound = "; ".join(str(item) for item in _as_list(row["bound"])) or ("nowhere" if policy else "? (no policy)")
        age = _age(row["age_seconds"])
        _say(f"{row['name']:20}  {row['backend']:34}  {row['fingerprint']:12}  {age:>5}  {bound}")
    return 0


def _listed(entry: Entry, policy: Policy | None) -> dict[str, object]:
    rules = _rules_for(policy, entry.name)
    bound = [f"{b.name} -> {b.endpoint}" for b in _bindings(policy, rules)] if policy else []
    if policy is not None:
        rows = mint_targets(policy, (rule.name for rule in rules))
        bound += [f"{row['binding']} -> {row['endpoint'] or row['host']}" for row in rows]
    return {
        "name": entry.name,
        "backend": entry.backend,
        "fingerprint": entry.fingerprint,
        "set_at": entry.set_at,
        "age_seconds": _seconds_since(entry.set_at),
        "bound": bound,
    }


def _policy_if_any(file: str | None, places: Places) -> tuple[str | None, Policy | None]:
    """The policy that would count here. None where there is none; one that can't be used is a note, `list` goes on."""
    from credgate.policyfile import PolicyMissing, asked_by, find_policy, load  # noqa: PLC0415  `set` and `rm` need none

    cwd = Path.cwd()
    try:
        found = find_policy(explicit=file, env=os.environ, cwd=cwd, workdir=cwd, config_dir=places.config)
        return str(found.path), load(asked_by(found, os.environ, places))
    except PolicyMissing:
        return None, None
    except CredgateError as error:
        if file is not None:
            raise
        sys.stderr.write(f"note: {escape(error.detail)}\n")
        return None, None


# --- test


def _test(options: argparse.Namespace, places: Places) -> int:
    name = check_name(options.name)
    path, policy = _policy_if_any(options.policy, places)
    if policy is None:
        raise CredgateError(
            "policy_missing", f"secret test {name}: no policy to look into", "add --policy FILE", exit_status=2
        )
    rules = _rules_for(policy, name)
    targets = [_target(policy, binding) for binding in _bindings(policy, rules)]
    targets += mint_targets(policy, (rule.name for rule in rules))
    asked = kept(policy, rules) or [SecretRule(name=name, kind=SourceKind.KEYRING, ref=f"{SERVICE}/{name}")]
    problems = [problem for rule in asked for problem in _missing(places, rule)]
    status = 0 if targets and not problems else 1
    if options.json:
        document = {"name": name, "policy": path, "available": not problems, "problems": problems, "targets": targets}
        _print_json(document)
        return status
    _say(f"{name}: {'the value is there' if not problems else '; '.join(problems)}")
    for target in targets:
        _print_target(target)
    if not targets:
        _say(f"no binding of {path} names it: it would go nowhere")
    return status


def _missing(places: Places, rule: SecretRule) -> list[str]:
    try:
        vault = Vault(places, os.environ)
        if rule.kind is SourceKind.VAULT:
            from credgate.vaultonce import ask_once  # noqa: PLC0415  it imports the gateway

            asyncio.run(ask_once(vault, rule, os.environ))
            return []
        return uncertain(places, rule, vault.read(rule, os.environ).reveal())
    except CredgateError as error:
        return [escape(error.detail)]


def _rules_for(policy: Policy | None, name: str) -> list[SecretRule]:
    """The policy's secrets that NAME means: those kept under it, else the one of that name."""
    if policy is None:
        return []
    kept = [r for r in policy.secrets.values() if r.kind is SourceKind.KEYRING and r.ref == f"{SERVICE}/{name}"]
    named = policy.secrets.get(name)
    return kept or ([named] if named is not None else [])


def _bindings(policy: Policy, rules: Sequence[SecretRule]) -> list[Binding]:
    names = {rule.name for rule in rules}
    return [binding for binding in policy.bindings.values() if binding.secret in names]


def _target(policy: Policy, binding: Binding) -> dict[str, object]:
    endpoint = policy.endpoints[binding.endpoint]
    return {
        "secret": binding.secret,
        "binding": binding.name,
        "endpoint": endpoint.name,
        "host": endpoint.host.text,
        "port": endpoint.port,
        "place": place_text(binding),
        "mode": str(binding.mode),
        "rules": [
            {"id": rule.id, "methods": sorted(rule.methods), "paths": [path.text for path in rule.paths]}
            for rule in endpoint.allow
            if rule.id in binding.rules
        ],
        "roles": [role.name for role in policy.roles.values() if binding.name in role.bindings],
    }


def _print_target(target: Mapping[str, object]) -> None:
    roles = ", ".join(str(role) for role in _as_list(target["roles"])) or "none"
    where = f"{target['host']}:{target['port']} as {target['place']} ({target['mode']})"
    _say(f"{target['binding']}: {where}, roles: {roles}")
    for rule in _as_list(target["rules"]):
        if isinstance(rule, dict):
            _say(f"  {rule['id']}: {' '.join(rule['methods'])} {' '.join(rule['paths'])}")


# --- words


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _now() -> str:
    return datetime.fromtimestamp(int(time.time()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds_since(moment: str) -> int | None:
    try:
        return max(0, int(time.time() - datetime.fromisoformat(moment).timestamp()))
    except (ValueError, OverflowError):
        return None


def _age(seconds: object) -> str:
    if not isinstance(seconds, int):
        return "?"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _say(line: str) -> None:
    sys.stdout.write(f"{escape(line)}\n")


def _print_json(document: Mapping[str, object]) -> int:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0
