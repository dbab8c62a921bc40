"""Threads for what a jail can make long: bodies that are judged, trees and copies that it filled.

The loop's own threads are few (asyncio's default: the cores and four), and every run's start and end waits for one. So
these are others, and of one run so few at a time go on in them that another one's turn comes, however many it asks for.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakValueDictionary


class Apart:
    """So many threads, of which one run has `each` at a time. Lives on one loop."""

    def __init__(self, name: str, threads: int, each: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._each = each
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def do[T](self, run: str, work: Callable[[], T]) -> T:
        """The result of `work`, done for this run in a thread of its own."""
        turn = self._turns.get(run)
        if turn is None:
            turn = self._turns[run] = asyncio.Semaphore(self._each)
        async with turn:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(context.run, work))


BODIES = Apart("body", 4, 2)
LOOKS = Apart("look", 4, 1)
