"""Where a write of a jail's on a copy came to lie: the daemon's own look decides, not the jail's word."""

from pathlib import Path

import pytest

from credgate.trying import landed
from jail.guards import BY_ID, COPIED
from jail.plan import Overlay
from jail.probes import DONE, attempts, files
from tests.jail.test_plan import spec

NAME = ".name.copy"


@pytest.mark.parametrize(
    ("tree", "upper", "said", "word"),
    [
        (False, True, DONE, COPIED),
        (True, False, DONE, DONE),
        (True, True, DONE, DONE),
        (True, False, "EROFS", DONE),
        (False, False, DONE, "ENOENT"),
        (False, False, COPIED, "ENOENT"),
        (False, False, "EROFS", "EROFS"),
        (False, False, "", ""),
    ],
)
def test_where_it_lies_is_the_word(tmp_path: Path, *, tree: bool, upper: bool, said: str, word: str) -> None:
    for name, there in (("tree", tree), ("upper", upper)):
        (tmp_path / name).mkdir()
        if there:
            (tmp_path / name / NAME).symlink_to("nowhere")
    overlay = Overlay(upper=str(tmp_path / "upper"), work=str(tmp_path / "work"))
    assert landed(spec(workdir=str(tmp_path / "tree"), overlay=overlay), NAME, said) == word
    assert BY_ID["copy_write"].refused == {COPIED}


def test_attempt_writes_and_is_cleared(tmp_path: Path) -> None:
    context = {"tree": str(tmp_path), "canary": "0123456789abcdef0123"}
    assert attempts.outcome("copy_write", context) == DONE
    assert [path.name for path in tmp_path.iterdir()] == [files.copied_name(context)]
    assert attempts.outcome("copy_write", context) == "EEXIST"
    files.copy_clear(context)
    files.copy_clear(context)
    assert not [*tmp_path.iterdir()]
