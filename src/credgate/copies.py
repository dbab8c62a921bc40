"""The copies of work trees of the live runs: made before the jail is, counted when it has ended. Daemon side."""

import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from credgate import room
from credgate.copylook import how_many
from credgate.copystore import Copy, Entry, Meta, lock, remove
from credgate.paths import Places, open_private, private_dir, write_private
from credgate.treewalk import walk
from jail.plan import JailSpec, Overlay
from rules.policy import Role

TICK = 0.01  # seconds; the clock that files are stamped with has no longer ticks (CONFIG_HZ is 100 or more)
_COARSE = 5  # CLOCK_REALTIME_COARSE, linux/time.h


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """Of a run that has ended: how many paths it changed in its copy, None where that can't be said."""

    run: str
    changed: int | None

    def sentence(self) -> str:
        """For the summary."""
        if self.changed == 0:
            return "the copy of the work tree: nothing was changed"
        count = "perhaps something was" if self.changed is None else f"{self.changed} path{'s' * (self.changed != 1)}"
        return f"{count} changed in the copy: credgate diff {self.run}, apply {self.run} [PATH...], discard {self.run}"


def overlay(places: Places, run: str) -> Overlay:
    """Where the copy of this run will be; real paths."""
    folder = f"{os.path.realpath(places.copies)}/{run}"
    return Overlay(upper=f"{folder}/upper", work=f"{folder}/work")


class Copies:
    """By run: the lock that says it lives."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[Copy, int]] = {}

    def take(self, places: Places, spec: JailSpec, role: Role) -> None:
        """Make an empty copy and note what the tree has. Raises CredgateError, OSError; nothing is left then."""
        private_dir(places.copies)
        room.check(places.copies)
        folder = places.copies / spec.run
        folder.mkdir(mode=0o700)
        held = lock(folder)
        try:
            facts = os.stat(spec.workdir)  # noqa: PTH116 - surrogates
            for name, mode in (("upper", facts.st_mode & 0o777), ("work", 0o700)):
                (folder / name).mkdir()
                (folder / name).chmod(mode)  # the upper layer's root shows as the tree's
            _reserve(folder / "upper", spec)
            _note(folder / "start", spec.workdir)
            meta = Meta(
                run=spec.run,
                tree=spec.workdir,
                device=facts.st_dev,
                inode=facts.st_ino,
                role=role.name,
                readonly=role.readonly,
                hide=role.hide,
                show=role.show,
                reserved={os.path.relpath(path, spec.workdir): text for path, text in spec.protected.reserved},
            )
            write_private(folder / "meta", meta.dump())
        except BaseException:
            os.close(held)
            remove(folder)
            raise
        self._live[spec.run] = (Copy(folder=folder, meta=meta), held)

    def forget(self, run: str) -> None:
        """Throw away the copy of a run that never began; unknown ones are no error. Raises OSError."""
        copy, held = self._live.pop(run, (None, -1))
        if copy is not None:
            os.close(held)
            remove(copy.folder)

    def finish(self, run: str) -> int:
        """The run is dead: how much it changed, and keep that; a copy without a change is thrown away.

        Raises CredgateError, OSError where it can't be looked through, or is too large to be; it is kept then.
        """
        copy, held = self._live.pop(run)
        try:
            found = how_many(copy)
            if not found:
                remove(copy.folder)
            return found
        finally:
            os.close(held)


def _reserve(upper: Path, spec: JailSpec) -> None:
    """What is made so that nobody else makes it lies in the copy: the host's tree stays as it is."""
    for path, text in spec.protected.reserved:
        parts = os.path.relpath(path, spec.workdir).split("/")
        for number in range(1, len(parts) + (not text)):
            folder = Path(upper, *parts[:number])
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(_mode(Path(spec.workdir, *parts[:number])))
        if text:
            Path(upper, *parts).write_text(text, encoding="ascii")


def _mode(host: Path) -> int:
    try:
        return host.lstat().st_mode & 0o777
    except FileNotFoundError:
        return 0o755


def _note(file: Path, tree: str) -> None:
    """Write down what the tree has, a line each. Raises WalkError, OSError, PlaceError."""
    found = dict(_entries(tree))
    young = time.clock_gettime_ns(_COARSE) - int(TICK * 1e9) * 2
    if any(entry.ctime >= young for entry in found.values()):
        # Changed in this very tick, and perhaps once more in it, which no time would show: look when it is over.
        time.sleep(TICK)
        found = dict(_entries(tree))
    with os.fdopen(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="ascii") as out:
        for path, e in found.items():
            out.write(json.dumps((path, e.mode, e.size, e.mtime, e.ctime, e.inode)) + "\n")


def _entries(tree: str) -> Iterator[tuple[str, Entry]]:
    below = len(tree.rstrip("/")) + 1
    for _, directories, others in walk([tree]):
        for entry in (*directories, *others):
            try:
                facts = entry.stat(follow_symlinks=False)
            except (FileNotFoundError, PermissionError):  # gone meanwhile, or in a directory that nobody enters
                continue
            if not stat.S_ISSOCK(facts.st_mode):
                yield entry.path[below:], Entry.of(facts)
