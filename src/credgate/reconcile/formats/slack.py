"""Slack: the Audit Logs API of the Enterprise plan. Ordinary calls of the Web API are not in it."""

from credgate.reconcile.model import Event, Unreadable, raw, tag_of, text
from credgate.reconcile.times import moment


def parse(record: object) -> tuple[Event, ...]:
    """One entry. `action` and `date_create` (seconds) are needed."""
    if not text(record, "action"):
        raise Unreadable("no action")
    return (
        Event(
            t=moment(raw(record, "date_create")),
            primary=text(record, "id"),
            service="audit",
            action=text(record, "action"),
            ip=text(record, "context", "ip_address"),
            tag=tag_of(str(raw(record, "context", "ua") or "")),
            cred=text(record, "actor", "user", "id") or text(record, "actor", "app", "id"),
        ),
    )
