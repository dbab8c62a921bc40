"""One run as the daemon knows it: what crosses between session, gateway, resolver and ledger."""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from rules.grants import Spent
from rules.policy import Policy, Role

# Nanoseconds of the clock that grants are measured by; it goes on while the machine sleeps.
now: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


TURNED_AWAY = (401, 403)  # answers of a target that may be about the secret
LOOKUPS = 4  # of the threads that all runs share; a DNS server that is silent holds one for ten seconds and more


def _nobody(_kind: str, _detail: str) -> None:
    """Where no session listens for alarms the ledger's own line is all there is."""


@dataclass(slots=True, kw_only=True)
class Run:
    """State of one run. `proof` is "" until the jail was read back: until then every request is refused."""

    id: str
    policy: Policy  # a snapshot: replaced as a whole by a reload, which counts `generation` up
    role: str
    gateway_ip: str  # the gateway's /32 as the jail sees it
    proxy_port: int
    caller_env: Mapping[str, str] = field(default_factory=dict, repr=False)  # for secrets with source env:
    decoys: Mapping[str, str] = field(default_factory=dict)  # binding name -> the run's own placeholder value
    proof: str = ""
    revoked: bool = False
    revoked_bindings: set[str] = field(default_factory=set)
    paused: bool = False
    generation: int = 0
    spent: Spent = field(default_factory=lambda: Spent(started=now()))
    alarm: Callable[[str, str], None] = field(default=_nobody, repr=False)  # kind, detail; must not raise
    allowed: int = 0
    denied: int = 0
    turned_away: int = 0  # answers of that kind, with a secret or without; the ledger knows which
    held: int = 0  # bytes of bodies that are kept to be judged
    streams: int = 0  # of HTTP/2 that are open, on all of its connections
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKUPS), repr=False)
    since: int = 0  # the ledger's number of its run.start
    unasked: int = 0  # refusals that the look from inside provoked, among `denied`
    parent: str = ""  # id of the run that asked for this one
    above: "Run | None" = field(default=None, repr=False)  # the run of that id
    children: "list[Run]" = field(default_factory=list, repr=False)  # child runs that have not ended
    past: dict[str, int] = field(default_factory=lambda: {"allow": 0, "deny": 0})  # requests of those that have

    def adopt(self, child: "Run") -> None:
        """Make `child` a child of this run: from now on what bounds or closes this run bounds and closes it too."""
        child.above = self
        self.children.append(child)

    def part(self, child: "Run") -> None:
        """Let go of a child that has ended: what was judged for it stays counted."""
        self.past = {word: count + child.requests()[word] for word, count in self.past.items()}
        self.children.remove(child)

    def levels(self) -> "tuple[Run, ...]":
        """This run, the one that asked for it, and so on upwards."""
        return (self,) if self.above is None else (self, *self.above.levels())

    @property
    def lookups(self) -> asyncio.Semaphore:
        """The look-ups that may be on their way at a time: a child run shares those of the first one above it."""
        return self.levels()[-1].slots

    def requests(self) -> dict[str, int]:
        """What was judged for this run and its children: a child spends its parent's budget."""
        below = [child.requests() for child in self.children]
        return {
            "allow": self.allowed + self.past["allow"] + sum(counts["allow"] for counts in below),
            "deny": max(0, self.denied - self.unasked) + self.past["deny"] + sum(counts["deny"] for counts in below),
        }

    @property
    def state(self) -> str:
        """running, paused or revoked; of a child run that of the runs above it counts too."""
        levels = self.levels()
        if any(level.revoked for level in levels):
            return "revoked"
        return "paused" if any(level.paused for level in levels) else "running"

    @property
    def role_rule(self) -> Role:
        """The role's part of the policy."""
        return self.policy.roles[self.role]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening TCP socket made in the gate namespace of the run's berth."""

    sock: socket.socket
    port: int
    proxy: bool  # the explicit proxy port; else the port is the one the client means
