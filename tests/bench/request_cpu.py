"""CPU of the whole daemon for a request over a kept connection: judged, recorded, injected, its answer searched."""

from collections.abc import Mapping

from tests.bench.figures import Absent, Row
from tests.bench.world import Contestant, contestants

ROUNDS = 5
NUMBER = {"credgate": 400, "envoy": 1600, "mitmdump": 200, "squid": 1600, "http-mitm-proxy": 400, "direct": 1600}
TOLD = ("squid", "http-mitm-proxy")  # peers that nothing is promised against
MICRO = 1e6


def _rounds(racing: Mapping[str, Contestant], links: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Microseconds of CPU a request, and requests a second."""
    cost: dict[str, list[float]] = {name: [] for name in racing}
    rate: dict[str, list[float]] = {name: [] for name in racing}
    for name, each in racing.items():
        each.ask(f"requests {links} {NUMBER[name]}")
    for _ in range(ROUNDS):
        for name, each in racing.items():
            each.ask(f"requests {links} {links}")  # Node closes what was idle for 5 s
            took, told = each.cpu_of(f"requests {links} {NUMBER[name]}")
            cost[name].append(took / NUMBER[name] * MICRO)
            rate[name].append(NUMBER[name] / told["seconds"])
    return cost, rate


def _rows(links: int, cost: Mapping[str, list[float]], rate: Mapping[str, list[float]]) -> list[Row | Absent]:
    name, ours = f"request_cpu c={links}", cost["credgate"]
    rows: list[Row | Absent] = [Absent(name=name, peer="envoy")]
    if "envoy" in cost:
        theirs = cost["envoy"]
        rows = [Row(name=name, peer="envoy", unit="us CPU/request", ours=ours, theirs=theirs, goal=1.0, bar=2.0)]
    dump = cost["mitmdump"]
    rows.append(
        Row(
            name=name,
            peer="mitmdump",
            unit="us CPU/request",
            ours=ours,
            theirs=dump,
            goal=20,
            bar=8,
            at_least=True,
            inverse=True,
        )
    )
    for peer in TOLD:
        if peer in cost:
            rows.append(Row(name=name, peer=peer, unit="us CPU/request", ours=ours, theirs=cost[peer]))
        else:
            rows.append(Absent(name=name, peer=peer))
    for peer in rate:
        if peer != "credgate":
            told = f"request rate c={links}"
            rows.append(Row(name=told, peer=peer, unit="requests/s", ours=rate["credgate"], theirs=rate[peer]))
    return rows


def measure() -> list[Row | Absent]:
    """At one connection and at sixteen; the direct row shows that client and target are not what limits."""
    rows: list[Row | Absent] = []
    with contestants("envoy", "mitmdump", *TOLD, "direct") as racing:
        for links in (1, 16):
            rows += _rows(links, *_rounds(racing, links))
    return rows
