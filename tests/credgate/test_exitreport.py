"""The report at a run's end, on trees that the test changes as an agent might; each beside what it does not name."""

import os
import time
from pathlib import Path

import pytest

from credgate import exitreport
from credgate.exitreport import ExitReport, exit_report, fields
from credgate.treelook import TreeLook
from credgate.treewalk import walk
from rules.policy import Role


class World:
    """A tree that was looked at, and whose look is some clock ticks old."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.look: TreeLook

    def file(self, name: str, text: str = "x\n", mode: int = 0o644) -> Path:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def begin(self) -> None:
        time.sleep(0.02)  # the clock of files ticks every 4 ms, or 10
        self.look = TreeLook(str(self.tree), Role(name="dev"))
        for seen in walk([str(self.tree)]):
            self.look.visit(*seen)
        time.sleep(0.02)

    def report(self) -> ExitReport:
        return exit_report(self.look)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(Path(os.path.realpath(tmp_path)) / "tree")
    made.tree.mkdir()
    for name in ("Makefile", "old.sh", "keep.sh", "src/a.py", "t/vscode/tasks.json", ".git/objects/x/config"):
        made.file(name, "#!/bin/sh\n" if name.endswith(".sh") else "x\n")
    made.begin()
    return made


def test_nothing_was_changed(world: World) -> None:
    found = world.report()
    assert found == ExitReport()
    assert found.sentences() == []
    assert fields(None) == {}


def test_new_changed_and_opened_for_execution(world: World) -> None:
    world.file("Makefile", "all:\n")
    (world.tree / "old.sh").chmod(0o755)
    world.file("new.sh", "#!/bin/sh\n")
    world.file("bin/tool", "\x7fELF", 0o755)
    world.file("notes.txt")
    world.file("vendor/x/.git/hooks/pre-commit")
    world.file("vendor/x/.git/hooks/pre-push.sample", mode=0o755)
    world.file(".envrc")
    world.file(".git/objects/y/config")
    world.file("node_modules/a/package.json")
    world.file("node_modules/b/cli.js", "#!/usr/bin/env node\n")
    found = world.report()
    assert found.unasked == (".envrc", "vendor/x/.git/hooks/pre-commit")
    assert found.asked == ("Makefile", "bin/tool", "new.sh", "node_modules/", "old.sh")
    assert (found.unasked_count, found.asked_count, found.unseen) == (2, 5, ())
    assert len(found.sentences()) == 2
    assert found.sentences()[0].endswith("unasked: .envrc, vendor/x/.git/hooks/pre-commit")


def test_times_that_were_set_back_hide_nothing(world: World) -> None:
    path = world.file("Makefile", "all: evil\n")
    os.utime(path, (0, 0))
    assert world.report().asked == ("Makefile",)


def test_a_directory_that_was_moved_is_new_where_it_is(world: World) -> None:
    (world.tree / "t/vscode").rename(world.tree / "t/.vscode")
    assert world.report().unasked == ("t/.vscode/tasks.json",)


def test_one_put_in_anothers_place(world: World) -> None:
    (world.tree / "t").rename(world.tree / "aside")
    (world.tree / "aside/vscode").rename(world.tree / "aside/.vscode")
    (world.tree / "aside").rename(world.tree / "t")
    assert world.report().unasked == ("t/.vscode/tasks.json",)


def test_a_file_that_was_moved(world: World) -> None:
    (world.tree / "src/a.py").rename(world.tree / "src/conftest.py")
    assert world.report().asked == ("src/conftest.py",)


def test_a_link_of_such_a_name_is_named_and_not_followed(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "Makefile").touch()
    (world.tree / "away").symlink_to(outside)
    (world.tree / ".vscode").symlink_to(outside)
    assert world.report().unasked == (".vscode",)
    assert world.report().asked == ()


def test_where_too_many_directories_were_to_be_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credgate.treelook.PLACED", 1)
    world.begin()
    assert not world.look.whole
    assert world.report() == ExitReport()
    (world.tree / "t/vscode").rename(world.tree / "t/.vscode")
    assert world.report().unasked == ("t/.vscode/tasks.json",)


def test_what_could_not_be_seen_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def __init__(self, path: str) -> None:
            self.real = scandir(path) if not path.endswith("/src") else None

        def __enter__(self):
            if self.real is None:
                raise PermissionError(13, "closed")
            return self.real.__enter__()

        def __exit__(self, *_: object) -> None:
            if self.real is not None:
                self.real.close()

    scandir = os.scandir
    monkeypatch.setattr(exitreport.os, "scandir", Closed)
    assert world.report().unseen == ("src/",)
    monkeypatch.setattr(exitreport.os, "scandir", scandir)
    monkeypatch.setattr(exitreport, "ENTRIES", 1)
    (said,) = world.report().sentences()
    assert said.startswith("not looked into for what the host would execute: the rest, after ")


def test_many_and_long_names_are_cut_and_counted(world: World) -> None:
    for number in range(60):
        world.file(f"d{number:02}/{'é' * 100}/Makefile")
    found = world.report()
    assert (found.asked_count, len(found.asked)) == (60, exitreport.NAMES)
    told = found.to_json()["asked"]
    assert isinstance(told, list)
    assert max(len(name) for name in told) < 100
    assert "and 55 more" in found.sentences()[0]


def test_names_that_are_not_utf8(world: World) -> None:
    folder = os.fsencode(world.tree) + b"/\xff"
    os.mkdir(folder)
    with open(folder + b"/Makefile", "wb"):
        pass
    assert world.report().asked == ("\udcff/Makefile",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter it all the same")
def test_a_directory_that_can_be_listed_and_not_entered_is_said(world: World) -> None:
    world.file("src/Makefile")
    (world.tree / "src").chmod(0o444)
    found = world.report()
    (world.tree / "src").chmod(0o755)
    assert found.unseen == ("src/",)
