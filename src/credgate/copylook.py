"""What a run changed in its copy of the work tree: the upper layer of its overlayfs against the host's tree.

The layer's own marks (Documentation/filesystems/overlayfs.rst): a character device 0/0, or an empty file with the
attribute `user.overlay.whiteout`, means that the name is gone; `user.overlay.opaque` that of a directory nothing of
the layer below shows. The jail can set neither by hand, and nothing here rests on that: a mark can delete, no more.
"""

import errno
import math
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from credgate.beneath import Beneath
from credgate.copychange import Change, Kind, ancestors
from credgate.copystore import Copy, CopyError, Entry
from credgate.statelook import before, of_interest
from credgate.statenotes import StateNotes, notes_of
from rules.naming import Naming

__all__ = ["CHANGED", "CHUNK", "PERMISSIONS", "Change", "Kind", "ancestors", "changes", "how_many", "opened_tree"]

ENTRIES = 1_000_000  # of an upper layer
IN_PASSING = 100_000  # likewise, where the daemon looks, which serves others meanwhile
SECONDS = 10.0  # for that
_LONG = 128  # characters of a path, which are kept for each: longer ones count for more
CHUNK = 1 << 20
PERMISSIONS = 0o777
_OPAQUE, _WHITEOUT = "user.overlay.opaque", "user.overlay.whiteout"
CHANGED = "changed on the host since the run began"


def changes(copy: Copy, bound: "Bound | None" = None) -> list[Change]:
    """Every change, by path; what the host has by now is none. Raises CopyError, also beyond the bound; PlaceError,
    OSError.
    """
    meta, notes = copy.meta, notes_of(copy)
    found = _found(copy, notes, bound or Bound(ENTRIES))
    if notes is not None:
        return sorted(of_interest(copy, notes, found), key=lambda c: c.path)
    naming = Naming.of(meta.readonly, meta.hide, meta.show)
    return sorted(
        (replace(c, naming=naming.why(c.path, c.target, directory=_is_directory(c))) for c in found),
        key=lambda c: (c.path, c.kind != Kind.DELETED),
    )


def how_many(copy: Copy) -> int:
    """How many changes there are in a copy of a work tree, by a look in passing. Raises as `changes` does."""
    return len(_found(copy, None, in_passing()))


class Bound:
    """Of one look through an upper layer, which a jail filled: entries, and the moment (time.monotonic) of its end."""

    def __init__(self, entries: int, until: float = math.inf) -> None:
        self._most = self._left = entries
        self._until = until

    def names(self, folder: int, path: str) -> list[str]:
        """What is in a directory, given its descriptor and path. Raises CopyError where that is too much; OSError."""
        each = 1 + len(path) // _LONG
        with os.scandir(folder) as listing:
            found = [entry.name for entry in islice(listing, self._left // each + 1)]
        self._left -= each * len(found)
        self.check()
        return found

    def check(self) -> None:
        """Raises CopyError once it is passed."""
        if self._left < 0 or time.monotonic() > self._until:
            detail = f"{self._most - self._left} entries were looked at, and there are more"
            raise CopyError("copy_too_large", detail, "see them in its place")


def in_passing() -> Bound:
    """Of the daemon's looks, from now on."""
    return Bound(IN_PASSING, time.monotonic() + SECONDS)


def _found(copy: Copy, notes: StateNotes | None, bound: Bound) -> list[Change]:
    with Beneath(str(copy.upper)) as upper, opened_tree(copy) as tree:
        start = copy.start() if notes is None else before(copy, notes, tree)
        return _Looking(copy, upper, tree, start, bound).run()


def opened_tree(copy: Copy) -> Beneath:
    """The host's work tree; the same directory as when the run began. Raises CopyError."""
    tree = Beneath(copy.meta.tree)
    facts = os.fstat(tree.root)
    if (facts.st_dev, facts.st_ino) != (copy.meta.device, copy.meta.inode):
        os.close(tree.root)
        raise CopyError("tree_replaced", f"{copy.meta.tree}: not the directory that the run began with", "move it back")
    return tree


class _Looking:
    def __init__(self, copy: Copy, upper: Beneath, tree: Beneath, start: Mapping[str, Entry], bound: Bound) -> None:
        self.upper, self.tree, self.reserved, self.bound = upper, tree, copy.meta.reserved, bound
        self.start = start
        self.inside: dict[str, set[str]] = {}
        for path in self.start:
            folder, _, name = path.rpartition("/")
            self.inside.setdefault(folder, set()).add(name)
        self.found: dict[tuple[str, bool], Change] = {}  # by path, and whether it is a deletion

    def run(self) -> list[Change]:
        todo = [("", False)]
        while todo:
            folder, fresh = todo.pop()
            try:
                todo += self._directory(folder, fresh=fresh)
            except OSError as error:
                self._refuse(folder, f"can't be looked into: {error.strerror}")
                self.bound.check()
        return self._without_reserved()

    def _directory(self, folder: str, *, fresh: bool) -> list[tuple[str, bool]]:
        """Judge what lies in a directory of the layer; those in it. fresh: nothing of the host's shows below it."""
        descriptor = self.upper.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        here, below = set(), []
        try:
            fresh = fresh or _marked(descriptor, _OPAQUE)
            for name in self.bound.names(descriptor, folder):
                path = f"{folder}/{name}" if folder else name
                facts = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if _is_whiteout(descriptor, name, facts):
                    if not fresh:
                        self._gone(path)
                    continue
                here.add(name)
                if self._entry(path, facts):
                    below.append((path, fresh or not self._was_directory(path)))
        finally:
            os.close(descriptor)
        if fresh:
            for name in self.inside.get(folder, set()) - here:
                self._gone(f"{folder}/{name}" if folder else name)
        return below

    def _was_directory(self, path: str) -> bool:
        before = self.start.get(path)
        return before is not None and stat.S_ISDIR(before.mode)

    def _entry(self, path: str, facts: os.stat_result) -> bool:
        """Enter what became of a path; True for a directory."""
        before, directory = self.start.get(path), stat.S_ISDIR(facts.st_mode)
        try:
            if before is not None and directory != stat.S_ISDIR(before.mode):
                host = self._host(path)
                if host is None or stat.S_ISDIR(host.st_mode) != directory:  # not taken over yet
                    self._gone(path)
                before = None
            change = self._change(path, before, facts)
        except OSError as error:
            self._refuse(path, f"can't be read: {error.strerror}")
            return False
        if change is not None:
            self._enter(change)
        return directory

    def _change(self, path: str, before: Entry | None, facts: os.stat_result) -> Change | None:
        after, directory = Entry.of(facts), stat.S_ISDIR(facts.st_mode)
        if not (directory or stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode)):
            return Change(path=path, kind=Kind.ADDED, after=after, refused="no file, directory or link")
        host = self._host(path)
        same = host is not None and self._same(path, facts, host)
        alike = host is not None and _permissions(host.st_mode) == _permissions(facts.st_mode)
        if same and (alike or stat.S_ISLNK(facts.st_mode)):
            return None
        target = self.upper.target(path) if stat.S_ISLNK(facts.st_mode) else ""
        if before is None:
            kind, conflict = Kind.ADDED, self._stands(path, host)
        else:
            kind, conflict = Kind.MODE if same else Kind.MODIFIED, _differs(before, host)
        return Change(path=path, kind=kind, before=before, after=after, target=target, conflict=conflict)

    def _host(self, path: str) -> os.stat_result | None:
        try:
            return self.tree.facts(path)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):  # a link or a mount on the way: seen again when it is applied
                return None
            raise

    def _stands(self, path: str, host: os.stat_result | None) -> str:
        """Of a path that was free: what is there by now, unless that goes away with this very change."""
        if host is None or ((was := self.start.get(path)) is not None and was.holds(host)):
            return ""
        return "made on the host since the run began"

    def _same(self, path: str, facts: os.stat_result, host: os.stat_result) -> bool:
        """Whether the host's has the same content."""
        if stat.S_IFMT(facts.st_mode) != stat.S_IFMT(host.st_mode):
            return False
        if stat.S_ISDIR(facts.st_mode):
            return True
        if stat.S_ISLNK(facts.st_mode):
            return self.upper.target(path) == self.tree.target(path)
        return facts.st_size == host.st_size and _equal(self.upper.regular(path), self.tree.regular(path), self.bound)

    def _gone(self, path: str) -> None:
        """The path, and all that was below it, was deleted; what the host has no more is no change."""
        todo = [path]
        while todo:
            each = todo.pop()
            todo += [f"{each}/{name}" for name in self.inside.get(each, ())]
            before, host = self.start.get(each), self._host(each)
            if before is not None and host is not None:
                self._enter(Change(path=each, kind=Kind.DELETED, before=before, conflict=_differs(before, host)))

    def _enter(self, change: Change) -> None:
        self.found[change.path, change.kind is Kind.DELETED] = change

    def _refuse(self, path: str, why: str) -> None:
        before = self.start.get(path)
        kind = Kind.ADDED if before is None else Kind.MODIFIED
        self.found.pop((path, False), None)
        self._enter(Change(path=path or ".", kind=kind, before=before, refused=why))

    def _without_reserved(self) -> list[Change]:
        """Without what was made before the start and is as it was; a directory in which something is stays."""
        found = list(self.found.values())
        ours = {change.path for change in found if change.kind is Kind.ADDED and self._untouched(change)}
        needed = {path for change in found if change.path not in ours for path in ancestors(change.path)}
        return [change for change in found if change.path not in ours or change.path in needed]

    def _untouched(self, change: Change) -> bool:
        text = self.reserved.get(change.path)
        if text is None or change.after is None:
            return False
        if not text:
            return stat.S_ISDIR(change.after.mode)
        if not stat.S_ISREG(change.after.mode):
            return False
        with os.fdopen(self.upper.regular(change.path), "rb") as file:
            return file.read(len(text) + 1) == text.encode()


def _is_directory(change: Change) -> bool:
    facts = change.after or change.before
    return facts is not None and stat.S_ISDIR(facts.mode)


def _differs(before: Entry, host: os.stat_result | None) -> str:
    if host is None:
        return "deleted on the host since the run began"
    return "" if before.holds(host) else CHANGED


def _permissions(mode: int) -> int:
    return mode & PERMISSIONS


def _equal(one: int, other: int, bound: Bound) -> bool:
    """Whether two files have the same bytes; closes both. Raises CopyError beyond the bound."""
    with os.fdopen(one, "rb") as first, os.fdopen(other, "rb") as second:
        while data := first.read(CHUNK):
            bound.check()  # a disk image that the run touched is read whole
            if data != second.read(CHUNK):
                return False
        return not second.read(1)


def _is_whiteout(folder: int, name: str, facts: os.stat_result) -> bool:
    if stat.S_ISCHR(facts.st_mode):
        return facts.st_rdev == 0
    if not stat.S_ISREG(facts.st_mode) or facts.st_size:
        return False
    return _marked(f"/proc/self/fd/{folder}/{name}", _WHITEOUT)


def _marked(where: int | str, attribute: str) -> bool:
    """Whether there is the attribute; not on a file that this user may not read, nor where the system has none."""
    try:
        follow = {} if isinstance(where, int) else {"follow_symlinks": False}
        value = os.getxattr(where, attribute, **follow)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EACCES, errno.ENOENT):
            return False
        raise
    return attribute == _WHITEOUT or value == b"y"
