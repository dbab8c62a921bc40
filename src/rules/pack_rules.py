"""Shipped packs: text in, rules out. A pack says where each of its facts comes from.

A pack is data that we ship, so a fault in one is our own and raises PackError instead of a problem of the user's file.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from rules.hosts import HostError, HostPattern
from rules.load_body import body_term
from rules.parse import METHODS
from rules.paths import PathPattern
from rules.policy import AllowRule, BodyType, DenyRule
from rules.problems import PathError, RulesError
from rules.tables import Report, Table, is_name

type Packs = Mapping[str, str]

KEYS = ("pack", "about", "host", "suffixes", "with", "allow", "deny")
ALLOW_KEYS = ("id", "methods", "paths", "query", "encoded_slash", "upgrade", "body", "source")
DENY_KEYS = ("id", "methods", "paths", "hosts", "unless_body", "source")
FROM_MEMORY = "from memory"
_MEND = "reinstall credgate"


class PackError(RulesError):
    """A shipped pack is broken: `detail` lists its faults."""

    code = "pack_broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """What one file holds. `host` is "" where the user names it; `along` names the packs whose deny rules come with
    it; `about` and `sources` are for readers.
    """

    name: str
    about: str
    host: str = ""
    along: tuple[str, ...] = ()
    allow: tuple[AllowRule, ...] = ()
    deny: tuple[DenyRule, ...] = ()
    sources: tuple[str, ...] = ()


def denies_of(name: str, packs: Packs) -> tuple[DenyRule, ...]:
    """The deny rules of a pack and of those that come along with it, each once. Raises PackError."""
    pack = read_pack(name, packs[name])
    rules = [*pack.deny]
    for other in pack.along:
        if other not in packs:
            raise PackError(f"pack {name}: no pack is called {other}", _MEND)
        rules += read_pack(other, packs[other]).deny
    return tuple({rule.id: rule for rule in rules}.values())


@lru_cache(maxsize=128)
def read_pack(name: str, text: str) -> Pack:
    """Return one pack. Each path of a deny rule stands with each suffix of the pack: endings that the target's router
    takes for the same route (".json").

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
    try:
        pack = _pack(name, table)
    except (PathError, HostError) as fault:
        raise PackError(f"pack {name}: {fault.detail}", _MEND) from fault
    if report.problems or not (pack.allow or pack.deny or pack.host):
        raise PackError(f"pack {name}: " + "; ".join(f"{p.where}: {p.message}" for p in report.problems), _MEND)
    return pack


def _pack(name: str, table: Table) -> Pack:
    suffixes = ("", *table.texts("suffixes"))
    denies = table.tables("deny", known=DENY_KEYS)
    allows = table.tables("allow", known=ALLOW_KEYS)
    host = table.text("host")
    if host:
        HostPattern.parse(host)
    return Pack(
        name=name,
        about=table.text("about", required=True),
        host=host,
        along=table.texts("with"),
        allow=tuple(_allow(name, allow) for allow in allows),
        deny=tuple(_deny(name, deny, suffixes) for deny in denies),
        sources=tuple(entry.text("source", required=True) for entry in (*allows, *denies)),
    )


def _allow(pack: str, table: Table) -> AllowRule:
    methods = frozenset(_methods(table))
    upgrade = table.flag("upgrade", default=False)
    if upgrade and ("GET" not in methods or not table.has("body")):
        table.fault("upgrade", "expected GET, by which a WebSocket begins, and a body, which judges its messages")
    return AllowRule(
        id=_id(pack, table),
        methods=methods | ({"HEAD"} if "GET" in methods else frozenset()),
        paths=tuple(PathPattern.parse(path) for path in table.texts("paths", required=True, empty=False)),
        query=frozenset(table.texts("query")) if table.has("query") else None,
        encoded_slash=table.flag("encoded_slash", default=False),
        upgrade=upgrade,
        body=body_term(table, methods, upgrade=upgrade),
    )


def _deny(pack: str, table: Table, suffixes: tuple[str, ...]) -> DenyRule:
    paths = table.texts("paths", required=True, empty=False)
    word = table.text("unless_body")
    return DenyRule(
        id=_id(pack, table),
        methods=frozenset(_methods(table)),
        paths=tuple(PathPattern.parse(spelled) for path in paths for spelled in _spellings(path, suffixes)),
        pack=pack,
        hosts=tuple(_hosts(table)),
        unless=table.choice("unless_body", BodyType, BodyType.JSON) if word else None,
    )


def _id(pack: str, table: Table) -> str:
    """Return PACK/ID: a slash is in no id of a user's own rule."""
    rule = table.text("id", required=True)
    if not is_name(rule):
        table.fault("id", "expected a name")
    return f"{pack}/{rule}"


def _methods(table: Table) -> tuple[str, ...]:
    methods = table.texts("methods", required=True, empty=False)
    if not METHODS.issuperset(methods):
        table.fault("methods", "expected methods in upper case")
    return methods


def _hosts(table: Table) -> Iterator[tuple[str, ...]]:
    for host in table.texts("hosts"):
        labels = tuple(host.split("."))
        HostPattern.parse(".".join(label if label != "*" else "x" for label in labels))
        yield labels


def _spellings(path: str, suffixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path with each suffix; a wildcard at its end covers them already."""
    return (path,) if path.endswith("*") else tuple(path + suffix for suffix in suffixes)
