"""Changes of the calling process's network namespace over rtnetlink: a veth pair, an address, a link up, a route.

Written by itself where pyroute2 takes 200 ms and 18 MB for its import, in the process that every berth is forked from,
and an event loop for each of these. Formats: rtnetlink(7), linux/if_link.h, linux/veth.h; see also `jail.netdump`.
"""

import os
import socket
import struct

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst length, src length, tos, table, protocol, scope, type, flags
_NEWLINK, _NEWADDR, _NEWROUTE = 16, 20, 24
_REQUEST, _ACK, _NEW = 0x1, 0x4, 0x600  # NLM_F_CREATE and NLM_F_EXCL: what is there already is an error
_ERROR = 2
_NESTED = 0x8000
_IFNAME, _LINKINFO, _NET_NS_FD, _KIND, _DATA, _PEER = 3, 18, 28, 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF = 1, 4
_UP = 1
_MAIN, _STATIC, _SCOPE_LINK, _UNICAST = 254, 4, 253, 1


def add_pair(name: str, peer: str, namespace: int) -> None:
    """Make a veth pair: `name` here, `peer` in the network namespace behind a descriptor. Raises OSError."""
    far = bytes(_LINK.size) + _attribute(_IFNAME, _name(peer)) + _attribute(_NET_NS_FD, struct.pack("=I", namespace))
    data = _attribute(_DATA | _NESTED, _attribute(_PEER | _NESTED, far))
    info = _attribute(_LINKINFO | _NESTED, _attribute(_KIND, b"veth") + data)
    _change(_NEWLINK, _NEW, bytes(_LINK.size) + _attribute(_IFNAME, _name(name)) + info)


def add_address(index: int, address: str) -> None:
    """Give a link an IPv4 address of its own, a /32. Raises OSError."""
    own = socket.inet_aton(address)
    head = _ADDRESS.pack(socket.AF_INET, 32, 0, 0, index)
    _change(_NEWADDR, _NEW, head + _attribute(_IFA_LOCAL, own) + _attribute(_IFA_ADDRESS, own))


def set_up(index: int) -> None:
    """Bring a link up. Raises OSError."""
    _change(_NEWLINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, index, _UP, _UP))


def add_route(index: int, address: str) -> None:
    """Reach one IPv4 address over a link, without a gateway. Raises OSError."""
    head = _ROUTE.pack(socket.AF_INET, 32, 0, 0, _MAIN, _STATIC, _SCOPE_LINK, _UNICAST, 0)
    over = _attribute(_RTA_OIF, struct.pack("=I", index))
    _change(_NEWROUTE, _NEW, head + _attribute(_RTA_DST, socket.inet_aton(address)) + over)


def _name(text: str) -> bytes:
    return text.encode("ascii") + b"\0"


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _change(kind: int, flags: int, body: bytes) -> None:
    """Ask, and wait for the kernel's word on it. Raises OSError with its number."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as sock:
        sock.sendall(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, 1, 0) + body)
        _, answer, _, _, _ = _HEADER.unpack_from(data := sock.recv(1 << 16))
        (code,) = struct.unpack_from("=i", data, _HEADER.size)
    if answer != _ERROR or code:  # an acknowledgement is an error of number 0
        number = -code if answer == _ERROR else 0
        raise OSError(number, os.strerror(number) if number else f"got a message of type {answer}, expected its answer")
