"""At a run's end: what was refused most, and the rule that would allow it, or why none does."""

import logging
import shlex
from dataclasses import dataclass

from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.policyfile import shipped_packs
from credgate.refusals import Refusals, refusals_of
from credgate.runs import Run
from credgate.text import cut
from rules.asked import Asked, Learned, Proposal, Told
from rules.learn import learn
from rules.learn_toml import header, quoted, snippet, times, url_of
from rules.packhosts import known_hosts
from rules.problems import RulesError

log = logging.getLogger(__name__)

SHOWN = 5
LONGEST = 400  # bytes of a line that names a request: all of them go into one message of the control socket
LINES = 20_000  # of the ledger that are read: a second of CPU, while the launcher waits
PASTED = 1500  # characters of a rule that is shown at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`lines` for the terminal, the first of each entry not indented; `entries` as the exit event has them."""

    lines: tuple[str, ...] = ()
    entries: tuple[dict[str, object], ...] = ()


def summary_of(places: Places, run: Run, policy: str) -> Summary:
    """Read what was refused. `policy`: the file, where the caller named one. Raises nothing of the ledger's making."""
    try:
        refusals = refusals_of(places.ledger, run.id, run.since, LINES)
        learned = learn(run.policy, run.role, refusals.asked, known_hosts(shipped_packs()))
    except (CredgateError, RulesError) as error:
        log.error("run %s: no summary of what was refused: %s", run.id, error)
        return Summary(lines=(f"what was refused can't be listed; see: credgate log show --run {run.id}",))
    return summarised(run.role, refusals, learned, policy)


def summarised(role: str, refusals: Refusals, learned: Learned, policy: str = "") -> Summary:
    """The most frequent ones, whether or not a rule is proposed for them."""
    ranked: list[Proposal | Told] = sorted([*learned.proposals, *learned.told], key=lambda each: -each.count)
    shown = ranked[:SHOWN]
    made: set[str] = set()
    lines = [line for each in shown for line in _entry(each, role, made)]
    rest = len(ranked) - len(shown)
    if rest or refusals.beyond:
        lines.append(f"and {rest} more kinds of refusals" + (f", and {refusals.beyond} beyond" * bool(refusals.beyond)))
    if learned.proposals:
        named = f" --policy {shlex.quote(cut(policy, LONGEST))}" if policy else ""
        lines.append(f"one by one, and to write them into the policy: credgate policy learn {refusals.run}{named}")
    return Summary(lines=tuple(lines), entries=tuple(_to_json(each) for each in shown))


def _entry(each: Proposal | Told, role: str, made: set[str]) -> list[str]:
    first = each.asked[0]
    head = cut(f"refused {times(each.count)}: {_named(each)} ({first.reason})", LONGEST)
    if isinstance(each, Told):
        rule = f" by {first.rule}" if first.rule else ""
        return [f"{head}{cut(rule, LONGEST)}: {each.why}"]
    if each.aside:
        return [f"{head}: {each.aside} asks for this host by itself, and does without it"]
    lines = [*(header(each) if each.new and each.endpoint not in made else []), *snippet(each)]
    if sum(map(len, lines)) > PASTED:
        return [f"{head}: a rule for it is too long to be shown here"]
    if each.new and each.endpoint not in made:
        made.add(each.endpoint)
        lines.append(f"# and in [role.{role}]: endpoints = [..., {quoted(each.endpoint)}]")
    return [f"{head}, would be allowed by", *(f"    {line}" for line in lines)]


def _named(each: Proposal | Told) -> str:
    return url_of(each.asked[0], each.path)


def _to_json(each: Proposal | Told) -> dict[str, object]:
    first: Asked = each.asked[0]
    return {
        "count": each.count,
        "reason": first.reason,
        "method": cut(first.method, LONGEST),
        "host": cut(first.host, LONGEST),
        "port": first.port,
        "path": cut(each.path, LONGEST),
        "proposed": isinstance(each, Proposal),
    }
