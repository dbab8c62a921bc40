"""Times as targets write them, to whole microseconds since 1970, UTC. Pure."""

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from credgate.reconcile.model import SECOND, Unreadable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO = datetime(1970, 1, 1)
EARLIEST, LATEST = 946_684_800 * SECOND, 4_102_444_800 * SECOND  # 2000 to 2100: outside it is a unit mistaken
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_STEP = timedelta(microseconds=1)


def moment(value: object, *, zone: tzinfo | None = UTC) -> int:
    """A time of any of the usual forms: RFC 3339, ISO 8601 with a blank, a number since 1970 of any unit.

    `zone` is that of a text which names none (the built-in targets document UTC); None: such a text is unreadable.
    So is a wall-clock time that the zone has twice or not at all. Raises Unreadable.
    """
    if isinstance(value, str):
        return _checked(_scaled(value) if _is_number(value) else _iso(value, zone))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unreadable("no time")
    return _checked(_scaled(str(value)))


def _is_number(value: str) -> bool:
    return value[4:5] != "-" and value.isascii() and value.replace(".", "", 1).isdigit()


def _iso(value: str, zone: tzinfo | None) -> int:
    try:
        parsed = datetime.fromisoformat(value.strip())
    except ValueError:
        raise Unreadable("time not understood") from None
    if parsed.tzinfo is None:
        if zone is None:
            raise Unreadable("time without a zone")
        parsed = parsed.replace(tzinfo=zone)
        if zone is not UTC and parsed.utcoffset() != parsed.replace(fold=1).utcoffset():
            raise Unreadable("time ambiguous or skipped: daylight saving")
    try:
        return (parsed - _EPOCH) // _STEP
    except OverflowError:  # year 1 with an offset
        raise Unreadable("time out of range") from None


def _scaled(value: str) -> int:
    """A number since 1970: its size tells the unit, as 2000 to 2100 don't overlap between them."""
    whole, _, part = value.partition(".")
    if not whole.isdigit() or len(whole) > 19 or (part and not part.isdigit()):
        raise Unreadable("time not understood")
    digits = int(whole)
    if digits < 10**11:
        return digits * SECOND + int((part + "000000")[:6])
    if digits < 10**14:
        return digits * 1000 + int((part + "000")[:3])
    return digits if digits < 10**17 else digits // 1000


def _checked(micros: int) -> int:
    if not EARLIEST <= micros <= LATEST:
        raise Unreadable("time out of range")
    return micros


@lru_cache(maxsize=4096)  # a log repeats each second
def clf(value: str) -> int:
    """`17/May/2015:10:05:03 +0000`, as the Common Log Format and S3 write it. Raises Unreadable."""
    try:
        day, month, rest = value.split("/", 2)
        year, hour, minute, tail = rest.split(":", 3)
        second, offset = tail.split(" ", 1)
        # a leap second is counted as the one after it, as POSIX does
        leap = 1 if second == "60" else 0
        parsed = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second) - leap)
        return _checked((parsed - _ZERO - _offset(offset)) // _STEP + leap * SECOND)
    except (ValueError, KeyError, OverflowError):
        raise Unreadable("time not understood") from None


def _offset(text: str) -> timedelta:
    if len(text) != 5 or text[0] not in "+-" or not text[1:].isdigit():
        raise ValueError(text)
    span = timedelta(hours=int(text[1:3]), minutes=int(text[3:5]))
    return -span if text[0] == "-" else span


def show(micros: int) -> str:
    """RFC 3339, UTC, milliseconds."""
    moment_ = _EPOCH + timedelta(microseconds=micros)
    return moment_.strftime("%Y-%m-%dT%H:%M:%S.") + f"{micros // 1000 % 1000:03d}Z"
