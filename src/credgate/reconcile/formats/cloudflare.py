"""Cloudflare: audit logs version 2, from the API or by Logpush, and version 1."""

from credgate.reconcile.model import (
    UNKNOWN,
    Event,
    Unreadable,
    number,
    path_of,
    raw,
    same_id,
    status_of,
    success,
    tag_of,
    text,
)
from credgate.reconcile.times import moment


def parse(record: object) -> tuple[Event, ...]:
    """One entry. A time (`action.time`, `ActionTimestamp`, `when`) and the kind of action are needed."""
    if text(record, "AuditLogID"):
        return (_entry(record, _LOGPUSH),)
    if raw(record, "action", "time") is not None:
        return (_entry(record, _API),)
    if raw(record, "when") is not None and text(record, "action", "type"):
        return (_entry(record, _FIRST),)
    raise Unreadable("no action with its time")


type _Paths = dict[str, tuple[str, ...]]
_API: _Paths = {
    "time": ("action", "time"), "id": ("id",), "action": ("action", "type"), "result": ("action", "result"),
    "ip": ("actor", "ip_address"), "token": ("actor", "token_id"), "raw": ("raw",), "product": ("resource", "product"),
}  # fmt: skip
_LOGPUSH: _Paths = {
    "time": ("ActionTimestamp",), "id": ("AuditLogID",), "action": ("ActionType",), "result": ("ActionResult",),
    "ip": ("ActorIPAddress",), "token": ("ActorTokenDetails", "id"), "raw": ("Raw",), "product": ("ResourceProduct",),
}  # fmt: skip
_FIRST: _Paths = {
    "time": ("when",), "id": ("id",), "action": ("action", "type"), "result": ("action", "result"),
    "ip": ("actor", "ip"), "token": ("actor", "token_id"), "raw": ("raw",), "product": ("resource", "type"),
}  # fmt: skip


def _entry(record: object, paths: _Paths) -> Event:
    # Logpush spells the inside of Raw as the API does, or in capitals
    inside = {str(key).replace("_", "").casefold(): value for key, value in _table(raw(record, *paths["raw"])).items()}
    status = status_of(number(inside, "statuscode"))
    ray = text(inside, "cfrayid").partition("-")[0]  # "-COLO" follows it in the header alone
    token = text(record, *paths["token"]) or text(record, "ActorTokenDetails", "token_id")
    return Event(
        t=moment(raw(record, *paths["time"])),
        kind="service" if text(record, "actor", "context") == "system" else "request",
        primary=text(record, *paths["id"]),
        service=text(record, *paths["product"]),
        method=text(inside, "method").upper(),
        path=path_of(str(inside.get("uri") or "")) if inside.get("uri") else "",
        action=text(record, *paths["action"]),
        status=status,
        ok=success(status) if status else _result(raw(record, *paths["result"])),
        ip=text(record, *paths["ip"]),
        tag=tag_of(str(inside.get("useragent") or "")),
        cred=token,
        ids=(same_id(ray),) if ray else (),
    )


def _table(value: object) -> dict[object, object]:
    return value if isinstance(value, dict) else {}


def _result(value: object) -> int:
    if isinstance(value, bool):
        return int(value)
    return {"success": 1, "failure": 0}.get(str(value).casefold(), UNKNOWN)
