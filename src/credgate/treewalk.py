"""One walk through the trees of a run, for all who look into them: a second one would cost a launch its quickness."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from credgate.errors import CredgateError
from credgate.text import cut

ENTRIES = 5_000_000  # of all trees of a run together; measured: about 1.5 s a million
SECONDS = 30.0  # for one look at all of them
ROOM = 256 << 20  # bytes about that the entries of one directory may take while they are looked at
_EACH = 192  # of them for an entry beside its path
NAMED = 300  # bytes of a path in what is said of it
REFUSED = 125
_HINT = "make it readable (chmod u+rx), or choose another tree"

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
    todo = [("", tree) for tree in trees]  # in two parts: a path has up to 4 KiB, and what is below shares the first
    while todo:
        directory = os.path.join(*todo.pop())  # noqa: PTH118 - surrogates
        directories: list[Entry] = []
        others: list[Entry] = []
        for entry in _entries(directory):
            (directories if entry.is_dir(follow_symlinks=False) else others).append(entry)
        left -= len(directories) + len(others)
        yield directory, directories, others
        todo += [(directory, entry.name) for entry in directories if passed is None or not passed(entry.path)]
        if left < 0 or time.monotonic() > until:
            raise WalkError(
                "tree_too_large",
                f"{', '.join(trees)}: more than {ENTRIES} entries or {SECONDS:.0f} s to look through",
                "choose narrower trees",
            )


def listed(directory: str) -> tuple[list[Entry], bool]:
    """What is in a directory, and whether that is all: who fills one chooses how many entries there are, and how long
    the path of each is. Raises OSError.
    """
    most = ROOM // (_EACH + len(directory))
    with os.scandir(directory) as listing:
        found = list(islice(listing, most + 1))
    return found[:most], len(found) <= most


def _entries(directory: str) -> list[Entry]:
    try:
        found, whole = listed(directory)
    except (FileNotFoundError, NotADirectoryError):  # gone meanwhile, or a tree that is one file
        return []
    except PermissionError:
        # Who can't enter it reaches nothing in it. Who may without seeing, or owns it, might.
        if os.access(directory, os.X_OK) or is_mine(directory):
            raise unseen(directory) from None
        return []
    except OSError as error:  # deeper than a path is long, with names that a jail made one below the other
        raise unseen(directory, error.strerror or "") from None
    if not whole:
        detail = f"{cut(directory, NAMED)}: more than {len(found)} entries in one directory"
        raise WalkError("tree_too_large", detail, "choose narrower trees")
    return found


def unseen(directory: str, why: str = "") -> WalkError:
    """A directory that its owner, the jail's user too, could open up, and that nothing is known of meanwhile."""
    hint = "remove what is in it, or choose another tree" if why else _HINT
    detail = f"{cut(directory, NAMED)}: it can't be looked through" + (f": {why.lower()}" if why else "")
    return WalkError("tree_unseen", detail, hint)


def is_mine(path: str) -> bool:
    """Whether this user owns it, or the directory on the way to it that is closed."""
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False
    except PermissionError:
        return is_mine(os.path.dirname(path))  # noqa: PTH120 - surrogates
