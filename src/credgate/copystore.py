"""Where a run's copy of its work tree is kept, with what the tree was when it began; until it is taken over or thrown
away. Below our state directory, which no jail sees.

`RUN/upper` is the upper layer of an overlayfs: written by the jail, so hostile. `RUN/lock` is locked by the daemon
while the run lives (fcntl(2): the lock goes with the process).
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from credgate.errors import CredgateError
from credgate.paths import Places, check_private_dir, open_private, read_private

MOST = 2 << 30  # bytes of the list of what was there
META = 1 << 20
_RUN = re.compile(r"r[0-9a-f]{12}(?:\.state)?")


class CopyError(CredgateError):
    """There is no such copy, or it can't be used now; exit_status 1."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(code, detail, hint, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the host's tree had at a path. mode: type and permissions; times in ns. The change time is set by no call
    to anything but the present: a file with all of these the same has not been changed.
    """

    mode: int
    size: int
    mtime: int
    ctime: int
    inode: int

    @classmethod
    def of(cls, facts: os.stat_result) -> "Entry":
        """From lstat(2)."""
        return cls(
            mode=facts.st_mode,
            size=facts.st_size,
            mtime=facts.st_mtime_ns,
            ctime=facts.st_ctime_ns,
            inode=facts.st_ino,
        )

    def holds(self, facts: os.stat_result) -> bool:
        """Whether it is still the same; of a directory its type alone, what is in it has entries of its own."""
        if stat.S_ISDIR(self.mode):
            return stat.S_ISDIR(facts.st_mode)
        return self == Entry.of(facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Of a copy: the tree and its identity, what the role holds and hides, what was made in it before the start."""

    run: str
    tree: str
    device: int
    inode: int
    role: str
    readonly: tuple[str, ...]
    hide: tuple[str, ...]
    show: tuple[str, ...]
    reserved: Mapping[str, str]  # relative paths; content of a file, "" for a directory
    state: Mapping[str, Any] | None = None  # of a copy of an agent's own files, as statenotes has it

    def dump(self) -> bytes:
        """As its file holds it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> "Meta":
        """Raises KeyError, TypeError, ValueError."""
        body = json.loads(data)
        lists = {name: tuple(body[name]) for name in ("readonly", "hide", "show")}
        return cls(**{**body, **lists})


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy, by its directory."""

    folder: Path
    meta: Meta

    @property
    def upper(self) -> Path:
        """What the run wrote."""
        return self.folder / "upper"

    def start(self) -> dict[str, Entry]:
        """What the tree had when the run began, by relative path. Raises PlaceError, CopyError."""
        found = {}
        try:
            for line in read_private(self.folder / "start", MOST).splitlines():
                path, mode, size, mtime, ctime, inode = json.loads(line)
                found[path] = Entry(mode=mode, size=size, mtime=mtime, ctime=ctime, inode=inode)
        except (ValueError, OSError) as error:
            raise CopyError("copy_broken", f"{self.folder}/start: {error}", "throw it away: credgate discard") from None
        return found


def find(places: Places, run: str) -> Copy:
    """The copy of a run. Raises CopyError, PlaceError."""
    folder = places.copies / run
    if not _RUN.fullmatch(run) or not (folder / "meta").is_file():
        known = ", ".join(copy.meta.run for copy in listed(places)) or "none"
        raise CopyError("copy_unknown", f"{run}: no copy is kept of such a run, got: {known}", "see `credgate ps`")
    check_private_dir(folder)
    try:
        return Copy(folder=folder, meta=Meta.parse(read_private(folder / "meta", META)))
    except (KeyError, TypeError, ValueError) as error:
        raise CopyError("copy_broken", f"{folder}/meta: {error}", "see what wrote there; then move it away") from None


def find_all(places: Places, run: str) -> list[Copy]:
    """The copies of a run: of its work tree, and of its agent's own files. Raises CopyError where there is neither."""
    names = [run, f"{run}.state"]
    found = [find(places, name) for name in names if _RUN.fullmatch(name) and (places.copies / name / "meta").is_file()]
    return found or [find(places, run)]


def listed(places: Places) -> list[Copy]:
    """Every copy that is kept, live runs' too."""
    if not places.copies.is_dir():
        return []
    names = sorted(path.name for path in places.copies.iterdir() if _RUN.fullmatch(path.name))
    return [find(places, name) for name in names if (places.copies / name / "meta").is_file()]


@contextlib.contextmanager
def locked(copy: Copy) -> Iterator[None]:
    """Hold a copy whose run has ended. Raises CopyError where it still runs, or another command has it."""
    descriptor = lock(copy.folder)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path) -> int:
    """A descriptor that holds it. Raises CopyError, PlaceError."""
    descriptor = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise CopyError("copy_busy", f"{folder.name}: the run has not ended", "wait, or `credgate kill` it") from None
    return descriptor


def failed(run: str, error: OSError) -> CopyError:
    """What the system refused, in words."""
    where = f"{error.filename}: " if isinstance(error.filename, str) else ""
    return CopyError("copy_failed", f"{run}: {where}{(error.strerror or str(error)).lower()}", "what is there stands")


def remove(folder: Path) -> None:
    """Throw a copy away, however deep and closed what is in it may be; links are not followed. Raises OSError."""
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        # what says that it is a copy goes first: half of one is none
        names = sorted(os.listdir(root), key=lambda name: name != "meta")  # noqa: PTH208 - by the descriptor
        number = 0
        while names:
            for name in names:
                number = _clear(root, name, number)
            names = os.listdir(root)  # noqa: PTH208 - by the descriptor
    finally:
        os.close(root)
    folder.rmdir()


def _clear(root: int, name: str, number: int) -> int:
    """Remove an entry of `root`; directories in it are lifted up to `root`, so that no depth is too deep."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=root)
        return number
    folder = _opened(root, name)
    try:
        for inner in os.listdir(folder):  # noqa: PTH208 - by the descriptor
            if not stat.S_ISDIR(os.stat(inner, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(inner, dir_fd=folder)
                continue
            os.close(_opened(folder, inner))  # a directory is moved only by who may write in it
            number += 1
            os.rename(inner, f".{number}", src_dir_fd=folder, dst_dir_fd=root)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)
    return number


def _opened(folder: int, name: str) -> int:
    """A directory of this user's, opened up first."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)  # noqa: PTH101 - by the descriptor: no link is followed
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)
