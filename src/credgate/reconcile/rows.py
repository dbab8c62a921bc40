"""The results as rows for the reports: findings, all records, counts over time. Order is fixed."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from credgate.reconcile.classes import MEANINGS, Severity
from credgate.reconcile.model import SECOND
from credgate.reconcile.result import Result
from credgate.reconcile.store import Store
from credgate.reconcile.times import show
from credgate.reconcile.words import reason

BINS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A request of the ledger, as a finding refers to it."""

    seq: int
    run: str
    time: str
    host: str
    method: str
    path: str
    status: int
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """A record of a target's, as a finding refers to it: file, number within, and what it says."""

    file: str
    record: int
    time: str
    host: str
    method: str
    path: str
    action: str
    status: int
    address: str
    credential: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finding."""

    class_: str
    source: str
    join: str
    words: str
    ours: Ours | None
    theirs: Theirs | None


def prepare(store: Store, result: Result) -> None:
    """Make `files`, `sources` and `grave`, the view of all that is worse than fine."""
    names = [(at, part.target.name) for at, part in enumerate(result.parts)]
    store.fill("sources", {"src": "SMALLINT", "source": "VARCHAR"}, [(-1, ""), *names])
    files = [file.name for part in result.parts for file in part.files]
    store.fill("files", {"file": "INTEGER", "name": "VARCHAR"}, list(enumerate(files, start=1)))
    ranks = [(str(name), int(meaning.severity)) for name, meaning in MEANINGS.items()]
    store.fill("ranks", {"class": "VARCHAR", "rank": "TINYINT"}, ranks)
    # a pair is one finding, though both sides have it
    store.run(
        "CREATE VIEW grave AS SELECT x.src, x.g, nullif(x.r, 0) AS r, x.class, x.how, x.note, k.rank FROM gres x "
        "JOIN ranks k ON k.class = x.class WHERE k.rank > 0 UNION ALL "
        "SELECT tg.src, nullif(x.g, 0), x.r, x.class, x.how, x.note, k.rank FROM tres x JOIN tg ON tg.r = x.r "
        "JOIN ranks k ON k.class = x.class WHERE k.rank > 0 AND NOT EXISTS "
        "(SELECT 1 FROM gres y WHERE y.g = x.g AND y.r = x.r AND y.src = tg.src AND y.class = x.class)"
    )


def findings(store: Store, result: Result, limit: int | None = None, class_: str = "") -> Iterator[Row]:
    """The findings, the worst first, then by source and time."""
    rules = result.rules
    where = "WHERE v.class = $1" if class_ else "WHERE $1 = ''"
    sql = (
        "SELECT v.class, s.source, v.how, v.note, g.g, g.run, g.t0, g.host, g.method, g.path, g.status, g.secret, "
        "l.r, f.name, l.rec, l.tt, l.host, l.method, l.path, l.action, l.status, l.ip, l.cred FROM grave v "
        "JOIN sources s ON s.src = v.src LEFT JOIN gw g ON g.g = v.g LEFT JOIN tg l ON l.r = v.r "
        f"LEFT JOIN files f ON f.file = l.file {where} "
        "ORDER BY v.rank DESC, v.class, v.src, coalesce(g.t0, l.tt), coalesce(v.g, 0), coalesce(v.r, 0)"
    )
    if limit is not None:
        sql += f" LIMIT {limit:d}"
    for row in store.rows(sql, class_):
        yield _row(row, rules)


def _row(row: tuple[object, ...], rules: dict[str, str]) -> Row:
    texts = ["" if value is None else str(value) for value in row]
    ours = theirs = None
    if row[4] is not None:
        ours = Ours(
            seq=int(texts[4]), run=texts[5], time=show(int(texts[6])), host=texts[7], method=texts[8], path=texts[9],
            status=int(texts[10]), secret=texts[11],
        )  # fmt: skip
    if row[12] is not None:
        theirs = Theirs(
            file=texts[13], record=int(texts[14]), time=show(int(texts[15])), host=texts[16], method=texts[17],
            path=texts[18], action=texts[19], status=int(texts[20]), address=texts[21], credential=texts[22],
        )  # fmt: skip
    words = reason(texts[0], texts[3], rules)
    return Row(class_=texts[0], source=texts[1], join=texts[2], words=words, ours=ours, theirs=theirs)


_PLAIN = "strftime(make_timestamp({}), '%Y-%m-%dT%H:%M:%S.%gZ')"
_COLUMNS = (
    "side", "source", "class", "severity", "join", "note", "ledger_seq", "run", "time", "host", "method", "path",
    "action", "status", "secret", "file", "record", "counterpart_seq", "counterpart_file", "counterpart_record",
    "source_address", "credential", "late_us",
)  # fmt: skip


def write_csv(store: Store, path: Path) -> None:
    """One row a request and source, then one a record. No cell begins as a spreadsheet's formula does."""
    ours = (
        "SELECT g.g AS p, x.src AS q, 'ledger' AS side, s.source, x.class, k.rank AS severity, x.how "
        'AS "join", '
        f"x.note, g.g AS ledger_seq, g.run, {_PLAIN.format('g.t0')} AS time, g.host, g.method, g.path, g.ev AS action, "
        "g.status, g.secret, '' AS file, NULL AS record, NULL AS counterpart_seq, coalesce(f.name, '') AS "
        "counterpart_file, "
        "l.rec AS counterpart_record, '' AS source_address, '' AS credential, x.dt AS late_us "
        "FROM gres x JOIN gw g ON g.g = x.g JOIN sources s ON s.src = x.src JOIN ranks k ON k.class = x.class "
        "LEFT JOIN tg l ON l.r = x.r LEFT JOIN files f ON f.file = l.file"
    )
    theirs = (
        "SELECT l.r AS p, l.src AS q, 'target' AS side, s.source, x.class, k.rank AS severity, x.how AS \"join\", "
        f"x.note, NULL AS ledger_seq, '' AS run, {_PLAIN.format('l.tt')} AS time, l.host, l.method, l.path, l.action, "
        "l.status, '' AS secret, f.name AS file, l.rec AS record, nullif(x.g, 0) AS counterpart_seq, "
        "'' AS counterpart_file, NULL AS counterpart_record, l.ip AS source_address, l.cred AS credential, "
        "NULL AS late_us FROM tres x JOIN tg l ON l.r = x.r JOIN sources s ON s.src = l.src "
        "JOIN ranks k ON k.class = x.class JOIN files f ON f.file = l.file"
    )
    _write_rows(store, ours, path, header=True)
    rest = store.directory / "rest.csv"  # one after the other: both in one sort take twice the memory
    _write_rows(store, theirs, rest, header=False)
    with rest.open("rb") as file, path.open("ab") as whole:
        shutil.copyfileobj(file, whole, 1 << 20)
    rest.unlink()


def _write_rows(store: Store, select: str, path: Path, *, header: bool) -> None:
    cells = ", ".join(_cell(name) for name in _COLUMNS)
    target = str(path).replace("'", "''")
    store.run(
        f"COPY (SELECT {cells} FROM ({select}) ORDER BY p, q) TO '{target}' "
        f"(FORMAT csv, HEADER {header}, DELIMITER ',', QUOTE '\"', ESCAPE '\"')"
    )


_NUMBERS = {"severity", "ledger_seq", "status", "record", "counterpart_seq", "counterpart_record", "late_us"}


# A spreadsheet takes these for the begin of a formula, after white space too.
_RISKY = r"^\s*[=+\-@|%]"


def _cell(name: str) -> str:
    if name in _NUMBERS:
        return f'"{name}"'
    risky = f"regexp_matches(\"{name}\", '{_RISKY}')"
    return f'CASE WHEN {risky} THEN chr(39) || "{name}" ELSE "{name}" END AS "{name}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Counts in equal steps of time: fine, open (expected to be absent, pending), findings."""

    title: str
    begin: int
    step: int
    bins: tuple[tuple[int, int, int], ...]


def timelines(store: Store, result: Result) -> list[Timeline]:
    """One a source, and one for each of its credentials of ours where it names several."""
    begin, end = _span(store)
    if end <= begin:
        return []
    step = max(SECOND, -(-(end - begin) // BINS))
    out = []
    for src, part in enumerate(result.parts):
        out.append(_timeline(store, part.target.title, begin, step, src, None))
        if len(part.held) > 1:  # of one alone it would be the same picture again
            held = part.held[:20]
            out += [_timeline(store, f"{part.target.title}, credential {c}", begin, step, src, c) for c in held]
    return out


def _span(store: Store) -> tuple[int, int]:
    begin, end = store.one(
        "SELECT min(t), max(t) FROM (SELECT g.t0 AS t FROM gw g UNION ALL SELECT l.tt FROM live l WHERE "
        "l.kind <> 'bucket')"
    )
    return (begin, end + 1) if isinstance(begin, int) and isinstance(end, int) else (0, 0)


def _timeline(store: Store, title: str, begin: int, step: int, src: int, cred: str | None) -> Timeline:
    """Of a source: both sides, a pair once. Of a credential: its records."""
    records = (
        "SELECT l.tt AS t, x.class FROM tres x JOIN tg l ON l.r = x.r WHERE l.src = $1 AND ($4 IS NULL OR l.cred = $4)"
    )
    requests = (
        "SELECT g.t0 AS t, x.class FROM gres x JOIN gw g ON g.g = x.g WHERE x.src = $1 AND x.r = 0 AND $4 IS NULL "
        "AND x.class <> 'denied'"
    )
    skip = "('other-credential', 'service', 'outside')"
    bins = [[0, 0, 0] for _ in range(BINS)]
    for place, rank, count in store.rows(
        "SELECT (t - $2) // $3 AS place, CASE WHEN k.rank > 0 THEN 2 WHEN x.class IN ('expected-absent', 'pending') "
        f"THEN 1 ELSE 0 END AS kind, count(*) FROM ({records} UNION ALL {requests}) x JOIN ranks k ON k.class "
        f"= x.class "
        f"WHERE x.class NOT IN {skip} GROUP BY ALL ORDER BY ALL",
        src,
        begin,
        step,
        cred,
    ):
        at = int(str(place))
        if 0 <= at < BINS:
            bins[at][int(str(rank))] += int(str(count))
    return Timeline(title=title, begin=begin, step=step, bins=tuple((a, b, c) for a, b, c in bins))


def worst_words(severity: Severity) -> str:
    """The verdict in a sentence."""
    return {
        Severity.FINE: "Clean: everything that could be checked agrees.",
        Severity.WARNING: "Warnings: the records agree, with differences that someone should look at.",
        Severity.FAIL: "Not in agreement: something happened outside the gateway, was never recorded, or is missing.",
        Severity.CRITICAL: "A refused request was seen by its target.",
    }[severity]
