"""A deadline that is set and met again and again holds as a timer of its own would."""

import asyncio

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
