"""At a run's end: files of its work tree that are new or changed and that the host would execute.

By the change time of each file, which no call sets to anything but the present (utimensat(2) sets the others), and by
the places that directories had at the start: what a directory holds that was moved is new where it is now. Looked at
from outside, when the jail is dead; links are not followed.
"""

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from credgate.text import cut, some
from credgate.treelook import TreeLook
from credgate.treewalk import Entry, listed
from rules.executed import When, bundled, by_name

ENTRIES = 1_000_000
SECONDS = 10.0
PEEKED = 5000  # changed files whose first bytes are read
NAMES = 50  # of each kind that are kept by name
LONGEST = 300  # bytes of a name that is told: all of them go into one message


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport:
    """Relative paths, the first NAMES of each kind by name; a directory of installed dependencies counts as one.

    unseen: directories that could not be looked into, or why the look was ended: what is there is not in the counts.
    """

    unasked: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    unasked_count: int = 0
    asked_count: int = 0
    unseen: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As the exit line holds it."""
        return {
            "unasked": _told(self.unasked),
            "asked": _told(self.asked),
            "unasked_count": self.unasked_count,
            "asked_count": self.asked_count,
            "unseen": _told(self.unseen),
        }

    def sentences(self) -> list[str]:
        """For the summary; nothing where nothing is to be said."""
        said = []
        if self.unasked_count:
            said.append(
                f"new or changed, and executed by the host unasked: {some(_told(self.unasked), self.unasked_count)}"
            )
        if self.asked_count:
            said.append(f"new or changed, and executed when asked: {some(_told(self.asked), self.asked_count)}")
        if self.unseen:
            said.append(f"not looked into for what the host would execute: {some(_told(self.unseen))}")
        return said


def _told(names: Sequence[str]) -> list[str]:
    return [cut(name, LONGEST) for name in names]


class _Names:
    """How many there were, and the first NAMES of them by their order."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[str] = []

    def add(self, name: str) -> None:
        """Each once."""
        self.count += 1
        self._kept.append(name)
        if len(self._kept) > 8 * NAMES:
            self._kept = sorted(self._kept)[:NAMES]

    def first(self) -> tuple[str, ...]:
        """In order."""
        return tuple(sorted(self._kept)[:NAMES])


class _Look:
    def __init__(self, look: TreeLook) -> None:
        self.tree, self.places, self.whole = look.tree, look.places, look.whole
        self.since = look.since.still()
        self.found = {When.UNASKED: _Names(), When.ASKED: _Names()}
        self.unseen = _Names()
        self.folders: set[int] = set()
        self.peeked = 0

    def run(self) -> ExitReport:
        until, left = time.monotonic() + SECONDS, ENTRIES
        todo = [("", self.tree, False)]  # the path in two parts, as in treewalk
        broken_off = ""
        while todo:
            above, name, moved = todo.pop()
            directory = os.path.join(above, name)  # noqa: PTH118 - surrogates
            entries = self._entries(directory)
            left -= len(entries)
            try:
                todo += self._look_at(directory, entries, moved=moved)
            except OSError:  # it can be listed and not entered
                self.unseen.add(self._relative(directory) + "/")
            if left < 0 or time.monotonic() > until:
                broken_off = f"the rest, after {ENTRIES - left} entries"
                break
        unasked, asked = self.found[When.UNASKED], self.found[When.ASKED]
        return ExitReport(
            unasked=unasked.first(),
            asked=asked.first(),
            unasked_count=unasked.count,
            asked_count=asked.count,
            unseen=(*((broken_off,) if broken_off else ()), *self.unseen.first()),
        )

    def _look_at(self, directory: str, entries: list[Entry], *, moved: bool) -> list[tuple[str, str, bool]]:
        """Judge the files; the directories, and whether each was moved."""
        below = []
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                self._file(entry, moved=moved)
            elif not _passed(entry.path):
                below.append((directory, entry.name, moved or self._moved(entry)))
        return below

    def _entries(self, directory: str) -> list[Entry]:
        try:
            found, whole = listed(directory)
        except FileNotFoundError:
            return []
        except OSError:
            found, whole = [], False
        if not whole:
            self.unseen.add(self._relative(directory) + "/")
        return found

    def _relative(self, path: str) -> str:
        return path[len(self.tree.rstrip("/")) + 1 :]

    def _moved(self, entry: Entry) -> bool:
        """Whether a directory was not here at the start; where too many were to be remembered, by its change time."""
        known = self.places.get(entry.path)
        if known is None and not self.whole:
            return entry.stat(follow_symlinks=False).st_ctime_ns >= self.since
        return known != entry.inode()

    def _file(self, entry: Entry, *, moved: bool) -> None:
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if not moved and facts.st_ctime_ns < self.since:
            return
        path = self._relative(entry.path)
        in_git = ".git" in path.split("/")
        executed = by_name(path)
        if executed is not None:
            when = executed.when
        elif not in_git and self._is_program(entry, facts):
            when = When.ASKED
        else:
            return
        folder = "" if in_git else bundled(path)
        if not folder:
            self.found[when].add(path)
        elif (known := hash(folder)) not in self.folders:  # by its number: a path has up to 4 KiB
            self.folders.add(known)
            self.found[When.ASKED].add(folder)

    def _is_program(self, entry: Entry, facts: os.stat_result) -> bool:
        """With a bit to execute, or with a first line that says by what."""
        if not stat.S_ISREG(facts.st_mode):
            return False
        if facts.st_mode & 0o111:
            return True
        self.peeked += 1
        if facts.st_size < len("#!") or self.peeked > PEEKED:
            return False
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return os.read(descriptor, 2) == b"#!"
        finally:
            os.close(descriptor)


def _passed(path: str) -> bool:
    """Git's objects: named by what is in them, and executed by nobody."""
    return path.endswith("/objects") and ".git" in path.split("/")


def exit_report(look: TreeLook) -> ExitReport:
    """Look through the tree of a run that has ended. Raises nothing of the tree's making."""
    return _Look(look).run()


def fields(report: ExitReport | None) -> Mapping[str, object]:
    """What the ledger's run.end holds of it."""
    if report is None:
        return {}
    return {
        "runs_unasked": list(report.unasked),
        "runs_asked": list(report.asked),
        "runs_unasked_count": report.unasked_count,
        "runs_asked_count": report.asked_count,
    }
