"""The digest of the program that a run starts, kept as long as the file is the same."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from credgate import programdigest
from credgate.prepare import PrepareError
from credgate.programdigest import program_digest


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that has been as it is for a while."""
    monkeypatch.setattr(programdigest, "_SETTLED", 50_000_000)
    monkeypatch.setattr(programdigest, "_kept", {})
    path = tmp_path / "program"
    path.write_bytes(b"one")
    time.sleep(0.1)
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_it_is_read_once(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program_digest(str(program)) == sha256(b"one")
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert program_digest(str(program)) == sha256(b"one")


def test_a_change_of_the_same_length_under_the_same_times_is_seen(program: Path) -> None:
    facts = program.stat()
    assert program_digest(str(program)) == sha256(b"one")
    program.write_bytes(b"two")
    os.utime(program, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert program_digest(str(program)) == sha256(b"two")
    newer = program.with_name("newer")
    newer.write_bytes(b"six")
    os.utime(newer, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    newer.rename(program)
    assert program_digest(str(program)) == sha256(b"six")


def test_what_was_written_just_now_is_not_kept(program: Path) -> None:
    """It may be written again within one tick of the clock that change times are of."""
    program.write_bytes(b"new")
    assert program_digest(str(program)) == sha256(b"new")
    assert programdigest._kept == {}


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PrepareError, match="no regular file"):
        program_digest(str(tmp_path / "pipe"))
