"""`scripts/clients`: run the rows, print the table. Exit 0 only where each is green, or says who could mend it."""

import argparse
import contextlib
import json
import sys
from typing import Any

import pytest

from tests.clients.rows import ROWS

HEADS = ("client", "version", "arrived", "comes by", "no variable", "refused", "seconds", "secret inside", "")


class Collector:
    """A plugin of pytest that keeps what the rows measured."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each phase of each row."""
        if report.when == "call":
            self.results += [value for name, value in report.user_properties if name == "result"]


def cells(result: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    by = {"connect": "proxy", "absolute": "proxy", "direct": "direct"}
    return (
        result["client"],
        result["version"],
        "yes" if result["arrived"] else "NO",
        ", ".join(by.get(way, way) for way in result["via"]) or "-",
        "works" if result["bare"] else "fails",
        result["refused"],
        f"{result['seconds']:.1f}",
        "FOUND" if result["inside"] else "none",
        "" if result["green"] else result["lacks"] or "RED",
    )


def table(results: list[dict[str, Any]]) -> str:
    """Columns as wide as they have to be."""
    lines = [HEADS, *map(cells, results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/clients", description="Run generic clients in jails; print a table.")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("client", nargs="*", help=f"some of: {'; '.join(row.name for row in ROWS)}")
    options = parser.parse_args()
    unknown = [name for name in options.client if name not in {row.name for row in ROWS}]
    if unknown:
        parser.error(f"got {unknown[0]!r}, expected {'; '.join(row.name for row in ROWS)}")
    rows = [f"tests/clients/test_matrix.py::test_client[{row.name}]" for row in ROWS if row.name in options.client]
    collector = Collector()
    arguments = ["-q", "-rf", "--tb=short", "-p", "no:randomly", "-p", "no:cacheprovider", *(rows or ["tests/clients"])]
    with contextlib.redirect_stdout(sys.stderr):  # progress and what failed
        status = pytest.main(arguments, plugins=[collector])
    print(json.dumps(collector.results, indent=1) if options.json else table(collector.results))
    complete = len(collector.results) == (len(rows) or len(ROWS))
    return 0 if status == 0 and complete else 1


if __name__ == "__main__":
    sys.exit(main())
