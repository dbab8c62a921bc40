"""Where a request carries a run's decoys, and whether they belong there. Bodies are not looked at: quoted in a
transcript a decoy is inert, and refusing it would stop the agent that quotes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
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
    headers = [field for field in _read(request.headers) if field[0] not in _INERT]
    for decoy in {value for value in decoys.values() if value}:
        if any(decoy in reading for reading in target):
            return True
        found = {name for name, reading in headers if decoy in reading}
        own = (b for b in bindings if decoys.get(b.name) == decoy and holds_decoy(request, b, decoy))
        if found and not found.issubset({header_of(binding) for binding in own}):
            return True
    return False


def holds_decoy(request: Request, binding: Binding, decoy: str) -> bool:
    """Whether the decoy stands where this binding's secret goes.

    In mode overwrite the whole header is replaced, so the decoy does not leave, whatever form the client gave it.
    """
    if binding.mode is not Mode.OVERWRITE:
        return decoy_in_place(request, binding, decoy)
    place = header_of(binding)
    here = (field for field in request.headers if fold_name(field[0]) == place)
    return bool(decoy) and any(decoy in reading for _, reading in _read(here))


def _read(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    """Each way to read each header's value, beside the header's folded name."""
    for name, value in headers:
        folded = fold_name(name)
        yield folded, value.decode("latin-1")
        if b"%" in value:
            yield folded, unquote(value.decode("latin-1"))
        if inside := basic_text(value):
            yield folded, inside
