"""A crash while a crash is being mended: at each step, nothing is lost and the next writer ends the work."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger, SystemCalls
from tests.credgate.ledger_rig import no_kernel

SEGMENT = "seg-000001.jsonl"
TORN = b'{"boot":"half a li'
STEPS = ("fsync", "ftruncate", "posix_fallocate", "pread", "write", "rename")


class Crash(BaseException):
    """Stands for the kill: nothing of ours catches it."""


def _torn_ledger(directory: Path) -> bytes:
    with Ledger.open(directory) as ledger:
        ledger.append("deny", host="kept")
    path = directory / SEGMENT
    whole = path.read_bytes()
    path.write_bytes(whole + TORN)
    return whole


def _crash_at(patch: pytest.MonkeyPatch, step: int, after: bool) -> Callable[[], int]:
    """Let the system call number `step` of recovery be the last one, undone or just done."""
    seen = [0]

    def wrap(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            seen[0] += 1
            if seen[0] == step + 1 and not after:
                raise Crash
            result = real(*args)
            if seen[0] == step + 1:
                raise Crash
            return result

        return call

    for name in STEPS:
        patch.setattr(os, name, wrap(getattr(os, name)))
    return lambda: seen[0]


class Late(SystemCalls):
    """Looks the calls up when they are made, so that a test's patch counts."""

    write = staticmethod(lambda fd, data: os.write(fd, data))
    fdatasync = staticmethod(lambda fd: os.fsync(fd))
    later = staticmethod(no_kernel)


def _steps(directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    _torn_ledger(directory)
    with monkeypatch.context() as patch:
        count = _crash_at(patch, 10_000, False)
        ledger = Ledger.open(directory, calls=Late)
        steps = count()
    ledger.close()
    return steps


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_each_step_of_the_mending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool):
    steps = _steps(tmp_path / "none", monkeypatch)
    assert steps > 10
    for step in range(steps):
        directory = tmp_path / f"{step}"
        whole = _torn_ledger(directory)
        with monkeypatch.context() as patch:
            _crash_at(patch, step, after)
            with pytest.raises(Crash):
                Ledger.open(directory, calls=Late)
        Ledger.open(directory).close()
        assert verify(directory).status is Status.SOUND, step
        assert (directory / SEGMENT).read_bytes().startswith(whole), step
        assert [(file.name, file.read_bytes()) for file in directory.glob("torn-*")] == [("torn-1.bin", TORN)], step
        records = [json.loads(line) for line in (directory / SEGMENT).read_bytes().splitlines()]
        named = [record["sha256"] for record in records if record["ev"] == "recovered" and "torn" in record]
        assert named == [hashlib.sha256(TORN).hexdigest()], step


def test_a_record_of_the_mending_that_is_torn_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    directory = tmp_path / "ledger"
    _torn_ledger(directory)

    def half(fd: int, data: bytes) -> int:
        os.write(fd, data[:50])
        raise Crash

    with pytest.raises(Crash):
        Ledger.open(directory, calls=type("Half", (SystemCalls,), {"write": staticmethod(half)}))
    Ledger.open(directory).close()
    one, two = ((directory / f"torn-{n}.bin").read_bytes() for n in (1, 2))
    assert one == TORN
    assert len(two) == 50
    report = verify(directory)
    assert (report.status, len(report.notes)) == (Status.SOUND, 2)


def test_the_reserve_is_made_anew(tmp_path: Path):
    directory = tmp_path / "ledger"
    Ledger.open(directory).close()
    reserve = directory / "reserve.bin"
    assert reserve.stat().st_blocks * 512 >= 64 * 1024
    reserve.unlink()
    Ledger.open(directory).close()
    assert reserve.stat().st_blocks * 512 >= 64 * 1024
