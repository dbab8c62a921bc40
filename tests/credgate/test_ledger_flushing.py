"""Syncs by the kernel: nobody goes on before it has said that all is on the disk, and its errors close the ledger."""

import asyncio
import errno
import os
import select
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from credgate import compiled
from credgate.ledger.flushing import KernelSyncs
from credgate.ledger.record import LedgerError
from credgate.ledger.report import Status
from credgate.ledger.settings import Settings
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger, SystemCalls

NEVER = Settings(every_lines=10**6, every_seconds=3600)  # no checkpoint comes between


class Disk:
    """A `Later` that ends a sync when it is told to. Its files and marks are those that were asked for."""

    def __init__(self, done: int) -> None:
        self.done = done
        self.asked: list[tuple[str, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.refuses = False

    def submit(self, fd: int, mark: int) -> None:
        if self.refuses:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.asked.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, mark))

    def end(self, mark: int, code: int = 0) -> None:
        self.ended.append((mark, code))
        os.eventfd_write(self.done, 1)

    def landed(self) -> list[tuple[int, int]]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.asked.append(("closed", 0))


class Place:
    """A ledger on a `Disk`; `synced` counts what threads did."""

    def __init__(self, directory: Path, settings: Settings = NEVER) -> None:
        made: list[Disk] = []
        self.synced: list[int] = []

        def later(done: int) -> Disk:
            made.append(Disk(done))
            return made[0]

        def fdatasync(fd: int) -> None:
            self.synced.append(fd)
            os.fdatasync(fd)

        calls = type("On", (SystemCalls,), {"later": staticmethod(later), "fdatasync": staticmethod(fdatasync)})
        self.ledger = Ledger.open(directory, calls=calls, settings=settings)
        (self.disk,) = made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def on(directory: Path, main: Callable[[Place], Coroutine[None, None, None]], settings: Settings = NEVER) -> None:
    place = Place(directory, settings)
    asyncio.run(main(place))
    place.ledger.close()
    assert place.disk.asked[-1] == ("closed", 0)


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


def test_nobody_goes_on_before_the_kernel_has_said_so(directory: Path) -> None:
    async def main(place: Place) -> None:
        waiting = asyncio.ensure_future(place.ledger.durable(place.ledger.append("intent")))
        await _turns()
        assert not waiting.done()
        assert place.disk.asked == [("seg-000001.jsonl", 1)]
        place.disk.end(1)
        await asyncio.wait_for(waiting, 60)
        assert place.synced == []

    on(directory, main)
    assert verify(directory).status is Status.SOUND


def test_a_line_behind_the_sync_that_is_under_way_has_the_next(directory: Path) -> None:
    async def main(place: Place) -> None:
        first = asyncio.ensure_future(place.ledger.durable(place.ledger.append("intent")))
        await _turns()
        second = asyncio.ensure_future(place.ledger.durable(place.ledger.append("intent")))
        await _turns()
        assert [mark for _, mark in place.disk.asked] == [1]
        place.disk.end(1)
        await asyncio.wait_for(first, 60)
        await _turns()
        assert not second.done()
        assert [mark for _, mark in place.disk.asked] == [1, 2]
        place.disk.end(2)
        await asyncio.wait_for(second, 60)

    on(directory, main)


def test_an_error_reaches_all_who_wait_and_closes_the_ledger_for_good(directory: Path) -> None:
    async def main(place: Place) -> None:
        numbers = [place.ledger.append("intent") for _ in range(3)]
        waiting = [asyncio.ensure_future(place.ledger.durable(number)) for number in numbers]
        await _turns()
        place.disk.end(3, errno.EIO)
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert [type(each) for each in found] == [LedgerError] * 3
        for _ in range(2):
            with pytest.raises(LedgerError, match="input/output error"):
                place.ledger.append("deny")
        assert place.synced == []

    on(directory, main)


def test_an_answer_that_there_was_no_memory_for_closes_it_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone, and may have been an error: the next sync would say that all is well."""

    def full() -> list[tuple[int, int]]:
        raise MemoryError

    async def main(place: Place) -> None:
        waiting = asyncio.ensure_future(place.ledger.durable(place.ledger.append("intent")))
        await _turns()
        monkeypatch.setattr(place.disk, "landed", full)
        place.disk.end(1, errno.EIO)
        with pytest.raises(LedgerError, match="cannot allocate memory"):
            await asyncio.wait_for(waiting, 60)
        with pytest.raises(LedgerError):
            place.ledger.append("deny")

    on(directory, main)


def test_what_the_kernel_does_not_begin_a_thread_does(directory: Path) -> None:
    async def main(place: Place) -> None:
        place.disk.refuses = True
        await asyncio.wait_for(place.ledger.durable(place.ledger.append("intent")), 60)
        assert len(place.synced) == 1

    on(directory, main)


def test_a_threads_sync_takes_back_nothing_that_the_kernel_said(directory: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        begun.set()
        assert goes_on.wait(60)
        os.fdatasync(fd)

    async def main(place: Place) -> None:
        place.ledger._calls.fdatasync = staticmethod(slow)  # of a class made for this place
        place.ledger.append("intent")
        thread = asyncio.ensure_future(asyncio.to_thread(place.ledger.sync))
        try:
            assert await asyncio.to_thread(begun.wait, 60)
            seq = place.ledger.append("intent")
            waiting = asyncio.ensure_future(place.ledger.durable(seq))
            await _turns()
            place.disk.end(seq)
            await asyncio.wait_for(waiting, 60)
        finally:
            goes_on.set()
        await asyncio.wait_for(thread, 60)
        assert place.ledger._synced == seq  # not that of the line before, for which it began
        await asyncio.wait_for(place.ledger.durable(seq), 60)
        assert [mark for _, mark in place.disk.asked] == [seq]

    on(directory, main)


def test_a_new_segment_is_what_is_synced_from_then_on(directory: Path) -> None:
    async def main(place: Place) -> None:
        for segment in range(1, 4):
            seq = place.ledger.append("intent")
            waiting = asyncio.ensure_future(place.ledger.durable(seq))
            await _turns()
            assert place.disk.asked[-1] == (f"seg-{segment:06}.jsonl", seq)
            place.disk.end(seq)
            await asyncio.wait_for(waiting, 60)

    on(directory, main, Settings(max_bytes=100, every_lines=10**6, every_seconds=3600))


def test_a_loop_that_ends_while_a_sync_is_under_way_leaves_it_to_the_next(directory: Path) -> None:
    place = Place(directory)

    async def left() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(place.ledger.durable(place.ledger.append("intent")), 0.05)

    async def next_one() -> None:
        waiting = asyncio.ensure_future(place.ledger.durable(place.ledger.append("intent")))
        await _turns()
        place.disk.end(1)  # of the loop before: the second line is not in it
        await _turns()
        assert not waiting.done()
        place.disk.end(2)
        await asyncio.wait_for(waiting, 60)

    asyncio.run(left())
    asyncio.run(next_one())
    place.ledger.close()


# --- the kernel itself, asked by the compiled module and by ctypes


@pytest.fixture(params=["compiled", "ctypes"])
def _asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "ctypes":
        monkeypatch.setattr(compiled, "load", lambda _name: None)
    else:
        assert compiled.load("aio") is not None


by_both = pytest.mark.usefixtures("_asked")


def _wait(done: int) -> None:
    poll = select.poll()
    poll.register(done, select.POLLIN)
    assert poll.poll(10_000)
    os.eventfd_read(done)


@pytest.mark.needs("compiler")
@by_both
def test_the_kernel_tells_of_each_file_by_its_mark(tmp_path: Path) -> None:
    done = os.eventfd(0, os.EFD_NONBLOCK)
    syncs = KernelSyncs.open(done)
    assert syncs is not None
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"x" * 5000)
        syncs.submit(file.fileno(), 2**40 + 7)
        _wait(done)
        assert syncs.landed() == [(2**40 + 7, 0)]
        assert syncs.landed() == []
        syncs.submit(file.fileno(), 8)
    syncs.close()  # waits for it
    assert syncs.landed() == []
    with pytest.raises(OSError, match="Invalid argument"):
        syncs.submit(done, 9)
    os.close(done)


@pytest.mark.needs("compiler")
@by_both
def test_the_kernel_tells_of_several_at_once_for_as_long_as_one_likes(tmp_path: Path) -> None:
    """Its ring has a page, at most 127 places: from its end on it begins anew."""
    done = os.eventfd(0, os.EFD_NONBLOCK)
    syncs = KernelSyncs.open(done)
    assert syncs is not None
    with (tmp_path / "file").open("wb", buffering=0) as file:
        for mark in range(1, 700, 3):
            for more in range(3):
                syncs.submit(file.fileno(), mark + more)
            landed: list[tuple[int, int]] = []
            while len(landed) < 3:
                _wait(done)
                landed += syncs.landed()
            assert sorted(landed) == [(mark + more, 0) for more in range(3)]
    syncs.close()
    os.close(done)


@pytest.mark.needs("compiler")
@by_both
def test_what_cannot_be_synced_is_an_error(tmp_path: Path) -> None:
    done = os.eventfd(0, os.EFD_NONBLOCK)
    syncs = KernelSyncs.open(done)
    assert syncs is not None
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        syncs.submit(writing, 1)
    for descriptor in (reading, writing):
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        syncs.submit(writing, 2)
    with pytest.raises((OSError, OverflowError, ValueError)):
        syncs.submit(-1, 2)
    assert syncs.landed() == []
    syncs.close()
    os.close(done)


@pytest.mark.needs("compiler")
@by_both
def test_a_ledger_is_durable_by_the_kernel_alone(directory: Path) -> None:
    """No thread waits for the disk, and fdatasync(2) is for the ends of segments."""

    def refuse(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def main(ledger: Ledger) -> None:
        for _ in range(20):
            numbers = [ledger.append("intent") for _ in range(16)]
            await asyncio.wait_for(asyncio.gather(*map(ledger.durable, numbers)), 60)

    ledger = Ledger.open(
        directory, calls=type("Real", (SystemCalls,), {"fdatasync": staticmethod(refuse)}), settings=NEVER
    )
    asyncio.run(main(ledger))
    assert "ledger-sync" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(LedgerError):
        ledger.close()
    assert (directory / "seg-000001.jsonl").read_bytes().count(b'"ev":"intent"') == 320
