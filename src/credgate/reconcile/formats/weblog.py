"""nginx and Apache httpd: the Common and Combined Log Format, with more fields behind, or a virtual host before."""

import re

from credgate.reconcile.formats.tokens import Field, decode, fields, request_line, unescape, whole
from credgate.reconcile.model import Event, Unreadable, clean, path_of, same_id, status_of, success, tag_of
from credgate.reconcile.times import clf

# $request_id of nginx, mod_unique_id, or an X-Request-Id that the owner logs behind the agent
_ID = re.compile(r"[0-9A-Za-z_@-]{16,64}", re.ASCII)


def parse(line: object) -> tuple[Event, ...]:
    """One line: address, identity, user, [time], "request", status, bytes, then "referer" and "agent"."""
    found = fields(decode(line))
    shift = next((at for at, field in enumerate(found[:6]) if field.mark == "["), 0) - 3
    if shift not in (0, 1) or len(found) < 7 + shift or found[4 + shift].mark != '"':
        raise Unreadable("not a common or combined line")
    host = found[0].text.rpartition(":")[0] or found[0].text if shift else ""
    address, _, user, when, request, status_text, size, *rest = found[shift:]
    status = status_of(whole(status_text.text, 0))
    if not status:
        raise Unreadable("no status")
    method, target = request_line(request.text)
    return (
        Event(
            t=clf(when.text),
            service="http",
            host=clean(host).casefold(),
            method=method,
            path=path_of(target) if target else "",
            status=status,
            ok=success(status),
            size=whole(size.text, 0),  # Apache writes a dash for none
            ip=clean(address.text),
            tag=tag_of(unescape(rest[1].text)) if len(rest) > 1 else "",
            cred="" if user.text == "-" else clean(unescape(user.text)),
            ids=_ids(rest[2:]),
        ),
    )


def _ids(more: list[Field]) -> tuple[str, ...]:
    return tuple(same_id(field.text) for field in more if _ID.fullmatch(field.text))
