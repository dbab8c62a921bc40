"""Azure: the Activity Log, as the API and CLI give it or as it goes to storage and event hubs. Reads are not in it."""

from credgate.reconcile.model import UNKNOWN, Event, Unreadable, path_of, raw, same_id, text
from credgate.reconcile.times import moment

_RESULTS = {"success": 1, "succeeded": 1, "accept": 1, "accepted": 1, "failure": 0, "failed": 0}
_OWN = frozenset({"servicehealth", "resourcehealth", "autoscale", "recommendation", "alert"})


def parse(record: object) -> tuple[Event, ...]:
    """One event. `time` or `eventTimestamp`, and `operationName`, are needed."""
    action = _name(record, "operationName")
    if not action:
        raise Unreadable("no operationName")
    stamp = raw(record, "time")
    t = moment(raw(record, "eventTimestamp") if stamp is None else stamp)
    result = _name(record, "resultType") or _name(record, "status")
    correlation = text(record, "correlationId")
    given = text(record, "httpRequest", "clientRequestId") or text(record, "properties", "clientRequestId")
    uri = raw(record, "httpRequest", "uri")
    claims = raw(record, "identity", "claims") or raw(record, "claims")
    # one request has several events: start, accept, end
    parts = (str(t), correlation, action, result, text(record, "resourceId"), text(record, "operationId"))
    return (
        Event(
            t=t,
            kind="service" if _name(record, "category").casefold() in _OWN else "request",
            primary=text(record, "eventDataId") or same_id("/".join(parts)),
            service="management",
            method=text(record, "httpRequest", "method").upper(),
            path=path_of(uri) if isinstance(uri, str) else "",
            action=f"{action} {result}".strip(),
            ok=_RESULTS.get(result.casefold(), UNKNOWN),
            ip=text(record, "callerIpAddress") or text(record, "httpRequest", "clientIpAddress"),
            cred=text(claims, "appid"),
            ids=(same_id(correlation),) if correlation else (),
            given=(same_id(given),) if given else (),
        ),
    )


def _name(record: object, key: str) -> str:
    """A text, or the `value` of a localisable one."""
    return text(record, key) or text(record, key, "value")
