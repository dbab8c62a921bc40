"""Paths: one normal form, and patterns over segments.

What is judged is what is sent: a path is never rewritten. It is taken as it is, or refused with the reason why two
servers could read it differently. Not accepted: empty and dot segments, a backslash, a semicolon (path parameters), a
fragment, escapes of characters that need none (RFC 3986 2.3: equal to the bare character, so a second spelling),
escapes of control bytes, of backslash and semicolon, of invalid UTF-8 (overlong forms), a doubly escaped character
("%25" before two hex digits), and text that NFKC folds into a separator or a dot segment. "%2f" is accepted here and
marked; only a rule with encoded_slash lets it pass. The case of hex digits does not matter: npm sends %2f, others %2F.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes

from rules.problems import PathError

__all__ = ["Ambiguity", "Path", "PathError", "PathPattern", "is_verb", "normal_form", "readings_of"]

# Matching costs segments times parts of patterns; 8 KiB of "/a" would be 4096 of them for every rule and reading.
MAX_SEGMENTS = 256
# pchar of RFC 3986 without ";", and four characters that browsers and Node send bare
_PLAIN = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,=:@/\[\]|^]|%[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_FORBIDDEN_ESCAPES = frozenset(range(0x20)) | {0x7F} | frozenset(rb"\;")
_DOUBLE = re.compile(r"%25[0-9A-Fa-f]{2}")
_FORMAT = re.compile(r"(?<=[^/])\.[a-z0-9]*\Z")
_VERB = re.compile(r"\*:[A-Za-z]+")
_HOLE = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")
_DOTS = frozenset({".", ".."})


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A path in normal form, byte for byte as it came."""

    text: str
    encoded_slash: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambiguity:
    """Why a path was not taken."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPattern:
    """`segments` of the pattern, escapes in upper case: "*" is one segment that is not empty, "**" any number.

    "/a/**" covers "/a", "/a/" and all below; "/**" covers every path. "*:verb" is a segment that ends so (Google's
    custom methods, AIP-136). `loose` are the segments as the most liberal server would read them, for deny rules.
    `holes`: the named segments and where they are, which match as "*". Built by parse.
    """

    text: str
    segments: tuple[str, ...]
    loose: tuple[str, ...]
    holes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "PathPattern":
        """Read a path of the policy file. Raises PathError, with the right spelling as its hint."""
        if not text.startswith("/"):
            raise PathError(f"path {text!r} does not start with a slash", f'write "/{text}"')
        if "?" in text:
            raise PathError(f"path {text!r} holds a query", "put the names of query parameters into query = { allow }")
        holes = _holes(text)
        written, text = text, "/".join("*" if _HOLE.fullmatch(part) else part for part in text.split("/"))
        normal = normal_form(text.encode("utf-8", "surrogatepass"))
        if isinstance(normal, Ambiguity):
            raise PathError(f"path {text!r}: {normal.why}", "write each character bare, or escaped once if it must be")
        segments = tuple(_fold(text).split("/")[1:])
        if any("*" in segment and segment not in ("*", "**") and not is_verb(segment) for segment in segments):
            raise PathError(f"path {text!r} has a wildcard inside a segment", 'use "*" for a whole segment')
        # a reading loses its last slash, so a pattern does: who closes "/a/" closes "/a", which is routed alike
        loose = tuple((unquote(text).lower().rstrip("/") or "/").split("/")[1:])
        return cls(text=written, segments=segments, loose=loose, holes=holes)

    def matches(self, path: str) -> bool:
        """Whether a path in normal form is covered."""
        return _match(self.segments, _fold(path).split("/")[1:])

    def could_mean(self, readings: Iterable[str]) -> bool:
        """Whether some server could take the path as one that is covered: `readings` of the path, for deny rules."""
        return any(_match(self.loose, reading.split("/")[1:]) for reading in readings)


def _holes(text: str) -> tuple[tuple[str, int], ...]:
    """The named segments of a pattern. Raises PathError."""
    segments = text.split("/")[1:]
    found = tuple((hole[1], i) for i, part in enumerate(segments) if (hole := _HOLE.fullmatch(part)))
    if any("{" in part or "}" in part for part in segments if not _HOLE.fullmatch(part)):
        raise PathError(
            f"path {text!r} holds a brace that names no whole segment",
            'write "/{token}/x", with the rest of the segment in the format of the binding: "bot{secret}"',
        )
    if len({name for name, _ in found}) < len(found):
        raise PathError(f"path {text!r} names two segments alike", "give each a name of its own")
    if found and "**" in segments[: found[-1][1]]:
        raise PathError(f'path {text!r} names a segment behind "**"', "name the segments before it one by one")
    return found


def normal_form(raw: bytes) -> Path | Ambiguity:
    """Take a path (without query) as it came over the wire, or say why not."""
    if not raw.startswith(b"/"):
        return Ambiguity(why="a path starts with a slash")
    if not _PLAIN.fullmatch(raw):
        return Ambiguity(why="a character or an escape that does not belong into a path")
    if raw.count(b"/") > MAX_SEGMENTS:
        return Ambiguity(why=f"more than {MAX_SEGMENTS} segments")
    text = raw.decode("ascii")
    why = _why_not(text)
    return Ambiguity(why=why) if why else Path(text=text, encoded_slash="%2f" in text.lower())


def _why_not(text: str) -> str:
    escaped = {int(escape[1:], 16) for escape in _ESCAPE.findall(text)}
    if escaped & _UNRESERVED:
        return "an escape of a character that needs none"
    if escaped & _FORBIDDEN_ESCAPES:
        return "an escape of a control character, a backslash or a semicolon"
    if _DOUBLE.search(text):
        return "a character escaped twice"
    try:
        decoded = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        return "escapes that are not utf-8"
    if _bad_segments(decoded):
        return "an empty segment or a dot segment"
    return _why_not_folded(decoded)


def _why_not_folded(decoded: str) -> str:
    if decoded.isascii():
        return ""
    folded = unicodedata.normalize("NFKC", decoded)
    grown = any(folded.count(mark) > decoded.count(mark) for mark in "/\\%")
    return "a character that folds into a separator" if grown or _bad_segments(folded) else ""


def _bad_segments(text: str) -> bool:
    segments = text.split("/")[1:]
    return "" in segments[:-1] or not _DOTS.isdisjoint(segments)


def _fold(path: str) -> str:
    return path if "%" not in path else _ESCAPE.sub(lambda escape: escape[0].upper(), path)


def readings_of(path: str) -> frozenset[str]:
    """The ways in which servers could read a path in normal form.

    Escapes decoded, cut at a decoded "?" or "#", without regard to case, to white space around a segment, to a last
    slash and to a format behind the last dot (frameworks route "/keys.json" as "/keys").
    """
    readings = {path.lower()}
    if "%" in path:
        decoded = unquote(path).lower()
        readings |= {decoded, re.split(r"[?#]", decoded, maxsplit=1)[0]}
        readings |= {"/".join(segment.strip() for segment in reading.split("/")) for reading in readings}
    readings |= {reading.rstrip("/") or "/" for reading in readings}
    return frozenset(readings | {_FORMAT.sub("", reading) for reading in readings})


def _match(pattern: tuple[str, ...], path: list[str]) -> bool:
    """Set of positions instead of recursion: a pattern of many "**" stays linear in pattern times path."""
    at = {0}
    for part in pattern:
        if part == "**":
            at = set(range(min(at), len(path) + 1))
        else:
            at = {i + 1 for i in at if i < len(path) and _is_one(part, path[i])}
        if not at:
            return False
    return len(path) in at


def _is_one(part: str, segment: str) -> bool:
    if part == segment or (part == "*" and segment != ""):
        return True
    return part.startswith("*:") and segment.endswith(part[1:]) and len(segment) >= len(part)


def is_verb(segment: str) -> bool:
    """Whether a segment of a pattern is "*:verb"."""
    return _VERB.fullmatch(segment) is not None
