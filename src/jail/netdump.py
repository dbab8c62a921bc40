"""What netlink says of the calling process's network namespace: links, addresses, routes, rules, the firewall's named
counters, and its ruleset as the kernel spells it. Nothing is changed.

Read by itself where pyroute2 takes 8 ms of CPU for it (an event loop, a class a message): each run asks for it twice.
For the counters libnftables reads, and words, the whole ruleset: 2.4 ms in which the end of each run is waited for.
Formats: rtnetlink(7), linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h, linux/fib_rules.h,
linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from jail.errors import JailError

type Json = dict[str, Any]
type Attributes = Mapping[int, bytes]

MOST = 1 << 16  # bytes of a datagram: the kernel fills at most 32 KiB of one
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_REQUEST_DUMP, _INTERRUPTED = 0x301, 0x10
_ERROR, _DONE = 2, 3
_GETLINK, _GETADDR, _GETROUTE, _GETRULE = 18, 22, 26, 34
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, dst length, src length, tos, table, protocol, scope, type, flags
_NETFILTER = 12  # NETLINK_NETFILTER
_NFTABLES = 10 << 8  # NFNL_SUBSYS_NFTABLES
_GETOBJ = _NFTABLES | 19  # NFT_MSG_GETOBJ
_GETSET, _GETSETELEM = _NFTABLES | 10, _NFTABLES | 13
_GETALL = tuple(_NFTABLES | number for number in (1, 4, 7, 23))  # NFT_MSG_GETTABLE, _GETCHAIN, _GETRULE, _GETFLOWTABLE
_OBJECT = struct.Struct("=BBH")  # nfgenmsg: family, version, resource
_INET, _COUNTER = 1, 1  # NFPROTO_INET, NFT_OBJECT_COUNTER
_TYPE = 0x3FFF  # of an attribute, without its flags
_UP = 1
_SELECTORS = {
    "FRA_SRC": 2,
    "FRA_DST": 1,
    "FRA_IIFNAME": 3,
    "FRA_OIFNAME": 17,
    "FRA_FWMARK": 10,
    "FRA_UID_RANGE": 20,
    "FRA_GOTO": 4,
}


def facts() -> Json:
    """Keys links, addresses, routes (every table and family), rules. Raises JailError."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as sock:
            names = {0: ""}
            links = [_link(*each, names) for each in _dump(sock, _GETLINK, _LINK)]
            return {
                "links": links,
                "addresses": [_address(*each, names) for each in _dump(sock, _GETADDR, _ADDRESS)],
                "routes": [_route(*each, names) for each in _dump(sock, _GETROUTE, _ROUTE)],
                "rules": [_rule(*each) for each in _dump(sock, _GETRULE, _ROUTE)],
            }
    except OSError as error:
        raise JailError("berth_facts", f"netlink: {error.strerror}", "", error.errno or 0) from error
    except (struct.error, IndexError, ValueError) as error:
        raise JailError("berth_facts", f"netlink: an answer of another shape: {error}") from error


def firewall_socket() -> socket.socket:
    """What asks nf_tables of this process's network namespace, wherever it is passed to. Raises OSError.

    netlink(7), and netlink_capable of the kernel: whoever opened it, and whoever asks, need CAP_NET_ADMIN over that
    namespace; who made the user namespace above it has that.
    """
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)


def counters(sock: socket.socket, table: str) -> dict[str, int]:
    """Packets by name of the counters that a table of the family inet has. Raises JailError, as for EPERM."""
    try:
        found = [has for _, has in _dump(sock, _GETOBJ, _OBJECT, _INET)]
        # NFTA_OBJ_TABLE and _TYPE; NFTA_OBJ_NAME, NFTA_OBJ_DATA with NFTA_COUNTER_PACKETS
        named = [has for has in found if _text(has[1]) == table and _be(has[3]) == _COUNTER]
        return {_text(has[2]): _be(_attributes(has[4])[2]) for has in named}
    except OSError as error:
        raise JailError("berth_counters", f"netlink: {error.strerror}", "", error.errno or 0) from error
    except (struct.error, LookupError, ValueError) as error:
        raise JailError("berth_counters", f"netlink: an answer of another shape: {error}") from error


def ruleset() -> bytes:
    """All of nf_tables, of every family, but for what it counts: equal bytes are the same ruleset. Raises JailError.

    Each message has the generation of its ruleset, which grows with each change.
    """
    try:
        with firewall_socket() as sock:
            found = [body for kind in _GETALL for body in _bodies(sock, kind, _OBJECT)]
            for body in [*_bodies(sock, _GETSET, _OBJECT)]:  # one dump at a time on a socket
                has = _attributes(body[_OBJECT.size :])
                # NFTA_SET_TABLE and _NAME are NFTA_SET_ELEM_LIST_TABLE and _SET
                named = b"".join(_attribute(number, has[number]) for number in (1, 2))
                found += [body, *_bodies(sock, _GETSETELEM, _OBJECT, body[0], named)]
            found += [_uncounted(body) for body in _bodies(sock, _GETOBJ, _OBJECT)]
    except OSError as error:
        raise JailError("berth_firewall", f"netlink: {error.strerror}", "", error.errno or 0) from error
    except (struct.error, LookupError, ValueError) as error:
        raise JailError("berth_firewall", f"netlink: an answer of another shape: {error}") from error
    return b"".join(len(body).to_bytes(4) + body for body in found)


def _uncounted(body: bytes) -> bytes:
    """An object, without the data of one that counts."""
    has = _attributes(body[_OBJECT.size :])
    data = 4 if _be(has[3]) == _COUNTER else -1  # NFTA_OBJ_DATA
    kept = [_attribute(number, value) for number, value in has.items() if number != data]
    return body[: _OBJECT.size] + b"".join(kept)


def _attribute(number: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, number) + value + bytes(-length & 3)


def _dump(
    sock: socket.socket, kind: int, head: struct.Struct, family: int = 0
) -> Iterator[tuple[tuple[int, ...], Attributes]]:
    """Ask for all of a kind, 0: of every family. Raises OSError; EINTR where the table changed while it was read."""
    for body in _bodies(sock, kind, head, family):
        yield head.unpack_from(body), _attributes(body[head.size :])


def _bodies(
    sock: socket.socket, kind: int, head: struct.Struct, family: int = 0, attributes: bytes = b""
) -> Iterator[bytes]:
    """The same as bytes. attributes: what the question says further."""
    asked = bytes([family]).ljust(head.size, b"\0") + attributes  # the first byte of each head is the family
    sock.sendall(_HEADER.pack(_HEADER.size + len(asked), kind, _REQUEST_DUMP, kind, 0) + asked)
    while True:
        data, _, flags, _ = sock.recvmsg(MOST)
        if flags & socket.MSG_TRUNC:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        for number, marks, body in _messages(data):
            if marks & _INTERRUPTED:
                raise OSError(errno.EINTR, os.strerror(errno.EINTR))
            if number == _ERROR:
                (code,) = struct.unpack_from("=i", body)
                raise OSError(-code, os.strerror(-code))
            if number == _DONE:
                return
            yield body


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise ValueError(f"a message of {length} bytes")
        yield kind, flags, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> Attributes:
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if not 4 <= length <= len(data) - at:
            raise ValueError(f"an attribute of {length} bytes")
        found[kind & _TYPE] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _number(value: bytes | None) -> int:
    return 0 if value is None else int(struct.unpack("=I", value)[0])


def _be(value: bytes) -> int:
    """A number of nf_tables, in network byte order."""
    return int.from_bytes(value)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="backslashreplace")


def _spelled(family: int, value: bytes | None) -> str:
    """An address; of a family that we don't know the bytes, which no berth has."""
    if value is None:
        return ""
    if family in (socket.AF_INET, socket.AF_INET6):
        return socket.inet_ntop(family, value)
    return value.hex()


def _link(head: tuple[int, ...], has: Attributes, names: dict[int, str]) -> Json:
    name = _text(has[3])  # IFLA_IFNAME
    names[head[2]] = name
    kind = _attributes(has.get(18, b"")).get(1)  # IFLA_LINKINFO, IFLA_INFO_KIND
    up = ["up"] if head[3] & _UP else []
    return {"name": name, "kind": None if kind is None else _text(kind), "flags": up, "mtu": _number(has.get(4))}


def _address(head: tuple[int, ...], has: Attributes, names: Mapping[int, str]) -> Json:
    family, length, _, _, index = head
    address = _spelled(family, has.get(2) or has.get(1))  # IFA_LOCAL, IFA_ADDRESS
    return {"link": names.get(index, "?"), "address": address, "prefixlen": length}


def _route(head: tuple[int, ...], has: Attributes, names: Mapping[int, str]) -> Json:
    family, length, _, _, table, _, scope, kind, _ = head
    via = next((has[number].hex() for number in (18, 9, 30) if number in has), "")  # RTA_VIA, _MULTIPATH, _NH_ID
    return {
        "family": family,
        "table": _number(has.get(15)) or table,  # RTA_TABLE
        "type": kind,
        "scope": scope,
        "dst": f"{_spelled(family, has.get(1)) or 'default'}/{length}",  # RTA_DST
        "link": names.get(_number(has.get(4)), "?"),  # RTA_OIF
        "gateway": _spelled(family, has.get(5)) or via,  # RTA_GATEWAY
    }


def _rule(head: tuple[int, ...], has: Attributes) -> Json:
    return {
        "family": head[0],
        "table": _number(has.get(15)) or head[4],  # FRA_TABLE
        "priority": _number(has.get(6)),  # FRA_PRIORITY
        "action": head[7],
        "selects": [name for name, number in _SELECTORS.items() if number in has],
    }
