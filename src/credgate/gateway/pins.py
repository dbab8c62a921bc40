"""What the host's resolver said of a name lately, and which of it was judged and taken: the pins.

getaddrinfo tells no TTL, so an answer counts for `keep` seconds, 30 by default. Targets behind a balancer answer with
another few of their addresses each time: those of the last five minutes stay good to dial behind the newest ones. A
CNAME chain is followed by the host's resolver; whatever stands between, what is judged are the addresses at its end.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rules.policy import Address

RECENT = 300.0  # seconds
_MAX_NAMES = 1024  # a wildcard host has names without end
_MAX_RECENT = 32  # addresses of one name

# Asks for a name. The second argument is called once, when nothing works at the question any more: that may be long
# after who asked has given up, since a thread in getaddrinfo can't be called back.
type Resolve = Callable[[str, Callable[[], None]], Awaitable[tuple[Address, ...]]]


@dataclass(slots=True)
class _Name:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    newest: tuple[Address, ...] = ()
    until: float = 0.0
    recent: dict[Address, float] = field(default_factory=dict)  # when it was last in an answer that was taken


class Pins:
    """Not thread-safe: it lives on the daemon's loop."""

    def __init__(self, resolve: Resolve, keep: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`resolve` raises OSError where it finds nothing."""
        self._resolve, self._keep, self._clock = resolve, keep, clock
        self._names: OrderedDict[str, _Name] = OrderedDict()

    def now(self) -> float:
        """The time by which answers count."""
        return self._clock()

    async def look_up(self, host: str, slots: asyncio.Semaphore) -> tuple[Address, ...]:
        """The newest answer, judged or not. Raises what `resolve` raises; that is not kept.

        `slots` are those of the run that asks. One is taken before the name is: who waits for a slot holds up no other
        run that asks for the same name.
        """
        name = self._names.setdefault(host, _Name())
        self._names.move_to_end(host)
        while len(self._names) > _MAX_NAMES:
            self._names.popitem(last=False)
        if name.newest and self._clock() < name.until:
            return name.newest
        await slots.acquire()
        asked = False
        try:
            async with name.lock:  # one question, however many wait for its answer
                if name.newest and self._clock() < name.until:
                    return name.newest
                name.newest = ()  # a refused or failed answer is asked for again
                asked = True
                return await self._resolve(host, slots.release)
        finally:
            if not asked:
                slots.release()

    def known(self, host: str) -> tuple[Address, ...]:
        """The newest answer where it still counts, so that `look_up` would return it at once; else nothing."""
        name = self._names.get(host)
        return name.newest if name is not None and self._clock() < name.until else ()

    def take(self, host: str, addresses: tuple[Address, ...]) -> str:
        """Keep an answer that was judged good. Says what changed; "" where nothing did, or nothing was known."""
        name = self._names.setdefault(host, _Name())
        at = self._clock()
        if name.newest == addresses:
            return ""
        known = {address for address, seen in name.recent.items() if at - seen < RECENT}
        name.newest, name.until = addresses, at + self._keep
        name.recent |= dict.fromkeys(addresses, at)
        if len(name.recent) > _MAX_RECENT:
            newest = sorted(name.recent, key=lambda address: name.recent[address])[-_MAX_RECENT:]
            name.recent = {address: name.recent[address] for address in newest}
        fresh = [str(address) for address in addresses if address not in known]
        return f"new addresses: {', '.join(fresh[:8])}" if known and fresh else ""

    def recent(self, host: str) -> tuple[Address, ...]:
        """What was taken in the last five minutes, newest first."""
        at = self._clock()
        name = self._names.get(host)
        seen = {} if name is None else {a: s for a, s in name.recent.items() if at - s < RECENT}
        return tuple(sorted(seen, key=lambda address: -seen[address]))
