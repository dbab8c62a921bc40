"""Values that cost something to get: one fetch for all who wait, kept as long as they say, a failure for a moment."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

from credgate.errors import CredgateError

PAUSE = 1.0  # seconds in which a failure is the answer, and nothing is asked again
MOST = 1024


def boottime() -> float:
    """Seconds that go on while the machine sleeps, as ends of tokens do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held[T]:
    until: float
    value: T | None = field(default=None, repr=False)
    failure: CredgateError | None = None


class Kept[T]:
    """Not thread-safe: it lives on one loop. `T` is never None."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._held: dict[Hashable, _Held[T]] = {}
        self._flights: dict[Hashable, asyncio.Task[_Held[T]]] = {}

    async def get(self, key: Hashable, fetch: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        """The value for `key`; `fetch` gives one and the seconds that it may be used for, 0 for this once.

        Raises what `fetch` raised, a CredgateError.
        """
        held = self._held.get(key)
        if held is None or held.until <= self._clock():
            held = await self._flight(key, fetch)
        if held.failure is not None:
            raise held.failure
        if held.value is None:
            raise RuntimeError("neither a value nor a failure")
        return held.value

    def known(self, key: Hashable) -> T | None:
        """The value for `key` where it needs no fetch."""
        held = self._held.get(key)
        return None if held is None or held.until <= self._clock() else held.value

    async def _flight(self, key: Hashable, fetch: Callable[[], Awaitable[tuple[T, float]]]) -> _Held[T]:
        task = self._flights.get(key)
        if task is None:
            # no TaskGroup: it outlives the request that began it, and what it raises is in what it returns
            task = asyncio.get_running_loop().create_task(self._fly(key, fetch))
            self._flights[key] = task
        return await asyncio.shield(task)

    async def _fly(self, key: Hashable, fetch: Callable[[], Awaitable[tuple[T, float]]]) -> _Held[T]:
        try:
            value, seconds = await fetch()
            held = _Held(until=self._clock() + seconds, value=value)
        except CredgateError as error:
            held = _Held(until=self._clock() + PAUSE, failure=error)
        finally:
            self._flights.pop(key, None)
        now = self._clock()
        self._held = {known: other for known, other in self._held.items() if other.until > now}
        if held.until > now and len(self._held) < MOST:
            self._held[key] = held
        return held

    def drop(self, key: Hashable) -> None:
        """Forget what is held for a key."""
        self._held.pop(key, None)

    def values(self) -> list[T]:
        """What is held and not over."""
        now = self._clock()
        return [held.value for held in self._held.values() if held.value is not None and held.until > now]
