"""Namespaces made for controls: user, mount and network, whose loopback has every address that an attempt asks for.

Nothing leaves it: the network namespace has no link but its loopback.
"""

import fcntl
import os
import select
import signal
import socket
import struct

from jail.probes import Context, network
from jail.syscalls import prctl

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
SIOCSIFADDR, SIOCSIFFLAGS = 0x8916, 0x8914
IFF_UP, IFF_RUNNING = 0x1, 0x40
ADDRESSES = (
    network.METADATA,
    *network.PRIVATE,
    network.ANYWHERE,
    network.RESOLVER,
    network.GATEWAY,
    network.JAIL,
)
DATAGRAMS = (
    (network.GATEWAY, network.CLOSED_PORT),
    (network.ANYWHERE, network.CLOSED_PORT),
    (network.RESOLVER, 53),
)


def enter(context: Context) -> None:
    """Make the namespaces, their addresses and servers, for the calling process and its children."""
    uid, gid = os.geteuid(), os.getegid()
    prctl(PR_SET_DUMPABLE, 1)  # the files below belong to root otherwise
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        _write(f"/proc/self/{name}", text)
    _write("/proc/sys/net/ipv4/ping_group_range", f"{gid} {gid}")
    _addresses()
    _serve(context["neighbour"]["port"])


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _addresses() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))
        for index, address in enumerate(ADDRESSES, 1):
            name = f"lo:{index}".encode()
            fcntl.ioctl(
                sock, SIOCSIFADDR, struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(address))
            )
    try:
        _write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0")  # a host may have set it for all that come
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            address6 = socket.inet_pton(socket.AF_INET6, network.ANYWHERE6)
            fcntl.ioctl(sock, SIOCSIFADDR, struct.pack("16sIi", address6, 128, socket.if_nametoindex("lo")))
    except OSError:
        pass  # a host without IPv6: the control then says by which errno


def _serve(neighbour_port: int) -> None:
    """Servers in a process of their own: each accepted connection is closed, each datagram sent back."""
    streams = [_listening(port) for port in (network.PORT, network.CLOSED_PORT, neighbour_port)]
    datagrams = [_bound(*place) for place in DATAGRAMS]
    if os.fork() == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        served = {sock.fileno(): sock for sock in (*streams, *datagrams)}
        poll = select.poll()
        for number in served:
            poll.register(number, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                sock = served[number]
                if sock in streams:
                    sock.accept()[0].close()
                else:
                    data, sender = sock.recvfrom(512)
                    sock.sendto(data, sender)


def _listening(port: int) -> socket.socket:
    """For both families where the kernel has IPv6."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((b"::", port))
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind((b"0.0.0.0", port))
    sock.listen()
    return sock


def _bound(address: str, port: int) -> socket.socket:
    # By address: the answer of a socket bound to none comes from the address that the route prefers.
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address.encode(), port))
    return sock
