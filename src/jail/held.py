"""One berth as its keeper holds it: by descriptors alone. What is asked of it is answered from inside its namespaces.

The keeper owns the user namespace that those of all berths lie in, and may so enter each network namespace
(user_namespaces(7): whoever made a namespace has every capability in it); after each answer it is in one of its own
again, which keeps no berth alive. No process of a berth's own is needed for that: it would have 4 MB.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from jail import builder, fdpass, firewall, network
from jail.berthfacts import GATE, INSIDE
from jail.builder import DNS, HTTP, HTTPS, PROXY
from jail.errors import JailError
from jail.fdpass import Json, Received

MAX_EXTRA = fdpass.MAX_FDS - 9  # userns, netns, snmp, firewall, udp 53, tcp 53, 80, 443, proxy


class Held:
    """A berth that stands. `home`: the network namespace that its keeper goes back to."""

    def __init__(self, got: Received, open_firewall: firewall.Open, home: int, wording: firewall.Wording) -> None:
        """Take over what the builder handed over; `wording` is that of all berths. Raises JailError for another number
        of descriptors.
        """
        ports = sorted({DNS, HTTP, HTTPS, PROXY})
        if len(got.fds) != 6 + len(ports):
            raise JailError("berth_internal", f"got {len(got.fds)} descriptors of a berth, expected {6 + len(ports)}")
        self._open, self._home, self._wording = open_firewall, home, wording
        self._user, self._gate, self._jail, self._snmp, self._firewall, self._dns, *listening = got.fds
        self._tcp = dict(zip(ports, listening, strict=True))
        got.fds = []

    def answer(self, request: Json) -> tuple[Json, list[int]]:
        """One request of the daemon's, with descriptors that are the caller's; raises JailError."""
        try:
            match request.get("op"):
                case "claim":
                    return self._claim(_ports(request.get("ports")))
                case "facts":
                    return self._facts(), []
                case "socket":
                    return {"ok": True}, [self._outgoing()]
                case other:
                    raise JailError("keeper_request", f"got op {other!r}, expected claim, facts or socket")
        except OSError as error:
            raise JailError("berth_step", f"entering a berth: {error.strerror}", "", error.errno or 0) from error

    def close(self) -> None:
        """Let go of it: it ends with the last process in it, and the last descriptor of the daemon's."""
        shared = (self._user, self._gate, self._jail, self._snmp, self._firewall, self._dns, *self._tcp.values())
        for descriptor in shared:
            os.close(descriptor)

    @contextmanager
    def _inside(self, namespace: int) -> Iterator[None]:
        network.enter(namespace)
        try:
            yield
        finally:
            network.enter(self._home)

    def _outgoing(self) -> int:
        """A socket of J, not connected: whoever gets it dials what listens in the jail (`publish`).

        No firewall and no route is changed for that: the bytes stay on J's own loopback.
        """
        with self._inside(self._jail):
            try:
                return network.outgoing().detach()
            except OSError as error:
                raise JailError("berth_sockets", f"tcp: {error.strerror}", "", error.errno or 0) from error

    def _claim(self, extra: set[int]) -> tuple[Json, list[int]]:
        # An endpoint may live on the proxy's usual port: the proxy then moves, since one socket is one or the other.
        proxy = next(port for port in range(PROXY, PROXY + MAX_EXTRA + 2) if port not in extra)
        if new := (extra | {proxy}) - set(self._tcp):
            self._open_ports(new)
        first = [DNS, HTTP, HTTPS, proxy]
        ports = first + sorted(extra - set(first))
        named = [["userns"], ["jail_netns"], ["jail_snmp"], ["firewall"], ["udp", DNS]]
        named += [["tcp", port] for port in ports]
        fds = [self._user, self._jail, self._snmp, self._firewall, self._dns, *(self._tcp[port] for port in ports)]
        addresses = {"gateway": GATE.address, "jail": INSIDE.address, "proxy_port": proxy}
        return {"ok": True, **addresses, "sockets": named}, [os.dup(descriptor) for descriptor in fds]

    def _open_ports(self, new: set[int]) -> None:
        with self._inside(self._gate):
            backend = self._open()
            firewall.allow(backend, new)
            for port in sorted(new):
                self._tcp[port] = builder.bound("tcp", port).detach()
            builder.check_firewall(backend, self._tcp)

    def _facts(self) -> Json:
        with self._inside(self._gate):
            sides = network.sides(self._gate, self._jail)
            listing = self._wording.text(self._open)
        return {"ok": True, **sides, "nft": listing, "ports": sorted(self._tcp)}


def _ports(value: object) -> set[int]:
    if not isinstance(value, list) or not all(type(port) is int and 0 < port < 1 << 16 for port in value):
        raise JailError("keeper_request", f"got ports {value!r}, expected a list of numbers from 1 to 65535")
    if len(set(value)) > MAX_EXTRA:
        raise JailError("ports_too_many", f"got {len(set(value))} extra ports, expected at most {MAX_EXTRA}")
    return set(value)
