"""What a target's record is once it is read: the one form that all formats are brought into. Pure."""

import re
from typing import NamedTuple
from urllib.parse import unquote

from credgate.errors import CredgateError
from credgate.text import escape

MAX_TEXT = 512  # characters kept of a text of a target's
MAX_PATH = 2048  # as the ledger keeps
SECOND = 1_000_000  # all times are whole microseconds since 1970, UTC: no fractions that two programs round differently
UNKNOWN = -1

# `credgate/RUN-SEQ` at the end of a User-Agent, by which a target that logs the agent names our line.
_TAG = re.compile(r"\bcredgate/([0-9A-Za-z]{1,32}-[0-9A-Za-z]{1,32})", re.ASCII)


class ReconcileError(CredgateError):
    """The reconciliation can't be done as asked."""


class Unreadable(Exception):
    """A record that can't be taken; the argument says why, in few fixed words, for they are counted."""


class Event(NamedTuple):
    """A record of a target's. A tuple: a million of them go straight into a CSV writer.

    `kind`: `request`; `session` (one record for several requests, as Squid's CONNECT); `bucket` (a count of calls in
    t..t_end); `service` (made by the target itself, no client's call). Unknown: "", 0 or -1.
    """

    t: int
    t_end: int = 0
    kind: str = "request"
    primary: str = ""  # the record's own id: by it doubled ones are known
    service: str = ""
    host: str = ""
    method: str = ""
    path: str = ""  # without query, decoded
    template: int = 0  # 1: `path` is a route template of the target's
    action: str = ""
    status: int = 0
    ok: int = UNKNOWN  # 1 success, 0 failure
    size: int = UNKNOWN  # bytes of the answer
    ip: str = ""
    tag: str = ""
    cred: str = ""  # the credential as this target names it
    category: str = ""  # of the target's: by it one sees which kinds of records an export holds at all
    n: int = 1
    ids: tuple[str, ...] = ()  # request ids that the target also sends in its answer
    given: tuple[str, ...] = ()  # ids that the client gave: idempotency key, reason, client request id


def clean(text: str, cap: int = MAX_TEXT) -> str:
    """The text in the ledger's own spelling: nothing in it acts on a terminal, a CSV reader or a browser's line."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text[:cap]
    return escape(text.replace("\\", "\\\\"))[:cap]


def path_of(target: str) -> str:
    """A request target without scheme, host and query, decoded: two spellings of one path become equal."""
    if not target.startswith("/"):
        _, found, rest = target.partition("://")
        if found:
            target = "/" + rest.partition("/")[2]
    target = target.partition("?")[0].partition("#")[0]
    return clean(unquote(target, errors="replace") if "%" in target else target, MAX_PATH)


def tag_of(agent: str) -> str:
    """Our tag in a User-Agent, "" for none; of several the last, which is ours."""
    if "credgate/" not in agent:
        return ""
    found = _TAG.findall(agent)
    return found[-1] if found else ""


def same_id(text: str) -> str:
    """An id as it is compared: targets print one id in different case."""
    return clean(text.strip(), 160).casefold()


def text(record: object, *names: str) -> str:
    """The string (or number, as a string) at a path of keys; "" where there is none."""
    for name in names:
        if not isinstance(record, dict):  # what parsers of JSON and CSV give; Mapping takes five times as long to ask
            return ""
        record = record.get(name)
    if isinstance(record, str):
        return clean(record)
    return str(record) if isinstance(record, int) and not isinstance(record, bool) else ""


def raw(record: object, *names: str) -> object:
    """Whatever is at a path of keys, None where there is nothing."""
    for name in names:
        if not isinstance(record, dict):
            return None
        record = record.get(name)
    return record


def number(record: object, *names: str, default: int = 0) -> int:
    """The whole number at a path of keys, also written as text; `default` where there is none or it is negative."""
    value = raw(record, *names)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        return default
    return value


def status_of(value: int) -> int:
    """An HTTP status, 0 for what is none."""
    return value if 100 <= value <= 599 else 0


def success(status: int) -> int:
    """Whether a status is a success: 1, 0, or unknown."""
    return UNKNOWN if not status else int(status < 400)
