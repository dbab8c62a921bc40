"""What is made for runs in a work tree: held by each of them, removed by the last, and left where it is in use."""

import os
from pathlib import Path

import pytest

from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.reserved import Reserved
from jail.plan import Protection


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(state=tmp_path / "state", config=tmp_path / "config")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = Path(os.path.realpath(tmp_path)) / "work"
    made.mkdir()
    return made


def wanted(tree: Path, **more: str) -> Protection:
    made = {".github": "", ".github/workflows": "", ".vscode": "", "commondir": ".\n", **more}
    paths = tuple((str(tree / name), text) for name, text in made.items())
    return Protection(islands=tuple(path for path, _ in paths), reserved=paths)


def test_made_and_removed(places: Places, tree: Path) -> None:
    reserved = Reserved.open(places)
    reserved.take("r1", wanted(tree))
    assert (tree / ".github/workflows").is_dir()
    assert (tree / "commondir").read_text() == ".\n"
    reserved.drop("r1")
    assert list(tree.iterdir()) == []
    reserved.drop("r1")


def test_the_last_run_removes_it(places: Places, tree: Path) -> None:
    reserved = Reserved.open(places)
    reserved.take("r1", wanted(tree))
    second = Protection(islands=wanted(tree).islands)  # that one's look found it there
    reserved.take("r2", second)
    reserved.drop("r1")
    assert (tree / ".vscode").is_dir()
    reserved.take("r3", second)
    reserved.drop("r2")
    assert (tree / ".vscode").is_dir()
    reserved.drop("r3")
    assert list(tree.iterdir()) == []


def test_one_that_went_between_a_runs_look_and_its_start_is_made_again(places: Places, tree: Path) -> None:
    reserved = Reserved.open(places)
    reserved.take("r1", wanted(tree))
    seen = Protection(islands=wanted(tree).islands)
    reserved.drop("r1")
    reserved.take("r2", seen)
    assert (tree / ".vscode").is_dir()
    reserved.drop("r2")
    assert list(tree.iterdir()) == []


def test_what_is_in_use_stays(places: Places, tree: Path) -> None:
    reserved = Reserved.open(places)
    reserved.take("r1", wanted(tree))
    (tree / ".vscode/settings.json").touch()
    (tree / "commondir").write_text("elsewhere\n")
    reserved.drop("r1")
    assert {path.name for path in tree.iterdir()} == {".vscode", "commondir"}


def test_what_was_there_before_stays(places: Places, tree: Path) -> None:
    (tree / ".vscode").mkdir()
    reserved = Reserved.open(places)
    reserved.take("r1", wanted(tree))
    reserved.drop("r1")
    assert [path.name for path in tree.iterdir()] == [".vscode"]


def test_a_link_in_the_way_leads_nowhere(places: Places, tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree / ".github").symlink_to(outside)
    with pytest.raises(CredgateError, match="it can't be made"):
        Reserved.open(places).take("r1", wanted(tree))
    assert list(outside.iterdir()) == []
    reserved = Reserved.open(places)
    (tree / ".github").unlink()
    reserved.take("r2", wanted(tree))
    (outside / "workflows").mkdir()
    (tree / ".github/workflows").rmdir()
    (tree / ".github").rmdir()
    (tree / ".github").symlink_to(outside)
    reserved.drop("r2")
    assert (outside / "workflows").is_dir()  # not removed through the link


def test_the_next_daemon_clears_what_a_killed_one_left(places: Places, tree: Path) -> None:
    Reserved.open(places).take("r1", wanted(tree))
    assert (tree / ".vscode").is_dir()
    Reserved.open(places)
    assert list(tree.iterdir()) == []
    Reserved.open(places)
