"""Google Cloud: LogEntry with an AuditLog (also as BigQuery exports it), and load-balancer requests."""

from credgate.reconcile.model import (
    UNKNOWN,
    Event,
    Unreadable,
    clean,
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
    """One entry. `timestamp` and an audit payload or an `httpRequest` are needed."""
    payload = raw(record, "protoPayload") or raw(record, "protopayload_auditlog")
    if payload:
        return (_audit(record, payload),)
    if raw(record, "httpRequest"):
        return (_http(record),)
    raise Unreadable("neither an audit payload nor a request")


def _primary(record: object) -> str:
    # insertId is unique together with timestamp and log name
    parts = [text(record, name) for name in ("logName", "timestamp", "insertId")]
    return same_id("/".join(parts)) if parts[2] else ""


def _audit(record: object, payload: object) -> Event:
    service, method = text(payload, "serviceName"), text(payload, "methodName")
    if not service or not method:
        raise Unreadable("no serviceName or methodName")
    about = raw(payload, "requestMetadata")
    stamp = raw(about, "requestAttributes", "time")
    reason = text(about, "requestAttributes", "reason")
    category = text(record, "logName").rpartition("%2F")[2]
    who = text(payload, "authenticationInfo", "serviceAccountKeyName")
    code = raw(payload, "status", "code")
    return Event(
        t=moment(raw(record, "timestamp") if stamp is None else stamp),
        kind="service" if category == "system_event" else "request",
        primary=_primary(record),
        service=service,
        host=service.casefold(),
        action=method,
        ok=0 if isinstance(code, int) and code else 1,
        ip=text(about, "callerIp"),
        tag=tag_of(str(raw(about, "callerSuppliedUserAgent") or "")),
        cred=who.rpartition("/")[2] or text(payload, "authenticationInfo", "principalEmail"),
        category=category,
        given=(same_id(reason),) if reason else (),
    )


def _http(record: object) -> Event:
    request = raw(record, "httpRequest")
    status = status_of(number(request, "status"))
    url = str(raw(request, "requestUrl") or "")
    trace = text(record, "trace").rpartition("/")[2]
    return Event(
        t=moment(raw(record, "timestamp")),
        primary=_primary(record),
        service="http",
        host=clean(url.partition("://")[2].partition("/")[0].partition(":")[0]).casefold(),
        method=text(request, "requestMethod").upper(),
        path=path_of(url),
        status=status,
        ok=success(status),
        size=number(request, "responseSize", default=UNKNOWN),
        ip=text(request, "remoteIp"),
        tag=tag_of(str(raw(request, "userAgent") or "")),
        category="requests",
        ids=(same_id(trace),) if trace else (),
    )
