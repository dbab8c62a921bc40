"""Bounds of a run: nothing passes beyond one, nothing is spent by what is refused, and time gives a rate back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from rules.grants import SECOND, Spent, Use, send, spend
from rules.policy import Binding, Budget, PlaceKind, Rate, Role
from rules.reasons import Reason
from rules.verdict import Deny

START = 7 * SECOND
FUZZ = settings(max_examples=150)


def binding(name: str = "b", **bounds: object) -> Binding:
    plain = Binding(name=name, secret="s", endpoint="e", rules=frozenset({"r"}), place=PlaceKind.HEADER)
    return replace(plain, **bounds)


def role(**bounds: object) -> Role:
    return replace(Role(name="dev"), **bounds)


def reason(spent: Spent, of: Role, use: Use, now: int) -> Reason | None:
    found = spend(spent, of, use, now)
    return found.reason if isinstance(found, Deny) else None


def after(spent: Spent, of: Role, use: Use, now: int) -> Spent:
    found = spend(spent, of, use, now)
    assert isinstance(found, Spent)
    return found


def new() -> Spent:
    return Spent(started=START)


# Each bound as a pair: the last that passes, the first that does not.


def test_a_ttl_ends_at_its_second() -> None:
    use = Use(bindings=(binding(ttl=60),))
    assert reason(new(), role(), use, START + 60 * SECOND - 1) is None
    assert reason(new(), role(), use, START + 60 * SECOND) is Reason.EXPIRED


def test_a_ttl_leaves_the_other_bindings_alone() -> None:
    late = START + 60 * SECOND
    assert reason(new(), role(), Use(bindings=(binding("other"),)), late) is None
    assert reason(new(), role(), Use(bindings=(binding("other"), binding(ttl=60))), late) is Reason.EXPIRED


def test_the_deadline_ends_requests_without_a_binding_too() -> None:
    assert reason(new(), role(deadline=60), Use(), START + 60 * SECOND - 1) is None
    assert reason(new(), role(deadline=60), Use(), START + 60 * SECOND) is Reason.EXPIRED


def test_uses_are_counted_by_binding() -> None:
    one, other = Use(bindings=(binding("a", max_uses=2),)), Use(bindings=(binding("b", max_uses=1),))
    spent = after(after(new(), role(), one, START), role(), one, START)
    assert reason(spent, role(), one, START) is Reason.USES_EXHAUSTED
    assert reason(spent, role(), other, START) is None


def test_a_budget_of_requests() -> None:
    of = role(budget=Budget(requests=2))
    spent = after(after(new(), of, Use(), START), of, Use(), START)
    assert reason(spent, of, Use(), START) is Reason.BUDGET_EXHAUSTED
    assert reason(spent, role(), Use(), START) is None


def test_a_budget_of_bytes_counts_heads_and_what_a_body_promises() -> None:
    of = role(budget=Budget(bytes_out=100))
    assert reason(new(), of, Use(head=40, promised=60), START) is None
    assert reason(new(), of, Use(head=40, promised=61), START) is Reason.BUDGET_EXHAUSTED
    spent = after(new(), of, Use(head=40, promised=60), START)
    assert spent.bytes_out == 40  # the body is counted as it goes: a client may promise and not send


def test_a_body_without_a_length_is_cut_at_the_budget() -> None:
    of = role(budget=Budget(bytes_out=100))
    most = send(after(new(), of, Use(head=40), START), of, 60)
    assert isinstance(most, Spent)
    over = send(most, of, 1)
    assert isinstance(over, Deny)
    assert over.reason is Reason.BUDGET_EXHAUSTED
    assert isinstance(send(most, role(), 1), Spent)


def test_a_rate_lets_its_count_through_at_once_and_then_one_at_a_time() -> None:
    use = Use(bindings=(binding(rates=(Rate(count=3, seconds=60),)),))
    spent = new()
    for _ in range(3):
        spent = after(spent, role(), use, START)
    assert reason(spent, role(), use, START) is Reason.RATE_EXCEEDED
    assert reason(spent, role(), use, START + 20 * SECOND - 1) is Reason.RATE_EXCEEDED
    assert reason(spent, role(), use, START + 20 * SECOND) is None


def test_two_rates_both_hold() -> None:
    use = Use(bindings=(binding(rates=(Rate(count=2, seconds=1), Rate(count=3, seconds=60))),))
    spent = after(after(new(), role(), use, START), role(), use, START)
    assert reason(spent, role(), use, START) is Reason.RATE_EXCEEDED
    spent = after(spent, role(), use, START + SECOND)
    assert reason(spent, role(), use, START + 2 * SECOND) is Reason.RATE_EXCEEDED


@pytest.mark.parametrize(
    ("bounds", "of"),
    [
        ({"ttl": 1}, role()),
        ({"max_uses": 1}, role()),
        ({"rates": (Rate(count=1, seconds=60),)}, role()),
        ({}, role(budget=Budget(requests=1))),
        ({}, role(budget=Budget(bytes_out=1))),
        ({}, role(deadline=1)),
    ],
)
def test_a_refusal_is_403_and_names_the_key(bounds: dict[str, object], of: Role) -> None:
    use = Use(bindings=(binding(**bounds),), head=1)
    spent = after(new(), of, use, START)
    refused = spend(spent, of, use, START + SECOND)
    assert isinstance(refused, Deny)
    assert refused.status == 403  # 429 would be retried
    assert any(key in refused.hint for key in ("ttl", "max_uses", "rate", "budget", "deadline"))


# Properties

rates = st.builds(Rate, count=st.integers(1, 7), seconds=st.sampled_from([1, 3, 60]))
steps = st.lists(st.tuples(st.integers(0, 5 * SECOND), st.integers(0, 1)), min_size=1, max_size=60)
bounded = st.builds(
    lambda **bounds: binding(**bounds),
    name=st.sampled_from("ab"),
    ttl=st.none() | st.integers(1, 60),
    max_uses=st.none() | st.integers(1, 9),
    rates=st.lists(rates, max_size=2, unique=True).map(tuple),
)
roles = st.builds(
    lambda **bounds: role(**bounds),
    deadline=st.none() | st.integers(1, 60),
    budget=st.builds(Budget, requests=st.none() | st.integers(1, 20), bytes_out=st.none() | st.integers(1, 99)),
)


@FUZZ
@given(bounded, roles, steps, st.integers(0, 9))
def test_no_bound_is_ever_passed(bound: Binding, of: Role, times: list[tuple[int, int]], head: int) -> None:
    spent, now, passed = new(), START, []
    for pause, bind in times:
        now += pause
        use = Use(bindings=(bound,) if bind else (), head=head)
        found = spend(spent, of, use, now)
        if isinstance(found, Spent):
            spent = found
            passed.append((now, bind))
    uses = [when for when, bind in passed if bind]
    assert of.budget.requests is None or len(passed) <= of.budget.requests
    assert of.budget.bytes_out is None or spent.bytes_out <= of.budget.bytes_out
    assert bound.max_uses is None or len(uses) <= bound.max_uses
    assert bound.ttl is None or all(when < START + bound.ttl * SECOND for when in uses)
    assert of.deadline is None or all(when < START + of.deadline * SECOND for when, _ in passed)
    for rate in bound.rates:
        for i, first in enumerate(uses):  # a full bucket and what dripped into it meanwhile
            for j, last in enumerate(uses[i:], start=1):
                assert (j - rate.count) * rate.seconds * SECOND <= (last - first) * rate.count


@FUZZ
@given(rates, st.integers(0, 10**6))
def test_a_rate_is_not_stricter_than_it_says(rate: Rate, offset: int) -> None:
    """Whoever waits for the time of one token between any two requests is never refused."""
    use, spent, now = Use(bindings=(binding(rates=(rate,)),)), new(), START + offset
    for _ in range(3 * rate.count):
        spent = after(spent, role(), use, now)
        now += -(-rate.seconds * SECOND // rate.count)


@FUZZ
@given(st.lists(bounded, max_size=2, unique_by=lambda b: b.name), roles, steps)
def test_what_one_level_refuses_costs_nothing_and_more_bounds_never_let_more_through(
    bounds: list[Binding], of: Role, times: list[tuple[int, int]]
) -> None:
    free = tuple(replace(b, ttl=None, max_uses=None, rates=()) for b in bounds)
    spent, now = new(), START
    for pause, _ in times:
        now += pause
        use = Use(bindings=tuple(bounds), head=1)
        found = spend(spent, of, use, now)
        if isinstance(found, Spent):
            assert isinstance(spend(spent, role(), Use(bindings=free, head=1), now), Spent)
            assert found.requests == spent.requests + 1
            spent = found
        else:
            before = asdict(spent)
            spend(spent, of, use, now)
            assert before == asdict(spent)
