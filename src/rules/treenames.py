"""Patterns of `readonly`, `hide` and `show`: names and paths below a work tree, in the spelling of a .gitignore.

A pattern without a slash (but for one at its end) means a name anywhere in the tree; one with a slash means a path from
the work tree's root. "*" and "?" stay within a name, "**" as a whole part is any number of directories; a slash at the
end means a directory alone. There is no negation: `show` takes out by name.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import normalize

from rules.problems import RulesError

__all__ = ["TreePattern", "TreePatternError", "above", "union"]

MAX_PARTS = 32
_WILD = re.compile(r"[*?]")


class TreePatternError(RulesError):
    """The text is no such pattern; `detail` and `hint` say why."""

    code = "tree_pattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePattern:
    """`regex` matches a whole relative path. `literal`: no wildcard in it. `directory`: means directories alone."""

    text: str
    parts: tuple[str, ...]
    anchored: bool
    directory: bool
    literal: bool

    @classmethod
    def parse(cls, text: str) -> "TreePattern":
        """Raises TreePatternError with the reason."""
        if text.startswith(("/", "~")):
            raise TreePatternError(f"got a whole path {text!r}", "write it relative to the work tree, as in deploy/")
        directory = text.endswith("/")
        parts = text.removesuffix("/").split("/")
        if "" in parts or "." in parts or ".." in parts:
            raise TreePatternError("got an empty part or a dot part", "write names with single slashes between")
        if len(parts) > MAX_PARTS:
            raise TreePatternError(f"got {len(parts)} parts, expected at most {MAX_PARTS}")
        if any("**" in part and part != "**" for part in parts):
            raise TreePatternError('"**" is a whole part', 'write "a/**/b", or "*" within a name')
        if all(not part.strip("*") for part in parts):
            raise TreePatternError("would mean the whole tree", "name what is meant")
        return cls(
            text=text,
            parts=tuple(parts),
            anchored=len(parts) > 1,
            directory=directory,
            literal=not _WILD.search(text),
        )

    @property
    def path(self) -> str:
        """Without the slash at the end; of a literal pattern the path from the root that it names first."""
        return "/".join(self.parts)

    def regex(self) -> str:
        """A regular expression for whole relative paths, without anchors.

        Names in a tree are a jail's. Tried in every way, "*a*a*b" takes a power of a name's length, and "**/a/**/b" one
        of the depth. Of what stands between two wildcards the first place where it fits is as good as any, and the only
        one that is tried.

        A file system keeps a name in the form that it was given: of what is not ASCII both of Unicode's are meant.
        """
        forms = (tuple(normalize(form, part) for part in self.parts) for form in _FORMS)
        return "|".join(self._regex(parts) for parts in dict.fromkeys((self.parts, *forms)))

    def _regex(self, parts: Sequence[str]) -> str:
        runs = _runs(parts)
        out = "" if self.anchored else "(?:.*/)?"
        for number, run in enumerate(runs):
            text, last = "/".join(map(_name, run)), number == len(runs) - 1
            if not number:
                out += text + ("/" if run and not last else "")
            elif not run:  # "**" at the end
                out += ".+"
            else:
                out += f"(?:[^/]+/)*?{text}" if last else f"(?>(?:[^/]+/)*?{text}/)"
        return out


def above(path: str) -> Iterator[str]:
    """The paths that a path lies below, by its spelling: of "~/a/b" "~/a" and "~"."""
    while path := path.rpartition("/")[0]:
        yield path


def _runs(parts: Sequence[str]) -> list[list[str]]:
    """The parts between each "**" and the next one; several of them in a row are as one."""
    runs: list[list[str]] = [[]]
    for number, part in enumerate(parts):
        if part != "**":
            runs[-1].append(part)
        elif not number or parts[number - 1] != "**":
            runs.append([])
    return runs


def _name(part: str) -> str:
    """One name; "*" and "?" stay within it."""
    first, *chunks = ("".join(_ONE.get(char) or re.escape(char) for char in chunk) for chunk in part.split("*"))
    if not chunks:
        return first
    return first + "".join(f"(?>[^/]*?{chunk})" for chunk in chunks[:-1] if chunk) + "[^/]*" + chunks[-1]


_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
_ONE = {"?": "[^/]"}


def union(patterns: Sequence[TreePattern]) -> re.Pattern[str] | None:
    """One expression for whole relative paths that any of them means; None where there is none."""
    return re.compile("|".join(f"(?:{p.regex()})" for p in patterns), re.DOTALL) if patterns else None
