"""The ledger's side of the join: its requests, each with its outcome, read from what `verify` has vouched for.

What is read is bound to what was verified: each line's hash is the `prev` of the next, and the last one's is the
report's. A line that is added meanwhile is left for the next time.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from credgate.ledger.chain import GENESIS
from credgate.ledger.files import segment_lines, segments
from credgate.ledger.report import Report, Status
from credgate.reconcile.lines import Line, line_of
from credgate.reconcile.model import (
    UNKNOWN,
    ReconcileError,
    Unreadable,
    clean,
    path_of,
    same_id,
    status_of,
    success,
)
from credgate.reconcile.times import moment

# Headers of an answer that name no request: a time, a duration.
_NO_IDS = frozenset({"date", "server-timing", "x-envoy-upstream-service-time"})
_NONE = Line()
_TS = len("2026-06-01T08:00:00.000000Z")
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LEAST_ID = 6  # characters: a shorter value would pair by chance


type Cred = tuple[str, int]  # as the target would log it (1), or a name of ours (0)


type Body = tuple[int, str, int]  # sent (1) or received (0), SHA-256 in hex, bytes


class Call(NamedTuple):
    """One request of the ledger's: an `intent` with its `outcome`, a `mint`, or a `deny`."""

    seq: int
    ev: str
    run: str
    start: int
    end: int
    host: str
    method: str
    path: str
    status: int = 0
    ok: int = UNKNOWN
    size: int = UNKNOWN
    tag: str = ""
    reason: str = ""
    settled: int = 0  # 1: there is an outcome
    n: int = 1
    secret: str = ""
    rule: str = ""
    skew: int = 0  # the answer's Date less our end, in microseconds
    dated: int = 0
    creds: tuple[Cred, ...] = ()
    ids: tuple[str, ...] = ()
    bodies: tuple[Body, ...] = ()
    tunnels: tuple[int, ...] = ()  # when a proxy was asked for a connection for it


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the ledger as a whole is; filled while it is read."""

    report: Report
    allowed: int = 0
    denied: int = 0
    tunnels: int = 0
    records: int = 0
    first: int = 0
    last: int = 0
    final: bool = False
    breaks: list[int] = field(default_factory=list)  # times at which a writer found that another had stopped hard
    policies: set[str] = field(default_factory=set)


def calls(directory: Path, seen: Seen) -> Iterator[Call]:
    """The requests in the order in which they ended. Raises ReconcileError when the files aren't what was verified."""
    open_: _Open = {}
    for line in _records(directory, seen):
        at = _time(line)
        handler = _HANDLERS.get(line.ev)
        if handler is not None and (call := handler(line, at, seen, open_)) is not None:
            yield call
        _note(line, at, seen)
    for line, at in open_.values():
        yield _call(line, at)  # no outcome: not known


def _time(line: Line) -> int:
    ts = line.ts
    try:
        if len(ts) == _TS and ts[19] == "." and ts[26] == "Z" and ts[20:26].isdecimal():  # as writers write it
            return _second(ts[:19]) + int(ts[20:26])
        return moment(ts)
    except Unreadable as error:
        raise ReconcileError("ledger_unreadable", f"record {line.seq}: {error}: {ts!r}", "", 2) from error


@lru_cache(maxsize=4096)
def _second(text: str) -> int:
    return moment(f"{text}Z")


def _note(line: Line, at: int, seen: Seen) -> None:
    seen.first = min(seen.first, at) if seen.records else at
    seen.last = max(seen.last, at)
    seen.records += 1
    seen.final = line.ev == "final"
    if line.ev == "recovered":
        seen.breaks.append(at)
    if line.policy_sha256:
        seen.policies.add(line.policy_sha256)


def _records(directory: Path, seen: Seen) -> Iterator[Line]:
    report = seen.report
    sound = report.status is Status.SOUND
    before, read = GENESIS, 0
    try:
        for data in _lines(directory):
            if read == report.records:
                break
            line = line_of(data)
            if line.prev != before:
                raise ValueError("prev")
            before = hashlib.sha256(data).hexdigest()
            read += 1
            yield line
    except OSError as error:
        raise ReconcileError("ledger_unreadable", f"can't read {directory}: {error.strerror}", "", 2) from error
    except (ValueError, msgspec.DecodeError) as error:
        raise _changed(directory) from error
    if sound and (read != report.records or before != report.last_sha256):
        raise _changed(directory)


def _changed(directory: Path) -> ReconcileError:
    return ReconcileError("ledger_changed", f"{directory} was changed since it was verified", "start again", 3)


def _lines(directory: Path) -> Iterator[bytes]:
    for _, path in segments(directory):
        yield from segment_lines(path)


type _Open = dict[int, tuple[Line, int]]


def _intent(line: Line, at: int, seen: Seen, open_: _Open) -> None:
    seen.allowed += 1
    open_[line.seq] = (line, at)


def _outcome(line: Line, end: int, _: Seen, open_: _Open) -> Call | None:
    found = open_.pop(line.intent_seq or 0, None)
    return None if found is None else _call(*found, (line, end))


def _deny(line: Line, at: int, seen: Seen, _: _Open) -> Call:
    seen.denied += line.count
    return _call(line, at)


def _mint(line: Line, at: int, seen: Seen, open_: _Open) -> Call | None:
    """Calls of our own for a derived secret: the target sees them too. A line without a host is none."""
    if line.intent_seq is not None:
        return _outcome(line, at, seen, open_)
    if not line.host:
        return None
    if line.status is None:
        _intent(line, at, seen, open_)
        return None
    seen.allowed += 1
    status = status_of(line.status)
    return _call(line, at)._replace(status=status, ok=success(status), settled=1)


def _tunnel(line: Line, _at: int, seen: Seen, _: _Open) -> None:
    seen.tunnels += line.intent_seq is None and line.host != ""


_HANDLERS: Mapping[str, Callable[[Line, int, Seen, _Open], Call | None]] = {
    "intent": _intent,
    "outcome": _outcome,
    "deny": _deny,
    "mint": _mint,
    "tunnel": _tunnel,
}


def _call(line: Line, at: int, ended: tuple[Line, int] | None = None) -> Call:
    """A request, and its outcome with the time of that. By place: by name each takes half as long again."""
    creds, ids = _creds(line.cred_fp, line.secret), _ids(line)
    outcome, end = ended or (_NONE, at + line.ms * 1000)
    status = status_of(outcome.status or 0)
    skew, dated = _date(outcome, end)
    return Call(
        line.seq,
        line.ev,
        line.run,
        at,
        end,
        line.host.casefold(),
        line.method,
        _path(line.path),
        status,
        success(status),
        UNKNOWN if outcome.resp_bytes is None else outcome.resp_bytes,
        (line.ua_tag or outcome.ua_tag).rpartition("credgate/")[2],
        outcome.reason if ended else line.reason,
        int(ended is not None),
        line.count,
        line.secret,
        line.rule,
        skew,
        dated,
        creds or _creds(outcome.cred_fp, outcome.secret),
        tuple(dict.fromkeys((*ids, *_ids(outcome)))) if ids and outcome.ids else ids or _ids(outcome),
        _bodies(outcome),
        _tunnels(outcome),
    )


@lru_cache(maxsize=4096)
def _path(path: str) -> str:
    """The ledger doubles a backslash; path_of does so again."""
    return path_of(path.replace("\\\\", "\\")) if path else ""


@lru_cache(maxsize=4096)
def _creds(cred_fp: str, secret: str) -> tuple[Cred, ...]:
    """The credentials by fingerprint and by the secret's name: a mapping may speak of either."""
    found: dict[Cred, None] = {}
    for known, field_ in ((1, cred_fp), (0, secret)):
        for name in filter(None, map(str.strip, field_.split(","))):
            # an HMAC is our own name of it: that no record has it says nothing about whose the records are
            found[clean(name), int(known and not name.startswith("hmac:"))] = None
    return tuple(found)


def _ids(line: Line) -> tuple[str, ...]:
    if not line.ids:
        return ()
    # of cf-ray the place of arrival stands behind it in the header alone
    return tuple(
        same_id(value.partition("-")[0] if name == "cf-ray" else value)
        for name, value in line.ids.items()
        if name not in _NO_IDS and len(value) >= _LEAST_ID
    )


def _bodies(line: Line) -> tuple[Body, ...]:
    if not line.req_sha256 and not line.resp_sha256:
        return ()
    sides = ((1, line.req_sha256, line.req_bytes), (0, line.resp_sha256, line.resp_bytes or 0))
    return tuple(body for body in sides if _DIGEST.fullmatch(body[1]) and body[2])


def _tunnels(line: Line) -> tuple[int, ...]:
    found = []
    for text in line.tunnels:
        with contextlib.suppress(Unreadable):  # a forged ledger may hold anything
            found.append(moment(text))
    return tuple(found)


def _date(line: Line, end: int) -> tuple[int, int]:
    stamp = _stamp(line.ids.get("date", ""))
    return (stamp + 500_000 - end, 1) if stamp else (0, 0)  # a header's second is cut: half of one is lost in the mean


@lru_cache(maxsize=4096)
def _stamp(value: str) -> int:
    try:
        return int(parsedate_to_datetime(value).timestamp()) * 1_000_000
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0
