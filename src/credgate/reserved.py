"""What is made in work trees before a run, so that its jail can make nothing there, and removed when the last run that
holds it has ended. What somebody has used meanwhile stays.
"""

import contextlib
import json
import os
import struct
from collections.abc import Iterable
from typing import Self

from credgate.errors import CredgateError
from credgate.paths import Places, private_dir, read_private
from jail.plan import Protection
from jail.syscalls import syscall

NAME = "reserved.json"
LIMIT = 4 << 20
REFUSED = 125
_NO_SYMLINKS = 0x04 | 0x02  # RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS of openat2(2)
_AT_FDCWD = -100


class Reserved:
    """The live runs' own; used from one thread. What was made stands in a file of state, for the daemon after this."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._content: dict[str, str] = {}  # of what was ever made by this daemon
        self._holders: dict[str, set[str]] = {}  # runs by path

    @classmethod
    def open(cls, places: Places) -> Self:
        """Of a daemon that has only begun: what one left that was killed is removed. Raises PlaceError."""
        try:
            body = json.loads(read_private(places.state / NAME, LIMIT))
        except FileNotFoundError:
            return cls(places)
        remove((str(path), str(content)) for path, content in body.items())
        (places.state / NAME).unlink()
        return cls(places)

    def take(self, run: str, protected: Protection) -> None:
        """Make what is missing and hold it, what was made for other runs too. Raises CredgateError; nothing is left
        then that `drop` doesn't remove.
        """
        self._content |= dict(protected.reserved)
        wanted = [path for path, _ in protected.reserved]
        wanted += [p for p in (*protected.pins, *protected.islands) if p in self._content and p not in wanted]
        for path in sorted(wanted, key=lambda p: p.count("/")):
            if path in self._holders or not os.path.lexists(path):
                self._holders.setdefault(path, set()).add(run)
        self._note()
        for path in sorted(wanted, key=lambda p: p.count("/")):
            _make(path, self._content[path])

    def drop(self, run: str) -> None:
        """A run has ended; unknown ones are no error. Raises OSError where the note can't be written."""
        left = [path for path, runs in self._holders.items() if run in runs]
        for path in left:
            self._holders[path].discard(run)
        gone = [path for path in left if not self._holders[path]]
        for path in gone:
            del self._holders[path]
        remove((path, self._content[path]) for path in gone)
        if gone:
            self._note()

    def _note(self) -> None:
        """Not synced: what a crash of the machine leaves are empty directories."""
        folder = private_dir(self._places.state)
        draft = folder / f".{NAME}.new"
        body = json.dumps({path: self._content[path] for path in self._holders})
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(body)
        draft.replace(folder / NAME)


def remove(made: Iterable[tuple[str, str]]) -> None:
    """Remove what is as it was made, the innermost first; what is gone, in use or no longer ours to remove stays."""
    for path, content in sorted(made, key=lambda item: -item[0].count("/")):
        with contextlib.suppress(OSError):  # not empty, gone, replaced by a link, or closed to us
            _remove(path, content)


def _parent(path: str) -> int:
    """A descriptor of the directory that `path` lies in; no link is followed: the tree is one that agents write."""
    how = struct.pack("QQQ", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _NO_SYMLINKS)
    return syscall("openat2", _AT_FDCWD, os.fsencode(os.path.dirname(path)), how, len(how))  # noqa: PTH120


def _make(path: str, content: str) -> None:
    """Make it where it is missing. What was put there meanwhile is held as it is: read-only like any island."""
    name = os.path.basename(path)  # noqa: PTH119
    try:
        folder = _parent(path)
        try:
            if content:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                made = os.open(name, flags, 0o644, dir_fd=folder)
                os.write(made, content.encode())
                os.close(made)
            else:
                os.mkdir(name, 0o755, dir_fd=folder)
        finally:
            os.close(folder)
    except FileExistsError:
        return
    except OSError as error:
        raise CredgateError(
            "reserve_failed",
            f"{path}: it can't be made to keep others from making it: {error.strerror}",
            "make it yourself, choose another work tree, or give --read-only",
            REFUSED,
        ) from None


def _remove(path: str, content: str) -> None:
    name = os.path.basename(path)  # noqa: PTH119
    folder = _parent(path)
    try:
        if not content:
            os.rmdir(name, dir_fd=folder)
            return
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
            same = file.read(len(content) + 1) == content.encode()
        if same:
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)
