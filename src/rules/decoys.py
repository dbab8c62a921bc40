"""Where a request carries a run's decoys, and whether they belong there. Bodies are not looked at: quoted in a
transcript a decoy is inert, and refusing it would stop the agent that quotes.
"""

from collections.abc import Collection, Mapping
from urllib.parse import unquote

from rules.credentials import fold_name
from rules.inject import basic_text, decoy_in_place, header_of
from rules.policy import Binding, Mode
from rules.request import Request

__all__ = ["holds_decoy", "misplaced"]

# No server takes a credential from these, and agents write free text into them.
_INERT = frozenset({"user-agent", "referer"})


def misplaced(request: Request, bindings: Collection[Binding], decoys: Mapping[str, str]) -> bool:
    """Whether a decoy of the run stands in path, query or a header other than the place of its own binding."""
    target = (request.target, unquote(request.target))
    headers = _read(request)
    for decoy in {value for value in decoys.values() if value}:
        if any(decoy in reading for reading in target):
            return True
        found = _headers_with(headers, decoy)
        own = (b for b in bindings if decoys.get(b.name) == decoy and holds_decoy(request, b, decoy))
        if found and not found.issubset({header_of(binding) for binding in own}):
            return True
    return False


def holds_decoy(request: Request, binding: Binding, decoy: str) -> bool:
    """Whether the decoy stands where this binding's secret goes.

    In mode overwrite the whole header is replaced, so the decoy does not leave, whatever form the client gave it.
    """
    if binding.mode is Mode.OVERWRITE:
        return bool(decoy) and header_of(binding) in _headers_with(_read(request), decoy)
    return decoy_in_place(request, binding, decoy)


def _read(request: Request) -> list[tuple[str, str]]:
    """Each reading of each header's value, beside the header's folded name."""
    folded = ((fold_name(name), value) for name, value in request.headers)
    return [(name, reading) for name, value in folded if name not in _INERT for reading in _readings(value)]


def _headers_with(headers: list[tuple[str, str]], decoy: str) -> set[str]:
    return {name for name, reading in headers if decoy in reading}


def _readings(value: bytes) -> tuple[str, ...]:
    text = value.decode("latin-1")
    return (text, unquote(text), basic_text(value)) if b"%" in value else (text, basic_text(value))
