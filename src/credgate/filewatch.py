"""Whether files may have changed since somebody looked at them, asked of the kernel in one call for all of them.

A look by stat(2) walks each path: 12 us of a request's CPU at one connection, for three files (measured). So inotify(7)
watches the files, the directories that they lie in, and those above, and /proc/self/mountinfo tells of a mount over any
of them (proc(5)); while both are silent the next look would find what the last one found. The kernel queues an event
within the call that brings it about: a change that was over before somebody asks is told.

What inotify does not tell is not watched: files of other hosts (NFS, FUSE, ...), and names that lead through a link. It
tells neither of writes into a mapping (mmap(2)) nor of the mode of a directory further above; no secret is set by them.
Whoever may not watch, since a jail of the same user took all watches or a directory can't be read, looks as before.
"""

import ctypes
import os
import select
import stat
import struct
import time
import weakref
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from credgate import compiled, loops

if TYPE_CHECKING:
    from credgate.loops import WideSelector

# sys/inotify.h
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x002, 0x004, 0x008
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x040, 0x080, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_ONLYDIR, _DONT_FOLLOW, _MASK_ADD = 0x0100_0000, 0x0200_0000, 0x2000_0000
_SELF = _DELETE_SELF | _MOVE_SELF
_ENTRIES = _ATTRIB | _MODIFY | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE

# statfs(2): file systems whose every change goes through this kernel (linux/magic.h): ext4, xfs, btrfs, tmpfs, f2fs.
_LOCAL = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0xF2F52010})
_STATFS = struct.Struct("=q")  # its first word is the kind
PAUSE = 1.0  # seconds behind a change in which nothing is watched: what changes all the time is looked at as before


class Unwatchable(Exception):
    """These files can't be watched, here or now."""


@cache
def _silent() -> Callable[[int, int], bool] | None:
    """The one call; without it a look is as cheap."""
    module = compiled.load("look")
    return None if module is None else cast("Callable[[int, int], bool]", module.silent)


class FileWatch:
    """Of some paths, which are absolute. Not thread-safe."""

    def __init__(self, paths: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._events = self._mounts = -1
        self._selector: WideSelector | None = None  # of the loop that is told
        self._is_fresh: Callable[[], bool] | None = None  # whether it was just now
        self._paths, self._clock = tuple(paths), clock
        self._ask = _silent()
        self._not_before = 0.0

    def begin(self) -> bool:
        """Watch from here on, what came before forgotten: the look that counts comes behind. False: it can't be."""
        self.end()
        now = self._clock()
        if self._ask is None or now < self._not_before:
            return False
        self._not_before = now + PAUSE
        try:
            self._events = _watching(self._paths)
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._ask(self._events, self._mounts)  # the table's news begin with the first question
            self._listen()
        except (OSError, Unwatchable):
            self.end()
            return False
        return True

    def is_silent(self) -> bool:
        """Whether nothing has changed since. What isn't watched is never silent."""
        if self._events < 0 or self._ask is None:
            return False
        if self._is_fresh is not None and self._is_fresh():
            return True  # the kernel was asked a moment ago, along with all else that woke us
        return self._ask(self._events, self._mounts)

    def _listen(self) -> None:
        """Have the loop tell, where it can: it waits for all its descriptors in one call."""
        selector, ended = loops.running(), partial(_ended, weakref.ref(self))
        if selector is None or not selector.add_first(self._events, select.EPOLLRDNORM, ended):
            return
        if selector.add_first(self._mounts, select.EPOLLPRI, ended):
            self._selector, self._is_fresh = selector, selector.is_fresh
        else:
            selector.remove_first(self._events)

    def end(self) -> None:
        """Watch no more."""
        if self._selector is not None:
            self._selector.remove_first(self._events)
            self._selector.remove_first(self._mounts)
            self._selector = self._is_fresh = None
        for descriptor in (self._events, self._mounts):
            if descriptor >= 0:
                os.close(descriptor)
        self._events = self._mounts = -1

    def __del__(self) -> None:
        self.end()


def _ended(which: "weakref.ref[FileWatch]") -> None:
    """Something happened. A loop alone keeps no watch alive, which has descriptors."""
    watch = which()
    if watch is not None:
        watch.end()


def _watching(paths: Iterable[str]) -> int:
    """A descriptor with an event for each change of these paths. Raises OSError, Unwatchable."""
    libc = ctypes.CDLL(None, use_errno=True)
    events = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    try:
        for path in paths:
            folder = Path(path).parent
            if not _is_local(libc, folder):
                raise Unwatchable
            _add(libc, events, str(folder), _SELF | _ENTRIES | _ONLYDIR)
            for above in folder.parents:
                _add(libc, events, str(above), _SELF | _ONLYDIR)
            if os.path.lexists(path):
                _add(libc, events, path, _SELF | _ATTRIB | _MODIFY | _CLOSE_WRITE)
    except BaseException:
        os.close(events)
        raise
    return events


def _add(libc: ctypes.CDLL, events: int, path: str, mask: int) -> None:
    """Raises OSError, also for a link."""
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise Unwatchable
    _checked(libc.inotify_add_watch(events, os.fsencode(path), mask | _DONT_FOLLOW | _MASK_ADD))


def _is_local(libc: ctypes.CDLL, folder: Path) -> bool:
    found = ctypes.create_string_buffer(256)  # struct statfs is 120 bytes, on each machine
    _checked(libc.statfs(os.fsencode(folder), found))
    return int(_STATFS.unpack_from(found)[0]) in _LOCAL


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
