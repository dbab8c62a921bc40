"""Where a request carries decoys, and whether they belong there. Of a body only the fields that a binding writes are
looked at: quoted in a transcript a decoy is inert, and refusing it would stop the agent that quotes.
"""

from collections.abc import Collection, Iterator, Mapping
from urllib.parse import unquote

from rules.basic import basic_text
from rules.cookies import cookies_of
from rules.credentials import fold_name
from rules.inject import decoy_in_place
from rules.places import Key, held, key_of, segment_of
from rules.policy import Binding, Mode, PlaceKind
from rules.queries import parameters
from rules.request import Request
from rules.verdict import Allow

__all__ = ["holds_decoy", "misplaced", "strange"]

# No server takes a credential from these, and agents write free text into them.
_INERT = frozenset({"user-agent", "referer"})

_WHOLE = "/"

type Reading = tuple[Key, str]


def misplaced(request: Request, allow: Allow, decoys: Mapping[str, str]) -> bool:
    """Whether a decoy of the run stands in path, query, a header or a bound field that is not its own binding's."""
    wanted = {value for value in decoys.values() if value}
    readings = _carrying(request, allow, wanted)
    for decoy in wanted if readings else ():
        # The whole path is looked at for what is spread over its segments; no place takes that.
        found = {key for key, reading in readings if decoy in reading and (key[1] != _WHOLE or "/" in decoy)}
        own = [b for b in allow.bindings if decoys.get(b.name) == decoy and holds_decoy(request, b, allow, decoy)]
        if not found.issubset({_key(request, binding, allow) for binding in own}):
            return True
    return False


def strange(request: Request, allow: Allow, others: Collection[str]) -> bool:
    """Whether a decoy of another run stands in path, query, a header or a bound field."""
    return bool(others) and bool(_carrying(request, allow, others))


def holds_decoy(request: Request, binding: Binding, allow: Allow, decoy: str) -> bool:
    """Whether the decoy stands where this binding's secret goes.

    In mode overwrite the whole place is written anew, so the decoy does not leave, whatever form the client gave it.
    """
    if binding.mode is not Mode.OVERWRITE:
        return decoy_in_place(request, binding, allow.endpoint, decoy)
    key = _key(request, binding, allow)
    return bool(decoy) and any(decoy in reading for at, reading in _readings(request, allow) if at == key)


def _key(request: Request, binding: Binding, allow: Allow) -> Key:
    if binding.place is PlaceKind.PATH:
        return ("path", str(segment_of(request, binding, allow.endpoint)))
    return key_of(binding)


def _carrying(request: Request, allow: Allow, decoys: Collection[str]) -> list[Reading]:
    """The readings that hold one of the decoys: most requests have none, and are looked through once."""
    if not decoys:
        return []
    readings = list(_readings(request, allow))
    whole = "\0".join(text for _, text in readings)
    if not any(decoy in whole for decoy in decoys):
        return []
    return [(key, text) for key, text in readings if any(decoy in text for decoy in decoys)]


def _readings(request: Request, allow: Allow) -> Iterator[Reading]:
    """Each way to read each part of a request that a server may take a credential from, by its place."""
    yield from _in_target(request)
    for name, value in request.headers:
        folded = fold_name(name)
        if folded not in _INERT and folded != "cookie":
            yield from _of_header(folded, value)
    for cookie in cookies_of(request.headers):
        yield ("cookie", cookie.name), cookie.value
        yield ("cookie", cookie.name), unquote(cookie.value)
        yield ("cookie", ""), unquote(cookie.name)
    for binding in allow.bindings:
        if binding.place in (PlaceKind.JSON, PlaceKind.FORM):
            yield from ((key_of(binding), value) for value in held(request, binding, allow.endpoint).values)


def _in_target(request: Request) -> Iterator[Reading]:
    for index, segment in enumerate(request.path.split("/")[1:]):
        yield ("path", str(index)), segment
        yield ("path", str(index)), unquote(segment)
    yield ("path", _WHOLE), unquote(request.path)
    for one in parameters(request.target.partition("?")[2]):
        yield ("query", ""), one.name
        for text in (one.value, unquote(one.value), one.raw):  # raw: a decoy with "=" in it
            yield ("query", one.name), text


def _of_header(folded: str, value: bytes) -> Iterator[Reading]:
    key = ("header", folded)
    yield key, value.decode("latin-1")
    if b"%" in value:
        yield key, unquote(value.decode("latin-1"))
    if inside := basic_text(value):
        yield key, inside
