"""Times in all spellings become one; what could be two is none."""

from datetime import timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.reconcile.model import Unreadable
from credgate.reconcile.times import clf, moment, show

NOON = 1780315200_000000  # 2026-06-01T12:00:00Z


@pytest.mark.parametrize(
    "value",
    [
        "2026-06-01T12:00:00Z",
        "2026-06-01T12:00:00.000000000Z",
        "2026-06-01 12:00:00",
        "2026-06-01T14:00:00+02:00",
        "2026-06-01T06:30:00.0-05:30",
        1780315200,
        1780315200.0,
        "1780315200",
        "1780315200.000",
        1780315200_000,
        1780315200_000000,
        1780315200_000000000,
    ],
)
def test_spellings(value: object) -> None:
    assert moment(value) == NOON


@pytest.mark.parametrize(
    "value",
    [
        "",
        "noon",
        "2026-02-30T00:00:00Z",
        None,
        True,
        -5,
        12,
        "1e9",
        "1999-12-31T23:59:59Z",
        [],
        "0001-01-01T00:00:00+14:00",
    ],
)
def test_no_times(value: object) -> None:
    with pytest.raises(Unreadable):
        moment(value)


def test_a_zone_is_needed_where_it_is_asked_for() -> None:
    with pytest.raises(Unreadable, match="zone"):
        moment("2026-06-01 12:00:00", zone=None)
    assert moment("2026-06-01 14:00:00", zone=timezone(timedelta(hours=2))) == NOON


def test_an_hour_that_a_zone_has_twice_or_not_at_all() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert moment("2026-06-01 14:00:00", zone=berlin) == NOON
    for text in ("2026-10-25 02:30:00", "2026-03-29 02:30:00"):
        with pytest.raises(Unreadable, match="daylight"):
            moment(text, zone=berlin)
    assert (
        moment("2026-10-25 02:30:00+01:00", zone=berlin) - moment("2026-10-25 02:30:00+02:00", zone=berlin)
        == 3600 * 10**6
    )


def test_clf_and_its_leap_second() -> None:
    assert clf("01/Jun/2026:12:00:00 +0000") == NOON == clf("01/Jun/2026:05:00:00 -0700")
    assert clf("31/Dec/2016:23:59:60 +0000") == moment("2017-01-01T00:00:00Z")
    for wrong in (
        "01/Jun/2026:12:00:00",
        "1/6/2026:12:00:00 +0000",
        "01/Jun/2026:12:00:00 0000",
        "01/Jun/2026:25:00:00 +0000",
    ):
        with pytest.raises(Unreadable):
            clf(wrong)


@given(st.integers(946_684_800_000, 4_102_444_800_000))
def test_what_is_shown_reads_as_it_was(millis: int) -> None:
    assert moment(show(millis * 1000)) == millis * 1000


@given(st.text(max_size=40))
def test_any_text(text: str) -> None:
    for read in (moment, clf):
        try:
            read(text)
        except Unreadable:
            continue
