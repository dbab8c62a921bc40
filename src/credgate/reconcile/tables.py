"""What the stages need of an engine: tables made of queries. The queries are DuckDB's SQL, of the kind that others know
too: no DELETE or UPDATE, no subquery outside WHERE, `$1`, `$2`, ... for values.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

type Columns = Mapping[str, str]  # name -> DuckDB's name of a type: BIGINT, INTEGER, SMALLINT, TINYINT, VARCHAR

# Filled before the stages, and by them.
INPUTS = ("gw", "gid", "gcred", "gdial", "tg", "tid", "twice")
RESULTS: Mapping[str, Columns] = {
    "gres": {
        "src": "SMALLINT", "g": "BIGINT", "class": "VARCHAR", "how": "VARCHAR", "r": "BIGINT", "note": "VARCHAR",
        "dt": "BIGINT",
    },
    "tres": {"r": "BIGINT", "class": "VARCHAR", "how": "VARCHAR", "g": "BIGINT", "note": "VARCHAR"},
    "gaps": {"src": "SMALLINT", "a": "BIGINT", "b": "BIGINT", "n": "BIGINT"},
}  # fmt: skip


class Tables(Protocol):
    """An engine."""

    def make(self, table: str, select: str, *values: object) -> None:
        """Make a table of a query's rows, in place of one of that name."""

    def empty(self, table: str, columns: Columns) -> None:
        """Make a table without rows, in place of one of that name."""

    def add(self, table: str, select: str, *values: object) -> None:
        """Add a query's rows, column by column, to a table."""

    def remove(self, table: str, where: str, *values: object) -> None:
        """Remove the rows for which the condition is true."""

    def fill(self, table: str, columns: Columns, rows: Iterable[Iterable[object]]) -> None:
        """Make a table of rows that Python holds, in place of one of that name."""

    def rows(self, select: str, *values: object) -> Iterator[tuple[object, ...]]:
        """The rows of a query, a few at a time."""

    def one(self, select: str, *values: object) -> tuple[object, ...]:
        """The only row of a query."""

    def number(self, select: str, *values: object) -> int:
        """The only number of a query, 0 for null."""
