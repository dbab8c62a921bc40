"""Looks of all runs fall into one waking of the loop; looks with moments of their own each wake it."""

import asyncio
import selectors
from typing import Any

import pytest

from credgate.ticks import tick


class Virtual(asyncio.SelectorEventLoop):
    """A loop whose clock is what it waits for: on a busy machine a real one takes several timers in one turn."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(Jumping(self))

    def time(self) -> float:
        return self.now


class Jumping(selectors.DefaultSelector):
    def __init__(self, loop: Virtual) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.now += timeout or 0.0
        return super().select(0)


async def apart(seconds: float) -> None:
    await asyncio.sleep(seconds)


@pytest.mark.parametrize(("wait", "most"), [(tick, 12), (apart, None)])
def test_many_wake_the_loop_as_one(wait: Any, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def main() -> None:
        nonlocal turns
        loop: Any = asyncio.get_running_loop()
        before = loop._run_once

        def counted() -> None:
            nonlocal turns
            turns += 1
            before()

        async def look(number: int) -> None:
            await asyncio.sleep(number * 0.0041)
            await wait(0.2)

        monkeypatch.setattr(loop, "_run_once", counted)
        started = [loop.create_task(look(number)) for number in range(20)]
        await asyncio.sleep(0.0041 * 21)
        turns = 0
        await asyncio.gather(*started)

    asyncio.run(main(), loop_factory=Virtual)
    assert turns <= most if most is not None else turns >= 15


def test_it_waits_no_longer_than_asked() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await tick(0.05)
        assert loop.time() - began < 0.05 + 0.2
        assert loop.time() % 0.05 < 0.04

    asyncio.run(main())
