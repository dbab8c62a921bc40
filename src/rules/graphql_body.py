"""Which operations a GraphQL document holds, by a whole parser of the language. Pure.

An operation is known by its type and the fields at its root, as the schema names them: aliases and the name that the
client gave it mean nothing. Every operation of a document counts, whichever of them is asked for.
"""

from collections.abc import Iterator, Mapping

from graphql.error import GraphQLSyntaxError
from graphql.language import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    InlineFragmentNode,
    OperationDefinitionNode,
    SelectionSetNode,
    parse,
)

__all__ = ["misfit_of", "operations_in"]

MAX_TOKENS = 20_000  # GitHub refuses documents of a tenth of that
_KEYS = frozenset({"query", "operationName", "variables", "extensions"})
_ALWAYS = "__typename"  # names a type of the schema, and clients ask for it everywhere

type _Fragments = Mapping[str, FragmentDefinitionNode]


class _Refused(Exception):
    """Never leaves this module."""


def misfit_of(allowed: frozenset[str], value: object) -> str:
    """Why a request's JSON is not one of the `allowed` operations ("TYPE.FIELD", "TYPE.*"); "" where it is."""
    try:
        found = operations_in(_query(value))
    except _Refused as why:
        return str(why)
    except RecursionError:
        return "nested too deep"
    refused = sorted(name for name in found if not allowed & {name, name.partition(".")[0] + ".*"})
    return f"an operation that operations does not list: {refused[0][:100]}" if refused else ""


def operations_in(query: str) -> frozenset[str]:
    """Every "TYPE.FIELD" of a document. Raises what misfit_of turns into a reason."""
    document = _parsed(query)
    fragments: dict[str, FragmentDefinitionNode] = {}
    operations: list[OperationDefinitionNode] = []
    for node in document.definitions:
        if isinstance(node, FragmentDefinitionNode) and node.name.value not in fragments:
            fragments[node.name.value] = node
        elif isinstance(node, OperationDefinitionNode):
            operations.append(node)
        else:
            raise _Refused("a document with other definitions than operations, or two fragments of one name")
    if not operations:
        raise _Refused("a document without an operation")
    found = [(node, frozenset(_fields(node.selection_set, fragments, set()))) for node in operations]
    if not all(fields for _, fields in found):  # the parser takes "{ }", which the language does not have
        raise _Refused("an operation without a field")
    return frozenset(f"{node.operation.value}.{field}" for node, fields in found for field in fields - {_ALWAYS})


def _query(value: object) -> str:
    """The document of a request. Without one the target would take it from its own store, by a hash or a number."""
    if not isinstance(value, dict) or not _KEYS.issuperset(value):
        raise _Refused(f"other keys than {', '.join(sorted(_KEYS))}, or several operations in an array")
    extensions = value.get("extensions")
    if extensions is not None and (not isinstance(extensions, dict) or _persisted(extensions)):
        raise _Refused("a persisted query")
    query = value.get("query")
    if not isinstance(query, str):
        raise _Refused("no query")
    return query


def _persisted(extensions: Mapping[str, object]) -> bool:
    return any(key.casefold() == "persistedquery" for key in extensions)


def _parsed(query: str) -> DocumentNode:
    try:
        return parse(query, no_location=True, max_tokens=MAX_TOKENS)
    except GraphQLSyntaxError:
        raise _Refused("not a GraphQL document") from None
    except RecursionError:
        raise _Refused("nested too deep") from None


def _fields(selection: SelectionSetNode, fragments: _Fragments, seen: set[str]) -> Iterator[str]:
    """The root fields, through fragments; one that names itself ends there."""
    for node in selection.selections:
        if isinstance(node, FieldNode):
            yield node.name.value
        elif isinstance(node, InlineFragmentNode):
            yield from _fields(node.selection_set, fragments, seen)
        elif isinstance(node, FragmentSpreadNode) and node.name.value not in fragments:
            raise _Refused("a fragment that is not there")
        elif isinstance(node, FragmentSpreadNode) and node.name.value not in seen:
            seen.add(node.name.value)
            yield from _fields(fragments[node.name.value].selection_set, fragments, seen)
