"""GitLab: `api_json.log` and `production_json.log` of an own instance, and streamed audit events."""

from credgate.reconcile.model import Event, Unreadable, number, path_of, raw, same_id, status_of, success, tag_of, text
from credgate.reconcile.times import moment


def parse(record: object) -> tuple[Event, ...]:
    """One line or event. `time` with `method`, or `created_at` with `event_type` or `details`, are needed."""
    if raw(record, "time") is not None and text(record, "method"):
        return (_request(record),)
    if raw(record, "created_at") is not None and (text(record, "event_type") or raw(record, "details")):
        return (_audit(record),)
    raise Unreadable("neither a request nor an audit event")


def _request(record: object) -> Event:
    status = status_of(number(record, "status"))
    duration = raw(record, "duration_s")
    end = moment(raw(record, "time"))  # written when the request is over
    lasted = int(float(duration) * 1_000_000) if isinstance(duration, (int, float)) and 0 <= duration < 86400 else 0
    correlation = text(record, "correlation_id")
    return Event(
        t=end - lasted,
        t_end=end,
        service="api",
        host=text(record, "host").casefold(),
        method=text(record, "method").upper(),
        path=path_of(str(raw(record, "path") or "")),
        action=text(record, "route"),
        status=status,
        ok=success(status),
        ip=text(record, "remote_ip"),
        tag=tag_of(str(raw(record, "ua") or "")),
        cred=text(record, "token_id") or text(record, "meta.token_id"),
        category="request",
        ids=(same_id(correlation),) if correlation else (),
    )


def _audit(record: object) -> Event:
    correlation = text(record, "details", "correlation_id") or text(record, "correlation_id")
    return Event(
        t=moment(raw(record, "created_at")),
        primary=text(record, "id"),
        service="audit",
        action=text(record, "event_type") or text(record, "details", "custom_message"),
        ip=text(record, "ip_address") or text(record, "details", "ip_address"),
        cred=text(record, "details", "token_id"),
        category="audit",
        ids=(same_id(correlation),) if correlation else (),
    )
