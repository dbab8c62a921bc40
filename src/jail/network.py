"""The two network namespaces of a berth: built over rtnetlink, read back from the kernel, compared.

Gate namespace G and jail namespace J are joined by one veth pair with one /32 at each end, and J's only route leads
to G's address. Nothing forwards, nothing is translated; IPv6 is off before a link is up, since a link-local address
would otherwise appear some two seconds later, once duplicate address detection is through.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jail import netchange, netdump
from jail.berthfacts import GATE, INSIDE, IPV4, Side, expected_settings
from jail.errors import JailError

type Json = dict[str, Any]

BACKLOG = 512


def enter(namespace: int) -> None:
    """Make the network namespace behind a descriptor this process's own; raises OSError."""
    os.setns(namespace, os.CLONE_NEWNET)


def harden() -> None:
    """Set IPv6 off and forwarding off in a namespace whose links do not exist or are down; raises JailError."""
    # Changing ip_forward resets the redirect settings, so it comes first.
    _write("ipv4/ip_forward", "0")
    for link in ("all", "default", "lo"):
        _harden_link(link)


def connect(gate: int) -> None:
    """In J: make the pair, jail0 here and gw0 in the namespace behind `gate`; raises JailError."""
    _ask("veth", lambda: netchange.add_pair(INSIDE.link, GATE.link, gate))


def bring_up(side: Side) -> None:
    """Give this namespace's end its address and its one route; raises JailError."""
    _harden_link(side.link)
    index = _ask("veth", lambda: socket.if_nametoindex(side.link))
    _ask("address", lambda: netchange.add_address(index, side.address))
    _ask("link", lambda: netchange.set_up(index))
    _ask("link", lambda: netchange.set_up(1))  # lo has index 1 in every namespace
    _ask("route", lambda: netchange.add_route(index, side.peer))


def listen(port: int) -> socket.socket:
    """In G: a TCP socket listening on the gateway's address; it stays in G wherever it is passed. Raises OSError."""
    # asyncio sets TCP_NODELAY only where the protocol is named (else 44 ms a request by Nagle and delayed ACK).
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((GATE.address, port))
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def outgoing() -> socket.socket:
    """A TCP socket of the namespace that this process is in, unconnected and non-blocking. OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
    sock.setblocking(False)
    return sock


def datagrams(port: int) -> socket.socket:
    """In G: a UDP socket bound to the gateway's address. Raises OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP)
    sock.bind((GATE.address, port))
    sock.setblocking(False)
    return sock


def facts(side: Side) -> Json:
    """What the kernel says of this process's network namespace; raises JailError.

    Keys: links, addresses, routes (every table and family), rules, sysctl (path below /proc/sys/net: value or None).
    """
    return netdump.facts() | {"sysctl": {path: _read(path) for path in expected_settings(side.link)}}


def sides(gate: int, jail: int) -> dict[str, Json]:
    """The facts of both namespaces of a berth, by "jail" and "gate"; this process ends in the gate's. As `facts`."""
    found = {}
    for name, namespace, side in (("jail", jail, INSIDE), ("gate", gate, GATE)):
        enter(namespace)
        found[name] = facts(side)
    return found


def _harden_link(link: str) -> None:
    for name, value in IPV4.items():
        _write(f"ipv4/conf/{link}/{name}", value)
    if Path("/proc/sys/net/ipv6").exists():  # absent where the kernel has no IPv6 at all
        _write(f"ipv6/conf/{link}/disable_ipv6", "1")


# Plain descriptors: a berth writes 60 of these and every run reads them, where pathlib takes five times as long.
def _write(path: str, value: str) -> None:
    try:
        fd = os.open(f"/proc/sys/net/{path}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        hint = "/proc/sys must be writable for the owner of a network namespace (a container may mount it read-only)"
        raise JailError("berth_sysctl", f"net/{path}: {error.strerror}", hint, error.errno or 0) from error


def _read(path: str) -> str | None:
    try:
        fd = os.open(f"/proc/sys/net/{path}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(fd, 64).decode().strip()
    finally:
        os.close(fd)


def _ask[T](step: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except OSError as error:
        hint = "the kernel needs veth (modprobe veth)" if step == "veth" else ""
        raise JailError(f"berth_{step}", f"netlink: {error.strerror}", hint, error.errno or 0) from error
