"""Files that are watched: each change of what a look would find is told; where it would not be, nothing is watched."""

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from credgate import filewatch
from credgate.filewatch import PAUSE, FileWatch
from credgate.unchanged import Unchanged, identities

pytestmark = pytest.mark.needs("compiler")


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """One that is there, and one that is not."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "value").write_text("one")
    return folder / "value", folder / "missing"


def written(value: Path, _missing: Path) -> None:
    with value.open("r+") as file:
        file.write("x")


def replaced(value: Path, _missing: Path) -> None:
    other = value.parent.parent / "new"  # made where nobody watches, as a file is made elsewhere
    other.write_text("two")
    other.rename(value)


def removed(value: Path, _missing: Path) -> None:
    value.unlink()


def moved_away(value: Path, _missing: Path) -> None:
    value.rename(value.parent.parent / "gone")


def closed(value: Path, _missing: Path) -> None:
    value.chmod(0o644)


def dated(value: Path, _missing: Path) -> None:
    os.utime(value, (1, 1))


def by_another_name(value: Path, _missing: Path) -> None:
    (value.parent.parent / "link").write_text("other")


def made(_value: Path, missing: Path) -> None:
    missing.write_text("here")


def folder_moved(value: Path, _missing: Path) -> None:
    value.parent.rename(value.parent.with_name("c"))


def moved_above(value: Path, _missing: Path) -> None:
    above = value.parent.parent
    above.rename(above.with_name("c"))


CHANGES = (*(written, replaced, removed, moved_away, closed, dated, by_another_name, made, folder_moved, moved_above),)


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_told(files: tuple[Path, Path], change: Callable[[Path, Path], None]) -> None:
    value, missing = files
    os.link(value, value.parent.parent / "link")
    watch = FileWatch(map(str, files))
    assert not watch.is_silent()  # not begun
    assert watch.begin()
    assert watch.is_silent()
    before = identities(tuple(map(str, files)))
    (value.parent.parent / "beside").write_text("nobody asks")
    value.read_text()
    assert watch.is_silent()
    change(value, missing)
    assert identities(tuple(map(str, files))) != before  # so it is a change
    assert not watch.is_silent()
    assert not watch.is_silent()  # for good
    watch.end()


def test_a_mount_over_them_is_told(files: tuple[Path, Path]) -> None:
    """In a namespace of its own: over the folder, and one that is above."""
    code = """
import ctypes, sys
from credgate.filewatch import FileWatch
libc = ctypes.CDLL(None, use_errno=True)
for folder in sys.argv[2:]:
    watch = FileWatch([sys.argv[1]])
    assert watch.begin() and watch.is_silent()
    assert libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, None) == 0, ctypes.get_errno()
    assert not watch.is_silent()
    watch.end()
print("told")
"""
    value = files[0]
    argv = ["unshare", "-rm", sys.executable, "-c", code, str(value), str(value.parent)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("told\n", "")


def test_what_would_not_be_told_is_not_watched(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    value = files[0]
    link = value.parent.parent.with_name("l")
    link.symlink_to(value.parent.parent)
    assert not FileWatch([str(link / "b" / "value")]).begin()
    (value.parent / "linked").symlink_to(value)
    assert not FileWatch([str(value.parent / "linked")]).begin()
    assert not FileWatch([str(value.parent / "nowhere" / "value")]).begin()
    assert FileWatch([str(value)]).begin()
    monkeypatch.setattr(filewatch, "_LOCAL", frozenset())
    assert not FileWatch([str(value)]).begin()


def test_without_watches_nothing_is_watched(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(filewatch, "_add", full)
    watch = FileWatch([str(files[0])])
    assert not watch.begin()
    assert not watch.is_silent()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_what_changes_all_the_time_is_not_watched_each_time(files: tuple[Path, Path]) -> None:
    clock = Clock()
    watch = FileWatch([str(files[0])], clock)
    assert watch.begin()
    assert not watch.begin()
    clock.now += PAUSE
    assert watch.begin()


class Looked:
    """Values of both files, and how often these were looked at."""

    def __init__(self, files: tuple[Path, Path]) -> None:
        self.paths, self.looks = tuple(map(str, files)), 0
        self.kept: Unchanged[str] = Unchanged(lambda: 2**62)
        self.kept._look = self._look

    def _look(self, paths: tuple[str, ...]) -> bytes:
        self.looks += 1
        return identities(paths)

    def known(self, key: str = "key") -> str | None:
        return self.kept.known(key, self.paths)

    def get(self, key: str = "key") -> str:
        return self.kept.get(key, self.paths, lambda: Path(self.paths[0]).read_text() + key)


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_a_kept_value_costs_no_look_until_it_may_be_another(
    files: tuple[Path, Path], change: Callable[[Path, Path], None] | None
) -> None:
    os.link(files[0], files[0].parent.parent / "link")
    looked = Looked(files)
    assert (looked.get(), looked.get("other")) == ("onekey", "oneother")
    assert looked.known() == "onekey"
    looks = looked.looks
    assert [looked.known(key) for key in ("key", "other") * 3] == ["onekey", "oneother"] * 3
    assert looked.looks == looks
    if change is not None:
        change(*files)
        assert (looked.known(), looked.known("other")) == (None, None)
        assert looked.looks > looks


def test_without_the_compiled_module_it_looks(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filewatch, "_silent", lambda: None)
    looked = Looked(files)
    looked.get()
    for _ in range(3):
        looks = looked.looks
        assert looked.known() == "onekey"
        assert looked.looks == looks + 1


def test_descriptors_go_with_it(files: tuple[Path, Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    watch = FileWatch(map(str, files))
    assert watch.begin()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del watch
    assert len(os.listdir("/proc/self/fd")) == before
    assert ctypes.sizeof(ctypes.c_long) == 8  # what the first word of struct statfs is read as
