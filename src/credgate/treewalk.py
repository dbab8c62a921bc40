"""One walk through the trees of a run, for all who look into them: a second one would cost a launch its quickness."""

import os
import time
from collections.abc import Callable, Iterator, Sequence

from credgate.errors import CredgateError

ENTRIES = 5_000_000  # of all trees of a run together; measured: about 1.5 s a million
SECONDS = 30.0  # for one look at all of them
REFUSED = 125

type Entry = "os.DirEntry[str]"
# A directory's path, the directories in it, and what else is in it.
type Seen = tuple[str, list[Entry], list[Entry]]
type Visit = Callable[[str, list[Entry], list[Entry]], object]


class WalkError(CredgateError):
    """The trees can't be looked through whole; exit_status 125."""

    def __init__(self, code: str, detail: str, hint: str) -> None:
        super().__init__(code, detail, hint, REFUSED)


def walk(trees: Sequence[str], *, passed: Callable[[str], bool] | None = None) -> Iterator[Seen]:
    """Each directory with what is in it, those of mounts below included; links are not followed.

    passed: directories that are left out, by their path. Raises WalkError beyond the bounds.
    """
    until, left = time.monotonic() + SECONDS, ENTRIES
    todo = list(trees)
    while todo:
        directory = todo.pop()
        directories: list[Entry] = []
        others: list[Entry] = []
        for entry in _entries(directory):
            (directories if entry.is_dir(follow_symlinks=False) else others).append(entry)
        left -= len(directories) + len(others)
        yield directory, directories, others
        todo += [entry.path for entry in directories if passed is None or not passed(entry.path)]
        if left < 0 or time.monotonic() > until:
            raise WalkError(
                "tree_too_large",
                f"{', '.join(trees)}: more than {ENTRIES} entries or {SECONDS:.0f} s to look through",
                "choose narrower trees",
            )


def _entries(directory: str) -> list[Entry]:
    try:
        with os.scandir(directory) as listing:
            return list(listing)
    except (FileNotFoundError, NotADirectoryError):  # gone meanwhile, or a tree that is one file
        return []
    except PermissionError:
        # Who can't enter it reaches nothing in it. Who may without seeing, or owns it, might.
        if os.access(directory, os.X_OK) or is_mine(directory):
            raise unseen(directory) from None
        return []


def unseen(directory: str) -> WalkError:
    """A directory that its owner, the jail's user too, could open up, and that nothing is known of meanwhile."""
    hint = "make it readable (chmod u+rx), or choose another tree"
    return WalkError("tree_unseen", f"{directory}: it can't be looked through", hint)


def is_mine(path: str) -> bool:
    """Whether this user owns it, or the directory on the way to it that is closed."""
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False
    except PermissionError:
        return is_mine(os.path.dirname(path))  # noqa: PTH120 - surrogates
