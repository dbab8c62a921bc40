"""One run as the daemon knows it: what crosses between session, gateway, resolver and ledger."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from rules.policy import Policy, Role


@dataclass(slots=True, kw_only=True)
class Run:
    """State of one run. `proof` is "" until the jail was read back: until then every request is refused."""

    id: str
    policy: Policy  # the snapshot taken at the start
    role: str
    gateway_ip: str  # the gateway's /32 as the jail sees it
    proxy_port: int
    caller_env: Mapping[str, str] = field(default_factory=dict, repr=False)  # for secrets with source env:
    decoys: Mapping[str, str] = field(default_factory=dict)  # binding name -> the run's own placeholder value
    proof: str = ""
    revoked: bool = False
    allowed: int = 0
    denied: int = 0
    unasked: int = 0  # refusals that the look from inside provoked, among `denied`
    parent: str = ""  # id of the run that asked for this one
    children: "list[Run]" = field(default_factory=list, repr=False)  # child runs, ended ones too

    def requests(self) -> dict[str, int]:
        """What was judged for this run and its children: a child spends its parent's budget."""
        below = [child.requests() for child in self.children]
        return {
            "allow": self.allowed + sum(counts["allow"] for counts in below),
            "deny": max(0, self.denied - self.unasked) + sum(counts["deny"] for counts in below),
        }

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
