"""What a jail tried outside its one route, as the kernel counted it: during a run and at its end.

Counts, no addresses: `OutNoRoutes` knows none, and a counter of the gate namespace knows a class of them. IPv6 is off
in the jail, so an attempt over it fails before anything could count it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Counters that no client of the gateway touches by itself. Not among them: `accepted` (the gateway's own flows),
# `invalid` and `leaving` (a late segment of a closed connection, and the answer to it).
ATTEMPTS = ("metadata", "private", "foreign", "ipv6", "spoofed", "refused", "forwarded")
NO_IPV6 = "IPv6 is off and leaves no count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """off_route: IPv4 attempts at addresses without a route. counters: packets by name (docs/network.md).

    filter_kills: processes that pid 1 reaped and that SIGSYS had ended. None: could not be read, which is not zero.
    """

    off_route: int | None = None
    counters: Mapping[str, int] | None = None
    filter_kills: int | None = None

    def attempts(self) -> dict[str, int]:
        """The counters that stand for attempts and are not zero."""
        counted = self.counters or {}
        return {name: counted[name] for name in ATTEMPTS if counted.get(name)}

    def to_json(self) -> dict[str, object]:
        """As `ps --json` and the exit line hold it."""
        counters = None if self.counters is None else dict(self.counters)
        return {"off_route": self.off_route, "counters": counters, "filter_kills": self.filter_kills}

    def sentence(self) -> str:
        """For the run's summary: what was tried, and what this host doesn't tell."""
        off = "not shown" if self.off_route is None else str(self.off_route)
        parts = [f"off route {off} ({NO_IPV6})"]
        if self.counters is None:
            parts.append("counters not shown")
        parts += [f"{name} {count}" for name, count in self.attempts().items()]
        if self.filter_kills:
            # Others were reaped by their own parents; the audit log, which names them, is root's to read.
            parts.append(f"killed by the filter {self.filter_kills} (of those that pid 1 reaped)")
        return ", ".join(parts)
