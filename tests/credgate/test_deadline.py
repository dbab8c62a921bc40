"""A deadline that is set and met again and again holds as a timer of its own would."""

import asyncio
from functools import partial

from credgate.gateway import deadline
from credgate.gateway.deadline import Deadline


def test_it_calls_back_once_its_time_is_over() -> None:
    async def main() -> list[str]:
        called: list[str] = []
        deadline = Deadline()
        deadline.later(0.02, lambda: called.append("late"))
        await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        return called

    assert asyncio.run(main()) == ["late"]


def test_what_was_cancelled_or_replaced_is_not_called() -> None:
    async def main() -> list[str]:
        called: list[str] = []
        deadline = Deadline()
        deadline.later(0.02, lambda: called.append("cancelled")).cancel()
        await asyncio.sleep(0.04)
        deadline.later(0.02, lambda: called.append("replaced"))
        deadline.later(0.06, lambda: called.append("later"))
        await asyncio.sleep(0.04)
        assert called == []
        await asyncio.sleep(0.05)
        assert called == ["later"]
        deadline.later(5.0, lambda: called.append("long"))
        deadline.later(0.02, lambda: called.append("sooner"))  # the loop's timer is for later than that
        await asyncio.sleep(0.05)
        assert called == ["later", "sooner"]
        deadline.later(0.02, lambda: called.append("stopped"))
        deadline.stop()
        await asyncio.sleep(0.05)
        return called

    assert asyncio.run(main()) == ["later", "sooner"]


def test_many_requests_take_one_timer_of_the_loop() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        deadline = Deadline()
        for _ in range(1000):
            deadline.later(60.0, lambda: None)
            deadline.cancel()
        scheduled = len(vars(loop)["_scheduled"])
        deadline.stop()
        return scheduled

    assert asyncio.run(main()) <= 1


def test_many_connections_take_one_timer_of_the_loop() -> None:
    """Each is due in its turn, none that was stopped, and the one that was set anew at its new time."""

    async def main() -> tuple[list[int], int, int]:
        loop = asyncio.get_running_loop()
        called: list[int] = []
        several = [Deadline() for _ in range(100)]
        for number, each in enumerate(several):
            each.later(0.05, partial(called.append, number))
        scheduled = len(vars(loop)["_scheduled"])
        for each in several[::2]:
            each.stop()
        several[1].later(0.15, lambda: called.append(-1))
        async with asyncio.timeout(60):
            while len(called) < 50:
                await asyncio.sleep(0.01)
        return called, scheduled, len(vars(loop)["_scheduled"])

    called, scheduled, left = asyncio.run(main())
    assert [one for one in called if one > 0] == [*range(3, 100, 2)] and called.count(-1) == 1
    assert scheduled == 1
    assert left <= 2  # of the test's own


def test_what_raises_keeps_no_other_from_being_called() -> None:
    async def main() -> list[str]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        called: list[str] = []
        first, second = Deadline(), Deadline()
        first.later(0.02, lambda: called.append(str(1 // 0)))
        second.later(0.02, lambda: called.append("second"))
        async with asyncio.timeout(60):
            while not called:
                await asyncio.sleep(0.01)
        return called

    assert asyncio.run(main()) == ["second"]


def test_a_time_of_its_own_and_any_number_of_different_ones() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        called: list[str] = []
        many = [Deadline() for _ in range(200)]
        for number, each in enumerate(many):
            each.later(100.0 + number, lambda: called.append("never"))
        assert len(deadline._spans) == deadline._MOST
        for each in many:
            each.later(0.02, lambda: called.append("soon"))
        one = Deadline().later(50.0, lambda: called.append("never"))
        one.until(loop.time() + 0.02, lambda: called.append("until"))
        one.until(loop.time() + 0.04, lambda: called.append("until"))
        async with asyncio.timeout(60):
            while len(called) < 201:
                await asyncio.sleep(0.01)
        for each in (one, *many):
            each.stop()
        return called

    for _ in range(2):  # of another loop: what the first one left is not its
        called = asyncio.run(main())
        assert sorted(called) == ["soon"] * 200 + ["until"]
