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
from pathlib import Path
from typing import NamedTuple

import msgspec

from credgate.ledger.chain import GENESIS
from credgate.ledger.files import segment_lines, segments
from credgate.ledger.report import Report, Status
from credgate.reconcile.model import (
    MAX_PATH,
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
from credgate.text import escape

# Headers of an answer that name no request: a time, a duration.
_NO_IDS = frozenset({"date", "server-timing", "x-envoy-upstream-service-time"})
_DECODE = msgspec.json.Decoder(dict[str, object]).decode
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
    open_: dict[int, Call] = {}
    for record in _records(directory, seen):
        at = moment(record["ts"])
        handler = _HANDLERS.get(str(record["ev"]))
        if handler is not None and (call := handler(record, at, seen, open_)) is not None:
            yield call
        _note(record, at, seen)
    yield from open_.values()  # no outcome: not known


def _note(record: Mapping[str, object], at: int, seen: Seen) -> None:
    seen.first = min(seen.first, at) if seen.records else at
    seen.last = max(seen.last, at)
    seen.records += 1
    seen.final = record["ev"] == "final"
    if record["ev"] == "recovered":
        seen.breaks.append(at)
    if record.get("policy_sha256"):
        seen.policies.add(str(record["policy_sha256"]))


def _records(directory: Path, seen: Seen) -> Iterator[Mapping[str, object]]:
    report = seen.report
    sound = report.status is Status.SOUND
    before, read = GENESIS, 0
    try:
        for line in _lines(directory):
            if read == report.records:
                break
            record = _DECODE(line)
            if record.get("prev") != before:
                raise ValueError("prev")
            before = hashlib.sha256(line).hexdigest()
            read += 1
            yield record
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


type _Open = dict[int, Call]


def _intent(record: Mapping[str, object], at: int, seen: Seen, open_: _Open) -> None:
    seen.allowed += 1
    call = _call(record, at)
    open_[call.seq] = call


def _outcome(record: Mapping[str, object], end: int, _: Seen, open_: _Open) -> Call | None:
    call = open_.pop(_number(record, "intent_seq"), None)
    if call is None:
        return None
    status = status_of(_number(record, "status"))
    skew, dated = _date(record, end)
    return call._replace(
        end=end,
        status=status,
        ok=success(status),
        size=_number(record, "resp_bytes", UNKNOWN),
        tag=call.tag or _tag(record),
        reason=_text(record, "reason"),
        settled=1,
        skew=skew,
        dated=dated,
        creds=call.creds or _creds(record),
        ids=tuple(dict.fromkeys((*call.ids, *_ids(record)))),
        bodies=_bodies(record) if "req_sha256" in record or "resp_sha256" in record else (),
        tunnels=_tunnels(record) if "tunnels" in record else (),
    )


def _tunnels(record: Mapping[str, object]) -> tuple[int, ...]:
    value = record["tunnels"]
    if not isinstance(value, list):  # a forged ledger may hold anything
        return ()
    found = []
    for text in value:
        with contextlib.suppress(Unreadable):
            found.append(moment(text))
    return tuple(found)


def _bodies(record: Mapping[str, object]) -> tuple[Body, ...]:
    sides = ((1, "req_sha256", "req_bytes"), (0, "resp_sha256", "resp_bytes"))
    found = ((sent, _text(record, digest), _number(record, size)) for sent, digest, size in sides)
    return tuple(body for body in found if _DIGEST.fullmatch(body[1]) and body[2])


def _deny(record: Mapping[str, object], at: int, seen: Seen, _: _Open) -> Call:
    call = _call(record, at)
    seen.denied += call.n
    return call


def _mint(record: Mapping[str, object], at: int, seen: Seen, open_: _Open) -> Call | None:
    """Calls of our own for a derived secret: the target sees them too. A line without a host is none."""
    if "intent_seq" in record:
        return _outcome(record, at, seen, open_)
    if not record.get("host"):
        return None
    if "status" not in record:
        _intent(record, at, seen, open_)
        return None
    seen.allowed += 1
    status = status_of(_number(record, "status"))
    return _call(record, at)._replace(status=status, ok=success(status), settled=1)


def _tunnel(record: Mapping[str, object], _at: int, seen: Seen, _: _Open) -> None:
    seen.tunnels += "intent_seq" not in record and "host" in record


_HANDLERS: Mapping[str, Callable[[Mapping[str, object], int, Seen, _Open], Call | None]] = {
    "intent": _intent,
    "outcome": _outcome,
    "deny": _deny,
    "mint": _mint,
    "tunnel": _tunnel,
}


def _call(record: Mapping[str, object], at: int) -> Call:
    return Call(
        seq=_number(record, "seq"),
        ev=_text(record, "ev"),
        run=_text(record, "run"),
        start=at,
        end=at + _number(record, "ms") * 1000,
        host=_text(record, "host").casefold(),
        method=_text(record, "method"),
        path=path_of(_unescaped(_text(record, "path"))) if record.get("path") else "",
        tag=_tag(record),
        reason=_text(record, "reason"),
        n=_number(record, "count", 1),
        secret=_text(record, "secret"),
        rule=_text(record, "rule"),
        creds=_creds(record),
        ids=_ids(record),
    )


def _text(record: Mapping[str, object], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):  # a forged ledger may hold anything
        return ""
    return escape(value[:MAX_PATH])


def _unescaped(text: str) -> str:
    """The ledger doubles a backslash; path_of does so again."""
    return text.replace("\\\\", "\\")


def _number(record: Mapping[str, object], name: str, default: int = 0) -> int:
    value = record.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _tag(record: Mapping[str, object]) -> str:
    return _text(record, "ua_tag").rpartition("credgate/")[2]


def _creds(record: Mapping[str, object]) -> tuple[Cred, ...]:
    """The credentials by fingerprint and by the secret's name: a mapping may speak of either."""
    found: dict[Cred, None] = {}
    for field_ in ("cred_fp", "secret"):
        for name in filter(None, map(str.strip, _text(record, field_).split(","))):
            # an HMAC is our own name of it: that no record has it says nothing about whose the records are
            found[clean(name), int(field_ == "cred_fp" and not name.startswith("hmac:"))] = None
    return tuple(found)


def _ids(record: Mapping[str, object]) -> tuple[str, ...]:
    ids = record.get("ids")
    if not isinstance(ids, Mapping):
        return ()
    found = []
    for name, value in ids.items():
        if name in _NO_IDS or not isinstance(value, str) or len(value) < _LEAST_ID:
            continue
        # the ray's place of arrival stands behind it in the header alone
        found.append(same_id(value.partition("-")[0] if name == "cf-ray" else value))
    return tuple(found)


def _date(record: Mapping[str, object], end: int) -> tuple[int, int]:
    ids = record.get("ids")
    value = ids.get("date") if isinstance(ids, Mapping) else None
    if not isinstance(value, str):
        return 0, 0
    try:
        stamp = int(parsedate_to_datetime(value).timestamp()) * 1_000_000
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0, 0
    return stamp + 500_000 - end, 1  # a header's second is cut: half of one is what is lost in the mean
