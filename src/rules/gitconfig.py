"""What a git configuration has git execute, or read as more configuration. Pure; the bytes may be anybody's.

Only as much of git-config(1)'s syntax as finds values: what git itself would refuse to read ends the parse, since then
git executes nothing of it either.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Led", "led", "parse"]

MAX_BYTES = 1 << 20
MAX_ENTRIES = 10_000
_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_KEY = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(=|$)")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}

# Keys whose value is a command, by section and key; of the two wildcards one stands for a subsection, git-config(1).
_COMMANDS = re.compile(
    r"core\.(?:fsmonitor|editor|pager|sshcommand|askpass|gitproxy|alternaterefscommand)|sequence\.editor"
    r"|alias\.[^.]+|pager\.[^.]+|credential(?:\..*)?\.helper|filter\..*\.(?:clean|smudge|process)"
    r"|diff\.external|diff\..*\.(?:command|textconv)|merge\..*\.driver|(?:merge|diff|gui)tool\..*\.(?:cmd|path)"
    r"|gpg\.program|gpg\..*\.program|gpg\.ssh\.defaultkeycommand|interactive\.difffilter|web\.browser"
    r"|(?:browser|man)\..*\.(?:cmd|path)|trailer\..*\.(?:command|cmd)|submodule\..*\.update|hook\..*\.command"
    r"|remote\..*\.(?:uploadpack|receivepack|vcs)|uploadpack\.packobjectshook|gc\.recentobjectshook|sendemail\..*cmd",
    re.DOTALL,
)
_INCLUDES = re.compile(r"include\.path|includeif\..*\.path", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """hooks: values of core.hooksPath. includes: files read as configuration. words: words of commands."""

    hooks: tuple[str, ...]
    includes: tuple[str, ...]
    words: tuple[str, ...]


def led(data: bytes) -> Led:
    """What the configuration in `data` leads git to, as it is spelled there."""
    entries = list(parse(data))
    return Led(
        hooks=tuple(value for key, value in entries if key == "core.hookspath"),
        includes=tuple(value for key, value in entries if _INCLUDES.fullmatch(key)),
        words=tuple(word for key, value in entries if _COMMANDS.fullmatch(key) for word in _words(value)),
    )


def _words(command: str) -> Iterator[str]:
    for word in re.split(r"[\s;|&<>()\"'`]+", command.removeprefix("!")):
        if word and not word.startswith("-"):
            yield word


def parse(data: bytes) -> Iterator[tuple[str, str]]:
    """Keys ("section.subsection.key", section and key in lower case) with their values, in the file's order.

    Ends at the first line that git would refuse, and after MAX_BYTES.
    """
    text = data[:MAX_BYTES].decode(errors="surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    section = ""
    for number, whole in enumerate(_lines(text)):
        line = whole
        if number >= MAX_ENTRIES:
            return
        head = _SECTION.match(line)
        if head:
            quoted = "" if head[2] is None else "." + re.sub(r"\\(.)", r"\1", head[2])
            section = head[1].lower() + quoted
            line = line[head.end() :]
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        found = _KEY.match(line)
        if not section or not found:
            return
        yield f"{section}.{found[1].lower()}", _value(line[found.end() :]) if found[2] else "true"


def _lines(text: str) -> Iterator[str]:
    """Lines, those joined that end in a backslash."""
    kept = ""
    for line in text.split("\n"):
        if line.endswith("\\") and not line.endswith("\\\\"):
            kept += line[:-1]
            continue
        yield kept + line
        kept = ""
    if kept:
        yield kept


def _value(text: str) -> str:
    """A value without its comment, quotes and escapes; blanks inside are kept, those around it not."""
    out, quoted, at = "", False, 0
    text = text.strip()
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            out += _ESCAPES.get(text[at], text[at])
        elif char == '"':
            quoted = not quoted
        elif char in "#;" and not quoted:
            break
        else:
            out += char
        at += 1
    return out.rstrip() if not quoted else out
