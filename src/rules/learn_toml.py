"""Proposals as text of a policy file. Whatever a jail chose stands in quotes that it can't close, or behind a "#"."""

import unicodedata
from collections.abc import Iterable, Sequence

from rules.asked import Asked, Proposal, Told

__all__ = ["document", "header", "quoted", "snippet", "told_lines", "url_of"]

SHOWN = 3  # requests that are named beside a proposal
_LONGEST = 160  # characters of one


def quoted(text: str) -> str:
    """A TOML basic string, in printable ASCII alone (TOML 1.0, "String"); half a surrogate pair is no character."""
    return '"' + "".join(map(_character, text)) + '"'


def _character(char: str) -> str:
    code = ord(char)
    if char in '"\\':
        return "\\" + char
    if " " <= char <= "~":
        return char
    if 0xD800 <= code <= 0xDFFF:
        return "\\ufffd"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _array(texts: Iterable[str]) -> str:
    return "[" + ", ".join(quoted(text) for text in texts) + "]"


def plain(text: str) -> str:
    """One line for a comment: what ends a line or is not seen is escaped, what is long is cut."""
    line = "".join(c if unicodedata.category(c)[0] not in "CZ" or c == " " else f"\\u{ord(c):04x}" for c in text)
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."


def header(proposal: Proposal) -> list[str]:
    """The table of a new endpoint."""
    lines = [f"[endpoint.{proposal.endpoint}]", f"host = {quoted(proposal.host)}"]
    if proposal.port != (443 if proposal.scheme == "https" else 80):
        lines.append(f"port = {proposal.port}")
    return lines if proposal.scheme == "https" else [*lines, "tls = false"]


def snippet(proposal: Proposal) -> list[str]:
    """The table of the rule."""
    lines = [
        f"[[endpoint.{proposal.endpoint}.allow]]",
        f"id = {quoted(proposal.id)}",
        f"methods = {_array(proposal.methods)}",
        f"paths = {_array([proposal.path])}",
        f"query = {{ allow = {_array(proposal.query)} }}",
    ]
    return [*lines, "encoded_slash = true"] if proposal.encoded_slash else lines


def document(proposals: Sequence[Proposal], numbers: Sequence[int] = ()) -> list[str]:
    """All of them as lines of a policy, each new endpoint once and before its rules; the role's list is not in it.

    `numbers`: what each is called, without them from 1.
    """
    lines: list[str] = []
    made: set[str] = set()
    for number, proposal in zip(numbers or range(1, len(proposals) + 1), proposals, strict=True):
        lines += ["", *(f"# {line}" for line in _about(number, proposal))]
        if proposal.new and proposal.endpoint not in made:
            lines += header(proposal)
            made.add(proposal.endpoint)
        lines += snippet(proposal)
    return lines


def _about(number: int, proposal: Proposal) -> list[str]:
    first = min(asked.first for asked in proposal.asked)
    last = max(asked.last for asked in proposal.asked)
    reasons = ", ".join(dict.fromkeys(asked.reason for asked in proposal.asked))
    lines = [f"{number}. asked for {times(proposal.count)} ({plain(reasons)}), {_span(first, last)}"]
    lines += [f"   {plain(url_of(asked))}" for asked in proposal.asked[:SHOWN]]
    if len(proposal.asked) > SHOWN:
        lines.append(f"   and {len(proposal.asked) - SHOWN} more")
    return [*lines, *(f"   {plain(note)}" for note in proposal.notes)]


def times(count: int) -> str:
    """A count of requests, in words."""
    return "once" if count == 1 else f"{count} times"


def _span(first: str, last: str) -> str:
    day, _, time = plain(first)[:19].partition("T")
    end = plain(last)[:19].replace(day + "T", "").replace("T", " ")
    return f"at {day} {time} UTC" if end == time else f"from {day} {time} to {end} UTC"


def url_of(asked: Asked, path: str = "") -> str:
    """METHOD SCHEME://HOST[:PORT]/PATH?NAME&NAME, as far as it is known; no value of a query."""
    port = "" if asked.port in (0, {"https": 443, "http": 80}.get(asked.scheme)) else f":{asked.port}"
    where = path or asked.path
    scheme = f"{asked.scheme}://" if asked.scheme else ""
    # a name is decoded, and a blank in it would read as the end of the URL: what is behind it is the jail's word
    names = "?" + "&".join(sorted(asked.query)).replace(" ", "%20") if asked.query else ""
    rest = where if where.startswith("/") or not where else f" {where}"
    return f"{asked.method} {scheme}{asked.host}{port}{rest}{names}".strip()


def told_lines(told: Iterable[Told]) -> list[str]:
    """One line for each, for a comment or a summary."""
    return [f"{times(each.count)} {plain(_named(each))}: {plain(each.why)}" for each in told]


def _named(told: Told) -> str:
    return f"{url_of(told.asked[0], told.path)}: {told.asked[0].reason}"
