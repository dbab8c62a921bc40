"""AWS CloudTrail: event record contents, versions 1.x (log files, `lookup-events`, CloudTrail Lake rows as JSON)."""

import json

from credgate.reconcile.model import UNKNOWN, Event, Unreadable, number, path_of, raw, same_id, tag_of, text
from credgate.reconcile.times import moment

# Made by AWS itself, not by the holder of a key: userIdentity.type and eventType of the record reference.
_OWN_TYPES = frozenset({"AwsServiceEvent", "AwsCloudTrailInsight", "AwsVpceEvent"})


def parse(record: object) -> tuple[Event, ...]:
    """One event. `eventTime` (completion, whole seconds), `eventSource` and `eventName` are needed."""
    wrapped = raw(record, "CloudTrailEvent")  # lookup-events gives the event as text within
    if isinstance(wrapped, str):
        try:
            record = json.loads(wrapped)
        except (ValueError, RecursionError):
            raise Unreadable("not JSON within CloudTrailEvent") from None
    source, name = text(record, "eventSource"), text(record, "eventName")
    if not source or not name:
        raise Unreadable("no eventSource or eventName")
    event_id = text(record, "eventID")
    request_ids = (text(record, "requestID"), text(record, "additionalEventData", "x-amz-id-2"))
    return (
        Event(
            t=moment(raw(record, "eventTime")),
            kind=_kind(record),
            primary=event_id,
            service=source.removesuffix(".amazonaws.com"),
            host=path_of(text(record, "tlsDetails", "clientProvidedHostHeader")).strip("/").casefold().split(":")[0],
            action=name,
            ok=0 if text(record, "errorCode") else 1,
            size=number(record, "additionalEventData", "bytesTransferredOut", default=UNKNOWN),
            ip=text(record, "sourceIPAddress"),
            tag=tag_of(text(record, "userAgent")) or tag_of(str(raw(record, "userAgent") or "")),
            cred=text(record, "userIdentity", "accessKeyId"),
            category=text(record, "eventCategory") or ("Data" if raw(record, "managementEvent") is False else ""),
            ids=tuple(same_id(item) for item in request_ids if item),
        ),
    )


def _kind(record: object) -> str:
    invoked = text(record, "userIdentity", "invokedBy")
    # "AWS Internal" is what the user guide prints where a service acts with forwarded access
    own = invoked.endswith(".amazonaws.com") or invoked == "AWS Internal"
    by_service = text(record, "userIdentity", "type") == "AWSService" or own
    return "service" if by_service or text(record, "eventType") in _OWN_TYPES else "request"


def service_of(host: str) -> str:
    """The service that an AWS host name belongs to, as `eventSource` names it; "" for another host."""
    labels = host.removesuffix(".cn").removesuffix(".api.aws").removesuffix(".amazonaws.com").split(".")
    if len(labels) == 1 and labels[0] == host:
        return ""
    for label in labels:  # bucket.s3.region, s3-region, s3-control, s3express-zone
        if label == "s3" or label.startswith(("s3-", "s3express-")):
            return "s3"
    named = [label for label in labels if not _is_region(label) and label not in ("dualstack", "fips")]
    return named[-1].removesuffix("-fips") if named else ""


def _is_region(label: str) -> bool:
    parts = label.split("-")
    return len(parts) >= 3 and parts[-1][:1].isdigit() and parts[0].isalpha()
