"""The parameters of a query, and of a form's body, which is spelt alike. Pure; what is not touched stays byte for byte.

";" ends a parameter as "&" does: for some servers it does, so no reading is missed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, unquote_plus

__all__ = ["Parameter", "encoded", "likeness", "names_of", "parameters", "rewritten"]

_END = re.compile(r"[&;]")
_ALIKE = str.maketrans(". -", "___")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter, decoded. `raw` as it stands there, `lead` the separator before it ("" for the first)."""

    name: str
    value: str
    raw: str
    lead: str


def parameters(query: str) -> tuple[Parameter, ...]:
    """Take a query apart; empty parameters are kept, with an empty name."""
    return tuple(_each(query)) if query else ()


def _each(query: str) -> Iterator[Parameter]:
    start, lead = 0, ""
    for end in (*(found.start() for found in _END.finditer(query)), len(query)):
        raw = query[start:end]
        name, _, value = raw.partition("=")
        yield Parameter(name=unquote_plus(name), value=unquote_plus(value), raw=raw, lead=lead)
        start, lead = end + 1, query[end : end + 1]


def names_of(query: str) -> tuple[str, ...]:
    """Decoded names in order, those of empty parameters left out."""
    return tuple(unquote_plus(part.partition("=")[0]) for part in _END.split(query) if part)


def likeness(name: str) -> str:
    """A name as the most liberal server would look it up: case, brackets, and what PHP turns into "_" mean nothing."""
    return re.split(r"[\[\0]", name.strip(), maxsplit=1)[0].casefold().translate(_ALIKE)


def encoded(text: str) -> str:
    """A value as a parameter spells it: each byte of its UTF-8 escaped that is not unreserved (RFC 3986 2.3)."""
    return quote(text, safe="")


def rewritten(query: str, drop: Callable[[str], bool], placed: Iterable[tuple[str, str]]) -> str:
    """The query without the parameters whose name `drop` takes, with each of `placed`: its name, its value encoded.

    One that stands there already is written in its place, with the name's own spelling; else it comes last.
    """
    values = dict(placed)
    ours = frozenset(values)
    out = ""
    for one in parameters(query):
        raw = one.raw
        if one.name in values and raw:
            raw = f"{raw.partition('=')[0]}={values.pop(one.name)}"
        elif raw and (one.name in ours or drop(one.name)):
            continue
        out += (one.lead if out else "") + raw
    for name, value in values.items():
        out += ("&" if out else "") + f"{encoded(name)}={value}"
    return out
