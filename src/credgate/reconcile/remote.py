"""The stages on another engine: Ibis speaks to it, sqlglot turns our SQL into its own. An optional dependency
(`pip install 'credgate[engine]'`); shown with PySpark.

Only what the parsers have made of the ledger and the exports goes there, and the classes come back.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from credgate.reconcile.model import ReconcileError
from credgate.reconcile.store import Store
from credgate.reconcile.tables import INPUTS, RESULTS, Columns

_IBIS = {"BIGINT": "int64", "INTEGER": "int32", "SMALLINT": "int16", "TINYINT": "int8", "VARCHAR": "string"}
_PREFIX = "credgate_reconcile"
_HINT = "install it: pip install 'credgate[engine]', and what the engine itself needs"
# Spark's own defaults are for a cluster: 200 partitions of a few rows each cost minutes.
_SPARK = {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "false", "spark.sql.ansi.enabled": "true"}


class Remote:
    """Tables at an engine that Ibis knows; see tables.Tables. Each version of a table has a name of its own, as engines
    differ in whether a table may be replaced by what is read from it.
    """

    def __init__(self, backend: Any, glot: Any) -> None:
        self._backend = backend
        self._glot = glot
        self._tables: dict[str, Any] = {}
        self._made = 0

    def make(self, table: str, select: str, *values: object) -> None:
        """See Tables, as of the others below."""
        query = self._query(select, values)
        self._now(table, self._backend.create_table(self._new(table), query))

    def empty(self, table: str, columns: Columns) -> None:
        """See Tables."""
        schema = {column: _IBIS[kind] for column, kind in columns.items()}
        self._now(table, self._backend.create_table(self._new(table), schema=schema))

    def add(self, table: str, select: str, *values: object) -> None:
        """See Tables: the columns go by their places, and get the table's names and types."""
        schema = self._tables[table].schema()
        rows = self._query(select, values, schema.names)
        self._backend.insert(self._name(table), rows.cast(dict(schema.items())))

    def remove(self, table: str, where: str, *values: object) -> None:
        """See Tables."""
        self.make(table, f"SELECT * FROM {table} WHERE NOT ({where})", *values)

    def fill(self, table: str, columns: Columns, rows: Iterable[Iterable[object]]) -> None:
        """See Tables."""
        import pandas  # comes with Ibis

        self.empty(table, columns)
        held = [tuple(row) for row in rows]
        if held:
            frame = pandas.DataFrame(held, columns=list(columns))
            self._backend.insert(self._name(table), frame)

    def rows(self, select: str, *values: object) -> Iterator[tuple[object, ...]]:
        """See Tables."""
        for batch in self._query(select, values).to_pyarrow_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def one(self, select: str, *values: object) -> tuple[object, ...]:
        """See Tables."""
        (row,) = self.rows(select, *values)
        return row

    def number(self, select: str, *values: object) -> int:
        """See Tables."""
        value = self.one(select, *values)[0]
        return value if isinstance(value, int) else 0

    def take(self, store: Store, table: str) -> None:
        """Copy a table of the store's here."""
        self._now(table, self._backend.create_table(self._new(table), store.db.table(table).to_arrow_table()))

    def give(self, store: Store, table: str) -> None:
        """Copy a table from here to the store."""
        arrived = self._tables[table].to_pyarrow()
        store.db.register("arrived", arrived)
        store.make(table, "SELECT * FROM arrived")
        store.db.unregister("arrived")

    def close(self) -> None:
        """Remove what was made here."""
        for table in self._tables:
            self._backend.drop_table(self._name(table), force=True)
        self._tables.clear()

    def _new(self, table: str) -> str:
        self._made += 1
        return f"{_PREFIX}_{table}_{self._made}"

    def _name(self, table: str) -> str:
        name: str = self._tables[table].get_name()
        return name

    def _now(self, table: str, made: Any) -> None:
        before = self._name(table) if table in self._tables else None
        self._tables[table] = made
        if before is not None:
            self._backend.drop_table(before)

    def _query(self, select: str, values: tuple[object, ...], columns: Sequence[str] = ()) -> Any:
        """The query at the engine: values and names put in, then translated. `columns`: what it calls its columns."""
        expressions = self._glot.exp
        tree = self._glot.parse_one(select, read="duckdb")
        for place in list(tree.find_all(expressions.Parameter, expressions.Placeholder)):
            place.replace(expressions.convert(values[int(place.name) - 1]))
        for table in tree.find_all(expressions.Table):
            if table.name in self._tables:
                alias = table.alias or table.name
                table.replace(expressions.to_table(self._name(table.name), alias=alias))
        for place, column in zip(list(tree.selects), columns, strict=bool(columns)):
            place.replace(expressions.alias_(place.unalias(), column))
        return self._backend.sql(tree.sql(dialect="duckdb"), dialect="duckdb")


@contextmanager
def connected(uri: str, scratch: Path) -> Iterator[Remote]:
    """An engine by its URI. Raises ReconcileError where packages are missing, there is none, or it fails."""
    try:
        import ibis  # optional, and a second to load
        import sqlglot

        scheme = uri.partition("://")[0]
        failures = (*_FAILURES, ibis.common.exceptions.IbisError, sqlglot.errors.SqlglotError, *_of_spark(scheme))
    except ImportError as error:
        raise ReconcileError("engine_missing", f"--engine needs more packages: {error}", _HINT, 2) from error
    try:
        remote = Remote(_backend(ibis, uri, scratch), sqlglot)
        try:
            yield remote
        finally:
            remote.close()
    except failures as error:
        lines = [*str(error).strip().splitlines(), type(error).__name__]
        raise ReconcileError("engine", f"the engine failed: {lines[0][:200]}", _HINT, 2) from error


_FAILURES = (ImportError, OSError, RuntimeError)


def _backend(ibis: Any, uri: str, scratch: Path) -> Any:
    if uri.startswith("pyspark://"):
        return ibis.pyspark.connect(_spark(uri, scratch))
    try:
        return ibis.connect(uri)
    except ValueError as error:
        raise ReconcileError(
            "engine", f"{uri.partition('://')[0]}: no engine that Ibis knows: {error}", "", 2
        ) from error


def _of_spark(scheme: str) -> tuple[type[Exception], ...]:
    if scheme != "pyspark":
        return ()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _spark(uri: str, scratch: Path) -> Any:
    """A session: `pyspark://local[2]?spark.driver.memory=4g`, `pyspark://spark://host:7077`; `pyspark://` alone leaves
    the master to Spark's own settings.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the first python3 on PATH, of whatever version
    master, _, settings = uri.partition("://")[2].partition("?")  # urlsplit takes `local[2]` for a broken IPv6 address
    builder = SparkSession.builder.appName("credgate reconcile")
    if master:
        builder = builder.master(master)
    given = dict(parse_qsl(settings))
    # by default the tables of a session in this process would lie in the directory that one happens to stand in
    own = {"spark.sql.warehouse.dir": str(scratch / "warehouse")} if master.startswith("local") else {}
    for name, value in (_SPARK | own | given).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")  # else rows pass through Python one by one
    return session


def at_engine[T](uri: str, store: Store, stages: Callable[[Remote], T]) -> T:
    """Run the stages there: what they read goes over, what they find comes back into the store."""
    with connected(uri, store.directory) as remote:
        for table in INPUTS:
            remote.take(store, table)
        found = stages(remote)
        for table in (*RESULTS, "live"):
            remote.give(store, table)
        return found
