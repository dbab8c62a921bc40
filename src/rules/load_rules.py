"""[[endpoint.NAME.allow]] and [[endpoint.NAME.deny]] tables into rules."""

from collections.abc import Iterable

from rules.load_body import body_term
from rules.pack_rules import Packs, denies_of, read_pack
from rules.parse import METHODS
from rules.paths import PathError, PathPattern
from rules.policy import AllowRule, DenyRule
from rules.tables import Table, closest, is_name, show

ALLOW_KEYS = ("id", "methods", "paths", "query", "encoded_slash", "upgrade", "body", "pack", "rules")
ALLOW_LATER: tuple[str, ...] = ()
DENY_KEYS = ("id", "methods", "paths", "pack")


def rules_of(endpoint: Table, packs: Packs, *, pack: str) -> tuple[tuple[AllowRule, ...], tuple[DenyRule, ...]]:
    """Read the rules of one endpoint, packs spread out into theirs.

    With the endpoint's own `pack` and with each pack that allows come the deny rules that its file names.
    """
    ids: set[str] = set()
    named = [pack] if pack else []
    allow: list[AllowRule] = []
    for table in endpoint.tables("allow", known=ALLOW_KEYS, later=ALLOW_LATER):
        if table.has("pack") or table.has("rules"):
            named += [name] if (name := pack_name(table, packs)) else []
            allow += _picked(table, name, ids, packs)
        else:
            allow.append(_allow(table, ids))
    deny: list[DenyRule] = []
    for table in endpoint.tables("deny", known=DENY_KEYS):
        deny += _denied_by_pack(table, packs) if table.has("pack") else [_deny(table, ids)]
    for name in named:
        deny += denies_of(name, packs)
    return tuple(allow), _each_once(deny)


def _each_once(rules: Iterable[DenyRule]) -> tuple[DenyRule, ...]:
    """Two packs may bring one and the same; of the user's own two alike are a fault that is said elsewhere."""
    return tuple(dict.fromkeys(rules))


def _picked(table: Table, name: str, ids: set[str], packs: Packs) -> Iterable[AllowRule]:
    """The allow rules of a pack, or those of them that `rules` names."""
    for key in ("id", "methods", "paths", "query", "encoded_slash", "upgrade", "body"):
        if table.has(key):
            table.fault(
                key, "got it beside pack, which brings its own rules", "write an [[...allow]] of its own for it"
            )
    rules = read_pack(name, packs[name]).allow if name else ()
    if name and not rules:
        table.fault("pack", f"{show(name)} allows nothing", closest(name, (p for p in packs if allows(p, packs))))
    known = {rule.id.partition("/")[2]: rule for rule in rules}
    wanted = table.texts("rules", empty=False) if table.has("rules") else tuple(known)
    for i, word in enumerate(wanted):
        if name and word not in known:
            table.report.add(f"{table.at('rules')}[{i}]", f"{name} has no rule {show(word)}", closest(word, known))
    picked = [known[word] for word in wanted if word in known]
    for rule in picked:
        if rule.id in ids:
            table.fault("pack", f"{show(rule.id)} stands there twice", "take one out")
    ids.update(rule.id for rule in picked)
    return picked


def allows(name: str, packs: Packs) -> bool:
    """Whether a pack holds allow rules."""
    return bool(read_pack(name, packs[name]).allow)


def pack_name(table: Table, packs: Packs) -> str:
    """Read `pack`; "" where there is no such one."""
    name = table.text("pack", required=True)
    if name and name not in packs:
        table.fault("pack", f"no pack is called {show(name)}", closest(name, packs))
    return name if name in packs else ""


def _allow(table: Table, ids: set[str]) -> AllowRule:
    methods = _methods(table, required=True)
    upgrade = _upgrade(table, methods)
    return AllowRule(
        id=_id(table, ids),
        methods=methods,
        paths=_paths(table),
        query=_query(table),
        encoded_slash=table.flag("encoded_slash", default=False),
        upgrade=upgrade,
        body=body_term(table, methods, upgrade=upgrade),
    )


def _upgrade(table: Table, methods: frozenset[str]) -> bool:
    upgrade = table.flag("upgrade", default=False)
    if upgrade and methods and "GET" not in methods:
        table.fault("upgrade", "a WebSocket begins with GET, which methods does not list", 'add "GET"')
    return upgrade


def _deny(table: Table, ids: set[str]) -> DenyRule:
    methods = _methods(table, required=False) if table.has("methods") else None
    paths = _paths(table)
    for i, pattern in enumerate(paths):
        if pattern.holes:
            table.report.add(f"{table.at('paths')}[{i}]", "names a segment, which no binding fills here", 'write "*"')
    return DenyRule(id=_id(table, ids), methods=methods, paths=paths)


def _denied_by_pack(table: Table, packs: Packs) -> Iterable[DenyRule]:
    for key in ("id", "methods", "paths"):
        if table.has(key):
            table.fault(key, "got it beside pack, which brings its own rules", "write a [[...deny]] of its own for it")
    name = pack_name(table, packs)
    rules = denies_of(name, packs) if name else ()
    if name and not rules:
        table.fault("pack", f"{show(name)} denies nothing", closest(name, (p for p in packs if denies_of(p, packs))))
    return rules


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
