"""Attempts at addresses. Outside they run in a network namespace made for them, whose loopback has these addresses."""

import errno
import socket
import struct
import time

from jail.probes import DONE, Attempt, Context

# All of them are addresses of the control's own loopback. Documentation ranges stand for "anywhere" (RFC 5737, 3849).
METADATA = "169.254.169.254"
PRIVATE = ("10.1.2.3", "172.16.1.2", "192.168.1.2", "100.64.1.2")
ANYWHERE, RESOLVER = "203.0.113.7", "203.0.113.53"
ANYWHERE6 = "2001:db8::7"
GATEWAY, JAIL = "10.213.0.1", "10.213.0.2"
PORT, CLOSED_PORT = 80, 4  # port 4 is assigned to nothing, and no berth listens there
LATE = 3.0  # seconds: a link-local address appears about 2 s after a veth is up (duplicate address detection)
WAIT = 2.0
MSG_FASTOPEN = 0x20000000


def _tcp(address: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT)
        sock.connect((address.encode(), port))  # bytes: a str would load the idna codec
    return DONE


def tcp_metadata(_context: Context) -> str:
    """Connect to where a cloud hands out credentials."""
    return _tcp(METADATA, PORT)


def tcp_private(_context: Context) -> str:
    """Connect into each private range."""
    for address in PRIVATE:
        try:
            return _tcp(address, PORT)
        except OSError as error:
            if error.errno != errno.ENETUNREACH:
                raise
            refused = error
    raise refused


def tcp_anywhere(_context: Context) -> str:
    """Connect to an address of the Internet."""
    return _tcp(ANYWHERE, PORT)


def tcp_fastopen(_context: Context) -> str:
    """The same with the data in the first packet, which goes around Landlock's rule for connect."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        # not settimeout: that makes it non-blocking, and the first of a host's connections then says EINPROGRESS
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(WAIT), 0))
        sock.sendto(b"x", MSG_FASTOPEN, (ANYWHERE.encode(), PORT))
    return DONE


def host_loopback(context: Context) -> str:
    """Connect to a server on the host's loopback."""
    return _tcp("127.0.0.1", context["tcp_port"])


def gateway_port(_context: Context) -> str:
    """Connect to the gateway at a port that is not the gateway's."""
    return _tcp(GATEWAY, CLOSED_PORT)


def gateway_udp(_context: Context) -> str:
    """Exchange a datagram with the gateway at a port that is not the resolver's."""
    return _exchange(GATEWAY, CLOSED_PORT, b"ping")


def _exchange(address: str, port: int, data: bytes) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(WAIT)
        sock.connect((address.encode(), port))
        sock.send(data)
        sock.recv(512)
    return DONE


def udp(_context: Context) -> str:
    """Exchange a datagram with an address of the Internet."""
    return _exchange(ANYWHERE, CLOSED_PORT, b"ping")


def dns_outside(context: Context) -> str:
    """Ask another resolver for a name that carries data."""
    label = context["canary"][:32].encode()
    query = struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0) + bytes([len(label)]) + label + b"\0\0\x01\0\x01"
    return _exchange(RESOLVER, 53, query)


def icmp(_context: Context) -> str:
    """Send an echo request and get its answer, by the kernel's own ping sockets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(WAIT)
        sock.connect((ANYWHERE.encode(), 0))
        sock.send(struct.pack(">BBHHH", 8, 0, 0, 1, 1) + b"credgate")
        sock.recv(512)
    return DONE


def ipv6(_context: Context) -> str:
    """Find an IPv6 address of this host's own, or connect to one of the Internet."""
    if _addresses6():
        return DONE
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT)
        sock.connect((ANYWHERE6.encode(), PORT))
    return DONE


def _addresses6() -> bool:
    try:
        with open("/proc/net/if_inet6", "rb") as file:
            return bool(file.read(1))
    except FileNotFoundError:  # a kernel without IPv6
        return False


def ipv6_late(context: Context) -> str:
    """The same after the time in which a link-local address would have come up."""
    time.sleep(LATE)
    return ipv6(context)


def neighbour_network(context: Context) -> str:
    """Connect to a server of another jail, at the address that jails have."""
    return _tcp(JAIL, context["neighbour"]["port"])


ATTEMPTS: dict[str, Attempt] = {
    "tcp_metadata": tcp_metadata,
    "tcp_private": tcp_private,
    "tcp_anywhere": tcp_anywhere,
    "tcp_fastopen": tcp_fastopen,
    "host_loopback": host_loopback,
    "gateway_port": gateway_port,
    "gateway_udp": gateway_udp,
    "udp": udp,
    "dns_outside": dns_outside,
    "icmp": icmp,
    "ipv6": ipv6,
    "ipv6_late": ipv6_late,
    "neighbour_network": neighbour_network,
}
