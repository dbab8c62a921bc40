"""The floor of free room below which no copy is begun, and a run that has one is ended."""

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from credgate import room
from credgate.errors import CredgateError


def leaves(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
    """One look after the other sees this many bytes; the last is seen again and again."""
    left = list(sizes)

    def look(_folder: Path) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=left.pop(0) if len(left) > 1 else left[0], f_frsize=1)

    monkeypatch.setattr(os, "statvfs", look)


def test_as_much_as_an_ordinary_user_may_take(tmp_path: Path) -> None:
    facts = os.statvfs(tmp_path)
    assert abs(room.free(tmp_path) - facts.f_bavail * facts.f_frsize) < 1 << 30


def test_below_the_floor_no_copy_is_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaves(monkeypatch, room.FLOOR)
    room.check(tmp_path)
    leaves(monkeypatch, room.FLOOR - 1)
    with pytest.raises(CredgateError, match="got 511 MiB free, expected 512 MiB") as caught:
        room.check(tmp_path)
    assert (caught.value.code, caught.value.exit_status) == ("no_room", 125)


def test_it_ends_once_the_room_runs_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaves(monkeypatch, room.FLOOR + 1, room.FLOOR, room.FLOOR - 1)
    began = time.monotonic()
    asyncio.run(asyncio.wait_for(room.runs_out(tmp_path), 60))
    assert time.monotonic() - began > 2 * room.SAMPLE - 0.1  # not at the first two looks


def test_what_can_not_be_read_is_an_end_too(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(room.runs_out(tmp_path / "gone"), 60))


def test_while_there_is_room_it_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaves(monkeypatch, room.FLOOR)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(room.runs_out(tmp_path), 3 * room.SAMPLE))
