"""What one run may cause: how many messages a second, how many names below a wildcard, how many records.

Counters only; the time comes in as an argument (seconds of a monotonic clock). Everything is bounded: the table bounds
the listed names, WILDCARD_NAMES those below a wildcard, RECORDS what is written of the rest.
"""

from collections import Counter

from resolver.events import ALARMS, Code, Event

# RLIMIT_CPU would end a resolver that had merely served for long. A message costs 0.05 ms; the second bound is for
# long names against a table of many wildcards, where it may be 20.
MESSAGES_PER_SECOND = 1_000
CPU_PER_SECOND = 0.25
DENIALS_PER_SECOND = 50
RECORDS = 2_000
WILDCARD_NAMES = 256


class Pace:
    """Messages of a run and their cost, by the second. Over a limit it isn't read: the kernel queues, then drops."""

    def __init__(self) -> None:
        self._second = 0
        self._seen = 0
        self._spent = 0.0

    def take(self, now: float, cost: float) -> None:
        """Count one message that took `cost` seconds of CPU."""
        if int(now) != self._second:
            self._second, self._seen, self._spent = int(now), 0, 0.0
        self._seen += 1
        self._spent += cost

    def wait(self, now: float) -> float:
        """Seconds until the next message may be read, 0.0 for now."""
        over = self._seen >= MESSAGES_PER_SECOND or self._spent >= CPU_PER_SECOND
        return self._second + 1 - now if over and int(now) == self._second else 0.0


class Guard:
    """The records of one run: the first of each allowed name, each denial until there are too many, then counts."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._allowed: set[str] = set()
        self._wild: set[tuple[bytes, ...]] = set()
        self._alarmed: set[Code] = set()
        self._second = 0
        self._in_second = 0
        self._denied = 0
        self._totals: Counter[Code] = Counter()

    def wildcard(self, labels: tuple[bytes, ...]) -> bool:
        """Whether this name below a wildcard may have an answer: the first WILDCARD_NAMES of a run may."""
        if labels in self._wild:
            return True
        if len(self._wild) >= WILDCARD_NAMES:
            return False
        self._wild.add(labels)
        return True

    def allowed(self, event: Event) -> list[Event]:
        """The record of an allowed name, once. Callers pass listed names and names that `wildcard` let pass."""
        self._totals[event.code] += 1
        if event.name in self._allowed:
            return []
        self._allowed.add(event.name)
        return [event]

    def counted(self, code: Code) -> None:
        """Count without a record."""
        self._totals[code] += 1

    def denied(self, event: Event, now: float) -> list[Event]:
        """The records of a denial: itself, one alarm when the flood begins, nothing in the flood."""
        self._totals[event.code] += 1
        if int(now) != self._second:
            self._second, self._in_second = int(now), 0
        self._in_second += 1
        self._denied += 1
        if event.code in ALARMS:
            return self._alarm(event)
        if self._in_second <= DENIALS_PER_SECOND and self._denied <= RECORDS:
            return [event]
        limit = "records" if self._denied > RECORDS else "rate"
        flood = Event(run=self._run, code=Code.FLOOD, name=event.name, detail=limit, count=self._denied)
        return self._alarm(flood)

    def totals(self) -> list[Event]:
        """Exact counts for the end of the run, one record a code."""
        return [Event(run=self._run, code=Code.TOTAL, detail=c.value, count=n) for c, n in sorted(self._totals.items())]

    def _alarm(self, event: Event) -> list[Event]:
        """Each kind once a run, flood or not: what follows stands in the totals."""
        if event.code in self._alarmed:
            return []
        self._alarmed.add(event.code)
        return [event]
