"""At a run's end: secrets that a target refused, as the ledger has it, and what the user can do about each.

A target refuses a request by 401 where it doesn't take the secret, by 403 where that has no right to what it is for.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from credgate.errors import CredgateError
from credgate.ledger.chain import LineFault, parse_line
from credgate.ledger.files import PackError
from credgate.paths import Places
from credgate.refusals import lines_of
from credgate.runs import TURNED_AWAY, Run
from credgate.secretindex import SERVICE
from credgate.text import cut
from rules.learn_toml import times
from rules.policy import Policy
from rules.sources import SourceKind

log = logging.getLogger(__name__)

SHOWN = 5
LINES = 20_000  # of the ledger that are read, as refusedsummary does: a second of CPU, while the launcher waits
LONGEST = 200  # bytes of a host or a name that a jail may have had a part in
WRONG = 401
REPEATED = 2  # a 403 once is what an agent tries; a 401 is never meant


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """`count` requests with this secret that this host answered by that status."""

    secret: str
    host: str
    status: int
    count: int

    def to_json(self) -> dict[str, object]:
        """As the exit event has it."""
        return {"secret": self.secret, "host": self.host, "status": self.status, "count": self.count}


def turned_away(places: Places, run: Run) -> tuple[TurnedAway, ...]:
    """Most frequent first; () where nothing was, or where the ledger can't be read, which is logged."""
    if not run.turned_away:
        return ()
    try:
        return counted(run.id, lines_of(places.ledger, run.id, run.since))
    except (CredgateError, OSError, PackError) as error:
        log.error("run %s: what its targets refused can't be listed: %s", run.id, error)
        return ()


def counted(run: str, lines: Iterable[bytes]) -> tuple[TurnedAway, ...]:
    """Join each outcome of such a status with its intent, which names secret and host; other runs are left out."""
    sent: dict[int, tuple[str, str]] = {}
    found: Counter[tuple[str, str, int]] = Counter()
    for number, line in enumerate(lines):
        if number >= LINES:
            break
        try:
            record = parse_line(line)
        except LineFault:
            continue  # `log verify` names it
        if record.get("run") == run:
            _take(record, sent, found)
    ranked = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return tuple(TurnedAway(secret=s, host=h, status=n, count=count) for (s, h, n), count in ranked)


def _take(
    record: Mapping[str, object], sent: dict[int, tuple[str, str]], found: "Counter[tuple[str, str, int]]"
) -> None:
    match record:
        case {"ev": "intent", "seq": int(seq), "secret": str(secret), "host": str(host)} if secret:
            sent[seq] = (secret, host)
        case {"ev": "outcome", "intent_seq": int(seq), "status": int(status)} if seq in sent:
            names, host = sent.pop(seq)
            if status in TURNED_AWAY:
                found.update((name, host, status) for name in names.split(","))
        case _:
            pass


def sentences(found: Iterable[TurnedAway], policy: Policy) -> list[str]:
    """For people: what was refused, and the command that mends it."""
    worth = [each for each in found if each.status == WRONG or each.count >= REPEATED]
    said = [_sentence(each, policy) for each in worth[:SHOWN]]
    return said + [f"and {len(worth) - SHOWN} more secrets that a target refused"] * (len(worth) > SHOWN)


def _sentence(each: TurnedAway, policy: Policy) -> str:
    named = cut(each.secret, LONGEST)
    what = f"{cut(each.host, LONGEST)} refused the secret {named} {times(each.count)} ({each.status})"
    mend = _mend(each.secret, policy)
    if each.status == WRONG:
        return f"{what}: it is wrong or has expired: {mend}"
    return f"{what}: it may lack the right to what was asked for; with another one: {mend}"


def _mend(name: str, policy: Policy) -> str:
    rule = policy.secrets.get(name)
    kept = f"{SERVICE}/"
    if rule is None or (rule.kind is SourceKind.KEYRING and rule.ref.startswith(kept)):
        return f"credgate secret set {name if rule is None else rule.ref.removeprefix(kept)}"
    if rule.kind is SourceKind.MINT and rule.ref in policy.mints:
        return f"it is had for the secret {policy.mints[rule.ref].secret}: keep that one anew (credgate secret)"
    return f"renew it where it comes from ({rule.kind.value}:{cut(rule.ref, LONGEST)})"
