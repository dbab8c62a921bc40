"""Squid: its native access.log: end time, elapsed ms, client, result/status, bytes, method, URL, user, peer, type."""

import re

from credgate.reconcile.formats.tokens import GLUED, decode, unescape, whole
from credgate.reconcile.model import Event, Unreadable, clean, path_of, status_of, success
from credgate.reconcile.times import moment

_RESULT = re.compile(r"[A-Za-z_]+/\d{3}", re.ASCII)
_ANOTHER = re.compile(r"[A-Z]+(?:_[A-Z]+)+/\d{3}", re.ASCII)


def parse(line: object) -> tuple[Event, ...]:
    """One line. A CONNECT is a session: many requests pass in it, and the log names none of them."""
    found = decode(line).split()
    if len(found) < 9 or not _RESULT.fullmatch(found[3]):
        raise Unreadable("not Squid's native line")
    if any(_ANOTHER.fullmatch(word) for word in found[5:]):  # torn as it was written, or its end was lost
        raise Unreadable(GLUED)
    stamp, elapsed, address, result, size, method, url, user = found[:8]
    end = moment(stamp)
    status = status_of(whole(result.rpartition("/")[2], 0))
    connect = method == "CONNECT"
    host = url if connect else url.partition("://")[2].partition("/")[0]
    return (
        Event(
            t=end - whole(elapsed, 0) * 1000,
            t_end=end,
            kind="session" if connect else "request",
            service="http",
            host=clean(host).casefold().rpartition("@")[2].partition(":")[0],
            method=clean(method).upper(),
            path="" if connect else path_of(url),
            action=clean(result),
            status=status,
            ok=success(status),
            size=whole(size, 0),
            ip=clean(address),
            cred="" if user == "-" else clean(unescape(user)),
        ),
    )
