"""A link 50 ms long: two network namespaces, a TUN device in each, and a process that hands packets over late.

The kernel here has no netem; a relay of connections would end the TCP handshake that the figure is about. By root. What
is sent stays between the two namespaces.
"""

import array
import fcntl
import os
import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass

from pyroute2 import IPRoute

NEAR, FAR = "10.77.0.1", "10.77.0.2"
DELAY = 0.025  # seconds, each way
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Descriptors of both ends, and the pid that holds the far namespace."""

    near: int
    far: int
    holder: int


def _up(own: str, other: str) -> int:
    """A TUN device in the caller's namespace, up, with a route to the other end; loopback up as well."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"link0", _IFF_TUN | _IFF_NO_PI))
    with IPRoute() as route:
        for name in ("lo", "link0"):
            (index,) = route.link_lookup(ifname=name)
            if name == "link0":
                route.addr("add", index=index, address=own, prefixlen=32)
            route.link("set", index=index, state="up")
        route.route("add", dst=f"{other}/32", oif=index)
    return device


def _hold(channel: socket.socket) -> None:
    """The far namespace: told by its device's descriptor, held until the near side is gone."""
    os.unshare(os.CLONE_NEWNET)
    device = _up(FAR, NEAR)
    channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [device]))])
    channel.recv(1)


def lay() -> Link:
    """Move the caller into the near namespace, and make the far one."""
    os.unshare(os.CLONE_NEWNET)
    near = _up(NEAR, FAR)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    holder = os.fork()
    if holder == 0:
        status = 1
        try:
            ours.close()
            os.close(near)
            _hold(theirs)
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    ours.detach()  # the holder ends as this process does
    return Link(near=near, far=fds[0], holder=holder)


def carry(link: Link) -> None:
    """Hand packets over, each DELAY after it came, until an end is closed or the parent is gone."""
    waiting: deque[tuple[float, int, bytes]] = deque()  # one delay for all, so they fall due in the order they came
    parent = os.getppid()
    while os.getppid() == parent:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for device in select.select([link.near, link.far], [], [], left)[0]:
            other = link.far if device == link.near else link.near
            waiting.append((time.monotonic() + DELAY, other, os.read(device, _MTU)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, device, packet = waiting.popleft()
            os.write(device, packet)


def carrier(link: Link) -> int:
    """carry() in a process of its own; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            carry(link)
        finally:
            os._exit(1)
    return pid


def far_command(link: Link) -> list[str]:
    """What runs a command in the far namespace."""
    return ["nsenter", f"--net=/proc/{link.holder}/ns/net", "--"]
