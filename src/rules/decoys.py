"""Where a request carries a run's decoys, and whether they belong there. Bodies are not looked at: quoted in a
transcript a decoy is inert, and refusing it would stop the agent that quotes.
"""

from collections.abc import Collection, Mapping
from urllib.parse import unquote, unquote_plus

from rules.credentials import fold_name
from rules.inject import basic_text, decoy_in_place, header_of
from rules.policy import Binding, Mode
from rules.request import Request

__all__ = ["misplaced"]

# No server takes a credential from these, and agents write free text into them.
_INERT = frozenset({"user-agent", "referer"})


def misplaced(request: Request, bindings: Collection[Binding], decoys: Mapping[str, str]) -> bool:
    """Whether a decoy of the run stands in path, query or a header other than the place of its own binding."""
    for decoy in {value for value in decoys.values() if value}:
        if decoy in unquote_plus(request.target) or decoy in unquote(request.target) or decoy in request.target:
            return True
        own = [binding for binding in bindings if decoys.get(binding.name) == decoy]
        if any(not _belongs(request, name, own, decoy) for name in _headers_with(request, decoy)):
            return True
    return False


def _headers_with(request: Request, decoy: str) -> list[str]:
    return [
        fold_name(name)
        for name, value in request.headers
        if fold_name(name) not in _INERT and any(decoy in reading for reading in _readings(value))
    ]


def _readings(value: bytes) -> tuple[str, ...]:
    text = value.decode("latin-1")
    return text, unquote(text), basic_text(value)


def _belongs(request: Request, name: str, own: Collection[Binding], decoy: str) -> bool:
    """In mode overwrite the whole header is replaced, so the decoy does not leave whatever its form."""
    return any(
        header_of(binding) == name and (binding.mode is Mode.OVERWRITE or decoy_in_place(request, binding, decoy))
        for binding in own
    )
