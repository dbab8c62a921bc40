"""Lines that are mostly known beforehand, made and chained; and what is kept of a chain that goes on.

`Template` and `Chain` here say what native/modules/chain.c does in one call for each line, in a tenth of the time: that
one serves where it was built. Tests hold both to the same bytes, whatever they are given.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from credgate import compiled
from credgate.ledger.host import moment
from credgate.ledger.record import MAX_INT, MAX_LINE
from credgate.ledger.tree import Tree, leaf_hash
from rules.correlate import base36

# What only the writer knows of a line, as a part of a template; a part from 0 on is a hole.
BOOT, MONO, PREV, SEQ, TS = -1, -2, -3, -4, -5
_OWN = {BOOT: b"%b", MONO: b'"mono_ns":%d,', PREV: b'"prev":"%b",', SEQ: b'"seq":%d,', TS: b'"ts":%b,'}

type Part = bytes | int
# A hole's value: None for a field that doesn't apply; a fragment; a number; of a tag whose end is the line's number in
# base 36 its beginning, alone in a tuple; what else it may be the form's `general` spells.
type Values = tuple[object, ...]
type Given = Values | Callable[[int], Values]  # made of the line's number, where that decides more
type General = Callable[[int, object], bytes]
type End = tuple[int, str]  # number and SHA-256 of a line


class IsTemplate(Protocol):
    """`Template`, or the compiled one."""


class IsChain(Protocol):
    """`Chain`, or the compiled one."""

    @property
    def seq(self) -> int:
        """Number of the last line."""

    @property
    def end(self) -> End:
        """The last line."""

    @property
    def written(self) -> End:
        """The last one that `wrote` was told of."""

    @property
    def nodes(self) -> tuple[bytes, ...]:
        """The tree over all lines, as Tree has it."""

    def put(self, template: IsTemplate, values: Given, boot: bytes, day: str, ts: bytes | None, mono: int, /) -> int:
        """Make a line, keep it to be written, and return its number. `boot` is a fragment, `ts` is spelt.

        Without `ts` the host's clocks are asked; 0, and nothing was done, where it is no longer `day` or that is "".
        Raises TypeError as record.clean_fields, and for a line that is too long: nothing was done then.
        """

    def add(self, line: bytes, /) -> int:
        """Keep a line that follows `end`, and return its number."""

    def take(self) -> bytes:
        """All lines that are kept, in their order; none is any more."""

    def wrote(self) -> None:
        """All that was taken is in the file."""


class Template:
    """A line's parts before and behind its hash. `names` are those of the holes, each as `"name":`."""

    __slots__ = ("_before", "_behind", "_general", "_names")

    def __init__(
        self, before: tuple[Part, ...], behind: tuple[Part, ...], names: tuple[bytes, ...], general: General
    ) -> None:
        self._before, self._behind = (_percent(before), _holes(before)), (_percent(behind), _holes(behind))
        self._names, self._general = names, general

    def line(self, end: End, given: Given, boot: bytes, ts: bytes, mono: int) -> bytes:
        """The line behind `end`."""
        if not 0 <= mono <= MAX_INT:
            raise TypeError("ledger: a number is outside 0..2**63-1")
        seq = end[0] + 1
        values = given if isinstance(given, tuple) else given(seq)
        if len(values) != len(self._names):
            raise TypeError("ledger: not a value for each hole")
        spelt: list[object] = [self._spelt(hole, value, seq) for hole, value in enumerate(values)]
        spelt += [ts, seq, end[1].encode(), mono, boot]  # at TS, SEQ, PREV, MONO, BOOT
        (known, holes), (known_behind, holes_behind) = self._before, self._behind
        before = known % tuple([spelt[hole] for hole in holes])
        behind = known_behind % tuple([spelt[hole] for hole in holes_behind])
        digest = hashlib.sha256(before)
        digest.update(behind)
        line = b'%b"hash":"%b",%b\n' % (before, digest.hexdigest().encode(), behind)
        if len(line) > MAX_LINE:  # the table of record.py rules it out; a test holds it to that
            raise TypeError(f"ledger: line has {len(line)} bytes, at most {MAX_LINE}")
        return line

    def _spelt(self, hole: int, value: object, seq: int) -> bytes:
        if value is None:
            return b""
        if type(value) is bytes:
            return value
        if type(value) is int:
            if not 0 <= value <= MAX_INT:
                raise TypeError("ledger: a number is outside 0..2**63-1")
            return b"%b%d," % (self._names[hole], value)
        if type(value) is tuple and len(value) == 1 and type(value[0]) is bytes:
            return b'%b"%b%b",' % (self._names[hole], value[0], base36(seq).encode())
        return self._general(hole, value)


def _percent(parts: tuple[Part, ...]) -> bytes:
    return b"".join([part.replace(b"%", b"%%") if isinstance(part, bytes) else _OWN.get(part, b"%b") for part in parts])


def _holes(parts: tuple[Part, ...]) -> tuple[int, ...]:
    return tuple([part for part in parts if isinstance(part, int)])


class Chain:
    """As IsChain says."""

    __slots__ = ("_held", "_tree", "end", "written")

    def __init__(self, seq: int, sha256: str, nodes: Sequence[bytes]) -> None:
        self.end = self.written = (seq, sha256)
        self._tree = Tree(seq, nodes)
        self._held: list[bytes] = []

    @property
    def seq(self) -> int:
        """Number of the last line."""
        return self.end[0]

    @property
    def nodes(self) -> tuple[bytes, ...]:
        """The tree over all lines, as Tree has it."""
        return tuple(self._tree.nodes)

    def put(self, template: IsTemplate, values: Given, boot: bytes, day: str, ts: bytes | None, mono: int, /) -> int:
        """Make a line."""
        if ts is None:
            text, mono = moment()
            if text[:10] > day or not day:
                return 0
            ts = b'"%b"' % text.encode()
        return self.add(cast("Template", template).line(self.end, values, boot, ts, mono))

    def add(self, line: bytes, /) -> int:
        """Keep a line. Without memory for it nothing was done: the chain must not go on with a line that isn't kept."""
        end = (self.end[0] + 1, hashlib.sha256(line).hexdigest())
        tree = Tree(self._tree.size, self._tree.nodes)
        tree.push(leaf_hash(line))
        self._held.append(line)
        self.end, self._tree = end, tree
        return end[0]

    def take(self) -> bytes:
        """All lines that are kept."""
        lines, self._held = b"".join(self._held), []
        return lines

    def wrote(self) -> None:
        """All that was taken is in the file."""
        self.written = self.end


def template_of(
    before: tuple[Part, ...], behind: tuple[Part, ...], names: tuple[bytes, ...], general: General
) -> IsTemplate:
    """The compiled one, where there is one. Each chain of this process takes it."""
    module = compiled.load("chain")
    make = Template if module is None else module.Template
    return cast("IsTemplate", make(before, behind, names, general))


def chain_of(end: End, tree: Tree) -> IsChain:
    """Likewise. Raises ValueError where the tree isn't that of the lines up to `end`."""
    module = compiled.load("chain")
    make = Chain if module is None else module.Chain
    return cast("IsChain", make(*end, tuple(tree.nodes)))
