"""Whether a body is what an allow rule asks for. Pure; what is judged are the bytes of the message, decoded.

Two parsers that read one text differently are the way around such a rule, so what can be read in more than one way fits
nothing: a content type that isn't JSON's, a byte order mark, a key twice in an object, a key that differs from one the
rule names in case alone (Go's decoder takes both), NaN, a number of thousands of digits, nesting without end.
"""

import json
import re
from dataclasses import dataclass
from typing import NoReturn

from rules.credentials import fold_name
from rules.fieldpaths import ANY
from rules.policy import AllowRule, BodyTerm, BodyType, FieldTest, Scalar
from rules.queries import Parameter, likeness
from rules.request import Request

__all__ = ["MAX_NODES", "Document", "Unreadable", "beside", "form_misfit", "misfit", "parse", "read"]

_JSON_TYPE = re.compile(
    rb"application/(?:json|[a-z0-9!#$&^_.-]+\+json)[ \t]*(?:;[ \t]*charset=\"?utf-8\"?[ \t]*)?", re.IGNORECASE
)


MAX_NODES = 2_000_000  # each costs some 64 bytes of memory when parsed; counted without looking for strings
_GRAPHQL_KEYS = frozenset({"query", "operationname", "variables", "extensions"})


class Unreadable(Exception):
    """A body that has no one reading. The text says why, without a byte of the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A body that was read: its size in bytes, and its JSON value (dict, list, str, int, float, bool, None)."""

    size: int
    value: object


def read(request: Request) -> Document | Unreadable:
    """Read the body of a request as JSON."""
    return request.once("json", lambda: _read(request))


def _read(request: Request) -> Document | Unreadable:
    types = [value for name, value in request.headers if fold_name(name) == "content-type"]
    if len(types) != 1 or not _JSON_TYPE.fullmatch(types[0].strip(b" \t")):
        return Unreadable("content-type is not application/json")
    return parse(request.body or b"")


def parse(body: bytes) -> Document | Unreadable:
    """Read bytes as JSON, of which nothing else says what they are."""
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_NODES:
        return Unreadable(f"more than {MAX_NODES} values")
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except Unreadable as why:
        return why
    except RecursionError:
        return Unreadable("nested too deep")
    except ValueError:  # UnicodeDecodeError, JSONDecodeError, and int() of more than 4300 digits
        return Unreadable("not JSON in UTF-8")
    return Document(size=len(body), value=value)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("a key stands twice in one object")
    if any("\0" in key for key in found):
        raise Unreadable("a key holds a NUL")
    return found


def _constant(_name: str) -> NoReturn:
    raise Unreadable("NaN or Infinity, which JSON does not have")


def beside(rule: AllowRule, term: BodyTerm, request: Request) -> str:
    """Why the query of the target speaks against a rule with a body term; "" where it doesn't.

    Servers take from there what they would take from the body: GraphQL's whole request, a field that a test names.
    """
    names = {re.split(r"[\[.]", name, maxsplit=1)[0].casefold() for name in request.query_names}
    tested = frozenset(str(test.path.steps[0]).casefold() for test in term.tests)
    if term.type is BodyType.GRAPHQL:
        tested = _GRAPHQL_KEYS
        if not (rule.query or frozenset()).issuperset(request.query_names):
            return "a query beside it that the rule's query does not list"
    found = sorted(names & tested)
    return f"the query names {found[0]} too" if found else ""


def misfit(term: BodyTerm, document: Document | Unreadable) -> str:
    """Why a body is not what the term asks for, in the policy's words; "" where it is."""
    if isinstance(document, Unreadable):
        return str(document)
    if document.size > term.max:
        return f"over max = {term.max} bytes"
    if term.type is BodyType.GRAPHQL:
        # Its parser is a large import, of use to those policies alone that have such a rule.
        from rules.graphql_body import misfit_of  # noqa: PLC0415

        return misfit_of(term.operations, document.value)
    return _json_misfit(term, document.value)


def form_misfit(term: BodyTerm, size: int, fields: tuple[Parameter, ...] | str) -> str:
    """The same of a form's body: its size in bytes, and its fields or why it has none."""
    if isinstance(fields, str):
        return fields
    if size > term.max:
        return f"over max = {term.max} bytes"
    if term.keys is not None and any(one.raw and one.name not in term.keys for one in fields):
        return "a field that keys does not list"
    for test in term.tests:
        name = str(test.path.steps[0])
        alike = [one for one in fields if one.raw and likeness(one.name) == likeness(name)]
        fits = [one.name for one in alike] == [name] and alike[0].value in test.values
        if not (fits or (not alike and _missing(test))):
            return f"the field {test.path.text}"
    return ""


def _json_misfit(term: BodyTerm, value: object) -> str:
    if term.keys is not None and not (isinstance(value, dict) and term.keys.issuperset(value)):
        return "a top key that keys does not list"
    for test in term.tests:
        if not _holds(value, test.path.steps, test):
            return f"the field {test.path.text}"
    return ""


def _holds(node: object, steps: tuple[str | int, ...], test: FieldTest) -> bool:
    if not steps:
        return any(_same(node, value) for value in test.values)
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        return _holds_key(node, step, rest, test)
    if not isinstance(node, list):
        return not test.values
    if step == ANY:
        return all(_holds(entry, rest, test) for entry in node)
    return _holds(node[step], rest, test) if step < len(node) else _missing(test)


def _holds_key(node: object, key: str, rest: tuple[str | int, ...], test: FieldTest) -> bool:
    if not isinstance(node, dict):
        return not test.values
    folded = key.casefold()
    spelled = [name for name in node if name.casefold() == folded]
    if not spelled:
        return _missing(test)
    return spelled == [key] and _holds(node[key], rest, test)


def _missing(test: FieldTest) -> bool:
    return test.path.optional or not test.values


def _same(found: object, wanted: Scalar) -> bool:
    """Equal and of one type: 1, 1.0, true and "1" are four values."""
    return type(found) is type(wanted) and found == wanted
