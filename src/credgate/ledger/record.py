"""What a ledger line may hold: its events, its fields, their bounds. Pure.

The bounds of all fields together stay below MAX_LINE, so that no input of the jail's can make a line too long.
Whatever is not listed here is a mistake of the caller's: TypeError, and nothing is written.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from credgate.errors import CredgateError
from credgate.text import escape

VERSION = 1
MAX_LINE = 48 * 1024  # bytes with the newline: one write(2), and no reader splits it
MAX_INT = 2**63 - 1
_SHORT_CAP = 32  # below it only the digest of a cut value has room


class LedgerError(CredgateError):
    """The ledger can't be written or read; where it can't be written, nothing may pass."""


class Event(StrEnum):
    """Values of `ev`; stable for ever."""

    RUN_START = "run.start"
    RUN_END = "run.end"
    RUN_REFUSED = "run.refused"
    PROOF = "proof"
    DNS = "dns"
    INTENT = "intent"
    OUTCOME = "outcome"
    DENY = "deny"
    TUNNEL = "tunnel"
    MINT = "mint"
    GRANT = "grant"
    REVOKE = "revoke"
    ALARM = "alarm"
    OFF_ROUTE = "off_route"
    RECOVERED = "recovered"
    KEY_CHANGE = "key_change"
    CHECKPOINT = "checkpoint"
    PRUNED = "pruned"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string of at most `cap` bytes as JSON; a longer one is cut and says so."""

    cap: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Up to `count` strings; more are cut and the last one says so."""

    count: int
    cap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Up to `count` strings by name; more are an error of the caller's."""

    count: int
    cap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A whole number from 0 to 2**63 - 1. No fractions: two programs print them differently."""


type Kind = Text | Texts | Pairs | Number

FIELDS: Mapping[str, Kind] = {
    "asked": Text(cap=320),  # with route: what the client named, "HOST:PORT"
    "binding": Text(),
    "counters": Pairs(count=12, cap=24),  # of off_route: packets by the counter's name
    "count": Number(),  # of what an aggregated line stands for; OutNoRoutes of off_route
    "cred_fp": Text(cap=512),  # of each secret that was put in, see rules.fingerprint
    "detail": Text(cap=1024),  # one sentence for people
    "filter_kills": Number(),  # of off_route: processes that SIGSYS ended and pid 1 reaped
    "frontier": Texts(count=48, cap=44),  # of checkpoint: roots of the complete subtrees so far, base64
    "guards": Texts(count=104, cap=36),  # of proof: "GUARD=STATE"
    "hidden": Texts(count=12, cap=96),  # of run.start: files of the work tree that the jail can't see
    "host": Text(cap=320),
    "http_version": Text(cap=32),
    "ids": Pairs(count=20, cap=256),  # by header name: of intent those we sent, of outcome the target's own
    "intent_seq": Number(),
    "length": Number(),  # of recovered: bytes moved away
    "limits": Texts(count=8, cap=56),  # of run.start: "LIMIT=MECHANISM"
    "method": Text(cap=64),
    "ms": Number(),
    "old_pubkey": Text(),  # of key_change
    "origin": Text(),  # of checkpoint and key_change: the ledger's name in its signed notes
    "parent": Text(),  # of run.start: the run that asked for this one
    "path": Text(cap=2048),
    "path_sha256": Text(),
    "pid": Number(),
    "pin": Text(),
    "placeholder_skipped": Texts(count=8, cap=72),  # of outcome: bindings whose placeholder stood in the body
    "policy_sha256": Text(),
    "port": Number(),
    "program": Text(cap=512),  # of run.start: the executed file
    "program_sha256": Text(),
    "program_version": Text(),
    "proof": Text(),
    "protected": Number(),  # of run.start: islands in the work tree
    "pubkey": Text(),  # of checkpoint and key_change: the key that signs from here on, base64
    "qtype": Text(cap=32),
    "query_names": Texts(count=32, cap=64),
    "reason": Text(),
    "req_bytes": Number(),
    "req_sha256": Text(),  # of outcome: of the body as it was sent, where the endpoint asks for digests
    "request_id": Text(),
    "resp_bytes": Number(),
    "resp_sha256": Text(),  # of outcome: of the body as the client got it
    "role": Text(),
    "root": Text(),  # of checkpoint and pruned: RFC 6962 root over the first tree_size lines, base64
    "route": Text(cap=256),  # of an endpoint with several targets: "WORD: RULE" of the one that it was sent to
    "rule": Text(cap=256),
    "run": Text(),
    "runs_asked": Texts(count=12, cap=96),  # of run.end: new or changed files that the host executes when asked
    "runs_asked_count": Number(),
    "runs_unasked": Texts(count=12, cap=96),  # of run.end: those that it executes unasked
    "runs_unasked_count": Number(),
    "state_back": Number(),  # of run.end: files of the agent's own that came back
    "state_kept": Number(),  # of run.end: those that did not, and wait for a word
    "scheme": Text(cap=16),
    "seccomp_sha256": Text(),  # of run.start: the filter's bytes
    "secret": Text(),  # its name
    "segment": Number(),  # of checkpoint: the one it begins; of pruned: the last one that was removed
    "sha256": Text(),  # of recovered: of the bytes moved away
    "sig_new": Text(),  # of key_change: by the new key, base64
    "sig_old": Text(),
    "sni": Text(cap=320),
    "status": Number(),  # HTTP status; of run.end the exit status
    "registries": Texts(count=8, cap=256),  # of run.start: what each host_from was resolved to
    "switches": Texts(count=8, cap=32),  # of run.start: what the role opened, as "allow_userns"
    "torn": Text(),  # of recovered: the file they lie in now
    "tunnels": Texts(count=4, cap=32),  # of outcome, mint: when a corporate proxy was asked for a connection for it
    "tree_size": Number(),  # of checkpoint and pruned: lines that root stands for
    "ua_tag": Text(),
    "verdict": Text(cap=16),
    "via": Text(cap=16),
    "witness": Text(cap=256),  # of checkpoint: which one took the root, or didn't
}
OWN_FIELDS = frozenset({"v", "seq", "ts", "ev", "boot", "mono_ns", "prev", "hash"})  # only the writer sets these


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """When: `ts` RFC 3339 UTC with microseconds; `boot` the kernel's boot id; `mono_ns` CLOCK_BOOTTIME."""

    ts: str
    boot: str
    mono_ns: int


def clean_fields(ev: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields as they go into a line. None, "" and empty lists mean: doesn't apply, left out.

    Raises TypeError for an unknown event or field, a wrong type (bytes, bool, float, a Secret), a number outside
    0..2**63-1, or too many pairs. The message names the type, never the value.
    """
    if ev not in Event:
        raise TypeError(f"ledger: unknown event {ev!r}")
    out: dict[str, object] = {}
    for name, value in fields.items():
        kind = FIELDS.get(name)
        if kind is None:
            raise TypeError(f"ledger: unknown field {name!r}")
        if value is None:
            continue
        cleaned = _clean(name, kind, value)
        if cleaned not in ("", [], {}):
            out[name] = cleaned
    return out


def _clean(name: str, kind: Kind, value: object) -> object:
    match kind:
        case Number():
            return _number(name, value)
        case Text(cap=cap):
            return _text(name, value, cap)
        case Texts(count=count, cap=cap):
            return _texts(name, value, count, cap)
        case Pairs(count=count, cap=cap):
            return _pairs(name, value, count, cap)


def _number(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, value, "int")
    if not 0 <= value <= MAX_INT:
        raise TypeError(f"ledger: field {name!r} is outside 0..2**63-1")
    return int(value)


def _text(name: str, value: object, cap: int) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "str")
    if len(value) <= cap and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return str(value)  # nearly all of them, and the work below costs ten times as much
    # the backslash first, so that an escape can be told from text that looks like one
    text = escape(str(value).replace("\\", "\\\\"))
    if _size(text) <= cap:
        return text
    digest = hashlib.sha256(str(value).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    mark = f"~{digest}" if cap < _SHORT_CAP else f"~cut {len(value)} {digest}"
    return _head(text, cap - len(mark)) + mark


def _texts(name: str, value: object, count: int, cap: int) -> list[str]:
    if not isinstance(value, (list, tuple, frozenset)):
        raise _wrong(name, value, "a list of str")
    items = sorted(value) if isinstance(value, frozenset) else list(value)
    if len(items) <= count:
        return [_text(name, item, cap) for item in items]
    kept = [_text(name, item, cap) for item in items[: count - 1]]
    return [*kept, f"~cut {len(items) - len(kept)} more"]


def _pairs(name: str, value: object, count: int, cap: int) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping of str")
    if len(value) > count:
        raise TypeError(f"ledger: field {name!r} holds {len(value)} pairs, at most {count}")
    return {_text(name, key, 64): _text(name, item, cap) for key, item in value.items()}


def _wrong(name: str, value: object, want: str) -> TypeError:
    return TypeError(f"ledger: field {name!r} is a {type(value).__name__}, expected {want}")


def _size(text: str) -> int:
    # the two characters that JSON itself doubles
    return len(text.encode()) + text.count('"') + text.count("\\")


def _head(text: str, room: int) -> str:
    """The longest beginning whose JSON form has at most `room` bytes."""
    for index, char in enumerate(text):
        room -= _size(char)
        if room < 0:
            return text[:index]
    return text


_ENCODER = msgspec.json.Encoder(order="sorted")


def canonical(record: object) -> bytes:
    """A record, or a part of one, as JSON with sorted keys, no space, UTF-8, whole numbers: as RFC 8785 for what a line
    may hold.

    Raises UnicodeEncodeError for a lone surrogate. Byte for byte what the standard library's encoder writes, in a
    fifteenth of its time (measured): a test holds the two together.
    """
    return _ENCODER.encode(record)
