"""GitHub: the enterprise audit log, streamed or exported. Its `api.request` events are the calls of the API."""

from credgate.reconcile.model import Event, Unreadable, number, path_of, raw, same_id, status_of, success, tag_of, text
from credgate.reconcile.times import moment


def parse(record: object) -> tuple[Event, ...]:
    """One event. `action` and `@timestamp` or `created_at` (milliseconds, or RFC 3339) are needed."""
    action = text(record, "action")
    if not action:
        raise Unreadable("no action")
    stamp = raw(record, "@timestamp")
    status = status_of(number(record, "status_code"))
    route = str(raw(record, "route") or "")
    path = str(raw(record, "url_path") or raw(record, "request_path") or "")
    request_id = text(record, "request_id")
    return (
        Event(
            t=moment(raw(record, "created_at") if stamp is None else stamp),
            primary=text(record, "_document_id"),
            service="git" if action.startswith("git.") else "api",
            method=text(record, "request_method").upper(),
            path=path_of(path or route),
            template=int(bool(route) and not path),
            action=action,
            status=status,
            ok=success(status),
            ip=text(record, "actor_ip"),
            tag=tag_of(str(raw(record, "user_agent") or "")),
            cred=text(record, "hashed_token"),  # base64 of the token's SHA-256
            category=action,
            ids=(same_id(request_id),) if request_id else (),
        ),
    )
