"""`credgate policy learn RUN`: the rules that a run's refusals would have needed. Prints; writes only where told to."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from credgate.commands.learnjson import to_json
from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.policyedit import edited, replace_policy
from credgate.policyfile import (
    Effective,
    Found,
    Origin,
    asked_by,
    check_tree,
    load,
    open_policy,
    read_ceiling,
    shipped_packs,
    under_ceiling,
)
from credgate.policytrust import is_listed
from credgate.refusals import Refusals, refusals_of
from credgate.text import escape
from rules.asked import Learned, Proposal, request_of
from rules.decide import decide
from rules.learn import learn
from rules.learn_toml import document, plain, quoted, times, told_lines, url_of
from rules.lint import warnings
from rules.packhosts import known_hosts
from rules.policy import Unlisted
from rules.request import Request
from rules.verdict import Allow

USAGE = 2
TOLD = 100  # lines of what is not proposed
EXAMPLE = "credgate policy learn r0123456789ab --write ~/.config/credgate/policy.toml"

type Judge = Callable[[str], Effective]  # role -> the policy as it counts


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `policy learn` takes."""
    parser.add_argument("run", metavar="RUN", help="the run's id, as its banner and the ledger have it")
    parser.add_argument("--policy", metavar="FILE", help="default: the one that a run here would use")
    parser.add_argument("--role", default="", metavar="NAME", help="default: the run's own")
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="default: your own")
    parser.add_argument("--only", default="", metavar="N,N", help="these of the proposals, by their number")
    parser.add_argument("--ask", action="store_true", help="ask for each one, at a terminal, then write those taken")
    parser.add_argument("--write", metavar="FILE", help="append them to this policy, which they are made for then")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Everything that is said of one run."""

    refusals: Refusals
    here: Effective
    learned: Learned
    numbers: tuple[int, ...]  # of those proposals that are taken, from 1

    @property
    def taken(self) -> tuple[Proposal, ...]:
        """The proposals themselves."""
        return tuple(self.learned.proposals[number - 1] for number in self.numbers)


def run(options: argparse.Namespace, judge: Judge, ceiling: Path) -> int:
    """Find, show, and write what was taken. Raises CredgateError."""
    places = Places.from_env(os.environ)
    finding = _find(options, refusals_of(options.ledger or places.ledger, options.run), judge)
    if options.ask:
        finding = replace(finding, numbers=_asked(finding))
    if options.write or options.ask:
        written = _write(finding, places, ceiling) if finding.taken else ""
    else:
        written = ""
        _say_fault(finding, places, ceiling)
    if options.json:
        sys.stdout.write(json.dumps(_document(finding, written), indent=2) + "\n")
    elif not (options.write or options.ask):
        sys.stdout.write("".join(f"{line}\n" for line in _text(finding)))
    elif not written:
        sys.stderr.write("nothing was written\n")
    return 0


def _find(options: argparse.Namespace, refusals: Refusals, judge: Judge) -> Finding:
    role = options.role or str((refusals.start or {}).get("role") or "")
    if not role:
        detail = f"the start of run {options.run} is in a segment that was removed, and its role with it"
        raise CredgateError("role_unknown", detail, "say it: --role NAME", USAGE)
    here = judge(role)
    learned = learn(here.policy, here.role, refusals.asked, known_hosts(shipped_packs()))
    numbers = _numbers(options.only, len(learned.proposals))
    return Finding(refusals=refusals, here=here, learned=learned, numbers=numbers)


def _numbers(only: str, count: int) -> tuple[int, ...]:
    if not only:
        return tuple(range(1, count + 1))
    words = only.split(",")
    numbers = {int(word) for word in words if word.strip().isdecimal()}
    if len(numbers) < len(words) or not numbers <= set(range(1, count + 1)):
        raise CredgateError(
            "bad_number", f"--only: got {only!r}, expected numbers from 1 to {count}", "as in 1,3", USAGE
        )
    return tuple(sorted(numbers))


def at_a_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _asked(finding: Finding) -> tuple[int, ...]:
    """The numbers of those that the user says yes to, one by one."""
    if not at_a_terminal():
        raise CredgateError("no_terminal", "--ask needs a terminal", "use --only N,N and --write FILE", USAGE)
    taken = []
    for number, proposal in zip(finding.numbers, finding.taken, strict=True):
        lines = document([proposal], [number])[1:]
        sys.stderr.write("\n" + "".join(f"{line}\n" for line in lines) + f"take rule {number}? [y/N/q] ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip().lower()
        if answer in ("y", "yes"):
            taken.append(number)
        elif answer in ("q", "quit"):
            break
    return tuple(taken)


def _composed(finding: Finding, places: Places, ceiling: Path) -> tuple[Found, bytes]:
    """The policy with what was taken. Raises CredgateError where it doesn't load, or doesn't allow what it is for."""
    here = finding.here
    found = asked_by(open_policy(here.path, here.origin), os.environ, places)
    new = edited(found.data.decode(), here.role, finding.taken).encode()
    changed = replace(found, data=new)
    policy = load(changed)
    above = read_ceiling(ceiling, found.caller)
    policy = policy if above is None else under_ceiling(changed, policy, above)
    if here.origin is Origin.TREE:
        check_tree(changed, policy)
    for asked in (asked for proposal in finding.taken for asked in proposal.asked):
        request = request_of(asked)
        if not (isinstance(request, Request) and isinstance(decide(policy, here.role, request), Allow)):
            raise CredgateError("not_allowed", f"it would still be refused: {url_of(asked)}", "leave that one out")
    return found, new


def _say_fault(finding: Finding, places: Places, ceiling: Path) -> None:
    """Say at once what would keep the proposals out of the policy, though nothing is written."""
    try:
        if finding.taken:
            _composed(finding, places, ceiling)
    except CredgateError as error:
        sys.stderr.write(f"note: as they are they can't be written: {escape(error.detail)}\n")


def _write(finding: Finding, places: Places, ceiling: Path) -> str:
    found, new = _composed(finding, places, ceiling)
    replace_policy(found.path, found.data, new)
    policy = load(replace(found, data=new))
    sys.stderr.write(f"written: {escape(str(found.path))}, {len(finding.taken)} rules\n")
    for warning in warnings(policy):
        sys.stderr.write(f"warning: {escape(warning.where)}: {escape(warning.message)}\n")
    if is_listed(found.path, places.state) or found.origin is Origin.TREE:
        sys.stderr.write(f"it is not trusted any more as it is now: credgate policy trust {escape(str(found.path))}\n")
    sys.stderr.write("live runs go on as they began: credgate gateway reload\n")
    return str(found.path)


def _text(finding: Finding) -> list[str]:
    """A piece of a policy file, with everything else as comments."""
    refusals, learned, here = finding.refusals, finding.learned, finding.here
    lines = [f"# {plain(line)}" for line in _head(finding)]
    lines += document(finding.taken, finding.numbers)
    new = tuple(dict.fromkeys(p.endpoint for p in finding.taken if p.new))
    if new:
        names = ", ".join(quoted(name) for name in new)
        lines += ["", f"# and in [role.{here.role}]: endpoints = [..., {names}]"]
    told = [f"# {line}" for line in told_lines(learned.told[:TOLD])]
    lines += ["", "# not proposed:", *told] if told else []
    if len(learned.told) > TOLD:
        lines.append(f"# and {len(learned.told) - TOLD} more: --json has them all")
    if here.policy.unlisted is Unlisted.NXDOMAIN and refusals.names:
        lines += ["", '# only looked up, and not answered by [dns] unlisted = "nxdomain":']
        lines += [f"# {times(each.count)} {plain(each.host)}" for each in refusals.names]
    return lines


def _head(finding: Finding) -> list[str]:
    refusals, learned, here = finding.refusals, finding.learned, finding.here
    start = refusals.start or {}
    program = f", program {start['program']}" if start.get("program") else ""
    lines = [
        f"run {refusals.run} of role {here.role}{program}: {refusals.count} requests refused",
        f"policy {here.path}",
        f"{len(learned.proposals)} rules would allow what may be allowed; nothing was written",
    ]
    if start.get("policy_sha256") not in (None, here.policy.sha256):
        lines.append("the policy is not the one of the run any more")
    if learned.passing:
        lines.append(f"{sum(asked.count for asked in learned.passing)} of the requests are allowed by now")
    if refusals.beyond:
        lines.append(f"{refusals.beyond} refusals are left out: of too many kinds")
    if refusals.damaged:
        lines.append(f"{refusals.damaged} lines of the ledger are damaged: credgate log verify")
    return lines


def _document(finding: Finding, written: str) -> dict[str, object]:
    return to_json(finding.refusals, finding.here, finding.learned, finding.numbers, written)
