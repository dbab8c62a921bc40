"""What a run changed in its copy of the work tree: the upper layer of its overlayfs against the host's tree.

The layer's own marks (Documentation/filesystems/overlayfs.rst): a character device 0/0, or an empty file with the
attribute `user.overlay.whiteout`, means that the name is gone; `user.overlay.opaque` that of a directory nothing of
the layer below shows. The jail can set neither by hand, and nothing here rests on that: a mark can delete, no more.
"""

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import replace

from credgate.beneath import Beneath
from credgate.copychange import Change, Kind, ancestors
from credgate.copystore import Copy, CopyError, Entry
from credgate.statelook import before, of_interest
from credgate.statenotes import notes_of
from rules.naming import Naming

__all__ = ["CHANGED", "CHUNK", "PERMISSIONS", "Change", "Kind", "ancestors", "changes", "opened_tree"]

ENTRIES = 1_000_000  # of an upper layer
CHUNK = 1 << 20
PERMISSIONS = 0o777
_OPAQUE, _WHITEOUT = "user.overlay.opaque", "user.overlay.whiteout"
CHANGED = "changed on the host since the run began"


def changes(copy: Copy) -> list[Change]:
    """Every change, by path; what the host has by now is none. Raises CopyError, PlaceError, OSError."""
    meta, notes = copy.meta, notes_of(copy)
    with Beneath(str(copy.upper)) as upper, opened_tree(copy) as tree:
        start = copy.start() if notes is None else before(copy, notes, tree)
        found = _Looking(copy, upper, tree, start).run()
    if notes is not None:
        return sorted(of_interest(copy, notes, found), key=lambda c: c.path)
    naming = Naming.of(meta.readonly, meta.hide, meta.show)
    return sorted(
        (replace(c, naming=naming.why(c.path, c.target)) for c in found), key=lambda c: (c.path, c.kind != Kind.DELETED)
    )


def opened_tree(copy: Copy) -> Beneath:
    """The host's work tree; the same directory as when the run began. Raises CopyError."""
    tree = Beneath(copy.meta.tree)
    facts = os.fstat(tree.root)
    if (facts.st_dev, facts.st_ino) != (copy.meta.device, copy.meta.inode):
        os.close(tree.root)
        raise CopyError("tree_replaced", f"{copy.meta.tree}: not the directory that the run began with", "move it back")
    return tree


class _Looking:
    def __init__(self, copy: Copy, upper: Beneath, tree: Beneath, start: Mapping[str, Entry]) -> None:
        self.upper, self.tree, self.reserved = upper, tree, copy.meta.reserved
        self.start = start
        self.inside: dict[str, set[str]] = {}
        for path in self.start:
            folder, _, name = path.rpartition("/")
            self.inside.setdefault(folder, set()).add(name)
        self.found: list[Change] = []

    def run(self) -> list[Change]:
        left = ENTRIES
        todo = [("", False)]
        while todo:
            folder, fresh = todo.pop()
            try:
                names, below = self._directory(folder, fresh=fresh)
            except OSError as error:
                self._refuse(folder, f"can't be looked into: {error.strerror}")
                continue
            left -= len(names)
            if left < 0:
                raise CopyError("copy_too_large", f"more than {ENTRIES} entries were changed", "see them in its place")
            todo += below
        return self._without_reserved()

    def _directory(self, folder: str, *, fresh: bool) -> tuple[list[str], list[tuple[str, bool]]]:
        """Judge what lies in one directory of the layer. fresh: nothing of the host's shows below it."""
        descriptor = self.upper.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        here, below = set(), []
        try:
            fresh = fresh or _marked(descriptor, _OPAQUE)
            names = os.listdir(descriptor)  # noqa: PTH208 - by the descriptor
            for name in names:
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
        return names, below

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
            self.found.append(change)
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
        return facts.st_size == host.st_size and _equal(self.upper.regular(path), self.tree.regular(path))

    def _gone(self, path: str) -> None:
        """The path, and all that was below it, was deleted; what the host has no more is no change."""
        todo = [path]
        while todo:
            each = todo.pop()
            todo += [f"{each}/{name}" for name in self.inside.get(each, ())]
            before, host = self.start.get(each), self._host(each)
            if before is not None and host is not None:
                self.found.append(Change(path=each, kind=Kind.DELETED, before=before, conflict=_differs(before, host)))

    def _refuse(self, path: str, why: str) -> None:
        before = self.start.get(path)
        kind = Kind.ADDED if before is None else Kind.MODIFIED
        self.found = [change for change in self.found if change.path != path or change.kind is Kind.DELETED]
        self.found.append(Change(path=path or ".", kind=kind, before=before, refused=why))

    def _without_reserved(self) -> list[Change]:
        """Without what was made before the start and is as it was; a directory in which something is stays."""
        ours = {change.path for change in self.found if change.kind is Kind.ADDED and self._untouched(change)}
        needed = {path for change in self.found if change.path not in ours for path in ancestors(change.path)}
        return [change for change in self.found if change.path not in ours or change.path in needed]

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


def _differs(before: Entry, host: os.stat_result | None) -> str:
    if host is None:
        return "deleted on the host since the run began"
    return "" if before.holds(host) else CHANGED


def _permissions(mode: int) -> int:
    return mode & PERMISSIONS


def _equal(one: int, other: int) -> bool:
    """Whether two files have the same bytes; closes both."""
    with os.fdopen(one, "rb") as first, os.fdopen(other, "rb") as second:
        while data := first.read(CHUNK):
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
