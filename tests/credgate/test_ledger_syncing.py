"""When a sync begins, and who shares it."""

import asyncio
import os
import threading
from typing import Any, cast

import pytest

from credgate import loops
from credgate.ledger.record import LedgerError
from credgate.ledger.syncing import Syncing


class Disk:
    """Counts syncs, and tells of each that began."""

    def __init__(self) -> None:
        self.count = 0
        self.began = threading.Event()

    def sync(self) -> None:
        self.count += 1
        self.began.set()


def test_callers_of_one_turn_share_a_sync() -> None:
    asyncio.run(_share())


async def _share() -> None:
    disk = Disk()
    syncing = Syncing(disk.sync)
    try:
        await asyncio.gather(*(syncing.ask() for _ in range(3)))
        assert disk.count == 1
        disk.began.clear()
        asked = [syncing.ask() for _ in range(3)]
        assert not disk.began.wait(0.1)  # the loop has not turned: there may be more of them
        await asyncio.gather(*asked)
        assert disk.count == 2
    finally:
        syncing.stop()


def test_another_loop_waits_from_where_it_asks() -> None:
    disk = Disk()
    syncing = Syncing(disk.sync)
    for count in range(1, 4):  # each loop is closed, and its registration gone with it
        asyncio.run(_ask(syncing))
        assert disk.count == count
    syncing.stop()


async def _ask(syncing: Syncing) -> None:
    await syncing.ask()


def test_behind_a_sync_of_one_caller_the_next_begins_at_once() -> None:
    asyncio.run(_follow())


async def _follow() -> None:
    disk = Disk()
    syncing = Syncing(disk.sync)
    try:
        await syncing.ask()
        disk.began.clear()
        asked = syncing.ask()
        assert disk.began.wait(5)  # without a turn of the loop
        later = [syncing.ask() for _ in range(3)]  # that sync may have begun before their lines were there
        await asyncio.gather(asked, *later)
        assert disk.count == 3
    finally:
        syncing.stop()


def test_where_no_thread_can_be_had_who_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        disk = Disk()
        syncing = Syncing(disk.sync)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", full)
                for _ in range(2):
                    with pytest.raises(LedgerError, match="can't sync: RuntimeError"):
                        await asyncio.wait_for(syncing.ask(), 30)
            assert disk.count == 0
            await asyncio.wait_for(syncing.ask(), 30)  # there is room again
            assert disk.count == 1
        finally:
            syncing.stop()

    asyncio.run(main())


class Kernel:
    """Begins syncs itself, unless it has no memory for that."""

    def __init__(self, done: int) -> None:
        self.done, self.short, self.count = done, False, 0

    def begin(self) -> bool:
        if self.short:
            raise MemoryError
        self.count += 1
        os.eventfd_write(self.done, 1)
        return True

    def land(self) -> None:
        return

    def close(self) -> None:
        return


def test_a_sync_that_failed_for_once_fails_no_other() -> None:
    """For want of memory, which closes no ledger: first the kernel's could not be begun, then the thread's failed."""
    made: list[Kernel] = []

    def by_kernel(done: int) -> Any:
        made.append(Kernel(done))
        return made[0]

    def sync() -> None:
        raise MemoryError

    async def main() -> None:
        syncing = Syncing(sync, by_kernel)
        try:
            made[0].short = True
            with pytest.raises(LedgerError, match="can't sync: MemoryError"):
                await asyncio.wait_for(syncing.ask(), 30)
            made[0].short = False
            await asyncio.wait_for(syncing.ask(), 30)
            assert made[0].count == 1
        finally:
            syncing.stop()

    asyncio.run(main())


class _Held:
    """A kernel whose syncs end when it is closed, which the descriptor tells of."""

    def __init__(self, done: int) -> None:
        self._done = done

    def begin(self) -> bool:
        return True

    def land(self) -> None:
        pass

    def close(self) -> None:
        os.eventfd_write(self._done, 1)


def test_who_waits_at_its_end_is_told_once() -> None:
    told = list[object]()

    async def main() -> None:
        syncing = Syncing(lambda: None, cast("Any", _Held))
        syncing.tell(told.append)
        await asyncio.sleep(0)
        syncing.stop()
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main(), loop_factory=loops.new_loop)
    assert told == [None]
