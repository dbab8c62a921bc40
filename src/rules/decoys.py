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

_IN_BODY = frozenset({PlaceKind.JSON, PlaceKind.FORM})

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
    return bool(decoy) and any(at == key for at, _ in _carrying(request, allow, (decoy,)))


def _key(request: Request, binding: Binding, allow: Allow) -> Key:
    if binding.place is PlaceKind.PATH:
        return ("path", str(segment_of(request, binding, allow.endpoint)))
    return key_of(binding)


def _carrying(request: Request, allow: Allow, decoys: Collection[str]) -> list[Reading]:
    """The readings that hold one of the decoys. What can't hold any, as most of a request, isn't taken apart."""
    if not decoys:
        return []
    found: list[Reading] = []
    if _any_in(request.target, decoys):
        found += [(key, text) for key, text in _in_target(request) if _holds(text, decoys)]
    for name, value in request.headers:
        folded = fold_name(name)
        if folded not in _INERT:
            found += [(key, text) for key, text in _of_header(folded, value) if _holds(text, decoys)]
    for binding in allow.bindings:
        if binding.place in _IN_BODY:
            values = held(request, binding, allow.endpoint).values
            found += [(key_of(binding), value) for value in values if _holds(value, decoys)]
    return found


def _holds(text: str, decoys: Collection[str]) -> bool:
    # any() over a generator costs three times as much, and this is asked for each part of each request
    for decoy in decoys:  # noqa: SIM110
        if decoy in text:
            return True
    return False


def _any_in(text: str, decoys: Collection[str]) -> bool:
    """Whether a decoy stands there, escaped or not, or escaped twice."""
    if _holds(text, decoys):
        return True
    if "%" not in text:
        return False
    once = unquote(text)
    return _holds(once, decoys) or _holds(unquote(once), decoys)


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
    if folded == "cookie":
        for cookie in cookies_of(((b"cookie", value),)):
            yield ("cookie", cookie.name), cookie.value
            yield ("cookie", cookie.name), unquote(cookie.value)
            yield ("cookie", ""), unquote(cookie.name)
        return
    key, text = ("header", folded), value.decode("latin-1")
    yield key, text
    if "%" in text:
        yield key, unquote(text)
    if inside := basic_text(value):
        yield key, inside
