import pytest

from rules.load_units import duration_hint, parse_duration, parse_size, size_hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1B", 1), ("1KiB", 1024), ("256KiB", 256 << 10), ("4GiB", 4 << 30), ("2TiB", 2 << 40), ("1000000B", 1_000_000)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "4", "4GB", "4gib", "4 GiB", " 4GiB", "4GiB\n", "0GiB", "-1GiB", "1.5GiB", "04GiB", "1e3B", "٤GiB", "4Gi"],
)
def test_what_is_no_size(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(("text", "expected"), [("1s", 1), ("90m", 5400), ("8h", 28800), ("7d", 604800)])
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "8", "8H", "1h30m", "8 h", "0h", "-8h", "1.5h", "08h", "8h\n", "8w", "8ms"])
def test_what_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("hint", "part"),
    [
        (size_hint("4GB"), '"4GiB"'),
        (size_hint("512 m"), '"512MiB"'),
        (size_hint("lots"), "as in 4GiB"),
        (duration_hint("2 hours"), '"2h"'),
        (duration_hint("8H"), '"8h"'),
        (duration_hint("1h30m"), "as in 90m"),
    ],
)
def test_hints_give_the_right_spelling(hint: str, part: str) -> None:
    assert part in hint


@pytest.mark.parametrize(
    ("parsed", "hint", "part"),
    [
        (parse_size("1048576TiB"), "", ""),
        (parse_size("1048577TiB"), size_hint("1048577TiB"), "at most 1048576TiB"),
        (parse_size("9999999999GiB"), size_hint("9999999999GiB"), "at most 1048576TiB"),
        (parse_duration("36500d"), "", ""),
        (parse_duration("36501d"), duration_hint("36501d"), "at most 36500d"),
        (parse_duration("9999999999h"), duration_hint("9999999999h"), "at most 36500d"),
    ],
)
def test_what_no_clock_and_no_limit_of_the_kernels_takes(parsed: int | None, hint: str, part: str) -> None:
    assert (parsed is None) is bool(hint)
    assert part in hint
