"""[[endpoint.NAME.allow]] and [[endpoint.NAME.deny]] tables into rules."""

from rules.load_body import body_term
from rules.pack_rules import Packs, pack_rules
from rules.parse import METHODS
from rules.paths import PathError, PathPattern
from rules.policy import AllowRule, DenyRule
from rules.tables import Table, closest, is_name, show

ALLOW_KEYS = ("id", "methods", "paths", "query", "encoded_slash", "upgrade", "body")
ALLOW_LATER: tuple[str, ...] = ()
DENY_KEYS = ("id", "methods", "paths", "pack")


def allow_rules(endpoint: Table, ids: set[str]) -> tuple[AllowRule, ...]:
    """Read the allow rules of one endpoint; `ids` collects the ids taken."""
    tables = endpoint.tables("allow", known=ALLOW_KEYS, later=ALLOW_LATER)
    return tuple(_allow(table, ids) for table in tables)


def _allow(table: Table, ids: set[str]) -> AllowRule:
    methods = _methods(table, required=True)
    return AllowRule(
        id=_id(table, ids),
        methods=methods,
        paths=_paths(table),
        query=_query(table),
        encoded_slash=table.flag("encoded_slash", default=False),
        upgrade=_upgrade(table, methods),
        body=body_term(table, methods),
    )


def _upgrade(table: Table, methods: frozenset[str]) -> bool:
    upgrade = table.flag("upgrade", default=False)
    if upgrade and methods and "GET" not in methods:
        table.fault("upgrade", "a WebSocket begins with GET, which methods does not list", 'add "GET"')
    return upgrade


def deny_rules(endpoint: Table, ids: set[str], packs: Packs) -> tuple[DenyRule, ...]:
    """Read the deny rules of one endpoint, packs spread out into theirs."""
    out: list[DenyRule] = []
    for table in endpoint.tables("deny", known=DENY_KEYS):
        out += _pack(table, packs) if table.has("pack") else [_deny(table, ids)]
    return tuple(out)


def _deny(table: Table, ids: set[str]) -> DenyRule:
    methods = _methods(table, required=False) if table.has("methods") else None
    return DenyRule(id=_id(table, ids), methods=methods, paths=_paths(table))


def _pack(table: Table, packs: Packs) -> list[DenyRule]:
    for key in ("id", "methods", "paths"):
        if table.has(key):
            table.fault(key, "got it beside pack, which brings its own rules", "write a [[...deny]] of its own for it")
    name = table.text("pack", required=True)
    if name and name not in packs:
        table.fault("pack", f"no pack is called {show(name)}", closest(name, packs))
    return list(pack_rules(name, packs[name])) if name in packs else []


def _id(table: Table, ids: set[str]) -> str:
    text = table.text("id", required=True)
    if text and not is_name(text):
        table.fault("id", f"got {show(text)}, expected letters, digits, - and _ (at most 64)")
    if text in ids:
        table.fault("id", f"{show(text)} names two rules of this endpoint", "give each rule an id of its own")
    if text:
        ids.add(text)
    return text


def _methods(table: Table, *, required: bool) -> frozenset[str]:
    words = table.texts("methods", required=required, empty=False)
    for i, word in enumerate(words):
        if word not in METHODS:
            hint = f'write "{word.upper()}"' if word.upper() in METHODS else closest(word.upper(), METHODS)
            table.report.add(f"{table.at('methods')}[{i}]", f"got {show(word)}, expected a method in upper case", hint)
    return with_head(words)


def with_head(methods: tuple[str, ...]) -> frozenset[str]:
    """Add HEAD where GET is: HEAD asks for the same thing without its body (RFC 9110, 9.3.2)."""
    return frozenset(methods) | ({"HEAD"} if "GET" in methods else frozenset())


def _paths(table: Table) -> tuple[PathPattern, ...]:
    out: list[PathPattern] = []
    for i, text in enumerate(table.texts("paths", required=True, empty=False)):
        try:
            out.append(PathPattern.parse(text))
        except PathError as fault:
            table.report.add(f"{table.at('paths')}[{i}]", fault.detail, fault.hint)
    return tuple(out)


def _query(table: Table) -> frozenset[str] | None:
    if not table.has("query"):
        return None
    query = table.table("query", known=("allow",))
    names = query.texts("allow", required=True)
    for i, name in enumerate(names):
        if not name.isascii() or any(c in name for c in "=&?#% "):
            query.report.add(f"{query.at('allow')}[{i}]", f"got {show(name)}, expected the plain name of a parameter")
    return frozenset(names)
