"""A future whose waiters go on within the call that makes it done, and not in the loop's next turn.

That turn is a fifth of those that a lone request takes. For whoever calls `land` from the loop itself, outside of any
task: each waiter runs until it waits again, as a callback of the loop does.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

type Waiter = Callable[["Landing"], object]


class Landing(asyncio.Future[None]):
    """Made done by `land` alone, or cancelled by who waits."""

    __slots__ = ("_waiters",)

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._waiters: list[tuple[Waiter, Context | None]] = []

    def add_done_callback(self, fn: Waiter, /, *, context: Context | None = None) -> None:
        """As a Future's."""
        if self.done():
            super().add_done_callback(fn, context=context)
        else:
            self._waiters.append((fn, context))

    def remove_done_callback(self, fn: Waiter, /) -> int:
        """As a Future's."""
        kept = [waiter for waiter in self._waiters if waiter[0] != fn]
        gone, self._waiters = len(self._waiters) - len(kept), kept
        return gone + super().remove_done_callback(fn)

    def cancel(self, msg: Any = None) -> bool:
        """As a Future's: its waiters learn of it in the loop's next turn."""
        if not super().cancel(msg):
            return False
        waiters, self._waiters = self._waiters, []
        for fn, context in waiters:
            super().add_done_callback(fn, context=context)
        return True

    def land(self, error: Exception | None) -> None:
        """Make it done, unless it was cancelled, and have its waiters go on."""
        if self.done():
            return
        waiters, self._waiters = self._waiters, []
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
        for fn, context in waiters:
            if context is None:
                self.get_loop().call_soon(fn, self)
            else:
                self._call(fn, context)

    def _call(self, fn: Waiter, context: Context) -> None:
        """As the loop calls it: one that raises takes its turn from nobody."""
        try:
            context.run(fn, self)
        except Exception as error:  # noqa: BLE001 - in place of the loop's outermost frame
            said = {"message": "a waiter for the disk raised", "exception": error, "future": self}
            self.get_loop().call_exception_handler(said)
