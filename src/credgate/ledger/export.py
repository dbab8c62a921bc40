"""Records in the forms that other programs read: JSON lines as they are, CSV, and OCSF events."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from credgate.ledger.record import FIELDS, OWN_FIELDS

type Record = Mapping[str, object]

_COLUMNS = ("seq", "ts", "ev", *sorted((FIELDS.keys() | OWN_FIELDS) - {"seq", "ts", "ev"}))
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_OCSF_VERSION = "1.3.0"
_BASE, _NETWORK, _HTTP, _DNS = 0, 4001, 4002, 4003
_HTTP_METHODS = {"CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7, "TRACE": 8}
_OTHER = 99
_CLASSES = {"intent": _HTTP, "outcome": _HTTP, "deny": _HTTP, "tunnel": _NETWORK, "dns": _DNS}
_NAMES = {_BASE: "Base Event", _NETWORK: "Network Activity", _HTTP: "HTTP Activity", _DNS: "DNS Activity"}
_INFORMATIONAL, _MEDIUM, _HIGH = 1, 3, 4


def compact(record: Record) -> str:
    """One line of JSON, ASCII: what a record holds, for any reader."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


def csv_lines(records: Iterator[Record]) -> Iterator[str]:
    """RFC 4180 with a head line. No cell begins as a spreadsheet's formula does: such a one gets a `'` in front."""
    yield _csv_line(_COLUMNS)
    for record in records:
        yield _csv_line([_cell(record.get(name)) for name in _COLUMNS])


def _csv_line(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value) if isinstance(value, int) else compact_value(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def compact_value(value: object) -> str:
    """A list or a mapping in one cell."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def ocsf(record: Record) -> Mapping[str, object]:
    """The record as an event of OCSF 1.3.0: HTTP, DNS or Network Activity, else a Base Event.

    What has no place there stands in `unmapped` under its own name.
    """
    kind = _CLASSES.get(str(record.get("ev")), _BASE)
    if kind == _HTTP and not record.get("method"):
        kind = _NETWORK if record.get("host") else _BASE
    activity = _activity(kind, record)
    denied = record.get("verdict") == "deny"
    severity = _HIGH if record.get("ev") == "alarm" else _MEDIUM if denied else _INFORMATIONAL
    event: dict[str, object] = {
        "activity_id": activity,
        "category_uid": kind // 1000,
        "class_uid": kind,
        "class_name": _NAMES[kind],
        "type_uid": kind * 100 + activity,
        "severity_id": severity,
        "time": _millis(str(record.get("ts", ""))),
        "metadata": {
            "version": _OCSF_VERSION,
            "product": {"name": "Credgate", "vendor_name": "Credgate"},
            "uid": str(record.get("hash", "")),
            "sequence": record.get("seq"),
            "event_code": record.get("ev"),
            "profiles": ["security_control"],
        },
    }
    used = {"seq", "ev", "hash"} | ({"ts"} if event["time"] else set())  # what is no time stands as it is
    for fill in (_action, _endpoint, _request, _query, _rest):
        event.update(fill(record, kind, used))
    return event


def _activity(kind: int, record: Record) -> int:
    if kind == _HTTP:
        return _HTTP_METHODS.get(str(record.get("method")), _OTHER)
    if kind == _DNS:
        return 1  # Query
    return 1 if kind == _NETWORK else _OTHER  # Open


def _millis(ts: str) -> int:
    """OCSF demands a time: 0 where a forged line has none."""
    try:
        return round(datetime.fromisoformat(ts).timestamp() * 1000)
    except ValueError:
        return 0


def _action(record: Record, _: int, used: set[str]) -> Mapping[str, object]:
    verdict = record.get("verdict")
    used.add("verdict")
    out: dict[str, object] = {}
    if verdict in ("allow", "deny"):
        out["action_id"] = 1 if verdict == "allow" else 2
        out["disposition_id"] = 1 if verdict == "allow" else 2  # Allowed, Blocked
    if record.get("rule"):
        used.add("rule")
        out["firewall_rule"] = {"uid": record["rule"]}
    status = record.get("status")
    if isinstance(status, int) and record.get("ev") == "outcome":
        out["status_id"] = 1 if status < 400 else 2
    return out


def _endpoint(record: Record, _: int, used: set[str]) -> Mapping[str, object]:
    names = {"host": "hostname", "port": "port", "pin": "ip"}
    there = {target: record[name] for name, target in names.items() if name in record}
    used.update(name for name in names if name in record)
    return {"dst_endpoint": there} if there else {}


def _request(record: Record, kind: int, used: set[str]) -> Mapping[str, object]:
    if kind != _HTTP:
        return {}
    url = {"hostname": record.get("host"), "port": record.get("port"), "path": record.get("path")}
    url["scheme"] = record.get("scheme")
    request: dict[str, object] = {
        "http_method": record.get("method"),
        "url": {name: value for name, value in url.items() if value is not None},
    }
    for name, target in (("request_id", "uid"), ("http_version", "version"), ("req_bytes", "length")):
        if name in record:
            request[target] = record[name]
            used.add(name)
    used.update(("method", "path", "scheme"))
    out: dict[str, object] = {"http_request": request}
    if "status" in record:
        used.update(("status", "resp_bytes"))
        answer = {"code": record["status"], "length": record.get("resp_bytes")}
        out["http_response"] = {name: value for name, value in answer.items() if value is not None}
    return out


def _query(record: Record, kind: int, used: set[str]) -> Mapping[str, object]:
    if kind != _DNS:
        return {}
    used.add("qtype")
    return {"query": {"hostname": record.get("host", ""), "type": record.get("qtype", "")}}


def _rest(record: Record, _: int, used: set[str]) -> Mapping[str, object]:
    """What remains, under its own names; a duration, a count and a sentence have places of their own."""
    places = {"ms": "duration", "count": "count", "detail": "message"}
    out: dict[str, object] = {target: record[name] for name, target in places.items() if name in record}
    left = {name: value for name, value in record.items() if name not in used and name not in places}
    return {**out, "unmapped": left}


FORMATS: Mapping[str, Callable[[Iterator[Record]], Iterator[str]]] = {
    "jsonl": lambda records: (f"{compact(record)}\n" for record in records),
    "csv": csv_lines,
    "ocsf": lambda records: (f"{compact(ocsf(record))}\n" for record in records),
}
