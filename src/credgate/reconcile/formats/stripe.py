"""Stripe: Events. `request` names the call that caused one; null: Stripe did it by itself."""

from credgate.reconcile.model import Event, Unreadable, raw, same_id, text
from credgate.reconcile.times import moment


def parse(record: object) -> tuple[Event, ...]:
    """One event. `id`, `type` and `created` (seconds) are needed."""
    if not text(record, "id") or not text(record, "type"):
        raise Unreadable("no id or type")
    request = raw(record, "request")  # text alone before API version 2017-05-25
    request_id = text(record, "request") if isinstance(request, str) else text(request, "id")
    key = text(request, "idempotency_key")
    return (
        Event(
            t=moment(raw(record, "created")),
            kind="request" if request_id or key else "service",
            primary=text(record, "id"),
            service="api",
            action=text(record, "type"),
            ids=(same_id(request_id),) if request_id else (),
            given=(same_id(key),) if key else (),
        ),
    )
