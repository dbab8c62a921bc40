"""Okta: the System Log. A call by an API token names it in `transaction.detail.requestApiTokenId`."""

from credgate.reconcile.model import UNKNOWN, Event, Unreadable, path_of, raw, same_id, tag_of, text
from credgate.reconcile.times import moment

_RESULTS = {"SUCCESS": 1, "ALLOW": 1, "FAILURE": 0, "DENY": 0}


def parse(record: object) -> tuple[Event, ...]:
    """One event. `eventType` and `published` are needed."""
    if not text(record, "eventType"):
        raise Unreadable("no eventType")
    debug = raw(record, "debugContext", "debugData")
    uri = raw(debug, "requestUri")
    # the transaction is the request's own id where its type is WEB; a JOB has one of its own
    ids = {same_id(text(debug, "requestId")), same_id(text(record, "transaction", "id"))} - {""}
    return (
        Event(
            t=moment(raw(record, "published")),
            kind="service" if text(record, "transaction", "type") == "JOB" else "request",
            primary=text(record, "uuid"),
            service="api",
            path=path_of(uri) if isinstance(uri, str) else "",
            action=text(record, "eventType"),
            ok=_RESULTS.get(text(record, "outcome", "result"), UNKNOWN),
            ip=text(record, "client", "ipAddress"),
            tag=tag_of(str(raw(record, "client", "userAgent", "rawUserAgent") or "")),
            cred=text(record, "transaction", "detail", "requestApiTokenId") or text(record, "actor", "id"),
            ids=tuple(sorted(ids)),
        ),
    )
