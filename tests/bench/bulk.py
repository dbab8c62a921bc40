"""A body of 64 MiB each way: how fast, and what it takes in memory."""

from pathlib import Path

from tests.bench import kernel
from tests.bench.figures import Absent, Row
from tests.bench.world import Contestant, contestants

ROUNDS, SIZE = 5, 64 << 20
MEGA = 1e6


def peak(each: Contestant) -> float:
    """The greatest sum of its processes' resident memory since the last reset, in MB."""
    return sum(kernel.peak(pid) for pid in each.pids) / MEGA


def rates(racing: dict[str, Contestant], way: str) -> dict[str, list[float]]:
    """MB a second."""
    found: dict[str, list[float]] = {name: [] for name in racing}
    for _ in range(ROUNDS):
        for name, each in racing.items():
            found[name].append(SIZE / MEGA / each.ask(f"{way} {SIZE}")["seconds"])
    return found


def measure() -> list[Row | Absent]:
    """The growth is of a gateway that has served small requests, over all rounds."""
    rows: list[Row | Absent] = []
    with contestants("envoy", "direct") as racing:
        ours = racing["credgate"]
        ours.ask("requests 1 200")
        for pid in ours.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        before = peak(ours)
        for way in ("down", "up"):
            found = rates(racing, way)
            rows += _rows(way, found)
        grown = peak(ours) - before
    return [*rows, Row.absolute("bulk memory", "MB grown", [grown], goal=None, bar=16)]


def _rows(way: str, found: dict[str, list[float]]) -> list[Row | Absent]:
    name, unit, ours = f"bulk {way}", "MB/s", found["credgate"]
    direct = Row(name=name, peer="direct", unit=unit, ours=ours, theirs=found["direct"])
    if "envoy" not in found:
        return [Absent(name=name, peer="envoy"), direct]
    theirs = found["envoy"]
    return [
        Row(name=name, peer="envoy", unit=unit, ours=ours, theirs=theirs, goal=0.6, bar=0.4, at_least=True),
        direct,
    ]
