"""Attempts at sockets: the host's by path and by abstract name, and kinds that go around the network namespace."""

import os
import socket

from jail.probes import DONE, Attempt, Context
from jail.ready import readable

AF_VSOCK, AF_PACKET = 40, 17
MPTCP, SCTP, UDPLITE = 262, 132, 136
NETLINK_SOCK_DIAG = 4
CALL_WAIT = 1.0  # seconds that a caller from outside has; it calls every few milliseconds


def _connect(name: str | bytes, kind: int = socket.SOCK_STREAM) -> str:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.settimeout(2)
        sock.connect(os.fsencode(name))
    return DONE


def unix_path(context: Context) -> str:
    """Connect to a socket of the host by its path."""
    return _connect(context["sockets"]["plain"])


def unix_datagram(context: Context) -> str:
    """Send a datagram to a socket of the host by its path."""
    return _connect(context["sockets"]["datagram"], socket.SOCK_DGRAM)


def unix_abstract(context: Context) -> str:
    """Connect to an abstract socket of the host."""
    return _connect(b"\0" + context["abstract"].encode())


def unix_abstract_in(context: Context) -> str:
    """Be called from the host at an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(b"\0" + context["abstract_in"].encode())
        sock.listen()
        if not readable(sock, CALL_WAIT):
            raise TimeoutError(110, "nobody called")
    return DONE


def ssh_agent(context: Context) -> str:
    """Connect to the user's ssh-agent."""
    return _connect(context["sockets"]["ssh_agent"])


def docker(context: Context) -> str:
    """Connect to the container engine."""
    return _connect(context["sockets"]["docker"])


def dbus(context: Context) -> str:
    """Connect to the session bus, where the keyring of a desktop lives."""
    return _connect(context["sockets"]["dbus"])


def _made(family: int, kind: int, protocol: int = 0) -> str:
    socket.socket(family, kind, protocol).close()
    return DONE


def vsock(_context: Context) -> str:
    """Open a socket to the hypervisor: no network namespace holds it (before Linux 7.0)."""
    return _made(AF_VSOCK, socket.SOCK_STREAM)


def raw(_context: Context) -> str:
    """Open a raw IP socket."""
    return _made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def packet(_context: Context) -> str:
    """Open a packet socket."""
    return _made(AF_PACKET, socket.SOCK_DGRAM)


def mptcp(_context: Context) -> str:
    """Open MPTCP, which goes around Landlock's TCP rules."""
    return _made(socket.AF_INET, socket.SOCK_STREAM, MPTCP)


def sctp(_context: Context) -> str:
    """Open SCTP."""
    return _made(socket.AF_INET, socket.SOCK_STREAM, SCTP)


def udplite(_context: Context) -> str:
    """Open UDP-Lite, which a rule for tcp and udp doesn't name."""
    return _made(socket.AF_INET, socket.SOCK_DGRAM, UDPLITE)


def netlink(_context: Context) -> str:
    """Open netlink for something other than routes."""
    return _made(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)


ATTEMPTS: dict[str, Attempt] = {
    "unix_path": unix_path,
    "unix_datagram": unix_datagram,
    "unix_abstract": unix_abstract,
    "unix_abstract_in": unix_abstract_in,
    "ssh_agent": ssh_agent,
    "docker": docker,
    "dbus": dbus,
    "vsock": vsock,
    "raw": raw,
    "packet": packet,
    "mptcp": mptcp,
    "sctp": sctp,
    "udplite": udplite,
    "netlink": netlink,
}
