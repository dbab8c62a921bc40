"""Lines of a ledger as the join looks at them: few fields, of one type each, and no text that acts on a reader."""

from typing import Annotated

import msgspec
from msgspec import Meta

from credgate.ledger.record import MAX_INT
from credgate.reconcile.model import MAX_PATH
from credgate.text import escape

_CENTURY = 100 * 366 * 86400 * 1000  # milliseconds
_ANY = msgspec.json.Decoder(dict[str, object]).decode


# A forged ledger may hold any number. What counts requests adds up, and no writer's is below 0.
type Whole = Annotated[int, Meta(ge=0, le=MAX_INT)]
type Count = Annotated[int, Meta(ge=1, le=MAX_INT)]
type Millis = Annotated[int, Meta(ge=0, le=_CENTURY)]


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line. A field that is absent, or that no writer gives such a value, is empty; None: it isn't there."""

    ev: str = ""
    ts: str = ""
    prev: str = ""
    seq: Whole = 0
    run: str = ""
    host: str = ""
    method: str = ""
    path: str = ""
    ms: Millis = 0
    count: Count = 1
    reason: str = ""
    rule: str = ""
    secret: str = ""
    cred_fp: str = ""
    ua_tag: str = ""
    policy_sha256: str = ""
    intent_seq: Whole | None = None
    status: Whole | None = None
    req_bytes: Whole = 0
    resp_bytes: Whole | None = None
    req_sha256: str = ""
    resp_sha256: str = ""
    ids: dict[str, str] = {}
    tunnels: list[str] = []


_DECODE = msgspec.json.Decoder(Line).decode
_NUMBERS = ("seq", "ms", "count", "intent_seq", "status", "req_bytes", "resp_bytes")
_LEAST = {"count": 1}
_LISTS = ("ids", "tunnels")
_TEXTS = tuple(name for name in Line.__struct_fields__ if name not in (*_NUMBERS, *_LISTS))


def line_of(data: bytes) -> Line:
    """The line. Raises msgspec.DecodeError for what is no JSON object."""
    # no text of such a line can need an escape or a cut: JSON has no control character in it but DEL
    if len(data) <= MAX_PATH and data.isascii() and b"\\" not in data and b"\x7f" not in data:
        try:
            return _DECODE(data)
        except msgspec.ValidationError:  # a forged ledger may hold anything
            pass
    return _coerced(_ANY(data))


def _most(name: str) -> int:
    return _CENTURY if name == "ms" else MAX_INT


def _coerced(record: dict[str, object]) -> Line:
    found: dict[str, object] = {}
    for name in _TEXTS:
        if isinstance(value := record.get(name), str):
            found[name] = escape(value[:MAX_PATH])
    for name in _NUMBERS:
        value = record.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and _LEAST.get(name, 0) <= value <= _most(name):
            found[name] = value
    if isinstance(ids := record.get("ids"), dict):
        found["ids"] = {name: value for name, value in ids.items() if isinstance(value, str)}
    if isinstance(tunnels := record.get("tunnels"), list):
        found["tunnels"] = [value for value in tunnels if isinstance(value, str)]
    return msgspec.convert(found, Line)
