"""One deadline that is set and met for each request, or each connection: a timer of the loop's for each costs more than
what it guards.
"""

import asyncio
from collections.abc import Callable

_NEVER = float("inf")
_MOST = 64  # spans: more are timers of their own, as a target that says how long it waits could make any number of them


class Deadline:
    """Calls back once a time is over that was neither cancelled nor set anew. What looks at it stays until then."""

    __slots__ = ("_at", "_call", "_loop", "_span", "_timer", "_wakes")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = 0.0
        self._wakes = _NEVER  # when it is looked at
        self._call: Callable[[], None] | None = None
        self._span: _Span | None = None  # what looks at it then,
        self._timer: asyncio.TimerHandle | None = None  # or this

    def later(self, seconds: float, call: Callable[[], None]) -> "Deadline":
        """As the loop's call_later, in the place of what was set before."""
        at = self._at = self._loop.time() + seconds
        self._call = call
        if at < self._wakes:
            self._disarm()
            self._wakes, self._span = at, _span_of(self._loop, seconds)
            if self._span is None:
                self._timer = self._loop.call_at(at, self._look)
            else:
                self._span.add(self, at)
        return self

    def until(self, at: float, call: Callable[[], None]) -> None:
        """As the loop's call_at, likewise."""
        self._at, self._call = at, call
        if at < self._wakes:
            self._disarm()
            self._wakes, self._timer = at, self._loop.call_at(at, self._look)

    def cancel(self) -> None:
        """What was set is not called."""
        self._call = None

    def stop(self) -> None:
        """As cancel, for good."""
        self._call, self._wakes = None, _NEVER
        self._disarm()

    def _disarm(self) -> None:
        if self._span is not None:
            self._span.drop(self)
            self._span = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._span, self._timer, self._wakes = None, None, _NEVER
        call = self._call
        if call is None:
            return
        if self._loop.time() < self._at:
            self._wakes, self._timer = self._at, self._loop.call_at(self._at, self._look)
            return
        self._call = None
        call()


class _Span:
    """Deadlines that are as far ahead: due in the order in which they were set, with one timer for all."""

    __slots__ = ("_due", "_seconds", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop, self._seconds = loop, seconds
        self._due: dict[Deadline, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: Deadline, at: float) -> None:
        """Have it look at what it is then. It is set now, for this many seconds."""
        self._due[deadline] = at
        if self._timer is None:
            self._timer = self.loop.call_at(at, self._look)

    def drop(self, deadline: Deadline) -> None:
        """It is not looked at any more."""
        self._due.pop(deadline, None)

    def _look(self) -> None:
        self._timer, now = None, self.loop.time()
        while self._due:
            deadline, at = next(iter(self._due.items()))
            if at > now:
                self._timer = self.loop.call_at(at, self._look)
                return
            del self._due[deadline]
            self.loop.call_soon(deadline._look)
        if _spans.get(self._seconds) is self:
            del _spans[self._seconds]


_spans: dict[float, _Span] = {}  # by their seconds


def _span_of(loop: asyncio.AbstractEventLoop, seconds: float) -> _Span | None:
    """The loop's, None for one too many. Those of another loop are forgotten here, and go on."""
    found = _spans.get(seconds)
    if found is not None and found.loop is loop:
        return found
    if found is None and len(_spans) >= _MOST:
        for other in [one for one, span in _spans.items() if span.loop is not loop]:
            del _spans[other]
        if len(_spans) >= _MOST:
            return None
    found = _spans[seconds] = _Span(loop, seconds)
    return found
