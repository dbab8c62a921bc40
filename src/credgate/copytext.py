"""A change of a copy in words, as JSON and as a unified diff; for terminals, and names and contents are hostile."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from credgate import linediff
from credgate.beneath import Beneath
from credgate.copylook import PERMISSIONS, Change, Kind
from credgate.copystore import Entry
from credgate.text import escape

MOST = 1 << 20  # bytes of a file that is shown line by line
_LETTERS = {Kind.ADDED: "A", Kind.MODIFIED: "M", Kind.DELETED: "D", Kind.MODE: "P"}


def as_json(change: Change) -> dict[str, object]:
    """Paths as they are (lone surrogates for bytes that are no UTF-8); modes as octal text."""
    return {
        "path": change.path,
        "kind": str(change.kind),
        "before": _entry(change.before),
        "after": _entry(change.after),
        "target": change.target,
        "needs_naming": change.naming,
        "refused": change.refused,
        "conflict": change.conflict,
    }


def _entry(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    return {"type": kind(entry.mode), "mode": f"{entry.mode & PERMISSIONS:04o}", "size": entry.size}


def kind(mode: int) -> str:
    """In a word."""
    words = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return words.get(stat.S_IFMT(mode), "other")


def line(change: Change) -> str:
    """One line: letter, path, what it is, what stands against it."""
    said = [*_said(change)]
    said += [f"to be named: {change.naming}"] if change.naming else []
    said += [f"not taken over: {change.refused}"] if change.refused else []
    said += [f"conflict: {change.conflict}"] if change.conflict else []
    slash = "/" if stat.S_ISDIR((change.after or change.before or _NOTHING).mode) else ""
    return f"{_LETTERS[change.kind]} {escape(change.path)}{slash}" + (f"  ({'; '.join(said)})" if said else "")


_NOTHING = Entry(mode=0, size=0, mtime=0, ctime=0, inode=0)


def _said(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if change.target:
        yield f"link to {escape(change.target)}"
    if before is not None and after is not None and before.mode != after.mode and not change.target:
        yield f"mode {before.mode & PERMISSIONS:04o} to {after.mode & PERMISSIONS:04o}"
    if after is not None and after.mode & ~PERMISSIONS & 0o7777:
        yield "set-id and sticky bits are not taken over"


def unified(change: Change, upper: Beneath, tree: Beneath) -> Iterator[str]:
    """The lines of a text file that changed; of others their sizes. Raises OSError."""
    if change.kind is Kind.MODE or change.refused:
        return
    # against what the host has now: nothing else is kept of it
    old = _Content.of(tree, change.path, None if change.kind is Kind.ADDED else change.before)
    new = _Content.of(upper, change.path, None if change.kind is Kind.DELETED else change.after)
    if old is None or new is None or (old == new and new.size <= MOST):
        return
    if any(b"\0" in text.begin or text.size > MOST for text in (old, new)):
        yield f"  binary or large: {old.size} bytes before, {new.size} after"
        return
    before, after = (text.begin.decode(errors="backslashreplace").splitlines() for text in (old, new))
    name = escape(change.path)
    for each in linediff.unified(before, after, f"a/{name}", f"b/{name}"):
        yield each[:1] + escape(each[1:].expandtabs())


@dataclass(frozen=True, slots=True)
class _Content:
    """Of a file: how many bytes, and its beginning, at most one byte more than is shown."""

    size: int
    begin: bytes

    @classmethod
    def of(cls, place: Beneath, path: str, entry: Entry | None) -> "_Content | None":
        """None of what is no file; an empty one where nothing is to be there, or is."""
        if entry is not None and not stat.S_ISREG(entry.mode):
            return None
        facts = None if entry is None else place.facts(path)
        if facts is None or not stat.S_ISREG(facts.st_mode):
            return cls(0, b"")
        with os.fdopen(place.regular(path), "rb") as file:
            return cls(facts.st_size, file.read(MOST + 1))
