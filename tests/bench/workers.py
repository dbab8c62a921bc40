"""Requests that the whole gateway forwards for a second of CPU, in one process and in two: ledger writer and all."""

from tests.bench.figures import Absent, Row
from tests.bench.world import APART, TWO, contestants

ROUNDS, LINKS = 5, 16
NUMBER = {"credgate": 600, TWO: 600, APART: 600, "envoy": 2400}
NAMES = {
    "credgate": "requests per CPU-second, 1 worker",
    APART: "requests per CPU-second, 2 workers",
    TWO: "the same, both on one core",
}


def measure() -> list[Row | Absent]:
    """At sixteen connections, which two processes share by eight."""
    found: dict[str, list[float]] = {}
    with contestants(TWO, APART, "envoy") as racing:
        for name, each in racing.items():
            each.ask(f"requests {LINKS} {NUMBER[name]}")
        for _ in range(ROUNDS):
            for name, each in racing.items():
                took, _told = each.cpu_of(f"requests {LINKS} {NUMBER[name]}")
                found.setdefault(name, []).append(NUMBER[name] / took)
    rows: list[Row | Absent] = []
    for ours, name in NAMES.items():
        if "envoy" in found:
            kept = {"ours": found[ours], "theirs": found["envoy"]}
            rows.append(Row(name=name, peer="envoy", unit="requests/CPU-s", bar=0.5, at_least=True, **kept))
        else:
            rows.append(Absent(name=name, peer="envoy"))
    rows.append(Row(name=NAMES[TWO], peer="1 worker", unit="requests/CPU-s", ours=found[TWO], theirs=found["credgate"]))
    return rows
