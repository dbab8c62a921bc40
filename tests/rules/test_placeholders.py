import itertools
import re

import pytest

from rules.placeholders import MIN_RANDOM, ShapeError, check_shape, make_decoy


def test_a_decoy_has_its_shape_and_follows_its_source() -> None:
    count = itertools.count()
    decoy = make_decoy("ghp_{36}", lambda n: next(count) % n)
    assert re.fullmatch(r"ghp_[0-9A-Za-z]{36}", decoy)
    assert decoy == "ghp_" + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_two_holes() -> None:
    assert make_decoy("xoxb-{8}-{8}", lambda _: 0) == "xoxb-00000000-00000000"


def test_the_source_is_asked_for_one_of_62() -> None:
    asked: list[int] = []
    make_decoy("{16}", lambda n: asked.append(n) or n - 1)  # type: ignore[func-returns-value]
    assert asked == [62] * MIN_RANDOM


@pytest.mark.parametrize(
    "shape", ["", "ghp_", "{15}", "ghp_{x}{20}", "a b{20}", "{20}\n", "{600}", "é{20}", "{{20}}", "{20}'"]
)
def test_a_shape_that_makes_no_decoy_is_refused(shape: str) -> None:
    with pytest.raises(ShapeError) as caught:
        check_shape(shape)
    assert caught.value.hint
