"""What was read from files, kept for as long as each of them is the same file as it was: asked of the kernel each time.

stat(2) alone is what a look costs, and where `filewatch` can say that nothing has changed since the last one, not even
that. A file that is written anew has another inode, size or time; so has one whose owner or mode was changed, which is
checked where it is read.
"""

import os
import stat
import struct
import time
from collections.abc import Callable, Hashable
from functools import cache
from typing import cast

from credgate import compiled
from credgate.filewatch import FileWatch

MOST = 256  # of what is kept
WATCHED = 8  # sets of files, of which each has two descriptors
# Until Linux 6.13 a time stamp was that of the last tick, at most 10 ms ago (CONFIG_HZ=100), so that two changes in a
# row could look like one. What is read so soon behind a change is read again.
_SETTLED = 50_000_000  # nanoseconds

# Of each file device, inode, mode, owner, size, and the times of its content and of itself, in nanoseconds; all 0 where
# there is none. An inode may take all 64 bits: mergerfs and others on FUSE make them of a hash.
_FACTS = struct.Struct("=2Q5q")


def identities(paths: tuple[str, ...]) -> bytes:
    """Which files stand there, and when each was last touched. Raises OSError where that can't be told."""
    return b"".join([_identity(path) for path in paths])


def _identity(path: str) -> bytes:
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return bytes(_FACTS.size)
    who = facts.st_dev, facts.st_ino, facts.st_mode, facts.st_uid
    return _FACTS.pack(*who, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@cache
def _look() -> Callable[[tuple[str, ...]], bytes]:
    """The compiled one, where there is one: it is asked for each request."""
    module = compiled.load("look")
    return identities if module is None else cast("Callable[[tuple[str, ...]], bytes]", module.identities)


def _is_settled(found: bytes, now: int) -> bool:
    """Whether none of the files could be changed once more without showing it; by a clock set back none is."""
    files = list(_FACTS.iter_unpack(found))
    return all(not one[2] or (stat.S_ISREG(one[2]) and now - one[6] > _SETTLED) for one in files)


class _Watched:
    """Files that are watched since they were seen to be `found`; b"": they aren't."""

    __slots__ = ("found", "watch")

    def __init__(self, watch: FileWatch) -> None:
        self.watch = watch
        self.found = b""


class Unchanged[T]:
    """Values by key; None isn't kept. Not thread-safe: it lives on one loop."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._held: dict[Hashable, tuple[bytes, T]] = {}
        self._look = _look()
        self._watches: dict[tuple[str, ...], _Watched] = {}

    def known(self, key: Hashable, paths: tuple[str, ...]) -> T | None:
        """The value that is kept, where the files are still those that it was read from: as nearly always."""
        held = self._held.get(key)
        if held is None:
            return None
        watched = self._watches.get(paths)
        if watched is not None and watched.found == held[0] and watched.watch.is_silent():
            return held[1]
        try:
            return held[1] if self._seen(paths, held[0]) else None
        except OSError:
            return None  # `get` says what is wrong

    def _seen(self, paths: tuple[str, ...], found: bytes) -> bool:
        """Look again, the files watched from before the look on where they can be. Raises OSError."""
        watched = self._watches.get(paths)
        if watched is None:
            if len(self._watches) >= WATCHED:
                for old in self._watches.values():
                    old.watch.end()
                self._watches.clear()
            watched = self._watches[paths] = _Watched(FileWatch(paths))
        watched.found = b""
        begun = watched.watch.begin()
        if self._look(paths) != found:
            return False
        if begun:
            watched.found = found
        return True

    def get(self, key: Hashable, paths: tuple[str, ...], read: Callable[[], T]) -> T:
        """The value for `key`, which `read` makes of the files at `paths` and of nothing else.

        Raises what `read` raised, and keeps nothing then.
        """
        try:
            found = self._look(paths)
        except OSError:
            return read()  # which says what is wrong
        held = self._held.get(key)
        if held is not None and held[0] == found:
            return held[1]
        self._held.pop(key, None)
        now = self._clock()
        value = read()
        if value is not None and _is_settled(found, now) and found == self._look(paths):
            if len(self._held) >= MOST:
                self._held.clear()
            self._held[key] = (found, value)
        return value
