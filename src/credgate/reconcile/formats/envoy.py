"""Envoy: its default access log line, or JSON with the names that the documentation's examples and Istio use."""

import json

from credgate.reconcile.formats.tokens import decode, fields, request_line, whole
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


def parse(line: object) -> tuple[Event, ...]:
    """One line: [start] "METHOD path protocol" code flags received sent ms ... "xff" "agent" "id" "authority" ..."""
    given = decode(line)
    if given.startswith("{"):
        return (_from_json(given),)
    found = fields(given)
    quoted = [field.text for field in found if field.mark == '"']
    if len(found) < 13 or found[0].mark != "[" or found[1].mark != '"' or len(quoted) < 5:
        raise Unreadable("not Envoy's default line")
    method, target = request_line(found[1].text)
    # behind the request line come, among the quoted, sometimes failure reasons: the four before the upstream are fixed
    forwarded, agent, request_id, authority = quoted[-5:-1]
    numbers = [whole(field.text, UNKNOWN) for field in found[2:] if not field.mark]
    start = moment(found[0].text)
    return (
        _event(
            start,
            method=method,
            target=target,
            status=whole(found[2].text, 0),
            size=numbers[3] if len(numbers) > 3 else UNKNOWN,
            lasted=numbers[4] if len(numbers) > 4 else 0,
            ip=forwarded,
            agent=agent,
            request_id=request_id,
            authority=authority,
        ),
    )


def _from_json(given: str) -> Event:
    try:
        record = json.loads(given)
    except (ValueError, RecursionError):
        raise Unreadable("not JSON") from None
    start = moment(raw(record, "start_time"))
    return _event(
        start,
        method=text(record, "method"),
        target=str(raw(record, "path") or ""),
        status=number(record, "response_code"),
        size=number(record, "bytes_sent", default=UNKNOWN),
        lasted=number(record, "duration"),
        ip=text(record, "x_forwarded_for") or text(record, "downstream_remote_address"),
        agent=str(raw(record, "user_agent") or ""),
        request_id=text(record, "request_id") or text(record, "x_request_id"),
        authority=text(record, "authority"),
    )


def _event(  # noqa: PLR0913  the fields of one line
    start: int,
    *,
    method: str,
    target: str,
    status: int,
    size: int,
    lasted: int,
    ip: str,
    agent: str,
    request_id: str,
    authority: str,
) -> Event:
    if not method:
        raise Unreadable("no method")
    known = status_of(status)
    return Event(
        t=start,
        t_end=start + max(0, lasted) * 1000,
        service="http",
        host="" if authority == "-" else clean(authority).casefold().partition(":")[0],
        method=method.upper(),
        path=path_of(target),
        status=known,
        ok=success(known),
        size=size,
        ip="" if ip == "-" else clean(ip).partition(",")[0],
        tag=tag_of(agent),
        ids=(same_id(request_id),) if request_id not in ("", "-") else (),
    )
