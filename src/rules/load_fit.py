"""Whether a binding's place lies in what its rules let pass: what is judged must not be undone by what is written."""

from collections.abc import Iterator

from rules.policy import AllowRule, Binding, BodyType, Endpoint, PlaceKind
from rules.tables import Report, join, show

__all__ = ["check_place"]

_GRAPHQL = frozenset({"variables", "extensions"})  # what of a GraphQL request is no document


def check_place(report: Report, binding: Binding, endpoint: Endpoint) -> None:
    """Record what keeps the binding's secret from its place in each of its rules."""
    for rule in endpoint.allow:
        if rule.id in binding.rules:
            for message, hint in _faults(binding, rule):
                report.add(f"{join('binding', binding.name)}.place", f"rule {show(rule.id)} {message}", hint)


def _faults(binding: Binding, rule: AllowRule) -> Iterator[tuple[str, str]]:
    match binding.place:
        case PlaceKind.QUERY:
            yield from _query(binding, rule)
        case PlaceKind.PATH:
            yield from _path(binding, rule)
        case PlaceKind.JSON | PlaceKind.FORM:
            yield from _body(binding, rule)
        case _:
            pass


def _query(binding: Binding, rule: AllowRule) -> Iterator[tuple[str, str]]:
    if binding.slot and rule.query is not None and binding.slot not in rule.query:
        yield f"does not let {binding.slot} stand in the query", f'add "{binding.slot}" to query = {{ allow = [...] }}'


def _path(binding: Binding, rule: AllowRule) -> Iterator[tuple[str, str]]:
    for pattern in rule.paths if binding.slot else ():
        if binding.slot not in {name for name, _ in pattern.holes}:
            yield (
                f"has the path {show(pattern.text)}, in which no segment is {{{binding.slot}}}",
                f'as in "/{{{binding.slot}}}/sendMessage"',
            )
    if len({index for pattern in rule.paths for name, index in pattern.holes if name == binding.slot}) > 1:
        yield f"has {{{binding.slot}}} in different places", "write a rule and a binding for each of them"


def _body(binding: Binding, rule: AllowRule) -> Iterator[tuple[str, str]]:
    term, steps = rule.body, _steps(binding)
    if not steps:
        return
    form = binding.place is PlaceKind.FORM
    types = [BodyType.FORM] if form else [BodyType.JSON, BodyType.GRAPHQL]
    if term is None or term.type not in types:
        yield f"has no body that {binding.place}: goes into", f'add to the rule: body = {{ type = "{types[0]}" }}'
        return
    if term.type is BodyType.GRAPHQL and steps[0] not in _GRAPHQL:
        yield f"judges {steps[0]} as the request's document", 'as in "json:variables.token"'
    if term.keys is not None and steps[0] not in term.keys:
        yield f"does not list {steps[0]} in keys", "add it"
    if any(_meets(test.path.steps, steps) for test in term.tests):
        yield f"tests {binding.slot}, which the secret is written over", "take the test out"


def _steps(binding: Binding) -> tuple[str | int, ...]:
    """Of a field; none where the place itself has a fault."""
    if binding.place is PlaceKind.FORM:
        return (binding.slot,) if binding.slot else ()
    return () if binding.json_path is None else binding.json_path.steps


def _meets(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> bool:
    """Whether two fields are one, or one lies in the other; -1 is every entry of an array."""
    return all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=False))
