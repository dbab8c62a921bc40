"""What an event of a stream waits between its sending and its arrival, beyond what it waits without a proxy."""

from tests.bench.figures import Absent, Row
from tests.bench.world import contestants

ROUNDS, EVENTS = 7, 200
MICRO = 1e6


def measure() -> list[Row | Absent]:
    """Events of a text/event-stream 5 ms apart; each holds the time of its sending."""
    with contestants("envoy", "direct") as racing:
        if "envoy" not in racing:
            return [Absent(name="event_delay", peer="envoy")]
        told = [{name: each.ask(f"events {EVENTS}") for name, each in racing.items()} for _ in range(ROUNDS + 1)][1:]
    added = {
        (name, point): [(each[name][point] - each["direct"]["p50"]) * MICRO for each in told]
        for name in ("credgate", "envoy")
        for point in ("p50", "p99")
    }
    ours, theirs = (added[name, "p50"] for name in ("credgate", "envoy"))
    late, late_theirs = (added[name, "p99"] for name in ("credgate", "envoy"))
    return [
        Row(name="event_delay", peer="envoy", unit="us added, p50", ours=ours, theirs=theirs, goal=1.5, bar=2.0),
        Row(name="event_delay", peer="envoy", unit="us added, p99", ours=late, theirs=late_theirs),
    ]
