"""One berth: a forked process that makes the namespaces, keeps them, and answers for what the kernel shows of them.

Forked by the keeper, which has imported what is slow. It stays single-threaded: unshare(CLONE_NEWUSER) fails with
EINVAL in a process that has a second thread. No workload ever runs in this process.
"""

import ctypes
import errno
import os
import signal
import socket
from pathlib import Path

from jail import berthfacts, fdpass, firewall, hostcauses, network
from jail.berthfacts import GATE, INSIDE
from jail.errors import JailError, Unsupported
from jail.fdpass import Json

DNS, HTTP, HTTPS = 53, 80, 443
PROXY = 3128
MAX_EXTRA = fdpass.MAX_FDS - 8  # userns, netns, snmp, udp 53, tcp 53, 80, 443, proxy
_PR_SET_PDEATHSIG = 1


def hold(sock: socket.socket, open_firewall: firewall.Open, keeper: int) -> None:
    """Build a berth, say so (or why not) on `sock`, and serve the keeper until its other end is closed."""
    _die_with(keeper)
    _drop_descriptors(sock.fileno())
    os.chdir("/")
    try:
        berth = _Berth(open_firewall)
    except JailError as error:
        fdpass.send(sock, _explained(error).to_json())
        return
    except OSError as error:  # setns between the two namespaces, a descriptor: what the kernel gave ordinary users once
        fdpass.send(sock, _explained(_closed("berth_step", "building a berth", error)).to_json())
        return
    fdpass.send(sock, {"ok": True})
    while (request := fdpass.recv(sock)) is not None:
        try:
            body, fds = berth.answer(request.body)
        except JailError as error:
            body, fds = error.to_json(), []
        try:
            fdpass.send(sock, body, fds)
        finally:
            berth.passed()


class _Berth:
    """The namespaces with their descriptors; built whole or not at all."""

    def __init__(self, open_firewall: firewall.Open) -> None:
        _check_single_threaded()
        self._user = _new_user_namespace()
        self._gate = _new_network_namespace()
        network.harden()
        self._firewall = open_firewall()  # bound to G: opened while this process is in it
        self._jail = _new_network_namespace()
        network.harden()
        self._snmp = os.open("/proc/self/net/snmp", os.O_RDONLY | os.O_CLOEXEC)  # J's, for as long as it is open
        network.connect(self._gate)
        network.bring_up(INSIDE)
        network.enter(self._gate)
        self._passing: socket.socket | None = None
        self._ports = {DNS, HTTP, HTTPS, PROXY}
        firewall.apply(self._firewall, self._ports)  # before gw0 is up
        network.bring_up(GATE)
        self._dns = _bound("udp", DNS)
        self._tcp = {port: _bound("tcp", port) for port in sorted(self._ports)}
        self._check()

    def answer(self, request: Json) -> tuple[Json, list[int]]:
        """One request of the keeper's; raises JailError."""
        match request.get("op"):
            case "claim":
                return self._claim(_ports(request.get("ports")))
            case "facts":
                return self._facts(), []
            case "counters":
                return {"ok": True, "counters": firewall.counters(self._listing())}, []
            case "socket":
                return {"ok": True}, [self._inside()]
            case other:
                raise JailError("keeper_request", f"got op {other!r}, expected claim, facts, counters or socket")

    def _inside(self) -> int:
        """A socket of J, not connected: whoever gets it dials what listens in the jail (`publish`).

        No firewall and no route is changed for that: the bytes stay on J's own loopback.
        """
        network.enter(self._jail)
        try:
            self._passing = network.outgoing()
        except OSError as error:
            raise JailError("berth_sockets", f"tcp: {error.strerror}", "", error.errno or 0) from error
        finally:
            network.enter(self._gate)
        return self._passing.fileno()

    def passed(self) -> None:
        """Close what was made for the last answer alone."""
        if self._passing is not None:
            self._passing.close()
            self._passing = None

    def _claim(self, extra: set[int]) -> tuple[Json, list[int]]:
        # An endpoint may live on the proxy's usual port: the proxy then moves, since one socket is one or the other.
        proxy = next(port for port in range(PROXY, PROXY + MAX_EXTRA + 2) if port not in extra)
        network.enter(self._gate)
        new = (extra | {proxy}) - self._ports
        if new:
            firewall.allow(self._firewall, new)
            self._ports |= new
            self._tcp |= {port: _bound("tcp", port) for port in sorted(new)}
            self._check_firewall()
        first = [DNS, HTTP, HTTPS, proxy]
        ports = first + sorted(extra - set(first))
        named = [["userns"], ["jail_netns"], ["udp", DNS], *(["tcp", port] for port in ports), ["jail_snmp"]]
        fds = [self._user, self._jail, self._dns.fileno(), *(self._tcp[port].fileno() for port in ports), self._snmp]
        addresses = {"gateway": GATE.address, "jail": INSIDE.address, "proxy_port": proxy}
        return {"ok": True, **addresses, "sockets": named}, fds

    def _facts(self) -> Json:
        sides = self._sides()
        listing = self._listing()
        counters = firewall.counters(listing)
        return {"ok": True, **sides, "nft": listing, "counters": counters, "ports": sorted(self._ports)}

    def _listing(self) -> list[Json]:
        network.enter(self._gate)
        return self._firewall.listing()

    def _sides(self) -> dict[str, Json]:
        sides = {}
        for name, namespace, side in (("jail", self._jail, INSIDE), ("gate", self._gate, GATE)):
            network.enter(namespace)
            sides[name] = network.facts(side)
        return sides

    def _check(self) -> None:
        """Compare what the kernel shows of both namespaces with what was asked of it; raises JailError."""
        sides = self._sides()
        wrong = berthfacts.differences(INSIDE, sides["jail"]) + berthfacts.differences(GATE, sides["gate"])
        if wrong:
            raise JailError("berth_network", "; ".join(wrong))
        self._check_firewall()

    def _check_firewall(self) -> None:
        wrong = firewall.differences(self._listing(), self._ports)
        if wrong:
            raise JailError("berth_firewall", f"read back, {len(wrong)} differences: {wrong[0]}")


def _ports(value: object) -> set[int]:
    if not isinstance(value, list) or not all(type(port) is int and 0 < port < 1 << 16 for port in value):
        raise JailError("keeper_request", f"got ports {value!r}, expected a list of numbers from 1 to 65535")
    if len(set(value)) > MAX_EXTRA:
        raise JailError("ports_too_many", f"got {len(set(value))} extra ports, expected at most {MAX_EXTRA}")
    return set(value)


def _bound(kind: str, port: int) -> socket.socket:
    try:
        return network.datagrams(port) if kind == "udp" else network.listen(port)
    except OSError as error:
        raise JailError("berth_sockets", f"{kind} {port}: {error.strerror}", "", error.errno or 0) from error


def _new_user_namespace() -> int:
    """Map this process's uid and gid to themselves and nothing else: never uid 0 inside. Returns its descriptor."""
    uid, gid = os.geteuid(), os.getegid()
    step = "unshare(CLONE_NEWUSER)"
    try:
        os.unshare(os.CLONE_NEWUSER)
        step = "writing the uid and gid maps"
        # user_namespaces(7): an unprivileged gid_map is refused until setgroups is denied.
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text)
        return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _closed("berth_userns", step, error) from error


def _new_network_namespace() -> int:
    try:
        os.unshare(os.CLONE_NEWNET)
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _closed("berth_netns", "unshare(CLONE_NEWNET)", error) from error


def _closed(code: str, step: str, error: OSError) -> JailError:
    return JailError(code, f"{step}: {error.strerror}", "", error.errno or 0)


# What a host says that forbids or lacks something, as against a fault of ours. AppArmor on Ubuntu lets the namespace be
# made and takes its capabilities, so that any step after it may be the one that fails.
_HOST_SAYS_NO = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOSPC,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EROFS,
    errno.EOPNOTSUPP,
    errno.EPROTONOSUPPORT,
}


def _explained(error: JailError) -> JailError:
    if error.errno not in _HOST_SAYS_NO:
        return error
    return Unsupported(error.code, error.detail, error.hint or hostcauses.namespaces(error.errno), error.errno)


def _check_single_threaded() -> None:
    count = len(list(Path("/proc/self/task").iterdir()))
    if count != 1:
        raise JailError("berth_threads", f"got {count} threads in a berth holder, expected 1")


def _die_with(keeper: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:  # it died before the prctl: no signal will come
        os._exit(1)


def _drop_descriptors(own: int) -> None:
    """Close all that came by fork: the daemon's channel, and sockets of other berths."""
    os.closerange(3, own)
    os.closerange(own + 1, 1 << 30)
