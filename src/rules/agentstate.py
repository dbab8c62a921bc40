"""What of an agent's own files enters its jail, comes back, or waits for a word. Pure, by paths below the home alone.

A profile lists its data (sessions, history) and its configuration (what the host's agent would execute or follow). The
rest is neither taken nor kept: caches, locks, indexes that are made anew.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import takewhile

from rules.hiding import Hiding, Kind
from rules.treenames import TreePattern, union

__all__ = ["AgentState", "Data", "Merge", "StateKind", "StateRule", "entering", "project_of", "secretive"]

PROJECT = "{project}"
# Files of agents and clients that hold a login and nothing else.
_LOGINS = re.compile(
    r"\.?credentials\.(?:json|toml|db)|auth\.json|oauth_creds\.json|hosts\.yml|mcp-oauth-tokens.*\.json"
)
# In a directory that the role names anything of such a name is kept out: there is no list of what is in it.
_SECRETIVE = re.compile(r"(?i:.*(?:credential|oauth|token|secret|passw|cookie|session_?key|private_?key|keyring).*)")
_HIDING = Hiding.of((), ())


class Merge(StrEnum):
    """What may become of the host's file of that name.

    extend: what the host has stays, and what the run wrote behind it is added. append: the run's lines go behind what
    the host has by now. replace: the whole file, where the host has not changed it meanwhile.
    """

    EXTEND = "extend"
    APPEND = "append"
    REPLACE = "replace"


class AgentState(StrEnum):
    """What the jail has of the agent's own files. copy: the profile's data, which comes back; the rest as if fresh."""

    FRESH = "fresh"
    COPY = "copy"


class StateKind(StrEnum):
    """What a file of the private copy is."""

    DATA = "data"
    CONFIG = "config"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One entry: `path` is a pattern below the home, "{project}" in it the directory's name as agents spell it.

    enter: what the host has of it is copied into the jail. holds: only files whose beginning holds this text, "{cwd}"
    in it the directory as JSON has it.
    """

    path: str
    merge: Merge = Merge.EXTEND
    enter: bool = False
    holds: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRule:
    """The rule of one run: patterns with the directory filled in. `named`: directories and files of the role's own."""

    data: tuple[Data, ...]
    config: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, data: Sequence[Data], config: Sequence[str], ignore: Sequence[str], named: Sequence[str], cwd: str
    ) -> "StateRule":
        """Of a profile's lists, for a run in this directory."""
        filled = tuple(
            Data(
                path=entry.path.replace(PROJECT, project_of(cwd)),
                merge=entry.merge,
                enter=entry.enter,
                holds=entry.holds,
            )
            for entry in data
        )
        return cls(data=filled, config=tuple(config), ignore=tuple(ignore), named=tuple(named))

    def roots(self, directory: str) -> tuple[str, ...]:
        """Where in one of the copy's directories something is that enters: nothing beside is looked through."""
        if directory in self.named:
            return (directory,)
        parts = [entry.path.split("/") for entry in self.data if entry.enter]
        fixed = {"/".join(takewhile(lambda part: not set(part) & set("*?"), path[:-1])) for path in parts}
        inside = sorted(root for root in fixed if root == directory or root.startswith(f"{directory}/"))
        return tuple(r for r in inside if not any(r.startswith(f"{other}/") for other in inside))

    def kind(self, path: str) -> StateKind:
        """What a path is; configuration before data. What is named like a credential is never anything."""
        named = any(path == name or path.startswith(f"{name}/") for name in self.named)
        if secretive(path, every=named):
            return StateKind.NEITHER
        if named:
            return StateKind.CONFIG
        if _any(self.ignore, path):
            return StateKind.NEITHER
        if _any(self.config, path):
            return StateKind.CONFIG
        return StateKind.NEITHER if self.entry(path) is None else StateKind.DATA

    def entry(self, path: str) -> Data | None:
        """The data that a path belongs to."""
        return next((entry for entry in self.data if _any((entry.path,), path)), None)


def entering(rule: StateRule, path: str) -> Data | None:
    """The data entry by which a path of the host's enters the jail; None where it stays outside."""
    entry = rule.entry(path)
    return entry if entry is not None and entry.enter and rule.kind(path) is StateKind.DATA else None


def project_of(cwd: str) -> str:
    """A directory's name as agents spell it in their own: everything but letters and digits a dash."""
    return re.sub(r"[^A-Za-z0-9]", "-", cwd)


def secretive(path: str, *, every: bool) -> bool:
    """Whether a file is named like a login or a key; `every`: like anything that might hold one."""
    folder, _, name = path.rpartition("/")
    known = _LOGINS.fullmatch(name) is not None or _HIDING.file(folder, name) in (Kind.HIDDEN, Kind.UNLESS_PUBLIC)
    return known or (every and (_SECRETIVE.fullmatch(name) is not None or _HIDING.file(folder, name) is not None))


def _any(patterns: tuple[str, ...], path: str) -> bool:
    expression = _expression(patterns)
    return expression is not None and expression.fullmatch(path) is not None


@lru_cache(maxsize=64)
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return union([TreePattern.parse(text) for text in patterns])
