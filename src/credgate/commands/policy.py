"""`credgate policy`: check, explain, test, trust, show, diff. Reads files; sends nothing and starts nothing."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from credgate.commands import learn
from credgate.errors import CredgateError, print_error
from credgate.explain import Explained, as_json, as_text, explain
from credgate.paths import Places
from credgate.policyfile import (
    CEILING,
    Effective,
    Found,
    Origin,
    PolicyInvalid,
    asked_by,
    check_tree,
    effective,
    find_policy,
    load,
    open_policy,
    read_ceiling,
    under_ceiling,
    untrusted,
)
from credgate.policytrust import PolicyUntrusted, diff_against_trusted, trust
from credgate.text import escape
from rules.describe import describe
from rules.lint import warnings
from rules.policy import Policy, TestCase
from rules.problems import Problem
from rules.tables import MAX_PROBLEMS
from rules.verdict import Allow, Deny

OK, FINDINGS, USAGE = 0, 1, 2

_EXAMPLES = {
    "check": "credgate policy check ~/.config/credgate/policy.toml",
    "explain": "credgate policy explain --role dev --header 'Accept: */*' GET https://api.example.com/v1/items",
    "test": "credgate policy test policy.toml",
    "trust": "credgate policy trust ./credgate.toml",
    "show": "credgate policy show --role dev",
    "diff": "credgate policy diff old.toml new.toml",
    "learn": learn.EXAMPLE,
}


def main(argv: Sequence[str], ceiling: Path = CEILING) -> int:
    """Run one of the subcommands and return the exit status: 0 fine or allow, 1 findings or deny, 2 usage."""
    options = _parser().parse_args(argv)
    options.ceiling = ceiling
    action: Callable[[argparse.Namespace], int] = options.action
    try:
        return action(options)
    except PolicyUntrusted as error:
        sys.stderr.write(_escaped(error.diff))
        return print_error(error)
    except PolicyInvalid as error:
        _say_problems(error.problems)
        return error.exit_status
    except CredgateError as error:
        return print_error(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="credgate policy",
        description="check, explain, test and trust a policy",
        epilog=_epilog(*_EXAMPLES.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, help_text: str, action: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=help_text,
            description=help_text,
            epilog=_epilog(_EXAMPLES[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON document")
        sub.set_defaults(action=action)
        return sub

    add("check", "say every fault of a policy file at once", _check).add_argument("file", nargs="?", metavar="FILE")
    _explain_options(add("explain", "the verdict on one request, and why; exit 0 allow, 1 deny", _explain))
    add("test", "run the [[test]] cases of a policy file", _test).add_argument("file", nargs="?", metavar="FILE")
    sub = add("trust", "accept a policy of a work tree, as it is now", _trust)
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("--diff", action="store_true", help="show what changed since it was trusted; accept nothing")
    sub = add("show", "the policy as it counts here, and from which files", _show)
    sub.add_argument("--policy", metavar="FILE")
    sub.add_argument("--role", default="", metavar="NAME")
    sub = add("diff", "what another policy would allow or refuse; exit 0 nothing, 1 something", _diff)
    sub.add_argument("file", metavar="A")
    sub.add_argument("other", metavar="B")
    learn.add_options(add("learn", "propose rules for what a run was refused; nothing is written unasked", _learn))
    return parser


def _epilog(*examples: str) -> str:
    return "\n".join(["examples:" if len(examples) > 1 else "example:", *(f"  {example}" for example in examples)])


def _explain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--role", default="", metavar="NAME", help="default: the policy's default_role, or its only one"
    )
    parser.add_argument("--policy", metavar="FILE", help="default: the one that a run here would use")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'K: V'",
        help="a header of the request; {ENV} in it stands for the placeholder that a run has in ENV",
    )
    parser.add_argument(
        "--body", metavar="FILE", help="the body of the request, JSON or a form, not encoded; - is stdin"
    )
    parser.add_argument("method", metavar="METHOD")
    parser.add_argument("url", metavar="URL")


def _body(file: str | None) -> bytes | None:
    try:
        if file is None:
            return None
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CredgateError("body_unreadable", f"{file}: {error.strerror}", "name a readable file", 2) from error


def _places() -> Places:
    return Places.from_env(os.environ)


def _found(file: str | None) -> Found:
    cwd, places = Path.cwd(), _places()
    found = find_policy(explicit=file, env=os.environ, cwd=cwd, workdir=cwd, config_dir=places.config)
    return asked_by(found, os.environ, places)


def _effective(file: str | None, options: argparse.Namespace) -> Effective:
    """Judge with a policy that is not trusted yet too, but say that a run would refuse it."""
    found = _found(file)
    try:
        return effective(
            found, role=options.role, workdir=Path.cwd(), state_dir=_places().state, ceiling=options.ceiling
        )
    except PolicyUntrusted as error:
        sys.stderr.write(f"note: {escape(error.detail)}; a run refuses it\n")
        return untrusted(found, role=options.role, ceiling=options.ceiling)


def _check(options: argparse.Namespace) -> int:
    found = _found(options.file)
    try:
        policy = load(found)
        above = read_ceiling(options.ceiling, found.caller)
        if above is not None:
            under_ceiling(found, policy, above)
    except PolicyInvalid as error:
        if options.json:
            _print_json({"ok": False, "path": str(found.path), "problems": _problems(error.problems), "warnings": []})
        else:
            _say_problems(error.problems)
        return FINDINGS
    found_warnings = warnings(policy)
    if options.json:
        document = {"ok": True, "path": str(found.path), "policy_sha256": policy.sha256, "problems": []}
        _print_json({**document, "warnings": _problems(found_warnings)})
        return OK
    for warning in found_warnings:
        sys.stderr.write(f"warning: {escape(warning.where)}: {escape(warning.message)}\nhint: {escape(warning.hint)}\n")
    _print(f"ok: {found.path}: {_count(policy)}")
    return OK


def _count(policy: Policy) -> str:
    parts = {
        "roles": policy.roles,
        "endpoints": policy.endpoints,
        "bindings": policy.bindings,
        "secrets": policy.secrets,
        "tests": policy.tests,
    }
    return ", ".join(f"{len(values)} {name}" for name, values in parts.items())


def _explain(options: argparse.Namespace) -> int:
    try:
        here = _effective(options.policy, options)
        explained = explain(here.policy, here.role, options.method, options.url, options.header, _body(options.body))
    except CredgateError as error:
        error.exit_status = USAGE  # 1 is a verdict here
        raise
    if options.json:
        _print_json({**as_json(explained), "role": here.role, "policy": str(here.path)})
    else:
        _print(as_text(explained))
    return OK if isinstance(explained.verdict, Allow) else FINDINGS


def _test(options: argparse.Namespace) -> int:
    found = _found(options.file)
    policy = load(found)
    above = read_ceiling(options.ceiling, found.caller)
    policy = policy if above is None else under_ceiling(found, policy, above)
    if not policy.tests:
        raise CredgateError("no_tests", f"policy {found.path}: it has no [[test]]", "add one: method, url, verdict")
    results = [(case, _outcome(policy, case)) for case in policy.tests]
    failed = [result for result in results if result[1]]
    if options.json:
        cases = [{"role": c.role, "method": c.method, "url": c.url, "ok": not why, "why": why} for c, why in results]
        _print_json({"ok": not failed, "cases": cases, "policy_sha256": policy.sha256})
        return FINDINGS if failed else OK
    for case, why in results:
        _print(f"{'FAIL' if why else 'ok  '}  {case.role}: {case.method} {case.url}{': ' + why if why else ''}")
    _print(f"{len(results) - len(failed)} of {len(results)} cases as expected")
    return FINDINGS if failed else OK


def _outcome(policy: Policy, case: TestCase) -> str:
    """Return "" where the case came out as written, else got and expected."""
    got = _facts(
        explain(policy, case.role, case.method, case.url, body=None if case.body is None else case.body.encode())
    )
    expected = {"verdict": case.verdict, "reason": case.reason, "rule": case.rule}
    wrong = [f"{k}: got {got[k] or 'none'}, expected {v}" for k, v in expected.items() if v and got[k] != v]
    return "; ".join(wrong)


def _facts(explained: Explained) -> dict[str, str]:
    match explained.verdict:
        case Allow(rule=rule):
            return {"verdict": "allow", "reason": "", "rule": rule}
        case Deny(reason=reason, rule=rule):
            return {"verdict": "deny", "reason": reason.value, "rule": rule}


def _trust(options: argparse.Namespace) -> int:
    places = _places()
    found = asked_by(open_policy(Path.cwd() / options.file, Origin.TREE), os.environ, places)
    state = places.state
    diff = diff_against_trusted(found.path, found.data, state)
    if not options.diff:
        check_tree(found, load(found))
        trust(found.path, found.data, state)
    if options.json:
        _print_json({"path": str(found.path), "trusted": not options.diff or not diff, "diff": diff})
        return OK
    sys.stdout.write(_escaped(diff))
    if not options.diff:
        _print(f"trusted: {found.path}, as it is now")
    elif not diff:
        _print("no change since it was trusted")
    return OK


def _show(options: argparse.Namespace) -> int:
    here = _effective(options.policy, options)
    lines = describe(here.policy)
    if options.json:
        document = {"path": str(here.path), "origin": here.origin.value, "policy_sha256": here.policy.sha256}
        ceiling = None if here.ceiling is None else str(here.ceiling)
        registries = list(here.policy.registries())
        _print_json({**document, "ceiling": ceiling, "role": here.role, "registries": registries, "lines": list(lines)})
        return OK
    _print(f"policy   {here.path} ({here.origin}), sha256 {here.policy.sha256}")
    _print(f"ceiling  {here.ceiling or 'none'}")
    _print(f"role     {here.role}{' (asked for)' if options.role else ' (the default)'}")
    for line in here.policy.registries():
        _print(f"registry {line}")
    for line in lines:
        _print(f"  {line}")
    return OK


def _diff(options: argparse.Namespace) -> int:
    old, new = (describe(load(_found(file))) for file in (options.file, options.other))
    gone, come = [x for x in old if x not in new], [x for x in new if x not in old]
    if options.json:
        _print_json({"removed": gone, "added": come})
    else:
        for sign, lines in (("-", gone), ("+", come)):
            for line in lines:
                _print(f"{sign} {line}")
    return FINDINGS if gone or come else OK


def _learn(options: argparse.Namespace) -> int:
    def judge(role: str) -> Effective:
        options.role = role
        return _effective(options.write or options.policy, options)

    return learn.run(options, judge, options.ceiling)


def _problems(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [{"where": p.where, "message": p.message, "hint": p.hint} for p in problems]


def _say_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        sys.stderr.write(_escaped(f"{problem}\n"))
    more = " or more" if len(problems) >= MAX_PROBLEMS else ""
    sys.stderr.write(f"{len(problems)} fault{'s' if len(problems) != 1 else ''}{more}\n")


def _escaped(text: str) -> str:
    """Escape each line: a policy of a work tree may hold sequences that a terminal obeys."""
    return "".join(f"{escape(line)}\n" for line in text.splitlines())


def _print(line: str) -> None:
    sys.stdout.write(_escaped(line))


def _print_json(document: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
