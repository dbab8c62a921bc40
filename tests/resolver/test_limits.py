"""Limits with a clock of our own: both sides of each border, and bounded memory under the worst there is."""

from itertools import pairwise

from resolver.events import Code, Event
from resolver.limits import DENIALS_PER_SECOND, MESSAGES_PER_SECOND, RECORDS, WILDCARD_NAMES, Guard, Pace


def deny(n: int, code: Code = Code.DENY) -> Event:
    """A denial of some name."""
    return Event(run="r", code=code, name=f"n{n}.evil.example", qtype="A")


def test_pace_opens_again_with_the_next_second() -> None:
    """The limit itself passes, one more waits for the rest of the second."""
    pace = Pace()
    for _ in range(MESSAGES_PER_SECOND):
        assert pace.wait(10.25) == 0.0
        pace.take(10.25, 0.0)
    assert pace.wait(10.25) == 0.75
    assert pace.wait(11.0) == 0.0


def test_pace_counts_what_messages_cost() -> None:
    """A quarter of each second, however few messages took it."""
    pace = Pace()
    for _ in range(12):
        assert pace.wait(10.5) == 0.0
        pace.take(10.5, 0.0206)
    assert pace.wait(10.5) == 0.0
    pace.take(10.5, 0.0206)
    assert pace.wait(10.5) == 0.5
    assert pace.wait(11.0) == 0.0
    pace.take(11.0, 0.0206)
    assert pace.wait(11.0) == 0.0


def test_fifty_denials_a_second_are_recorded_one_more_is_a_flood() -> None:
    """The next second is recorded again, the alarm comes once."""
    guard = Guard("r")
    first = [guard.denied(deny(n), 5.0) for n in range(DENIALS_PER_SECOND)]
    assert all(len(events) == 1 for events in first)
    (flood,) = guard.denied(deny(50), 5.9)
    assert (flood.code, flood.detail, flood.count) == (Code.FLOOD, "rate", 51)
    assert guard.denied(deny(51), 5.95) == []
    assert guard.denied(deny(52), 6.0) == [deny(52)]


def test_two_thousand_records_a_run() -> None:
    """Slowly or not."""
    guard = Guard("r")
    for n in range(RECORDS):
        assert guard.denied(deny(n), float(n)) == [deny(n)]
    (flood,) = guard.denied(deny(RECORDS), 9_000.0)
    assert (flood.code, flood.detail, flood.count) == (Code.FLOOD, "records", RECORDS + 1)
    assert all(guard.denied(deny(n), 10_000.0 + n) == [] for n in range(100))
    assert guard.totals() == [Event(run="r", code=Code.TOTAL, detail="dns.deny", count=RECORDS + 101)]


def test_an_alarm_is_not_lost_in_a_flood() -> None:
    """Each kind once."""
    guard = Guard("r")
    for n in range(200):
        guard.denied(deny(n), 1.0)
    for code in (Code.DENY_WILDCARD, Code.ERROR):
        assert guard.denied(deny(0, code), 1.0) == [deny(0, code)]
        assert guard.denied(deny(1, code), 1.0) == []


def test_ten_thousand_names_below_a_wildcard() -> None:
    """256 are let through and kept; memory stays what it was."""
    guard = Guard("r")
    names = [(b"%d" % n, b"cdn", b"example") for n in range(10_000)]
    assert [guard.wildcard(name) for name in names] == [True] * WILDCARD_NAMES + [False] * (10_000 - WILDCARD_NAMES)
    assert guard.wildcard(names[3])
    assert len(guard._wild) == WILDCARD_NAMES  # nothing public tells the memory


def test_the_first_of_each_allowed_name() -> None:
    """Then counted."""
    guard = Guard("r")
    one, two = (Event(run="r", code=Code.ALLOW, name=name, qtype="A") for name in ("a.example", "b.example"))
    assert [guard.allowed(event) for event in (one, two, one, one)] == [[one], [two], [], []]
    guard.counted(Code.SUFFIX)
    totals = guard.totals()
    assert [(event.detail, event.count) for event in totals] == [("dns.allow", 4), ("dns.suffix", 1)]
    assert all(a.detail < b.detail for a, b in pairwise(totals))
