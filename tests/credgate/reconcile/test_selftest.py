"""Each lie is found, and honest inputs hold nothing to find."""

import pytest

from credgate.reconcile import selftest
from credgate.reconcile.fabricate import honest
from credgate.reconcile.lies import LIES, Lie


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_lie(lie: Lie) -> None:
    outcome = selftest.tried(lie)
    assert outcome.found, outcome.words


def test_there_are_lies_of_a_dozen_kinds() -> None:
    assert len({lie.name for lie in LIES}) == len(LIES) >= 12


def test_honest_inputs_hold_nothing() -> None:
    outcome = selftest.honesty(3000)
    assert outcome.found, outcome.words


def test_a_lie_that_isnt_told_is_not_found() -> None:
    silent = Lie(name="silent", words="nothing", tell=lambda _: None, found=LIES[0].found)
    assert not selftest.tried(silent).found


def test_the_same_number_makes_the_same_world() -> None:
    one, two = honest(200), honest(200)
    assert (one.ledger, one.exports) == (two.ledger, two.exports)
