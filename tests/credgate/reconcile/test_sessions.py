"""Records that stand for many requests: a proxy's tunnels, side by side, and somebody else's among them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.reconcile import sessions
from credgate.reconcile.classes import Severity
from credgate.reconcile.sessions import covered, nearest
from tests.credgate.reconcile.rig import Case, Said, tunnel


@pytest.fixture(params=["edges", "sweep"])
def case(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Both ways to assign: few candidates, and more than are looked at one by one."""
    if request.param == "sweep":
        monkeypatch.setattr(sessions, "MOST_EDGES", 0)
    return Case(directory=tmp_path)


def proxied(case: Case, *lines: str) -> Said:
    case.export("log", *lines)
    return case.run("squid=log")


def test_two_tunnels_side_by_side_have_a_request_each(case: Case) -> None:
    case.call(10, path="/a", ms=9000)
    case.call(14, path="/b", ms=5000)
    said = proxied(case, tunnel(10.01, 20), tunnel(14.01, 19.5))
    assert (said.requests, said.records) == (["matched-group"] * 2, ["matched-group"] * 2)
    assert said.result.severity is Severity.FINE


def test_three_at_the_same_moment_and_what_they_carried_later(case: Case) -> None:
    for at in (10, 10.001, 10.002, 15, 16, 17, 18):
        case.call(at, path=f"/{at}")
    said = proxied(case, tunnel(10.02, 20), tunnel(10.02, 16), tunnel(10.03, 30))
    assert (set(said.requests), said.records) == ({"matched-group"}, ["matched-group"] * 3)


def test_of_two_requests_for_one_tunnel_the_one_without_a_further_choice_is_left_the_other(case: Case) -> None:
    """The long request is nearest to the first tunnel, and the only one that the second can have."""
    case.call(10, path="/short", ms=100)
    case.call(10.05, path="/long", ms=30_000)
    said = proxied(case, tunnel(10.06, 20), tunnel(30, 41))
    assert said.records == ["matched-group"] * 2


@pytest.mark.parametrize("begin", [9.5, 10.5])
def test_one_tunnel_more_than_requests_is_somebody_elses(case: Case, begin: float) -> None:
    case.call(10, ms=300)
    said = proxied(case, tunnel(10.01, 20), tunnel(begin, 12))
    assert sorted(said.records) == ["matched-group", "target-only"]
    assert said.result.severity is Severity.FAIL


@pytest.mark.parametrize("begin", [9.5, 10.5])
def test_it_is_the_one_that_began_further_from_the_request(tmp_path: Path, begin: float) -> None:
    case = Case(directory=tmp_path)
    case.call(10, ms=300)
    assert proxied(case, tunnel(begin, 12), tunnel(10.01, 20)).records == ["target-only", "matched-group"]


def test_with_two_requests_the_same_two_tunnels_are_ours(case: Case) -> None:
    case.call(10, ms=300)
    case.call(10.4, path="/b", ms=300)
    assert proxied(case, tunnel(10.01, 20), tunnel(10.5, 12)).records == ["matched-group"] * 2


def test_a_tunnel_that_no_request_opened_is_doubtful(case: Case) -> None:
    """Spare requests lie within it, but none was under way as it began: ours opens none ahead."""
    for at in (10, 40, 41):
        case.call(at, path=f"/{at}")
    said = proxied(case, tunnel(10.01, 50), tunnel(30, 45))
    assert said.records == ["matched-group", "ambiguous"]
    assert said.notes == ["", "unopened"]
    assert said.requests == ["matched-group"] * 3
    assert said.result.severity is Severity.WARNING


def test_without_a_spare_request_it_is_somebody_elses(case: Case) -> None:
    case.call(10)
    case.call(11, path="/b")
    said = proxied(case, tunnel(10.01, 50), tunnel(30, 45))
    assert said.records == ["matched-group", "target-only"]


def test_a_tunnel_of_another_host_explains_nothing(case: Case) -> None:
    case.call(10, host="b.example")
    case.call(10, path="/x")
    said = proxied(case, tunnel(10.01, 20), tunnel(10.01, 20))
    assert sorted(said.records) == ["matched-group", "target-only"]
    assert said.requests == ["gateway-only", "matched-group"]


def test_the_only_tunnel_that_was_open_carried_the_request_though_none_opened_it(case: Case) -> None:
    case.call(20)
    case.call(60, path="/b")
    said = proxied(case, tunnel(5, 50), tunnel(60.01, 61))
    assert said.records == ["matched-group"] * 2


def test_sizes_tell_two_tunnels_apart(tmp_path: Path) -> None:
    case = Case(directory=tmp_path)
    case.call(10, resp_bytes=5000, path="/large")
    said = proxied(case, tunnel(10.001, 12, size=3000), tunnel(10.2, 20))
    assert said.records == ["target-only", "matched-group"]


def most(edges: list[tuple[int, int]]) -> int:
    """How many pairs there can be: all sets of requests that the tunnels, one after the other, can have taken."""
    states: set[frozenset[int]] = {frozenset()}
    for r in sorted({r for r, _ in edges}):
        states |= {taken | {g} for taken in states for s, g in edges if s == r and g not in taken}
    return max(map(len, states))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20, unique=True))
def test_as_many_tunnels_as_possible_get_a_request(edges: list[tuple[int, int]]) -> None:
    found = nearest(edges)
    assert set(found.items()) <= set(edges)
    assert len(set(found.values())) == len(found) == most(edges)


MOMENT = st.integers(0, 30)


@given(st.lists(MOMENT, max_size=12), st.lists(st.tuples(MOMENT, st.integers(0, 12)), max_size=12))
def test_the_sweep_finds_as_many(moments: list[int], lengths: list[tuple[int, int]]) -> None:
    points = [(at, number) for number, at in enumerate(moments)]
    spans = [(at, at + length, number) for number, (at, length) in enumerate(lengths)]
    edges = [(p, s) for at, p in points for a, b, s in spans if a <= at <= b]
    found = covered(points, spans)
    assert set(found) <= set(edges)
    assert len({s for _, s in found}) == len({p for p, _ in found}) == len(found) == len(nearest(edges))
