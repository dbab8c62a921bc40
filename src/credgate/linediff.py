"""The lines that differ between two texts, of which either may be hostile.

difflib's time grows faster than with the square of lines that repeat: 24,000 of 120 kinds in a random order take it
2 s, 48,000 take 9 s (measured), and a megabyte has a quarter of a million. Where that is to be feared everything
between the first and the last line that differ is shown as one change.
"""

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile

MOST_PAIRS = 1 << 20  # of equal lines, one of each text: half a second
_CONTEXT = 3


def unified(before: Sequence[str], after: Sequence[str], old: str, new: str) -> Iterator[str]:
    """A unified diff without line ends; `old` and `new` name the texts. Nothing where they are equal."""
    if _pairs(before, after) <= MOST_PAIRS:
        yield from difflib.unified_diff(before, after, old, new, lineterm="", n=_CONTEXT)
        return
    head = _alike(before, after)
    tail = _alike(before[head:][::-1], after[head:][::-1])
    if head == len(before) == len(after):
        return
    first = max(0, head - _CONTEXT)
    ends = [len(text) - tail for text in (before, after)]
    behind = before[ends[0] : ends[0] + _CONTEXT]
    sizes = [end + len(behind) - first for end in ends]
    yield from (f"--- {old}", f"+++ {new}", "@@ {} {} @@".format(*map(_range, "-+", (first, first), sizes)))
    yield from (f" {line}" for line in before[first:head])
    yield from (f"-{line}" for line in before[head : ends[0]])
    yield from (f"+{line}" for line in after[head : ends[1]])
    yield from (f" {line}" for line in behind)


def _pairs(before: Sequence[str], after: Sequence[str]) -> int:
    """What difflib looks at when it looks for one match; lines that make up more than a hundredth it leaves out."""
    ours, theirs = Counter(before), Counter(after)
    popular = len(after) // 100 + 1 if len(after) >= 200 else len(after)
    return sum(count * ours[line] for line, count in theirs.items() if count <= popular)


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _range(sign: str, first: int, size: int) -> str:
    """As POSIX diff -u: the line before an empty one."""
    begin = first + 1 if size else first
    return f"{sign}{begin}" if size == 1 else f"{sign}{begin},{size}"
