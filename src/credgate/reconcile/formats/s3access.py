"""Amazon S3 server access logs: blank-separated lines, or the JSON that goes to CloudWatch Logs.

Fields in their order: owner, bucket, [time of receipt], address, requester, request id, operation, key, "request line",
status, error, bytes sent, object size, total ms, turn-around ms, "referer", "agent", version, host id, signature,
cipher, authentication, host, TLS version, access point, ACL, region. Later fields may be added or absent.
"""

import json

from credgate.reconcile.formats.tokens import decode, fields, request_line, unescape, whole
from credgate.reconcile.model import Event, Unreadable, clean, path_of, raw, same_id, status_of, success, tag_of
from credgate.reconcile.times import clf, moment

_NAMES = (
    "bucket_owner", "bucket_name", "request_time", "remote_ip", "requester", "request_id", "operation", "key",
    "request_uri", "http_status", "error_code", "bytes_sent", "object_size", "total_time", "turn_around_time",
    "referer", "user_agent", "version_id", "host_id", "signature_version", "cipher_suite", "authentication_type",
    "host_header",
)  # fmt: skip
_LEAST = 10  # fields up to the status


def parse(line: object) -> tuple[Event, ...]:
    """One line. Time, request id and operation are needed."""
    given = decode(line)
    if given.startswith("{"):
        return (_event(*_from_json(given)),)
    found = fields(given)
    if len(found) < _LEAST or found[2].mark != "[":
        raise Unreadable("not an S3 access log line")
    values = {name: field.text for name, field in zip(_NAMES, found, strict=False) if field.text != "-"}
    return (_event(clf(found[2].text), values),)


def _from_json(given: str) -> tuple[int, dict[str, str]]:
    try:
        record = json.loads(given)
    except (ValueError, RecursionError):
        raise Unreadable("not JSON") from None
    values = {name: str(raw(record, name)) for name in _NAMES if raw(record, name) not in (None, "-", "")}
    return moment(raw(record, "request_time")), values


def _event(t: int, values: dict[str, str]) -> Event:
    request_id, operation = values.get("request_id", ""), values.get("operation", "")
    if not request_id or not operation:
        raise Unreadable("no request id or operation")
    method, target = request_line(values.get("request_uri", ""))
    status = status_of(whole(values.get("http_status", ""), 0))
    ids = [request_id, values.get("host_id", "")]
    return Event(
        t=t,
        t_end=t + whole(values.get("total_time", ""), 0) * 1000,
        # S3.EXPIRE.OBJECT and the like are the lifecycle's own
        kind="service" if operation.startswith("S3.") else "request",
        primary=same_id("/".join((request_id, operation, values.get("key", "")))),
        service="s3",
        host=clean(values.get("host_header", "")).casefold(),
        method=method,
        # a batch has a line an object, and no request line
        path=path_of(target or "/" + values["key"]) if target or "key" in values else "",
        action=clean(operation),
        status=status,
        ok=success(status),
        size=whole(values.get("bytes_sent", ""), 0),
        ip=clean(values.get("remote_ip", "")),
        tag=tag_of(unescape(values.get("user_agent", ""))),
        cred=clean(values.get("requester", "")),
        category="BATCH" if operation.startswith("BATCH.") else "REST",
        ids=tuple(same_id(item) for item in ids if item),
    )
