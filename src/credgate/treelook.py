"""What a work tree holds at the start of a run, seen in the one walk through it: repositories, hidden files, matches.

Names and types alone come from here; what they lead to is worked out in `credgate.protect`.
"""

import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from credgate.treewalk import Entry, is_mine, unseen
from rules.hiding import Hiding, Kind, public
from rules.policy import Role
from rules.treenames import TreePattern, union

CONTENT = 4 << 20  # bytes of a key-like file that are read; a larger one is hidden unread
PLACED = 16 << 20  # characters of the paths of directories whose places are remembered, as long as the run lives
# Names that say where a repository is, git-init(1), gitrepository-layout(5).
_MARKS = frozenset({".git", ".hg", ".jj", "HEAD", "commondir"})


class TreeLook:
    """Fed by a walk. Paths are whole ones; `tree` is a real path.

    repositories: directories that hold one. git: git directories, bare ones and those of submodules too. linked: those
    of linked worktrees. links: `.git` that are a file or a link. hidden: (path, whether a directory). told: names like
    a secret's that stay visible. readonly: what the role's own patterns mean. places: inode by directory.
    """

    def __init__(self, tree: str, role: Role) -> None:
        self.tree = tree
        self.since = Instant.now()
        self.repositories: list[str] = []
        self.git: list[str] = []
        self.linked: list[str] = []
        self.links: list[str] = []
        self.hidden: list[tuple[str, bool]] = []
        self.told: list[str] = []
        self.readonly: list[str] = []
        self.places: dict[str, int] = {}
        self.whole = True  # every directory's place is remembered
        self._placed = 0
        self._below = tree.rstrip("/") + "/"
        self._hiding = Hiding.of(role.hide, role.show)
        self._readonly = _patterns(role.readonly)

    def visit(self, directory: str, directories: list[Entry], others: list[Entry]) -> None:
        """Take one directory of a walk; one outside of the tree is passed over. Costs part of every launch.

        Raises WalkError for one that can be listed and not entered, and holds what would have to be held or hidden.
        """
        if directory != self.tree and not directory.startswith(self._below):
            return
        folder = directory[len(self._below) :]
        hiding = self._hiding.within(folder)
        marks, before = [], len(self.hidden)
        for entry in others:
            name = entry.name
            if name in _MARKS:
                marks.append(name)
            if hiding and hiding(name):
                self._file(folder, entry)
        for entry in directories:
            self._directory(folder, entry)
            if entry.name in _MARKS:
                marks.append(entry.name)
        if marks:
            self._marked(directory, marks, directories)
        if (marks or len(self.hidden) > before) and not os.access(directory, os.X_OK) and is_mine(directory):
            raise unseen(directory)  # its owner opens it from inside, when nothing of it was hidden or held
        if self._readonly is not None:
            self._match(folder, directories, others)

    def _marked(self, directory: str, marks: list[str], directories: list[Entry]) -> None:
        below = {entry.name for entry in directories}
        if not {".git", ".hg", ".jj"}.isdisjoint(marks):
            self.repositories.append(directory)
        if "HEAD" in marks and below >= {"objects", "refs"}:
            self.git.append(directory)
        elif "HEAD" in marks and "commondir" in marks:
            self.linked.append(directory)
        if ".git" in marks and ".git" not in below:
            self.links.append(f"{directory.rstrip('/')}/.git")

    def _directory(self, folder: str, entry: Entry) -> None:
        path = entry.path
        self._placed += len(path)
        if self._placed <= PLACED:
            self.places[path] = entry.inode()
        else:
            self.whole = False
        if self._hiding.more_directories and self._hiding.directory(f"{folder}/{entry.name}" if folder else entry.name):
            self.hidden.append((entry.path, True))

    def _file(self, folder: str, entry: Entry) -> None:
        match self._hiding.file(folder, entry.name):
            case Kind.HIDDEN:
                self.hidden.append((entry.path, False))
            case Kind.UNLESS_PUBLIC if not _is_public(entry.name, entry.path):
                self.hidden.append((entry.path, False))
            case Kind.TOLD:
                self.told.append(entry.path)

    def _match(self, folder: str, directories: list[Entry], others: list[Entry]) -> None:
        if self._readonly is None:
            return
        for entry in (*directories, *others):
            found = self._readonly.fullmatch(f"{folder}/{entry.name}" if folder else entry.name)
            if found and (found.lastgroup != "directories" or entry.is_dir(follow_symlinks=False)):
                self.readonly.append(entry.path)


def _patterns(texts: Sequence[str]) -> re.Pattern[str] | None:
    """One expression for all patterns; the group "directories" for those that mean directories alone."""
    patterns = [TreePattern.parse(text) for text in texts]
    files, directories = ([p for p in patterns if p.directory is kind] for kind in (False, True))
    parts = [f"(?:{found.pattern})" for found in (union(files),) if found]
    parts += [f"(?P<directories>{found.pattern})" for found in (union(directories),) if found]
    return re.compile("|".join(parts), re.DOTALL) if parts else None


def _is_public(name: str, path: str) -> bool:
    """Whether what is in the file shows that it is no secret. What can't be read, or is none, is not shown to be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > CONTENT:
            return False
        return public(name, file.read(CONTENT))


class Instant:
    """A moment by the clock that files are stamped with (coarse: a file's time may lie a tick before the fine one)."""

    __slots__ = ("_ahead", "ns")

    def __init__(self, ns: int, ahead: int) -> None:
        self.ns, self._ahead = ns, ahead

    @classmethod
    def now(cls) -> "Instant":
        """This moment."""
        ns = time.clock_gettime_ns(_COARSE)
        return cls(ns, ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def still(self) -> int:
        """The same moment as the clock has it now, ns: whoever set it back meanwhile moved it too."""
        return self.ns + min(0, Instant.now()._ahead - self._ahead)


_COARSE = 5  # CLOCK_REALTIME_COARSE, linux/time.h; the time module has no name for it


def relative(tree: str, path: str) -> str:
    """The path as seen from the tree's root, "." for itself."""
    return str(Path(path).relative_to(tree)) if path != tree else "."
