"""Read a ledger for people: filtered, and live. Whether it is sound is verify's business."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from credgate.ledger.chain import LineFault, parse_line
from credgate.ledger.files import PackError, segment_lines, segment_name, segments
from credgate.ledger.record import LedgerError

type Record = Mapping[str, object]
IN_A_ROW = 1000  # damaged lines: then a segment is none of ours, and 100 KB of it may unpack to as many million
_POLL = 0.2  # seconds: a person reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A line that is none of ours, at its place."""

    segment: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to show; empty: everything. `since` is RFC 3339 UTC with microseconds, as `ts` is."""

    run: str = ""
    host: str = ""
    verdict: str = ""
    since: str = ""

    def takes(self, record: Record) -> bool:
        """Whether the record is to be shown."""
        asked = (("run", self.run), ("host", self.host), ("verdict", self.verdict))
        if any(want and record.get(name) != want for name, want in asked):
            return False
        return not self.since or str(record.get("ts", "")) >= self.since


def read_records(directory: Path, want: Filter | None = None) -> Iterator[Record | Damaged]:
    """The records in their order; damaged lines always. A line that isn't finished is left out. Raises LedgerError."""
    yield from _from(_Position(directory), want or Filter())


def follow_records(
    directory: Path, want: Filter | None = None, *, last: int = 0, go_on: Callable[[], bool] = lambda: True
) -> Iterator[Record | Damaged]:
    """The `last` records that there are, then each new one, while `go_on` says so. Raises LedgerError."""
    chosen = want or Filter()
    position, found = _newest(directory, chosen, last)
    yield from found
    while go_on():
        time.sleep(_POLL)
        yield from _from(position, chosen)


class _Position:
    """How far we have read: a segment, and an offset behind a whole line of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = 0  # the first there is: older ones may have been removed
        self.offset = 0


def _newest(directory: Path, want: Filter, last: int) -> "tuple[_Position, list[Record | Damaged]]":
    """The last records, from the newest segment backwards until there are enough, and where to go on behind them."""
    found: list[Record | Damaged] = []
    end: _Position | None = None
    with _told(directory):
        for number, path in sorted(_known(directory).items(), reverse=True):
            position = _Position(directory)
            position.number = number
            found[:0] = deque(_taken(path, position, want), maxlen=last - len(found))
            end = end or position
            if len(found) >= last:
                break
    return end or _Position(directory), found


def _from(position: _Position, want: Filter) -> Iterator[Record | Damaged]:
    with _told(position.directory):
        known = _known(position.directory)
        for number, path in sorted(known.items()):
            if number < position.number:
                continue
            if number > position.number:
                position.number, position.offset = number, 0
            yield from _taken(path, position, want)


def _taken(path: Path, position: _Position, want: Filter) -> Iterator[Record | Damaged]:
    """The records of one segment behind the position that are wanted; it moves on with them."""
    damaged = 0
    for line in _new_lines(path, position):
        item = _item(path, line)
        damaged = damaged + 1 if isinstance(item, Damaged) else 0
        if isinstance(item, Damaged) or want.takes(item):
            yield item
        if damaged == IN_A_ROW:
            yield Damaged(
                segment=path.name, detail=f"{damaged} damaged lines in a row: what is behind them is not shown"
            )
            position.offset = sys.maxsize
            return


@contextmanager
def _told(directory: Path) -> Iterator[None]:
    try:
        yield
    except PackError as error:
        raise LedgerError("ledger_unreadable", str(error), "credgate log verify", exit_status=4) from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        detail = f"can't read {error.filename or directory}: {why}"
        raise LedgerError("ledger_unreadable", detail, "credgate log verify", exit_status=4) from error


def _known(directory: Path) -> dict[int, Path]:
    known = segments(directory)
    if not known:
        detail = f"no ledger in {directory}: expected {segment_name(1)}"
        raise LedgerError("ledger_unreadable", detail, "it is made by the first `credgate run`", exit_status=4)
    return dict(known)


def _new_lines(path: Path, position: _Position) -> Iterator[bytes]:
    for line in segment_lines(path, position.offset):
        if line.endswith(b"\n"):
            position.offset += len(line)
            yield line


def _item(path: Path, line: bytes) -> Record | Damaged:
    try:
        return parse_line(line)
    except LineFault as fault:
        return Damaged(segment=path.name, detail=fault.detail)
