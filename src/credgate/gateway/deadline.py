"""One deadline that is set and met for each request: a timer of the loop's for each costs more than what it guards."""

import asyncio
from collections.abc import Callable
from time import monotonic  # what a loop's time() is, without its frame


class Deadline:
    """Calls back once a time is over that was neither cancelled nor set anew. The loop's timer stays until it fires."""

    __slots__ = ("_at", "_call", "_loop", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = 0.0
        self._call: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def later(self, seconds: float, call: Callable[[], None]) -> "Deadline":
        """As the loop's call_later, in the place of what was set before."""
        self._at, self._call = monotonic() + seconds, call
        if self._timer is None or self._timer.when() > self._at:
            self._arm()
        return self

    def cancel(self) -> None:
        """What was set is not called."""
        self._call = None

    def stop(self) -> None:
        """As cancel, for good."""
        self._call = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        call = self._call
        if call is None:
            return
        if monotonic() < self._at:
            self._arm()
            return
        self._call = None
        call()
