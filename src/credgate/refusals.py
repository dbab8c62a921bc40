"""What the ledger has of a run's refusals: alike ones as one value, with exact counts, times and query names.

Refusals that were counted into one line (floods.py) bring their count and no query names; those of the lines of their
own that each flood begins with are known.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from credgate.errors import CredgateError
from credgate.ledger.chain import LineFault, parse_line
from credgate.ledger.files import PackError, segment_lines, segments
from rules.asked import Asked

KINDS = 5000  # of one run that are kept apart; more are counted
NAMES = 100  # of queries of one kind, at least, that are kept; no rule lists as many, and a jail makes them up
RUN = re.compile(r"[A-Za-z0-9-]{1,64}")
OWN = frozenset({"credgate-check.invalid"})  # prepare.CHECK_NAME, which the look from inside asks for
_DNS = {"dns.deny": "host_unlisted", "dns.deny.metadata": "metadata"}

type Record = Mapping[str, object]


class RunUnknown(CredgateError):
    """No record of such a run."""


@dataclass(slots=True)
class Refusals:
    """One run: `start` is its run.start, None where that is in a removed segment. `names` were only looked up.

    `beyond` refusals are not in `asked`: they were of too many kinds.
    """

    run: str
    start: Record | None = None
    asked: list[Asked] = field(default_factory=list)
    names: list[Asked] = field(default_factory=list)
    beyond: int = 0
    damaged: int = 0

    @property
    def count(self) -> int:
        """All refused requests."""
        return sum(asked.count for asked in self.asked) + self.beyond


def refusals_of(directory: Path, run: str, since: int = 0, most: int = 0) -> Refusals:
    """Read the refusals of a run. `since`: a seq before which there is nothing of it; older segments are left out.
    `most`: lines that are read, 0 for all; the refusals of those behind are counted, as one a line.

    Raises RunUnknown, CredgateError where the ledger can't be read.
    """
    if not RUN.fullmatch(run):
        raise RunUnknown("run_unknown", f"got run {run!r}, expected an id as `credgate log show` has it", "", 2)
    found = _Found(Refusals(run=run), most)
    try:
        for line in lines_of(directory, run, since):
            found.take(line)
    except (OSError, PackError) as error:
        raise CredgateError(
            "ledger_unreadable", f"can't read {directory}: {error}", "credgate log verify", 4
        ) from error
    if not found.lines:
        raise RunUnknown(
            "run_unknown", f"the ledger has no run {run}", "credgate log show --verdict deny lists them", 2
        )
    return found.end()


def lines_of(directory: Path, run: str, since: int) -> Iterator[bytes]:
    """The lines that name a run. A search over bytes: parsing each line of a ledger costs fifty times as much."""
    named = b'"run":"%s"' % run.encode("ascii")
    for path in _segments(directory, since):
        for line in segment_lines(path):
            if named in line and line.endswith(b"\n"):
                yield line


def _segments(directory: Path, since: int) -> Iterator[Path]:
    """The segments in their order, from the last one that begins at or before `since`."""
    paths = [path for _, path in segments(directory)]
    first = 0
    for number, path in reversed(list(enumerate(paths))) if since else ():
        head = next(segment_lines(path), b"")
        seq = re.search(rb'"seq":([0-9]+)', head)
        if seq is not None and int(seq[1]) <= since:
            first = number
            break
    yield from paths[first:]


@dataclass(slots=True)
class _Kind:
    asked: Asked
    query: set[str]
    count: int
    last: str


class _Found:
    """Gathers the kinds while lines come."""

    def __init__(self, refusals: Refusals, most: int) -> None:
        self.refusals, self._most = refusals, most
        self.lines = 0
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._names: dict[str, _Kind] = {}

    def take(self, line: bytes) -> None:
        """One line that names the run, which may also be what the jail wrote into a field."""
        if self._most and self.lines >= self._most:
            self.refusals.beyond += b'"ev":"deny"' in line
            return
        try:
            record = parse_line(line)
        except LineFault:
            self.refusals.damaged += 1
            return
        if record.get("run") != self.refusals.run:
            return
        self.lines += 1
        match record.get("ev"):
            case "run.start":
                self.refusals.start = record
            case "deny":
                self._add(self._kinds, _key(record), _asked(record), record)
            case "dns" if record.get("reason") in _DNS:
                name = _text(record, "host")
                asked = Asked(reason=_DNS[_text(record, "reason")], host=name, first=_text(record, "ts"))
                self._add(self._names, name, asked, record)
            case _:
                pass

    def _add[K](self, kinds: dict[K, _Kind], key: K, asked: Asked, record: Record) -> None:
        if asked.host in OWN:
            return
        count = _number(record, "count") or 1
        kind = kinds.get(key)
        if kind is None:
            if len(kinds) >= KINDS:
                self.refusals.beyond += count
                return
            kind = kinds[key] = _Kind(asked=asked, query=set(), count=0, last="")
        if len(kind.query) <= NAMES:
            kind.query.update(_texts(record, "query_names"))
        kind.count += count
        kind.last = _text(record, "ts")

    def end(self) -> Refusals:
        """Everything that was found."""
        self.refusals.asked = [_whole(kind) for kind in self._kinds.values()]
        self.refusals.names = [_whole(kind) for kind in self._names.values()]
        return self.refusals


def _key(record: Record) -> tuple[object, ...]:
    return tuple(record.get(name) for name in ("reason", "rule", "method", "scheme", "host", "port", "path"))


def _asked(record: Record) -> Asked:
    return Asked(
        reason=_text(record, "reason"),
        method=_text(record, "method"),
        scheme=_text(record, "scheme"),
        host=_text(record, "host"),
        port=_number(record, "port"),
        path=_text(record, "path"),
        first=_text(record, "ts"),
        rule=_text(record, "rule"),
        hint=_text(record, "detail"),
    )


def _whole(kind: _Kind) -> Asked:
    return replace(kind.asked, query=frozenset(kind.query), count=kind.count, last=kind.last)


def _text(record: Record, name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""


def _number(record: Record, name: str) -> int:
    value = record.get(name)
    return value if isinstance(value, int) else 0


def _texts(record: Record, name: str) -> Iterable[str]:
    value = record.get(name)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else ()
