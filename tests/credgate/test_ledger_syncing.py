"""When a sync begins, and who shares it."""

import asyncio
import threading

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
