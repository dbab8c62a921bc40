"""Shipped packs: text in, deny rules out. A pack says where each of its facts comes from.

A pack is data that we ship, so a fault in one is our own and raises PackError instead of a problem of the user's file.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache

from rules.paths import PathPattern
from rules.policy import DenyRule
from rules.problems import PathError, RulesError
from rules.tables import Report, Table, is_name

type Packs = Mapping[str, str]

KEYS = ("pack", "suffixes", "deny")
DENY_KEYS = ("id", "methods", "paths", "source")
_MEND = "reinstall credgate"


class PackError(RulesError):
    """A shipped pack is broken: `detail` lists its faults."""

    code = "pack_broken"


@lru_cache(maxsize=32)
def pack_rules(name: str, text: str) -> tuple[DenyRule, ...]:
    """Return the deny rules of one pack, each path with each suffix of the pack.

    The suffixes are endings that the target's router takes for the same route (".json").
    Raises PackError where the text isn't a pack of that name.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise PackError(f"pack {name}: {fault}", _MEND) from fault
    report = Report()
    table = Table(raw, "", report, known=frozenset(KEYS), later=frozenset())
    if table.text("pack", required=True) != name:
        table.fault("pack", f"expected {name}")
    suffixes = ("", *table.texts("suffixes"))
    try:
        rules = tuple(_rule(name, deny, suffixes) for deny in table.tables("deny", known=DENY_KEYS))
    except PathError as fault:
        raise PackError(f"pack {name}: {fault.detail}", _MEND) from fault
    if report.problems or not rules:
        raise PackError(f"pack {name}: " + "; ".join(f"{p.where}: {p.message}" for p in report.problems), _MEND)
    return rules


def _rule(pack: str, table: Table, suffixes: tuple[str, ...]) -> DenyRule:
    table.text("source", required=True)
    rule = table.text("id", required=True)
    if not is_name(rule):
        table.fault("id", "expected a name")
    paths = table.texts("paths", required=True, empty=False)
    methods = table.texts("methods", required=True, empty=False)
    return DenyRule(
        id=f"{pack}/{rule}",
        methods=frozenset(methods),
        paths=tuple(PathPattern.parse(spelled) for path in paths for spelled in _spellings(path, suffixes)),
        pack=pack,
    )


def _spellings(path: str, suffixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path with each suffix; a wildcard at its end covers them already."""
    return (path,) if path.endswith("*") else tuple(path + suffix for suffix in suffixes)
