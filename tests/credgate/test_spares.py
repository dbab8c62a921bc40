"""What makes half a jail stale: its process died, the host's mounts changed, what was mounted is another file now."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from credgate import spares
from credgate.peer import channel
from jail import fdpass
from jail.mounts import AHEAD

OPERATIONS = [{"op": "bind", "from": "/usr", "at": "/usr", "write": False}, {"op": "proc", "at": "/proc"}]


@pytest.fixture
def process() -> Iterator[spares.Process]:
    """Of a sleeper that has mounted nothing."""
    sleeper = subprocess.Popen(["sleep", "60"])
    control, theirs = channel()
    reins, waiters = fdpass.pair()
    made = spares.Process(control=control, reins=reins, operations=list(OPERATIONS), host=spares.table())
    made.pid, made.pidfd = sleeper.pid, os.pidfd_open(sleeper.pid)
    yield made
    made.close()
    theirs.close()
    waiters.close()
    sleeper.kill()
    sleeper.wait()


def test_as_it_was_made_it_is_not_stale(process: spares.Process) -> None:
    facts = os.stat("/usr", follow_symlinks=False)
    process.seen = [("/usr", facts.st_dev, facts.st_ino)]
    assert process.stale() == ""


def test_a_dead_one_is(process: spares.Process) -> None:
    os.kill(process.pid, 9)
    os.waitpid(process.pid, 0)
    assert process.stale() == "it has died"


def test_another_mount_table_is(process: spares.Process) -> None:
    process.host += b"900 1 0:1 / /mnt rw - tmpfs none rw\n"
    assert process.stale() == "the host's mounts have changed"


def test_a_file_that_was_replaced_is(process: spares.Process, tmp_path: Path) -> None:
    file = tmp_path / "ld.so.cache"
    file.write_text("old")
    facts = file.stat()
    process.seen = [(str(file), facts.st_dev, facts.st_ino)]
    assert process.stale() == ""
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(file)
    assert process.stale() == f"{file} was replaced"
    file.unlink()
    with pytest.raises(FileNotFoundError):
        process.stale()


@pytest.mark.parametrize(
    ("planned", "suits"),
    [
        (OPERATIONS, True),
        ([*OPERATIONS, {"op": "bind", "from": "/srv", "at": "/srv", "write": True}], True),
        ([*OPERATIONS, {"op": "bind", "from": f"{AHEAD}/nfsd", "at": "/srv", "write": True}], False),
        ([OPERATIONS[0] | {"write": True}, OPERATIONS[1]], False),
        (OPERATIONS[:1], False),
        ([], False),
    ],
)
def test_a_plan_must_begin_as_it_did(process: spares.Process, planned: list[dict[str, Any]], suits: bool) -> None:
    assert process.suits(planned) is suits
