"""A session's outside for what works on live runs: the rig's gateway, run and ledger, a resolver that notes."""

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from credgate.alarms import Alarms
from credgate.peer import Peer
from credgate.policyfile import Effective, Origin
from credgate.runs import Run
from jail import fdpass
from tests.credgate.gateway_rig import Rig


@dataclass
class Noted:
    """A resolver that keeps what it was told."""

    orders: list[tuple[str, str, Any]] = field(default_factory=list)

    async def revoke(self, run: str) -> None:
        self.orders.append(("revoke", run, None))

    async def replace(self, run: str, table: object) -> None:
        self.orders.append(("table", run, table))


@dataclass
class Places:
    state: Path


@dataclass
class Parts:
    gateway: Any
    ledger: Any
    resolver: Noted
    places: Places


@dataclass
class Spec:
    workdir: str
    workdir_write: bool = False
    env: tuple[tuple[str, str], ...] = ()

    @property
    def host_written(self) -> bool:
        return self.workdir_write


@dataclass
class Berth:
    gateway: str = "10.0.0.1"
    tcp: dict[int, socket.socket] = field(default_factory=dict)


class Live:
    """What rights and alarms use of a session."""

    def __init__(self, r: Rig, run: Run, tmp: Path, above: "Live | None" = None) -> None:
        self.run, self.above, self.below = run, above, list["Live"]()
        self.parts = Parts(r.gateway, r.extra["ledger"], Noted(), Places(tmp / "state"))
        self.spec = Spec(str(tmp / "tree"))
        self.berth = Berth(tcp={r.direct: socket.socket(), r.cleartext: socket.socket()})
        self.listener = None
        self.ends: float | None = None
        self.policy_file = tmp / "policy.toml"
        self.chosen = Effective(policy=run.policy, role=run.role, path=self.policy_file, origin=Origin.FLAG)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (mine, theirs, *self.berth.tcp.values()):
            sock.setblocking(False)
        self.caller, self.launcher = Peer(mine), theirs
        self.alarms = run.alarm = Alarms(self)  # type: ignore[arg-type]
        if above is not None:
            above.below.append(self)

    @property
    def depth(self) -> int:
        return len(self.lineage())

    def lineage(self) -> tuple[str, ...]:
        return (self.run.id, *(self.above.lineage() if self.above is not None else ()))

    def live(self) -> "list[Live]":
        return [self, *(each for child in self.below for each in child.live())]

    def told(self) -> list[dict[str, Any]]:
        """What the launcher was sent."""
        found = []
        while True:
            try:
                message = fdpass.recv(self.launcher)
            except BlockingIOError:
                return found
            assert message is not None
            found.append(message.body)

    def close(self) -> None:
        for sock in (self.caller.sock, self.launcher, *self.berth.tcp.values()):
            sock.close()
