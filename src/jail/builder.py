"""Builds one berth: a forked process makes its namespaces and sockets, looks at them, hands them over, and ends.

Forked by the keeper, which holds the descriptors from then on (`jail.held`): no process waits in a berth. It stays
single-threaded: unshare(CLONE_NEWUSER) fails with EINVAL in a process that has a second thread.
"""

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Iterable
from pathlib import Path

from jail import berthfacts, fdpass, firewall, hostcauses, netdump, network
from jail.berthfacts import GATE, INSIDE
from jail.errors import JailError, Unsupported

DNS, HTTP, HTTPS = 53, 80, 443
PROXY = 3128
_PR_SET_PDEATHSIG = 1


def build(sock: socket.socket, open_firewall: firewall.Open, keeper: int) -> None:
    """Build a berth and send its descriptors, in the order of `jail.held.Held`, or why there is none."""
    _die_with(keeper)
    _drop_descriptors(sock.fileno())
    os.chdir("/")
    try:
        descriptors = _built(open_firewall)
    except JailError as error:
        fdpass.send(sock, explained(error).to_json())
        return
    except OSError as error:  # setns between the two namespaces, a descriptor: what the kernel gave ordinary users once
        fdpass.send(sock, explained(_closed("berth_step", "building a berth", error)).to_json())
        return
    fdpass.send(sock, {"ok": True}, descriptors)


def _built(open_firewall: firewall.Open) -> list[int]:
    """The berth whole, as the kernel shows it; raises JailError, OSError."""
    _check_single_threaded()
    user = new_user_namespace()
    gate = new_network_namespace()
    network.harden()
    backend = open_firewall()  # bound to G: opened while this process is in it
    jail = new_network_namespace()
    network.harden()
    snmp = os.open("/proc/self/net/snmp", os.O_RDONLY | os.O_CLOEXEC)  # J's, for as long as it is open
    network.connect(gate)
    network.bring_up(INSIDE)
    network.enter(gate)
    ports = sorted({DNS, HTTP, HTTPS, PROXY})
    firewall.apply(backend, ports)  # before gw0 is up
    network.bring_up(GATE)
    sockets = [bound("udp", DNS), *(bound("tcp", port) for port in ports)]
    _check(gate, jail)
    check_firewall(backend, ports)
    return [user, gate, jail, snmp, netdump.firewall_socket().detach(), *(each.detach() for each in sockets)]


def _check(gate: int, jail: int) -> None:
    """Compare what the kernel shows of both namespaces with what was asked of it; ends in G. Raises JailError."""
    sides = network.sides(gate, jail)
    wrong = berthfacts.differences(INSIDE, sides["jail"]) + berthfacts.differences(GATE, sides["gate"])
    if wrong:
        raise JailError("berth_network", "; ".join(wrong))


def check_firewall(backend: firewall.Backend, ports: Iterable[int]) -> None:
    """Read the ruleset back; raises JailError where it isn't the one for these ports."""
    wrong = firewall.differences(backend.listing(), ports)
    if wrong:
        raise JailError("berth_firewall", f"read back, {len(wrong)} differences: {wrong[0]}")


def bound(kind: str, port: int) -> socket.socket:
    """In G: a socket on the gateway's address, listening where it is TCP. Raises JailError."""
    try:
        return network.datagrams(port) if kind == "udp" else network.listen(port)
    except OSError as error:
        raise JailError("berth_sockets", f"{kind} {port}: {error.strerror}", "", error.errno or 0) from error


def new_user_namespace() -> int:
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


def new_network_namespace() -> int:
    """Enter a new one of this process's user namespace; its descriptor. Raises JailError."""
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


def explained(error: JailError) -> JailError:
    """The same as Unsupported, with a hint, where the host is what refuses."""
    if error.errno not in _HOST_SAYS_NO:
        return error
    return Unsupported(error.code, error.detail, error.hint or hostcauses.namespaces(error.errno), error.errno)


def _check_single_threaded() -> None:
    count = len(list(Path("/proc/self/task").iterdir()))
    if count != 1:
        raise JailError("berth_threads", f"got {count} threads where a berth is built, expected 1")


def _die_with(keeper: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:  # it died before the prctl: no signal will come
        os._exit(1)


def _drop_descriptors(own: int) -> None:
    """Close all that came by fork: the daemon's channel, and sockets of other berths."""
    os.closerange(3, own)
    os.closerange(own + 1, 1 << 30)
