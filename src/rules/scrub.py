"""Finds secrets in a stream and writes over them, whatever pieces it comes in. Pure: bytes in, bytes out.

A mask is as long as what it hides, so a Content-Length holds. Bytes are held back once HEAD of them match a needle, and
let go when a step of STEP bytes of it is whole and doesn't: were they let go at the first byte that differs, the delay
would tell whoever can have bytes echoed one character of a secret after the other. With fewer than HEAD the beginning
could be found out by trying, with more an event stream would wait for its next event more often.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

HEAD = 8
STEP = 16
MASK = b"*"
# Measured: for at most 64 beginnings the library searches 8 GB/s where there is none, by SIMD, and then finds only the
# leftmost of matches that overlap. Its automaton finds them all, at 0.2 to 0.5. The former is asked if there are any.
_TOGETHER = 64
_MOST = 16  # such searches, above which the automaton alone is as fast
_LONG = 1 << 10  # bytes of a piece from which on it is searched where it lies


class _Node:
    """Needles that begin alike, as far as some step: `needle` the one that ends there, `following` how others go on, by
    the length of their next step.
    """

    __slots__ = ("following", "needle")

    def __init__(self) -> None:
        self.needle: bytes | None = None
        self.following: dict[int, dict[bytes, _Node]] = {}


class Table:
    """What is looked for: needles of at least HEAD bytes, each with the name of its secret. Never changes."""

    __slots__ = ("_automaton", "_names", "_nodes", "_quick", "_whole", "longest")

    def __init__(self, needles: Mapping[bytes, str]) -> None:
        self._names = dict(needles)
        self.longest = max(map(len, self._names), default=0)
        self._whole: BytesAhoCorasick | None = None  # made when it is first asked
        by_head: dict[bytes, _Node] = {}
        for needle in self._names:
            if len(needle) < HEAD:
                raise ValueError(f"a needle of {len(needle)} bytes, expected at least {HEAD}")
            node = by_head.setdefault(needle[:HEAD], _Node())
            for at in range(HEAD, len(needle), STEP):
                step = needle[at : at + STEP]
                node = node.following.setdefault(len(step), {}).setdefault(step, _Node())
            node.needle = needle
        self._nodes = list(by_head.values())
        heads = list(by_head)
        self._automaton = BytesAhoCorasick(heads, implementation=Implementation.DFA) if heads else None
        groups = [heads[at : at + _TOGETHER] for at in range(0, len(heads), _TOGETHER)]
        few = groups if len(groups) <= _MOST else []
        self._quick = [BytesAhoCorasick(group, matchkind=MatchKind.LeftmostFirst) for group in few]

    def candidates(self, data: bytes) -> list[tuple[int, _Node]]:
        """Where needles may begin, and which: their first HEAD bytes are there."""
        if self._automaton is None or len(data) < HEAD:
            return []
        if self._quick:
            for quick in self._quick:  # no any(): a generator costs as much as a search
                if quick.find_matches_as_indexes(data):
                    break
            else:
                return []
        found = self._automaton.find_matches_as_indexes(data, overlapping=True)
        return [(start, self._nodes[head]) for head, start, _ in found]

    def whole(self, data: bytes) -> list[tuple[int, str]]:
        """Where needles end that stand there whole, each with its secret's name."""
        if not self._names:
            return []
        if self._whole is None:
            self._whole = BytesAhoCorasick(list(self._names))
        names = list(self._names.values())
        return [(end, names[at]) for at, _, end in self._whole.find_matches_as_indexes(data, overlapping=True)]

    def name(self, needle: bytes) -> str:
        """The secret that a needle is a spelling of."""
        return self._names[needle]

    def clean(self, data: bytes) -> tuple[bytes, frozenset[str]]:
        """Data that is whole, written over, and the names of the secrets that were in it."""
        if not self.candidates(data):
            return data, frozenset()
        scrubber = Scrubber(self)
        return scrubber.feed(data) + scrubber.finish(), frozenset(scrubber.hits)

    def found(self, data: bytes) -> frozenset[str]:
        """The names of the secrets in data that is whole."""
        return self.clean(data)[1]


class Spotter:
    """One stream in which needles are counted, and nothing is held or written over.

    Whole needles alone are stopped at: a stream made of nothing but their beginnings takes a Scrubber a hundred times
    as long, and decoded bytes come to 128 times of what somebody sends.
    """

    __slots__ = ("_table", "_tail", "hits")

    def __init__(self, table: Table) -> None:
        self.hits: dict[str, int] = {}
        self._table, self._tail = table, b""

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        known, window = len(self._tail), self._tail + data
        for end, name in self._table.whole(window):
            if end > known:
                self.hits[name] = self.hits.get(name, 0) + 1
        self._tail = window[max(0, len(window) - self._table.longest + 1) :] if self._table.longest else b""


@dataclass(slots=True)
class _Candidate:
    """A place where needles may stand: `ok` bytes of them do, and the next step is `size` bytes, one of `steps`.

    One for all that are alike so far. Many share a beginning that everybody knows ("sk-ant-a", the head of a JWT), and
    whoever repeats that would have each spelling of each of them looked at.
    """

    start: int
    ok: int
    size: int
    steps: dict[bytes, _Node]


class Scrubber:
    """One stream. `hits` counts what was found, by the secret's name.

    A needle that is whole is found at every chunking. Up to HEAD - 1 bytes of it may have gone out before, where the
    sender paused within them: they were not held, for the reasons above.
    """

    __slots__ = ("_live", "_masked", "_sent", "_table", "_window", "hits")

    def __init__(self, table: Table) -> None:
        self.hits: dict[str, int] = {}
        self._table = table
        self._window = b""  # its first `_sent` bytes went out, and are kept to be matched with what follows
        self._sent = 0
        self._live: list[_Candidate] = []
        self._masked: list[tuple[int, int]] = []  # parts of the window, from and to

    @property
    def held(self) -> int:
        """Bytes that are kept back."""
        return len(self._window) - self._sent

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those that may go out now, which may be none."""
        if len(data) >= _LONG and self._is_clear(data):
            self._window = data[-(HEAD - 1) :]
            self._sent = len(self._window)
            return data
        if len(data) >= max(_LONG, 4 * self._table.longest) and self._only_begins(data):
            whole = len(data) - self._table.longest  # what begins before here would have ended by now
            self._window = data[whole - HEAD + 1 : whole]
            self._sent = len(self._window)
            return data[:whole] + self.feed(data[whole:])
        known = len(self._window)
        self._window += data
        skipped = max(0, known - HEAD + 1)
        found = self._table.candidates(self._window[skipped:] if skipped else self._window)
        if not found and not self._live and not self._masked:
            out = self._window[self._sent :] if self._sent else self._window
            self._window = self._window[-(HEAD - 1) :]
            self._sent = len(self._window)
            return out
        live, self._live = self._live, []
        for start, node in found:
            live += self._reached(skipped + start, HEAD, node)
        while live:  # no recursion: a value of 16 KiB has a thousand steps
            live += self._look(live.pop())
        return self._emit(min((one.start for one in self._live), default=len(self._window)))

    def _is_clear(self, data: bytes) -> bool:
        """Whether nothing is held, and nothing begins in these bytes, nor across their border with the last ones."""
        if self.held or self._live or self._masked:
            return False
        border = self._window[-(HEAD - 1) :] + data[: HEAD - 1]
        return not (self._table.candidates(border) or self._table.candidates(data))

    def _only_begins(self, data: bytes) -> bool:
        """Whether nothing is held, and no needle that begins in the last bytes or in these is whole by their end."""
        if self.held or self._live or self._masked:
            return False
        return not self._table.whole(self._window[-(HEAD - 1) :] + data)

    def flush(self) -> bytes:
        """All that is held, though more may follow: what matched so far counts on."""
        return self._emit(len(self._window))

    def finish(self) -> bytes:
        """The end of the stream: a needle that is not whole is none."""
        self._live.clear()
        return b"" if not self.held else self._emit(len(self._window))

    def _look(self, one: _Candidate) -> list[_Candidate]:
        """Compare the next step, once it is whole: what differs in it doesn't stand there."""
        end = one.start + one.ok + one.size
        if end > len(self._window):
            self._live.append(one)
            return []
        node = one.steps.get(self._window[end - one.size : end])
        return [] if node is None else self._reached(one.start, one.ok + one.size, node)

    def _reached(self, start: int, ok: int, node: _Node) -> list[_Candidate]:
        """So many bytes of needles stand there, of one of them all; returns what to look at next."""
        if node.needle is not None:
            name = self._table.name(node.needle)
            self.hits[name] = self.hits.get(name, 0) + 1
            self._masked.append((start, start + ok))
        return [_Candidate(start, ok, size, steps) for size, steps in node.following.items()]

    def _emit(self, limit: int) -> bytes:
        """Let go what stands before `limit`, and forget what no needle can reach back to."""
        limit = max(limit, self._sent)
        out = bytearray(self._window[self._sent : limit])
        for start, end in self._masked:
            low, high = max(start, self._sent) - self._sent, min(end, limit) - self._sent
            if low < high:
                out[low:high] = MASK * (high - low)
        base = max(0, min([limit - HEAD + 1, *(one.start for one in self._live)]))
        self._window, self._sent = self._window[base:], limit - base
        self._masked = [(start - base, end - base) for start, end in self._masked if end > limit]
        for one in self._live:
            one.start -= base
        return bytes(out)
