"""A line whose fields are mostly known beforehand, as those of a request's `intent` and `outcome` are. Pure.

What doesn't change is cleaned and spelt once, and the line is put together of bytes: the very bytes that chain.link
makes of the same fields (a test holds the two together), in a fifth of its time (measured) or less (linking.py).
"""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby

from credgate.ledger import linking
from credgate.ledger.record import VERSION, Stamp, canonical, clean_fields

_HASH = "hash"
# What only the writer knows, in a line of any form. "v" stands in each line, so that every field before it may end
# with a comma; those behind it (verdict, via, witness) are never holes.
_OWN = {"boot": linking.BOOT, "mono_ns": linking.MONO, "prev": linking.PREV, "seq": linking.SEQ, "ts": linking.TS}


class Form:
    """Lines of one event with the same fields but for some: the holes, by name, whose values come in this order.

    Never changes. Raises TypeError as record.clean_fields, and for a hole that has no place.
    """

    __slots__ = ("ev", "holes", "template")

    def __init__(self, ev: str, fields: Mapping[str, object], holes: Iterable[str] = ()) -> None:
        self.ev = ev
        self.holes = tuple(holes)
        fixed = clean_fields(ev, fields)
        clean_fields(ev, dict.fromkeys(self.holes))  # their names
        if fixed.keys() & set(self.holes) or any(name > "v" for name in self.holes):
            raise TypeError(f"ledger: {ev}: a field can't be a hole")
        spelt = {name: fragment(name, value) for name, value in {**fixed, "ev": ev, "v": VERSION}.items()}
        parts: dict[str, linking.Part] = {**spelt, **_OWN, **{name: hole for hole, name in enumerate(self.holes)}}
        names = sorted(parts)
        before = _joined([b"{", *(parts[name] for name in names if name < _HASH)])
        *behind, last = _joined([parts[name] for name in names if name > _HASH])
        assert isinstance(last, bytes)  # of "v" or what is behind it, which is known
        end = last.removesuffix(b",") + b"}"
        general = partial(_general, ev, self.holes)
        known = tuple([b'"%b":' % name.encode() for name in self.holes])
        self.template = linking.template_of(before, (*behind, end), known, general)

    def put(self, chain: linking.IsChain, values: linking.Given, stamp: Stamp) -> int:
        """The next line of the chain, at that moment; returns its number."""
        boot, ts = fragment("boot", stamp.boot), canonical(stamp.ts)
        return chain.put(self.template, values, boot, "", ts, stamp.mono_ns)


def fragment(name: str, value: object) -> bytes:
    """One field of a line with its comma; `value` is a cleaned one."""
    return b'"%b":%b,' % (name.encode(), canonical(value))


def _general(ev: str, holes: tuple[str, ...], hole: int, value: object) -> bytes:
    """The fragment of any value. Raises TypeError as record.clean_fields."""
    name = holes[hole]
    cleaned = clean_fields(ev, {name: value})
    return fragment(name, cleaned[name]) if name in cleaned else b""


def _joined(parts: list[linking.Part]) -> tuple[linking.Part, ...]:
    """The same with what is known in one piece."""
    out: list[linking.Part] = []
    for kind, run in groupby(parts, type):
        if kind is bytes:
            out.append(b"".join([part for part in run if isinstance(part, bytes)]))
        else:
            out += run
    return tuple(out)
