"""A proxy's tunnels: the ones that the gateway asked for, side by side, and somebody else's among them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.reconcile.classes import Severity
from credgate.reconcile.tunnels import TIGHT, _Asked, _best, _candidates, _Host, _Line, _opened
from tests.credgate.reconcile.rig import SECOND, Case, Said, asked, tunnel


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(directory=tmp_path)


def proxied(case: Case, *lines: str) -> Said:
    case.export("log", *lines)
    return case.run("squid=log")


def test_two_tunnels_side_by_side_have_a_request_each(case: Case) -> None:
    case.call(10, path="/a", ms=9000, tunnels=asked(10.005))
    case.call(14, path="/b", ms=5000, tunnels=asked(14.005))
    said = proxied(case, tunnel(10.01, 20), tunnel(14.01, 19.5))
    assert (said.requests, said.records) == (["matched-group"] * 2, ["matched-group"] * 2)
    assert said.result.severity is Severity.FINE


def test_what_went_by_open_tunnels_needs_none_of_its_own(case: Case) -> None:
    for at in (10, 10.001, 10.002):
        case.call(at, path=f"/{at}", tunnels=asked(at))
    for at in (15, 16, 17, 18):
        case.call(at, path=f"/{at}")
    said = proxied(case, tunnel(10.02, 20), tunnel(10.02, 16), tunnel(10.03, 30))
    assert (set(said.requests), said.records) == ({"matched-group"}, ["matched-group"] * 3)


def test_a_tunnel_around_the_gateway_beside_a_request_that_needed_none(case: Case) -> None:
    """What a join by requests under way let pass: one opened within the window of a request of ours."""
    case.call(10, tunnels=asked(10))
    for at in (11, 12, 13):
        case.call(at, path=f"/{at}")
    said = proxied(case, tunnel(10.01, 20), tunnel(12.01, 12.5))
    assert said.records == ["matched-group", "target-only"]
    assert said.requests == ["matched-group"] * 4
    assert said.result.severity is Severity.FAIL


def test_one_more_than_were_asked_for_at_that_moment_is_said_with_the_numbers(case: Case) -> None:
    case.call(10, tunnels=asked(10))
    case.call(10, path="/b", tunnels=asked(10.1))
    said = proxied(case, tunnel(10.01, 20), tunnel(10.02, 20), tunnel(10.11, 20))
    assert sorted(said.records) == ["matched-group", "matched-group", "target-only"]
    (row,) = said.findings
    assert "of a group that can't be told apart, 2 in the ledger and 3 at the target" in row.words


def test_one_that_begins_elsewhere_within_the_window_is_doubtful(case: Case) -> None:
    """The clock is known by the others; the gateway's own may still be open, and this one somebody else's."""
    for at in (10, 20, 30):
        case.call(at, path=f"/{at}", tunnels=asked(at))
    said = proxied(case, tunnel(10.01, 15), tunnel(20.01, 25), tunnel(31.2, 35))
    assert said.records == ["matched-group", "matched-group", "ambiguous"]
    assert said.requests == ["matched-group", "matched-group", "ambiguous"]
    (row,) = said.findings
    assert "begins 1.2 s after the gateway asked" in row.words
    assert said.result.severity is Severity.WARNING


def test_a_tunnel_that_the_log_lacks(case: Case) -> None:
    """Another tunnel was open, but the ledger says that one was opened for this request."""
    case.call(10, tunnels=asked(10))
    case.call(15, path="/b", tunnels=asked(15))
    said = proxied(case, tunnel(10.01, 30))
    assert said.requests == ["matched-group", "gateway-only"]
    assert any("one logs a tunnel when it ends" in row.words for row in said.findings)


def test_a_request_whose_outcome_is_lost_may_have_opened_one(case: Case) -> None:
    case.call(10, tunnels=asked(10))
    case.call(20, path="/b", status=None)
    said = proxied(case, tunnel(10.01, 15), tunnel(20.02, 21), tunnel(20.02, 22))
    assert said.records == ["matched-group", "ambiguous", "target-only"]
    assert said.requests == ["matched-group", "ambiguous"]


def test_a_request_that_asked_twice(case: Case) -> None:
    case.call(10, tunnels=asked(10, 10.4))
    said = proxied(case, tunnel(10.01, 10.02), tunnel(10.41, 12))
    assert (said.requests, said.records) == (["matched-group"], ["matched-group"] * 2)


def test_a_tunnel_of_another_host_explains_nothing(case: Case) -> None:
    case.call(10, host="b.example", tunnels=asked(10))
    case.call(10, path="/x", tunnels=asked(10))
    said = proxied(case, tunnel(10.01, 20), tunnel(10.01, 20))
    assert sorted(said.records) == ["matched-group", "target-only"]
    assert said.requests == ["gateway-only", "matched-group"]


def test_sizes_and_ends_tell_two_apart(tmp_path: Path) -> None:
    for number, fake in enumerate((tunnel(10.001, 20, size=3000), tunnel(10.001, 11))):
        (tmp_path / str(number)).mkdir()
        case = Case(directory=tmp_path / str(number))
        case.call(10, resp_bytes=5000, ms=5000, tunnels=asked(10))
        assert proxied(case, fake, tunnel(10.1, 20)).records == ["target-only", "matched-group"]


def test_tunnels_of_before_the_ledger_said_which_it_opened(case: Case) -> None:
    """An older ledger: those that requests lie within, the first of several that overlap; no other ones later."""
    case.call(10)
    case.call(11, path="/b")
    case.call(100, path="/c", tunnels=asked(100))
    said = proxied(case, tunnel(10.01, 20), tunnel(10.5, 20), tunnel(100.01, 200), tunnel(101, 120))
    assert said.records == ["matched-group", "target-only", "matched-group", "target-only"]
    assert said.requests == ["matched-group"] * 3


def test_a_clock_beyond_the_window_is_spoken_of_and_not_believed(case: Case) -> None:
    for at in (10, 17, 33.5, 66):
        case.call(at, path=f"/{at}", tunnels=asked(at))
    said = proxied(case, *(tunnel(at + 30, at + 33) for at in (10, 17, 33.5, 66)))
    assert said.records == ["target-only"] * 4
    (item,) = said.result.findings
    assert (item.class_, item.words[:33]) == ("clock", "is the proxy's clock +30.0 s off ")


MOMENT = st.integers(0, 40 * SECOND)
JITTER = st.integers(0, TIGHT // 2)


def matched(asked_at: Sequence[int], lines_at: Sequence[int], window: int = 2 * SECOND) -> tuple[int, int]:
    """How many tunnels of the log are matched, and how many are doubtful."""
    host = _Host(
        asked=[_Asked(at, g, at, -1) for g, at in enumerate(sorted(asked_at))],
        lines=[_Line(at, r, at + SECOND, -1) for r, at in enumerate(sorted(lines_at))],
    )
    clock = _best([host], _candidates([host], [0], window))
    pairs = _opened(host, clock.shift if clock else 0, window)
    assert len({r for _, r, _, _ in pairs}) == len({g for g, _, _, _ in pairs}) == len(pairs)
    doubtful = sum(grp for _, _, grp, _ in pairs)
    return len(pairs) - doubtful, doubtful


@given(st.lists(MOMENT, max_size=12), st.lists(JITTER, min_size=12, max_size=12), st.lists(MOMENT, max_size=6))
def test_whoever_adds_tunnels_leaves_as_many_that_are_not_matched(
    ours: list[int], late: list[int], others: list[int]
) -> None:
    """Wherever they are put, even exactly where ours begin, and whatever ours do."""
    lines = [at + more for at, more in zip(ours, late, strict=False)]
    sure, doubtful = matched(ours, lines + others)
    assert len(lines) + len(others) - sure - doubtful >= len(others)


@given(
    st.lists(MOMENT, min_size=1, max_size=12),
    st.lists(JITTER, min_size=12, max_size=12),
    st.integers(-2 * SECOND + TIGHT, 2 * SECOND - TIGHT),
)
@settings(max_examples=300)
def test_with_nobody_else_all_are_matched_whatever_the_proxys_clock(
    ours: list[int], late: list[int], clock: int
) -> None:
    lines = [at + clock + more for at, more in zip(ours, late, strict=False)]
    assert matched(ours, lines) == (len(ours), 0)


@given(st.lists(MOMENT, min_size=2, max_size=10), st.data())
def test_one_in_the_place_of_a_missing_one_counts_once(ours: list[int], data: st.DataObject) -> None:
    """The log lacks some of ours, and somebody else's are there: never more matches than lines of ours' number."""
    kept = data.draw(st.lists(st.sampled_from(ours), max_size=len(ours)))
    others = data.draw(st.lists(MOMENT, max_size=5))
    sure, doubtful = matched(ours, kept + others)
    assert sure + doubtful <= min(len(ours), len(kept) + len(others))
