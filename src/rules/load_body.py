"""`body = { type = "json", ... }` of an allow rule into a BodyTerm."""

import re
from collections.abc import Iterator

from rules import load_units
from rules.fieldpaths import FieldPath, FieldPathError
from rules.policy import BodyTerm, BodyType, FieldTest, Scalar
from rules.tables import Table, kind_of, show

BODY_KEYS = ("type", "max", "equals", "in", "absent", "keys", "operations")
MAX_BODY = 32 << 20  # bytes: held in memory, and parsed
_DEFAULT = 256 << 10
_OPERATION = re.compile(r"(?:query|mutation|subscription)\.(?:\*|[A-Za-z_][A-Za-z0-9_]{0,127})")
_QUOTE = 'a path with dots is quoted: { "metadata.user" = "x" }'
_JSON_ONLY = ("equals", "in", "absent", "keys")


def body_term(rule: Table, methods: frozenset[str], *, upgrade: bool) -> BodyTerm | None:
    """Read the term; None where the rule has none. With `upgrade` it is of the messages of a WebSocket too."""
    if not rule.has("body"):
        return None
    if methods & {"GET", "HEAD"} and not upgrade:
        rule.fault(
            "body",
            "got it beside the method GET, which has no body",
            "give GET a rule of its own; with upgrade = true it is asked of each message of a WebSocket",
        )
    table = rule.table("body", known=BODY_KEYS)
    kind = table.choice("type", BodyType, BodyType.JSON)
    if not table.has("type"):
        table.fault("type", 'missing, expected "json", "graphql" or "form"', 'add: type = "json"')
    graphql = kind is BodyType.GRAPHQL
    for key in _JSON_ONLY if graphql else ("operations",):
        if table.has(key):
            table.fault(key, f"not of type {kind.value}", "take it out")
    form = kind is BodyType.FORM
    if form and upgrade:
        table.fault("type", "got form beside upgrade = true: no message of a WebSocket is one", 'write "json"')
    return BodyTerm(
        type=kind,
        max=_max(table),
        tests=(
            *_tests(table, "equals", several=False, form=form),
            *_tests(table, "in", several=True, form=form),
            *_absent(table, form=form),
        ),
        keys=_keys(table),
        operations=_operations(table) if graphql else frozenset(),
    )


def _max(table: Table) -> int:
    text = table.text("max")
    if not text:
        return _DEFAULT
    size = load_units.parse_size(text)
    if size is None:
        table.fault("max", f"got {show(text)}", load_units.size_hint(text))
    elif size > MAX_BODY:
        table.fault("max", f"got {show(text)}, expected at most {MAX_BODY >> 20}MiB: it is held in memory")
    return size or _DEFAULT


def _keys(table: Table) -> frozenset[str] | None:
    return frozenset(table.texts("keys", empty=False)) if table.has("keys") else None


def _tests(table: Table, key: str, *, several: bool, form: bool) -> Iterator[FieldTest]:
    for text, value in table.mapping(key):
        where = f"{table.at(key)}.{show(text)}"
        values = value if several else [value]
        if not isinstance(values, list) or not values:
            table.report.add(where, f"got {kind_of(value)}, expected an array of the values that it may have")
            continue
        path = _path(table, where, text, form=form)
        scalars = tuple(_scalar(table, where, v) for v in values)
        if form and not all(isinstance(v, str) for v in scalars):
            table.report.add(where, "got a value that is no string, and a form holds nothing else", "quote it")
        if path is not None:
            yield FieldTest(path=path, values=scalars)


def _absent(table: Table, *, form: bool) -> Iterator[FieldTest]:
    for i, text in enumerate(table.texts("absent")):
        path = _path(table, f"{table.at('absent')}[{i}]", text, form=form)
        if path is not None:
            yield FieldTest(path=path, values=())


def _path(table: Table, where: str, text: str, *, form: bool) -> FieldPath | None:
    try:
        path = FieldPath.parse(text)
        if form and len(path.steps) > 1:
            table.report.add(where, f"got {show(text)}, and the fields of a form have no fields of their own")
        return path
    except FieldPathError as fault:
        table.report.add(where, fault.detail, fault.hint)
        return None


def _scalar(table: Table, where: str, value: object) -> Scalar:
    if isinstance(value, str | int):
        return value
    table.report.add(where, f"got {kind_of(value)}, expected a string, an integer or a boolean", _QUOTE)
    return ""


def _operations(table: Table) -> frozenset[str]:
    names = table.texts("operations", required=True, empty=False)
    for i, name in enumerate(names):
        if not _OPERATION.fullmatch(name):
            table.report.add(
                f"{table.at('operations')}[{i}]",
                f'got {show(name)}, expected "query.FIELD", "mutation.FIELD", "subscription.FIELD" or "query.*"',
                "FIELD is the field at the root, as the schema names it",
            )
    return frozenset(names)
