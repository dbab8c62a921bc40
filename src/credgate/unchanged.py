"""What was read from files, kept for as long as each of them is the same file as it was: asked of the kernel each time.

stat(2) alone is what a look costs. A file that is written anew has another inode, size or time; so has one whose owner
or mode was changed, which is checked where it is read.
"""

import os
import stat
import time
from collections.abc import Callable, Hashable, Sequence

MOST = 256  # of what is kept
# Until Linux 6.13 a time stamp was that of the last tick, at most 10 ms ago (CONFIG_HZ=100), so that two changes in a
# row could look like one. What is read so soon behind a change is read again.
_SETTLED = 50_000_000  # nanoseconds

type Identity = tuple[int, ...] | None  # None: no such file


def identity(path: str) -> Identity:
    """Which file stands there, and when it was last touched. Raises OSError where that can't be told."""
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return None
    return (
        facts.st_dev,
        facts.st_ino,
        facts.st_mode,
        facts.st_uid,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
    )


def _is_settled(found: Sequence[Identity], now: int) -> bool:
    """Whether none of the files could be changed once more without showing it; by a clock set back none is."""
    return all(one is None or (stat.S_ISREG(one[2]) and now - one[-1] > _SETTLED) for one in found)


class Unchanged[T]:
    """Values by key; None isn't kept. Not thread-safe: it lives on one loop."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._held: dict[Hashable, tuple[tuple[Identity, ...], T]] = {}

    def get(self, key: Hashable, paths: Sequence[str], read: Callable[[], T]) -> T:
        """The value for `key`, which `read` makes of the files at `paths` and of nothing else.

        Raises what `read` raised, and keeps nothing then.
        """
        try:
            found = tuple(map(identity, paths))
        except OSError:
            return read()  # which says what is wrong
        held = self._held.get(key)
        if held is not None and held[0] == found:
            return held[1]
        self._held.pop(key, None)
        now = self._clock()
        value = read()
        if value is not None and _is_settled(found, now) and found == tuple(map(identity, paths)):
            if len(self._held) >= MOST:
                self._held.clear()
            self._held[key] = (found, value)
        return value
