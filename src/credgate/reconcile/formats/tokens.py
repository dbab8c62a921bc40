"""A log line of blank-separated fields, some in quotes or brackets, to its fields. Linear in the line's length."""

import re
from typing import NamedTuple

from credgate.reconcile.model import Unreadable, clean

_FIELD = re.compile(
    r"""[ \t]*(?:
    "((?:[^"\\]|\\.|"(?![ \t]|$))*)"(?=[ \t]|$)  # in quotes; a lone quote within ends nothing
    | \[([^\]]*)\](?=[ \t]|$)
    | ([^ \t]+)
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|([\"\\tnrbv]))")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "v": "\v"}
MAX_LINE = 256 * 1024
# Time and request line, as a record of a server's begins. A client's own text can't hold it: servers escape its quotes.
_BEGINS = re.compile(
    r'\[(?:\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}|\d{4}-\d\d-\d\dT[^\]]{8,30})\] "[A-Z-]', re.ASCII
)
GLUED = "two records in one line"


class Field(NamedTuple):
    """One field: its text, and what stood around it: `"`, `[` or nothing."""

    text: str
    mark: str


def decode(line: object) -> str:
    """The line's text. Log writers escape what isn't UTF-8; where one didn't, the byte shows as it is."""
    if not isinstance(line, bytes):
        raise Unreadable("not a line")
    if len(line) > MAX_LINE:
        raise Unreadable("line too long")
    return line.decode("utf-8", "backslashreplace")


def fields(line: str) -> list[Field]:
    """The fields of a line. Raises Unreadable where a quote or bracket isn't closed, and for two records."""
    if line.count('] "') > 1 and len(_BEGINS.findall(line)) > 1:  # torn as it was written, or its end was lost
        raise Unreadable(GLUED)
    return _plain(line) or _any(line)


def _plain(line: str) -> list[Field] | None:
    """The fields of a line as nearly all are, by splitting alone; None for one with escapes, tabs or odd quotes."""
    if "\\" in line or "\t" in line or line[-1:] == " ":
        return None
    parts = line.split('"')
    if not len(parts) & 1:
        return None
    found: list[Field] = []
    last = len(parts) - 1
    for at, part in enumerate(parts):
        if at & 1:
            found.append(Field(part, '"'))
        elif (
            (at and part and part[0] != " ")
            or (at != last and part and part[-1] != " ")
            or (not part and 0 < at < last)
        ):
            return None  # a quote within a field
        elif "[" not in part:
            found += [Field(word, "") for word in part.split(" ") if word]
        elif not _bracketed(part, found):
            return None
    return found


def _bracketed(part: str, found: list[Field]) -> bool:
    """Add the fields of a stretch with one field in brackets; False where it isn't that simple."""
    before, _, rest = part.partition("[")
    inside, closed, after = rest.partition("]")
    if not closed or (before and before[-1] != " ") or (after and after[0] != " ") or "[" in after:
        return False
    found += [Field(word, "") for word in before.split(" ") if word]
    found.append(Field(inside, "["))
    found += [Field(word, "") for word in after.split(" ") if word]
    return True


def _any(line: str) -> list[Field]:
    found: list[Field] = []
    at, end = 0, len(line)
    while at < end:
        match = _FIELD.match(line, at)
        if match is None:
            raise Unreadable("fields not understood")
        quoted, bracketed, plain = match.groups()
        if quoted is not None:
            found.append(Field(quoted, '"'))
        elif bracketed is not None:
            found.append(Field(bracketed, "["))
        elif plain[0] in '"[':
            raise Unreadable("a quote or bracket is not closed")
        else:
            found.append(Field(plain, ""))
        at = match.end()
    return found


def unescape(text: str) -> str:
    r"""Take back what nginx (`\x22`) and Apache (`\"`, `\xhh`, `\n`) write for bytes that would break the line."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _CONTROLS.get(match[2], match[2]), text)
    try:
        return plain.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return plain


def request_line(text: str) -> tuple[str, str]:
    """Method and target of `GET /path HTTP/1.1`; two empty texts for what is none, as a handshake on a plain port."""
    parts = unescape(text).split(" ")
    if len(parts) >= 2 and parts[0].isascii() and parts[0].isalpha() and len(parts[0]) <= 32:
        target = " ".join(parts[1:-1]) if len(parts) > 2 and parts[-1].startswith("HTTP/") else " ".join(parts[1:])
        return clean(parts[0]).upper(), target
    return "", ""


def whole(text: str, default: int) -> int:
    """A whole number, `default` for a dash or anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default
