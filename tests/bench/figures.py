"""What a figure is: numbers of ours and of a peer's from one interleaved run, their ratio, and what it must be."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison. `ours` and `theirs` are samples of the same rounds, in order.

    The ratio is of the medians, and is to stay at most at `bar`; with `at_least`, at least there. Without a bar the row
    is told to be read, and judges nothing.
    """

    name: str
    peer: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float]
    goal: float | None = None
    bar: float | None = None
    at_least: bool = False
    inverse: bool = False  # the ratio is theirs by ours

    @classmethod
    def absolute(cls, name: str, unit: str, ours: Sequence[float], *, goal: float | None, bar: float) -> "Row":
        """A figure that is itself what has a limit."""
        return cls(name=name, peer="(absolute)", unit=unit, ours=ours, theirs=[1.0] * len(ours), goal=goal, bar=bar)

    @property
    def ratio(self) -> float:
        return self._of(statistics.median(self.ours), statistics.median(self.theirs))

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest ratio of one round."""
        each = [self._of(ours, theirs) for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return min(each), max(each)

    @property
    def verdict(self) -> str:
        """`goal` and `bar` where it is reached, `short` where not, `-` where nothing is promised."""
        if self.bar is None:
            return "-"
        if self.goal is not None and self._reaches(self.goal):
            return "goal"
        return "bar" if self._reaches(self.bar) else "short"

    def _of(self, ours: float, theirs: float) -> float:
        return theirs / ours if self.inverse else ours / theirs

    def _reaches(self, limit: float) -> bool:
        return self.ratio >= limit if self.at_least else self.ratio <= limit

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "peer": self.peer,
            "unit": self.unit,
            "ours": summary(self.ours),
            "theirs": summary(self.theirs),
            "ratio": round(self.ratio, 3),
            "spread": [round(each, 3) for each in self.spread],
            "goal": self.goal,
            "bar": self.bar,
            "direction": "at least" if self.at_least else "at most",
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A comparison that could not be made, because the peer is not here."""

    name: str
    peer: str
    verdict: str = "not measured"

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "peer": self.peer, "verdict": self.verdict}


def summary(samples: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(samples), 3),
        "min": round(min(samples), 3),
        "max": round(max(samples), 3),
        "rounds": len(samples),
    }


HEAD = ("figure", "peer", "ours", "peer's", "unit", "ratio", "(least, most)", "goal", "bar", "verdict")


def short(number: float) -> str:
    """Four digits, and never an exponent."""
    return f"{number:.0f}" if number >= 1000 else f"{number:.4g}"


def cells(row: Row | Absent) -> tuple[str, ...]:
    if isinstance(row, Absent):
        return (row.name, row.peer, *[""] * 7, row.verdict)
    sign = "≥" if row.at_least else "≤"
    low, high = row.spread
    limits = [f"{sign} {limit:g}" if limit is not None else "" for limit in (row.goal, row.bar)]
    medians = [short(statistics.median(samples)) for samples in (row.ours, row.theirs)]
    return (
        row.name,
        row.peer,
        *medians,
        row.unit,
        f"{row.ratio:.2f}",
        f"({low:.2f}, {high:.2f})",
        *limits,
        row.verdict,
    )


def table(rows: Sequence[Row | Absent]) -> str:
    """The rows as a Markdown table, its columns aligned."""
    lines = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    lines.insert(1, tuple("-" * width for width in widths))
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)
