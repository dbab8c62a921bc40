"""Diffs of hostile texts: what they say, and that they end."""

import difflib
import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate import linediff

LINES = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=12)


def whole(before: list[str], after: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    with monkeypatch.context() as patched:
        patched.setattr(linediff, "MOST_PAIRS", -1)
        return list(linediff.unified(before, after, "a/f", "b/f"))


@given(LINES, LINES)
def test_a_short_text_is_difflibs_to_compare(before: list[str], after: list[str]) -> None:
    assert list(linediff.unified(before, after, "o", "n")) == [
        *difflib.unified_diff(before, after, "o", "n", lineterm="")
    ]


def test_what_is_shown_as_one_change_makes_the_one_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    for _ in range(300):
        before, after = ([chance.choice("abcd") for _ in range(chance.randrange(9))] for _ in range(2))
        shown = whole(before, after, monkeypatch)
        assert bool(shown) is (before != after)
        if shown:
            assert patched(before, shown) == after, shown


def patched(before: list[str], diff: list[str]) -> list[str]:
    """As patch(1) has it: one hunk, whose numbers and context are those of the text."""
    match = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", diff[2])
    assert match and diff[:2] == ["--- a/f", "+++ b/f"]
    first, size, then, grown = (int(number or 1) if number != "0" else 0 for number in match.groups())
    begin = first - 1 if size else first
    old, new = ([line[1:] for line in diff[3:] if line[0] in signs] for signs in (" -", " +"))
    assert (len(old), len(new)) == (size, grown)
    assert begin == (then - 1 if grown else then)
    assert before[begin : begin + size] == old
    return [*before[:begin], *new, *before[begin + size :]]


def test_lines_that_repeat_take_no_longer() -> None:
    """Of 120 kinds, in a random order: 48,000 of them take difflib 9 s, which grows faster than with the square."""
    chance = random.Random(2)
    before, after = ([str(number % 120) for number in range(60_000)] for _ in range(2))
    chance.shuffle(before)
    chance.shuffle(after)
    begin = time.process_time()
    shown = list(linediff.unified(before, after, "o", "n"))
    assert time.process_time() - begin < 2.0
    assert len(shown) >= 119_000
    begin = time.process_time()
    list(difflib.unified_diff(before[:1500], after[:1500], "o", "n", lineterm=""))
    part = time.process_time() - begin
    begin = time.process_time()
    list(difflib.unified_diff(before[:6000], after[:6000], "o", "n", lineterm=""))
    assert time.process_time() - begin > 6 * part, "it is no longer worse than linear: take linediff out"
