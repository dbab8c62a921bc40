"""The places of a request that a binding can write: what they are called, and what stands there already. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never
from urllib.parse import unquote

from rules import bodies
from rules.basic import basic_text
from rules.cookies import cookies_of
from rules.credentials import fold_name
from rules.forms import read_form
from rules.jsonfield import FieldError, Found, find
from rules.policy import Binding, Endpoint, PlaceKind
from rules.queries import Parameter, likeness, parameters
from rules.request import Request

__all__ = ["Held", "Key", "field_of", "held", "key_of", "overlap", "place_text", "segment_of", "text_of"]

type Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The decoded texts in a place, none where it is empty. `trouble`: why it has no one reading, else ""."""

    values: tuple[str, ...] = ()
    trouble: str = ""


def place_text(binding: Binding) -> str:
    """A place as the policy writes it."""
    match binding.place:
        case PlaceKind.BASIC | PlaceKind.SIGV4 | PlaceKind.CERTIFICATE:
            return binding.place.value
        case PlaceKind.HEADER:
            return f"header:{binding.header}"
        case _:
            return f"{binding.place}:{binding.slot}"


def key_of(binding: Binding) -> Key:
    """What two bindings must not share. `basic` writes a header, and a signature stands in the same one."""
    match binding.place:
        case PlaceKind.BASIC | PlaceKind.SIGV4:
            return ("header", "authorization")
        case PlaceKind.HEADER:
            return ("header", fold_name(binding.header.encode("ascii")))
        case _:
            return (binding.place.value, binding.slot)


def overlap(one: Binding, other: Binding) -> bool:
    """Whether two bindings write one place, or one inside the other's JSON value."""
    if one.json_path is not None and other.json_path is not None:
        shorter = min(len(one.json_path.steps), len(other.json_path.steps))
        return one.json_path.steps[:shorter] == other.json_path.steps[:shorter]
    if one.place is other.place and one.place in (PlaceKind.QUERY, PlaceKind.FORM, PlaceKind.COOKIE):
        return likeness(one.slot) == likeness(other.slot)
    return key_of(one) == key_of(other)


def segment_of(request: Request, binding: Binding, endpoint: Endpoint) -> int | None:
    """Which segment of the path is the binding's, counted from 0; None where rules differ in that, or none has it."""
    found = {
        index
        for rule in endpoint.allow
        if rule.id in binding.rules and (request.method in rule.methods)
        for pattern in rule.paths
        if pattern.matches(request.path)
        for name, index in pattern.holes
        if name == binding.slot
    }
    return found.pop() if len(found) == 1 else None


def held(request: Request, binding: Binding, endpoint: Endpoint) -> Held:
    """What stands in a binding's place. Of a body that was not read nothing is known, and nothing is said."""
    match binding.place:
        case PlaceKind.HEADER | PlaceKind.BASIC | PlaceKind.SIGV4:
            return Held(values=tuple(_headers(request, binding)))
        case PlaceKind.CERTIFICATE:  # shown in the handshake
            return Held()
        case PlaceKind.QUERY:
            return _parameter(parameters(request.target.partition("?")[2]), binding.slot)
        case PlaceKind.PATH:
            return _segment(request, binding, endpoint)
        case PlaceKind.COOKIE:
            return _cookie(request, binding.slot)
        case PlaceKind.JSON:
            return Held() if request.body is None else _field(request, binding)
        case PlaceKind.FORM:
            return Held() if request.body is None else _form(request, binding.slot)
        case _:
            assert_never(binding.place)


def _headers(request: Request, binding: Binding) -> Iterator[str]:
    name = key_of(binding)[1]
    for key, value in request.headers:
        if fold_name(key) == name:
            yield basic_text(value) if binding.place is PlaceKind.BASIC else value.decode("latin-1")


def _parameter(found: tuple[Parameter, ...], name: str) -> Held:
    alike = [one for one in found if one.raw and likeness(one.name) == likeness(name)]
    if len(alike) > 1:
        return Held(trouble=f"{name} stands there twice")
    if alike and alike[0].name != name:
        return Held(trouble=f"a name that some servers read as {name}")
    return Held(values=tuple(one.value for one in alike))


def _segment(request: Request, binding: Binding, endpoint: Endpoint) -> Held:
    index = segment_of(request, binding, endpoint)
    if index is None:
        return Held(trouble=f"two paths of the rules differ in which segment is {binding.slot}")
    return Held(values=(unquote(request.path.split("/")[index + 1]),))


def _cookie(request: Request, name: str) -> Held:
    if not request.http_version.startswith("HTTP/2") and sum(n.lower() == b"cookie" for n, _ in request.headers) > 1:
        return Held(trouble="two cookie headers")  # RFC 6265 5.4
    values = tuple(one.value for one in cookies_of(request.headers) if one.name == name)
    return Held(trouble=f"{name} stands there twice") if len(values) > 1 else Held(values=values)


def text_of(request: Request) -> str:
    """A body that bodies.read has taken, as text."""
    return request.once("text", lambda: (request.body or b"").decode("utf-8"))


def field_of(request: Request, steps: tuple[str | int, ...]) -> Found | FieldError:
    """Where a field of that text stands, or why there is none."""

    def look() -> Found | FieldError:
        try:
            return find(text_of(request), steps)
        except FieldError as why:
            return why

    return request.once(("field", steps), look)


def _field(request: Request, binding: Binding) -> Held:
    document = bodies.read(request)
    if isinstance(document, bodies.Unreadable) or binding.json_path is None:
        return Held(trouble=str(document))
    beside = _beside(request, str(binding.json_path.steps[0]))
    if beside:
        return Held(trouble=beside)
    found = field_of(request, binding.json_path.steps)
    if isinstance(found, FieldError):
        return Held(trouble=str(found))
    if found.missing:
        return Held()
    return Held(values=(found.value if isinstance(found.value, str) else "",))


def _form(request: Request, name: str) -> Held:
    read = read_form(request)
    if isinstance(read, str):
        return Held(trouble=read)
    beside = _beside(request, name)
    return Held(trouble=beside) if beside else _parameter(read, name)


def _beside(request: Request, name: str) -> str:
    """Servers that look in the query for what they look for in the body would take either."""
    alike = any(likeness(other) == likeness(name) for other in request.query_names)
    return f"the query names {name} too" if alike else ""
