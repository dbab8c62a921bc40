"""What a reconciliation found, small enough for memory: counts, findings at source level, what was read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from credgate.reconcile.classes import CHECKED, Class, Severity, severity
from credgate.reconcile.gateway import Seen
from credgate.reconcile.join import OFF, Skew
from credgate.reconcile.reading import Source
from credgate.reconcile.runs import Content, Shared, shared_contents, shared_targets
from credgate.reconcile.store import Store
from credgate.reconcile.targets import Target
from credgate.reconcile.times import show

FORM = 1  # of report.json
_MOST_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a source as a whole."""

    source: str
    class_: Class
    count: int
    words: str


@dataclass(slots=True, kw_only=True)
class Part:
    """One source: its facts, its files, its clock, the credentials of ours that its records name."""

    target: Target
    files: list[Source]
    skew: Skew = field(default_factory=Skew)
    held: list[str] = field(default_factory=list)
    gateway: dict[str, int] = field(default_factory=dict)  # class -> requests
    records: dict[str, int] = field(default_factory=dict)  # class -> records


@dataclass(slots=True, kw_only=True)
class Result:
    """All of it."""

    seen: Seen
    parts: list[Part]
    since: int
    until: int | None
    parameters: Mapping[str, object]
    unchecked: int = 0  # requests of targets without an export
    checkable: int = 0
    allowed: int = 0
    findings: list[Finding] = field(default_factory=list)
    grouped: int = 0  # of the checkable ones: checked only as one of several that look alike, or by a count
    shared: list[Shared] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    digests: int = 0  # bodies of which the ledger holds one

    @property
    def severity(self) -> Severity:
        """The worst of all."""
        found = [severity(name) for part in self.parts for name in (*part.gateway, *part.records)]
        return max([*found, *(severity(item.class_) for item in self.findings)], default=Severity.FINE)

    @property
    def rules(self) -> dict[str, str]:
        """What each rule of expected absence says."""
        return {rule.id: rule.why for part in self.parts for rule in part.target.absent}


def gather(store: Store, result: Result) -> None:
    """Count what the tables hold, and find what concerns whole sources."""
    for src, part in enumerate(result.parts):
        part.gateway = _counts(
            store, "SELECT class, count(*) FROM gres WHERE src = ? GROUP BY class ORDER BY class", src
        )
        part.records = _counts(
            store,
            "SELECT x.class, count(*) FROM tres x JOIN tg ON tg.r = x.r WHERE tg.src = ? GROUP BY x.class "
            "ORDER BY x.class",
            src,
        )
        result.findings += _of_source(store, src, part)
    end = 2**62 if result.until is None else result.until
    result.unchecked = store.number(
        "SELECT count(*) FROM gres x JOIN gw g ON g.g = x.g WHERE src = -1 AND g.ev <> 'deny' AND g.t0 <= ?", end
    )
    result.allowed = store.number("SELECT count(*) FROM gw WHERE ev <> 'deny' AND t0 <= ?", end)
    result.checkable = store.number(
        "SELECT count(DISTINCT g) FROM gres WHERE class IN (SELECT unnest(?))", sorted(CHECKED)
    )
    result.grouped = store.number(
        "SELECT count(DISTINCT g) FROM gres WHERE class IN ('matched-group', 'ambiguous') AND g NOT IN "
        "(SELECT g FROM gres WHERE class IN ('matched', 'field-mismatch', 'out-of-window', 'gateway-only'))"
    )
    result.shared, result.contents = shared_targets(store), shared_contents(store)
    result.digests = store.number("SELECT count(*) FROM gbody")


def _counts(store: Store, sql: str, src: int) -> dict[str, int]:
    return {str(name): int(str(count)) for name, count in store.rows(sql, src)}


def _why(files: Sequence[Source]) -> str:
    """Where and why records could not be read, the most frequent first."""
    reasons = [(count, file.name, why) for file in files for why, count in file.unreadable.items()]
    said = [f"{name}: {why} ({count})" for count, name, why in sorted(reasons, key=lambda one: (-one[0], one[1:]))]
    return "; ".join([*said[:_MOST_REASONS], *(["..."] if len(said) > _MOST_REASONS else [])])


def _of_source(store: Store, src: int, part: Part) -> list[Finding]:
    name, found = part.target.name, []
    lost = sum(sum(file.unreadable.values()) for file in part.files)
    if lost:
        of_all = f"{lost} of {sum(file.records for file in part.files)}"
        words = f"{of_all} records could not be read, and any of them may be one of ours: {_why(part.files)}"
        found.append(Finding(source=name, class_=Class.UNREADABLE, count=lost, words=words))
    if abs(part.skew.median) > OFF:
        words = f"the target's clock is {part.skew.median / 1e6:+.1f} s off ours, by {part.skew.by}"
        found.append(Finding(source=name, class_=Class.CLOCK, count=1, words=words))
    if part.skew.beyond is not None:
        off, fit = part.skew.beyond.shift / 1e6, part.skew.beyond.fit
        words = f"is the proxy's clock {off:+.1f} s off ours? {fit} of its tunnels would begin where one was asked for"
        found.append(Finding(source=name, class_=Class.CLOCK, count=1, words=words))
    for a, b, n in store.rows("SELECT a, b, n FROM gaps WHERE src = ? ORDER BY a", src):
        words = f"no record between {show(int(str(a)))} and {show(int(str(b)))}, where the ledger has {n} requests"
        found.append(Finding(source=name, class_=Class.COVERAGE_GAP, count=int(str(n)), words=words))
    return found
