"""Which segments of a path are ids, and the patterns of paths that differ in ids alone.

An id becomes "*" only where several differ in that place: one that was asked for once stays as it is. Never "**".
"""

import re
from collections.abc import Iterable

__all__ = ["is_id", "patterns"]

_NUMBER = re.compile(r"[0-9]+")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_HEX = re.compile(r"(?=[a-fA-F]*[0-9])(?:[0-9a-f]{7,}|[0-9A-F]{7,})", re.ASCII)  # git shows seven digits of a hash
_FORMAT = re.compile(r"\.[a-z]{2,5}\Z")  # "/orders/17.json"
_PARTS = re.compile(r"[-_.~]")
_OPAQUE = 12  # characters of a part that no word with a number behind it has: "req_011CSHoEeqs5", not "claude-3-5"
_SEGMENTS = 32  # of a path in which ids are looked for; 1000 fit into a path that the ledger keeps
_RANDOM = 20  # of one in which separators are part of the alphabet (base64url)


def is_id(segment: str) -> bool:
    """Whether a segment names one of many things: a number, a UUID, a hash, or a long word without meaning."""
    bare = _FORMAT.sub("", segment)
    if _NUMBER.fullmatch(bare) or _UUID.fullmatch(bare) or _HEX.fullmatch(bare):
        return True
    if any(len(part) >= _OPAQUE and _mixed(part) for part in _PARTS.split(bare)):
        return True
    cases = any(c.islower() for c in bare) and any(c.isupper() for c in bare)
    return len(bare) >= _RANDOM and cases and _mixed(bare) and _PARTS.sub("", bare).isalnum()


def _mixed(text: str) -> bool:
    """Two digits and two letters, and nothing else but what separates parts."""
    letters, digits = sum(c.isalpha() for c in text), sum(c.isdigit() for c in text)
    return letters >= 2 and digits >= 2 and letters + digits + len(_PARTS.findall(text)) == len(text)


def patterns(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group paths in normal form by the pattern that covers them: one of their own, but for ids that differ.

    A path with "%2f" stays alone: a "*" of a rule that lets it pass would cover such a segment too. One of ids alone
    does as well, for its pattern would say nothing, and one of very many segments. Paths that hold "*" are the caller's
    to leave out.
    """
    shapes: dict[tuple[str | None, ...], list[str]] = {}
    for path in dict.fromkeys(paths):
        segments = path.split("/")[1:]
        shape: tuple[str | None, ...] = tuple(segments)
        if "%" not in path and len(segments) <= _SEGMENTS:
            found = tuple(None if is_id(segment) else segment for segment in segments)
            shape = found if any(found) else shape
        shapes.setdefault(shape, []).append(path)
    return {_pattern(shape, alike): tuple(alike) for shape, alike in shapes.items()}


def _pattern(shape: tuple[str | None, ...], paths: list[str]) -> str:
    columns = zip(*(path.split("/")[1:] for path in paths), strict=True)
    found = [values[0] if len(set(values)) == 1 else "*" for values in columns]
    return "/" + "/".join(part if fixed is None else fixed for fixed, part in zip(shape, found, strict=True))
