"""A line whose fields are mostly known beforehand, as those of a request's `intent` and `outcome` are. Pure.

What doesn't change is cleaned and spelt once, and the line is put together of bytes: the very bytes that chain.link
makes of the same fields (a test holds the two together), in a fifth of its time (measured).
"""

import hashlib
from collections.abc import Iterable, Mapping

from credgate.ledger.chain import Head, ended
from credgate.ledger.record import VERSION, Stamp, canonical, clean_fields

_HASH = "hash"
# What only the writer knows, in a line of any form. "v" stands in each line, so that every field before it may end
# with a comma; those behind it (verdict, via, witness) are never holes.
_OWN = ("boot", "mono_ns", "prev", "seq", "ts")


class Form:
    """Lines of one event with the same fields but for some: the holes, by name. Never changes.

    Raises TypeError as record.clean_fields, and for a hole that has no place.
    """

    __slots__ = ("_before", "_behind", "ev", "holes")

    def __init__(self, ev: str, fields: Mapping[str, object], holes: Iterable[str] = ()) -> None:
        self.ev = ev
        self.holes = frozenset(holes)
        fixed = clean_fields(ev, fields)
        clean_fields(ev, dict.fromkeys(self.holes))  # their names
        if self.holes & fixed.keys() or any(name > "v" for name in self.holes):
            raise TypeError(f"ledger: {ev}: a field can't be a hole")
        spelt = {name: fragment(name, value) for name, value in {**fixed, "ev": ev, "v": VERSION}.items()}
        names = sorted({*spelt, *_OWN, *self.holes})
        self._before = _parts((n for n in names if n < _HASH), spelt)
        self._behind = _parts((n for n in names if n > _HASH), spelt)

    def link(self, head: Head, stamp: Stamp, filled: Mapping[str, bytes]) -> tuple[bytes, Head]:
        """As chain.link. `filled` has a fragment, or b"" for one that doesn't apply, for each hole."""
        values = {
            **filled,
            "boot": fragment("boot", stamp.boot),
            "mono_ns": b'"mono_ns":%d,' % stamp.mono_ns,
            "prev": b'"prev":"%b",' % head.sha256.encode(),
            "seq": b'"seq":%d,' % (head.seq + 1),
            "ts": fragment("ts", stamp.ts),
        }
        before = b"{" + b"".join([part if isinstance(part, bytes) else values[part] for part in self._before])
        behind = b"".join([part if isinstance(part, bytes) else values[part] for part in self._behind])[:-1] + b"}"
        digest = hashlib.sha256(before + behind).hexdigest().encode()
        return ended(b'%b"hash":"%b",%b\n' % (before, digest, behind), head.seq + 1)


def fragment(name: str, value: object) -> bytes:
    """One field of a line with its comma; `value` is a cleaned one."""
    return b'"%b":%b,' % (name.encode(), canonical(value))


def _parts(names: Iterable[str], spelt: Mapping[str, bytes]) -> tuple[bytes | str, ...]:
    """Bytes that are known, the names of holes between them."""
    parts: list[bytes | str] = []
    for name in names:
        known = spelt.get(name)
        if known is None:
            parts.append(name)
        elif parts and isinstance(parts[-1], bytes):
            parts[-1] += known
        else:
            parts.append(known)
    return tuple(parts)
