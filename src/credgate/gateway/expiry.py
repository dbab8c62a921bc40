"""What is still open when a binding's ttl or a role's deadline is over: it ends then, not at its next request."""

import asyncio
from collections.abc import Callable

from credgate.runs import Run, now
from rules.grants import SECOND

_LATE = 0.005  # seconds behind the end at which it is looked at: a timer may fire a little early
_OVER = {True: "the run's deadline is over", False: "the binding's ttl is over"}


def ends(run: Run) -> dict[str, int]:
    """When each binding of a run is over, and under "" the run itself, in nanoseconds of runs.now."""
    found: dict[str, int] = {}
    for level in run.levels():
        role = level.role_rule
        bounds = {"": role.deadline} | {name: level.policy.bindings[name].ttl for name in role.bindings}
        for name, seconds in bounds.items():
            if seconds is not None:
                end = level.spent.started + seconds * SECOND
                found[name] = min(end, found.get(name, end))
    return found


class Expiry:
    """One timer a run, for what ends next. The timer stands still while the machine sleeps; the bounds don't."""

    def __init__(self, cut: Callable[[str, str, str], object]) -> None:
        """`cut` ends the connections of a run (its id, why, and the binding's name or "" for all)."""
        self._cut = cut
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def arm(self, run: Run) -> None:
        """Wait for what ends next, by the run's policy as it is now."""
        self.disarm(run.id)
        at = now()
        later = [end for end in ends(run).values() if end > at]
        if later:
            wait = (min(later) - at) / SECOND + _LATE
            self._timers[run.id] = asyncio.get_running_loop().call_later(wait, self._over, run, at)

    def disarm(self, run: str) -> None:
        """Wait for nothing of this run any more."""
        timer = self._timers.pop(run, None)
        if timer is not None:
            timer.cancel()

    def _over(self, run: Run, since: int) -> None:
        at = now()
        for name, end in ends(run).items():
            if since < end <= at:
                self._cut(run.id, _OVER[not name], name)
        self.arm(run)
