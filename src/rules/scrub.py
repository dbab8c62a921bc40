"""Finds secrets in a stream and writes over them, whatever pieces it comes in. Pure: bytes in, bytes out.

A mask is as long as what it hides, so a Content-Length holds. Bytes are held back once HEAD of them match a needle, and
let go when a step of STEP bytes of it is whole and doesn't: were they let go at the first byte that differs, the delay
would tell whoever can have bytes echoed one character of a secret after the other. With fewer than HEAD the beginning
could be found out by trying, with more an event stream would wait for its next event more often.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ahocorasick_rs import BytesAhoCorasick, Implementation

HEAD = 8
STEP = 16
MASK = b"*"


class Table:
    """What is looked for: needles of at least HEAD bytes, each with the name of its secret. Never changes."""

    __slots__ = ("_automaton", "_beginning", "_heads", "_names")

    def __init__(self, needles: Mapping[bytes, str]) -> None:
        self._names = dict(needles)
        by_head: dict[bytes, dict[int, dict[bytes, list[bytes]]]] = {}
        for needle in self._names:
            if len(needle) < HEAD:
                raise ValueError(f"a needle of {len(needle)} bytes, expected at least {HEAD}")
            first = needle[: HEAD + STEP]
            by_head.setdefault(needle[:HEAD], {}).setdefault(len(first), {}).setdefault(first, []).append(needle)
        self._heads = list(by_head)
        # For each head, needles by their first bytes as far as one step reaches, and how many those are: many spellings
        # share a head that everybody knows ("sk-ant-a"), and whoever repeats it would have each of them looked at.
        self._beginning = [tuple(sizes.items()) for sizes in by_head.values()]
        self._automaton = BytesAhoCorasick(self._heads, implementation=Implementation.DFA) if self._heads else None

    def candidates(self, data: bytes) -> list[tuple[int, bytes]]:
        """Where needles may begin, and which: HEAD bytes are there, and no byte of the next step differs."""
        found: list[tuple[int, bytes]] = []
        if self._automaton is None:
            return found
        for head, start, _ in self._automaton.find_matches_as_indexes(data, overlapping=True):
            for size, needles in self._beginning[head]:
                first = data[start : start + size]
                if len(first) < size:  # more may follow
                    found += [(start, needle) for alike in needles.values() for needle in alike]
                elif first in needles:
                    found += [(start, needle) for needle in needles[first]]
        return found

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


@dataclass(slots=True)
class _Candidate:
    """A place where a needle may stand; `ok` bytes of it do."""

    start: int
    needle: bytes
    ok: int = HEAD

    def step(self, window: bytes) -> bool:
        """Compare what whole steps there are. False: it doesn't stand there."""
        size = len(self.needle)
        while self.ok < size:
            end = min(self.ok + STEP, size)
            if self.start + end > len(window):
                return True
            if window[self.start + self.ok : self.start + end] != self.needle[self.ok : end]:
                return False
            self.ok = end
        return True

    @property
    def whole(self) -> bool:
        return self.ok == len(self.needle)


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
        known = len(self._window)
        self._window += data
        skipped = max(0, known - HEAD + 1)
        found = self._table.candidates(self._window[skipped:] if skipped else self._window)
        if not found and not self._live and not self._masked:
            out = self._window[self._sent :] if self._sent else self._window
            self._window = self._window[-(HEAD - 1) :]
            self._sent = len(self._window)
            return out
        self._live += [_Candidate(skipped + start, needle) for start, needle in found]
        self._look()
        return self._emit(min((one.start for one in self._live), default=len(self._window)))

    def flush(self) -> bytes:
        """All that is held, though more may follow: what matched so far counts on."""
        return self._emit(len(self._window))

    def finish(self) -> bytes:
        """The end of the stream: a needle that is not whole is none."""
        self._live.clear()
        return self._emit(len(self._window))

    def _look(self) -> None:
        self._live = [one for one in self._live if one.step(self._window)]
        for one in self._live:
            if one.whole:
                name = self._table.name(one.needle)
                self.hits[name] = self.hits.get(name, 0) + 1
                self._masked.append((one.start, one.start + len(one.needle)))
        self._live = [one for one in self._live if not one.whole]

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
