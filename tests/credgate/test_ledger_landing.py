"""Who waits for a landing goes on within the call that lands it, and as with any future otherwise."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context

import pytest

from credgate.ledger.landing import Landing


def run(body: Callable[[Landing], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body(Landing(loop=asyncio.get_running_loop()))

    asyncio.run(main())


async def landed(landing: Landing, error: Exception | None = None) -> None:
    """Land it as the loop does, outside of any task."""
    done = asyncio.Event()

    def land() -> None:
        landing.land(error)
        done.set()

    asyncio.get_running_loop().call_soon(land)
    await done.wait()


def test_a_waiter_goes_on_in_the_same_turn() -> None:
    async def body(landing: Landing) -> None:
        said: list[str] = []

        async def wait(name: str) -> None:
            await landing
            said.append(name)

        def land() -> None:
            landing.land(None)
            said.append("landed")

        waiting = [asyncio.create_task(wait(name)) for name in ("a", "b")]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(land)
        await asyncio.gather(*waiting)
        assert said == ["a", "b", "landed"]
        plain = asyncio.get_running_loop().create_future()  # control: any other future

        async def wait_plain() -> None:
            await plain
            said.append("plain")

        task = asyncio.create_task(wait_plain())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(plain.set_result, None)
        asyncio.get_running_loop().call_soon(said.append, "set")
        await task
        assert said[3:] == ["set", "plain"]

    run(body)


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    async def body(landing: Landing) -> None:
        task = asyncio.ensure_future(asyncio.gather(landing, return_exceptions=True))
        await asyncio.sleep(0)
        error = OSError("gone")
        await landed(landing, error)
        assert list(await task) == [error]
        with pytest.raises(OSError, match="gone"):  # and for who comes later
            await landing

    run(body)


def test_who_is_cancelled_hears_nothing_of_it_any_more() -> None:
    async def body(landing: Landing) -> None:
        async def wait() -> None:
            await landing

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert landing.cancelled()
        await landed(landing)
        await landed(landing, OSError())
        assert landing.cancelled()

    run(body)


def test_a_time_limit_ends_the_wait() -> None:
    async def body(landing: Landing) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await landing
        other = Landing(loop=asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(other), 0.01)  # takes its callback back
        await landed(other)
        await other

    run(body)


def test_a_callback_that_was_taken_back_is_not_called() -> None:
    async def body(landing: Landing) -> None:
        said: list[str] = []
        first, second = (lambda _: said.append("first")), (lambda _: said.append("second"))
        for call in (first, second, first):
            landing.add_done_callback(call)
        assert landing.remove_done_callback(first) == 2
        assert landing.remove_done_callback(first) == 0
        await landed(landing)
        await asyncio.sleep(0)
        landing.add_done_callback(first)  # of what is done already: in the next turn
        assert said == ["second"]
        await asyncio.sleep(0)
        assert said == ["second", "first"]

    run(body)


def test_a_waiter_that_raises_takes_its_turn_from_nobody() -> None:
    async def body(landing: Landing) -> None:
        said: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(type(told["exception"])))
        landing.add_done_callback(lambda _: 1 / 0, context=copy_context())
        landing.add_done_callback(lambda _: said.append("second"), context=copy_context())
        await landed(landing)
        assert said == [ZeroDivisionError, "second"]

    run(body)
