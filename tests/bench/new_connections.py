"""New TLS connections, one after the other, each with one request; Envoy's client needs no CONNECT."""

from tests.bench.figures import Absent, Row
from tests.bench.world import contestants

ROUNDS, NUMBER = 7, 20
MILLI = 1e3


def measure() -> list[Row | Absent]:
    """How many a second, and the CPU of one; the direct row is what client and target take by themselves."""
    with contestants("envoy", "direct") as racing:
        rate: dict[str, list[float]] = {name: [] for name in racing}
        cost: dict[str, list[float]] = {name: [] for name in racing}
        for turn in range(ROUNDS + 1):
            for name, each in racing.items():
                took, told = each.cpu_of(f"connect {NUMBER}")
                if turn:
                    rate[name].append(NUMBER / told["seconds"])
                    cost[name].append(took / NUMBER * MILLI)
    name, unit, ours = "new_connections", "connections/s", rate["credgate"]
    direct = Row(name=name, peer="direct", unit=unit, ours=ours, theirs=rate["direct"])
    if "envoy" not in rate:
        return [Absent(name=name, peer="envoy"), direct]
    return [
        Row(name=name, peer="envoy", unit=unit, ours=ours, theirs=rate["envoy"], goal=0.8, bar=0.5, at_least=True),
        Row(name=name, peer="envoy", unit="ms CPU each", ours=cost["credgate"], theirs=cost["envoy"]),
        direct,
    ]
