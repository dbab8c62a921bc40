"""Walks through trees that a jail filled: as wide and as deep as it likes, and no more of it in memory than fits."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from credgate import exitreport, treelook, treewalk
from credgate.copystore import remove
from credgate.exitreport import exit_report
from credgate.treelook import TreeLook
from credgate.treewalk import WalkError, walk
from rules.policy import Role


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = Path(os.path.realpath(tmp_path)) / "tree"
    made.mkdir()
    return made


@contextlib.contextmanager
def deep(tree: Path, levels: int) -> Iterator[int]:
    """Directories one below the other, and the descriptor of the last."""
    folder = os.open(tree, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    try:
        yield folder
    finally:
        os.close(folder)
        remove(tree)


def test_deeper_than_a_path_is_long(tree: Path) -> None:
    with deep(tree, 5):
        assert len(list(walk([str(tree)]))) == 6
        assert exit_report(_looked(tree)).unseen == ()
    tree.mkdir()
    look = _looked(tree)
    with deep(tree, 25):
        with pytest.raises(WalkError, match="can't be looked through: file name too long") as caught:
            list(walk([str(tree)]))
        assert len(caught.value.detail) < 2 * treewalk.NAMED
        assert len(exit_report(look).unseen) == 1


class Counted:
    """scandir, and how many entries were taken from it."""

    taken = 0

    def __init__(self, real: Any) -> None:
        self._real = real

    def __enter__(self) -> "Counted":
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def __iter__(self) -> "Counted":
        return self

    def __next__(self) -> "os.DirEntry[str]":
        Counted.taken += 1
        entry: os.DirEntry[str] = next(self._real)
        return entry


def test_one_directory_is_not_taken_whole_whatever_is_in_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = _looked(tree)
    for number in range(200):
        (tree / f"{number}").touch()
    fits = 200 * (treewalk._EACH + len(str(tree)))
    monkeypatch.setattr(treewalk, "ROOM", fits)
    ((_, _, files),) = walk([str(tree)])
    assert len(files) == 200
    assert exit_report(look).unseen == ()
    monkeypatch.setattr(treewalk, "ROOM", fits // 10)
    real = os.scandir
    monkeypatch.setattr(treewalk.os, "scandir", lambda path: Counted(real(path)))
    with pytest.raises(WalkError, match="more than 20 entries in one directory"):
        list(walk([str(tree)]))
    assert exit_report(look).unseen == ("/",)
    assert Counted.taken <= 2 * 21


def test_what_is_remembered_of_a_tree_is_bounded_by_its_bytes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tree / f"{number}").mkdir()
    assert (_looked(tree).whole, len(_looked(tree).places)) == (True, 50)
    monkeypatch.setattr(treelook, "PLACED", 10 * (len(str(tree)) + 3))
    look = _looked(tree)
    assert not look.whole
    assert 10 <= len(look.places) <= 11


def test_the_report_keeps_few_names_and_counts_all(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = _looked(tree)
    for number in range(1000):
        (tree / f"{number:04}.mk").touch()
        (tree / f"{number % 7}/node_modules/x").mkdir(parents=True, exist_ok=True)
        (tree / f"{number % 7}/node_modules/x/{number}.mk").touch()
    found = exit_report(look)
    assert (found.asked_count, found.asked[:2]) == (1007, ("0/node_modules/", "0000.mk"))
    names = exitreport._Names()
    for number in range(5000):
        names.add(f"{4999 - number:04}")
    assert (names.count, len(names._kept) <= 8 * exitreport.NAMES) == (5000, True)
    assert names.first() == tuple(f"{number:04}" for number in range(exitreport.NAMES))


def _looked(tree: Path) -> TreeLook:
    look = TreeLook(str(tree), Role(name="dev"))
    for seen in walk([str(tree)]):
        look.visit(*seen)
    return look
