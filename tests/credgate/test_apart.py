"""Threads for what a jail makes long: another run's turn comes, and the loop's own threads stay free."""

import asyncio
import threading

import pytest

from credgate.apart import BODIES, LOOKS, Apart
from credgate.gateway import judge


@pytest.mark.parametrize(("each", "turns"), [(2, True), (4, False)])
def test_another_runs_turn_comes(each: int, turns: bool) -> None:
    """Beside the same without a bound for each run: there nobody else is served."""
    hold, asked = threading.Event(), 50

    async def test() -> bool:
        apart = Apart("test", 4, each)
        greedy = [asyncio.create_task(apart.do("greedy", hold.wait)) for _ in range(asked)]
        await asyncio.sleep(0)
        other = asyncio.create_task(apart.do("other", lambda: True))
        done, _ = await asyncio.wait({other}, timeout=20 if turns else 0.2)
        hold.set()
        assert await asyncio.gather(*greedy) == [True] * asked
        assert await other
        assert not apart._turns, "nothing is kept of a run that asks for nothing"
        return bool(done)

    assert asyncio.run(test()) is turns


def test_what_goes_wrong_there_is_told_here() -> None:
    async def test() -> None:
        for _ in range(3):  # and gives its turn back
            with pytest.raises(ZeroDivisionError):
                await Apart("test", 1, 1).do("r1", lambda: 1 // 0)

    asyncio.run(test())


@pytest.mark.parametrize("apart", [BODIES, LOOKS])
def test_one_run_never_has_all_threads(apart: Apart) -> None:
    assert apart._each < apart._pool._max_workers


def test_a_body_is_judged_apart() -> None:
    def where() -> str:
        return threading.current_thread().name

    async def test() -> tuple[str, str]:
        return await judge._aside("r1", judge.QUICK, where), await judge._aside("r1", judge.QUICK - 1, where)

    far, near = asyncio.run(test())
    assert far.startswith("body")
    assert near == threading.main_thread().name
