"""Looks that each run takes again and again, taken by all runs at once.

The loop asks the kernel about every descriptor of every run each time it wakes: a hundred runs that wake it four times
a second each, at moments of their own, cost a tenth of a core.
"""

import asyncio


async def tick(seconds: float) -> None:
    """Wait until the loop's clock is next at a whole number of these."""
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds - now % seconds)
