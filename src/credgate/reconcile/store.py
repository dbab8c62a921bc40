"""Both sides in one DuckDB file: rows go through CSV files, as that is what it loads fastest without other packages.

Nothing here holds more than a row; DuckDB itself spills to the directory when its memory is used up.
"""

import csv
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb

from credgate.reconcile.gateway import Call, Seen, calls
from credgate.reconcile.model import Event, ReconcileError, Unreadable
from credgate.reconcile.reading import HopelessError, Opened, Source, json_values
from credgate.reconcile.table import csv_records
from credgate.reconcile.tables import Columns
from credgate.reconcile.targets import Target
from credgate.reconcile.times import EARLIEST, LATEST

MEMORY = "1GB"
_CALLS = {
    "g": "BIGINT", "ev": "VARCHAR", "run": "VARCHAR", "t0": "BIGINT", "t1": "BIGINT", "host": "VARCHAR",
    "method": "VARCHAR", "path": "VARCHAR", "status": "SMALLINT", "ok": "TINYINT", "size": "BIGINT",
    "tag": "VARCHAR", "reason": "VARCHAR", "settled": "TINYINT", "n": "BIGINT", "secret": "VARCHAR",
    "rule": "VARCHAR", "skew": "BIGINT", "dated": "TINYINT",
}  # fmt: skip
_EVENTS = {
    "r": "BIGINT", "src": "SMALLINT", "file": "INTEGER", "rec": "BIGINT", "tt": "BIGINT", "t": "BIGINT",
    "te": "BIGINT", "kind": "VARCHAR", "prim": "VARCHAR", "service": "VARCHAR", "host": "VARCHAR",
    "method": "VARCHAR", "path": "VARCHAR", "template": "TINYINT", "action": "VARCHAR", "status": "SMALLINT",
    "ok": "TINYINT", "size": "BIGINT", "ip": "VARCHAR", "tag": "VARCHAR", "cred": "VARCHAR", "category": "VARCHAR",
    "n": "BIGINT",
}  # fmt: skip


class Store:
    """The database of one reconciliation, in a directory of its own that the caller removes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.db = duckdb.connect(":memory:")  # in a file each statement would wait for the disk; it spills all the same
        self.db.execute(f"SET memory_limit = '{MEMORY}'")
        self.db.execute("SET threads = 2")
        self.db.execute("SET preserve_insertion_order = false")  # every result is ordered where it is read
        self.db.execute(f"SET temp_directory = '{_quoted(directory / 'spill')}'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.db.close()

    def run(self, sql: str, *values: object) -> None:
        """Run a statement."""
        self.db.execute(sql, values)

    def make(self, table: str, select: str, *values: object) -> None:
        """See Tables, as of the others below."""
        self.db.execute(f"CREATE OR REPLACE TABLE {table} AS {select}", values)

    def empty(self, table: str, columns: Columns) -> None:
        """See Tables."""
        spec = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        self.db.execute(f"CREATE OR REPLACE TABLE {table} ({spec})")

    def add(self, table: str, select: str, *values: object) -> None:
        """See Tables."""
        self.db.execute(f"INSERT INTO {table} {select}", values)

    def remove(self, table: str, where: str, *values: object) -> None:
        """See Tables."""
        self.db.execute(f"DELETE FROM {table} WHERE {where}", values)

    def rows(self, sql: str, *values: object) -> Iterator[tuple[object, ...]]:
        """The rows of a query, a few at a time."""
        cursor = self.db.cursor().execute(sql, values)
        while batch := cursor.fetchmany(5000):
            yield from batch

    def one(self, sql: str, *values: object) -> tuple[object, ...]:
        """The only row of a query."""
        row = self.db.execute(sql, values).fetchone()
        assert row is not None
        return tuple(row)

    def number(self, sql: str, *values: object) -> int:
        """The only number of a query, 0 for null."""
        value = self.one(sql, *values)[0]
        return value if isinstance(value, int) else 0

    def fill(self, table: str, columns: Columns, rows: Iterable[Iterable[object]]) -> None:
        """Make a table of rows, by way of a file."""
        with _Sheet(self.directory / f"{table}.csv") as sheet:
            for row in rows:
                sheet.write(row)
        self.load(table, columns)

    def load(self, table: str, columns: Columns) -> None:
        """Make a table of the file of its name. No line of it has an end within: `clean` has seen to that."""
        path = self.directory / f"{table}.csv"
        spec = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
        self.db.execute(
            f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM read_csv('{_quoted(path)}', header=false, "
            f"auto_detect=false, delim=',', quote='\"', escape='\"', nullstr='\\N', columns={{{spec}}}, "
            "max_line_size=8388608)"
        )
        path.unlink()


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


class _Sheet:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self.write = csv.writer(self._file, lineterminator="\n", quoting=csv.QUOTE_MINIMAL).writerow

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def take_ledger(store: Store, directory: Path, seen: Seen) -> None:
    """Fill `gw`, and `gid` (request ids), `gcred` (credentials), `gbody` (digests of bodies), `gdial` (tunnels)."""
    with ExitStack() as stack:
        names = ("gw", "gid", "gcred", "gbody", "gdial")
        main, ids, creds, bodies, dials = (
            stack.enter_context(_Sheet(store.directory / f"{name}.csv")) for name in names
        )
        for call in calls(directory, seen):
            _write_call(call, main, ids, creds)
            for body in call.bodies:
                bodies.write((call.seq, *body))
            for at in call.tunnels:
                dials.write((call.seq, at))
    store.load("gw", _CALLS)
    store.load("gid", {"g": "BIGINT", "id": "VARCHAR"})
    store.load("gbody", {"g": "BIGINT", "sent": "TINYINT", "sha256": "VARCHAR", "size": "BIGINT"})
    store.load("gdial", {"g": "BIGINT", "at": "BIGINT"})
    store.load("gcred", {"g": "BIGINT", "cred": "VARCHAR", "fp": "TINYINT"})


def _write_call(call: Call, main: _Sheet, ids: _Sheet, creds: _Sheet) -> None:
    main.write(call[:-4])
    for item in call.ids:
        ids.write((call.seq, item))
    for cred in call.creds:
        creds.write((call.seq, *cred))


class Taken:
    """The targets' side, being filled: `tg`, `tid`. A context manager; loads what was read when all went well."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 1
        self._files = 0
        self._stack = ExitStack()
        self._main = self._stack.enter_context(_Sheet(store.directory / "tg.csv"))
        self._ids = self._stack.enter_context(_Sheet(store.directory / "tid.csv"))

    def file(self, src: int, target: Target, path: Path) -> Source:
        """Read one export. What can't be read is counted in what is returned."""
        self._files += 1
        with Opened(path) as opened, suppress(HopelessError):
            self._take(src, target, opened)
        return opened.source

    def _take(self, src: int, target: Target, opened: Opened) -> None:
        for number, value in _values(opened, target):
            try:
                events = target.parse(value)
                if any(event.t < EARLIEST or event.t_end > LATEST for event in events):  # a duration of no request
                    raise Unreadable("time out of range")
            except Unreadable as error:
                opened.source.lost(str(error))
                continue
            for event in events:
                self._write(src, number, event, target)

    def _write(self, src: int, number: int, event: Event, target: Target) -> None:
        row = self._next
        self._next += 1
        stamp = event.t_end if target.stamp == "end" and event.t_end else event.t
        self._main.write((row, src, self._files, number, stamp, *event[:-2]))
        for item in event.ids:
            self._ids.write((row, src, "id", item))
        for item in event.given:
            self._ids.write((row, src, "client", item))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
        if kind is None:
            self._store.load("tg", _EVENTS)
            self._store.load("tid", {"r": "BIGINT", "src": "SMALLINT", "kind": "VARCHAR", "id": "VARCHAR"})


def _values(opened: Opened, target: Target) -> Iterator[tuple[int, object]]:
    match target.reader:
        case "json":
            return json_values(opened)
        case "lines":
            return _numbered_lines(opened)
        case "csv":
            return csv_records(opened)
    raise ReconcileError("unknown_reader", f"no reader {target.reader!r}", "", 2)


def _numbered_lines(opened: Opened) -> Iterator[tuple[int, object]]:
    for line in opened.lines():
        opened.source.records += 1
        yield opened.source.records, line
