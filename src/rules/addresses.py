"""Which addresses are closed, and what may open them. A table of our own: `ipaddress.is_global` passes metadata,
multicast and embedded forms. Rows from the IANA special-purpose registries, RFC numbers beside them.

IPv6 is closed outside 2000::/3 by construction. An IPv4 address inside an IPv6 one is taken out and judged too.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from rules.problems import AddressError

__all__ = ["FLOOR", "AddressClass", "AddressError", "classify", "closed", "parse_ip", "parse_network", "unmap"]

type Address = IPv4Address | IPv6Address
type Network = IPv4Network | IPv6Network


class AddressClass(StrEnum):
    """What an address is. Everything but PUBLIC is closed."""

    PUBLIC = "public"
    METADATA = "metadata"  # hands out credentials of the machine
    GATEWAY = "gateway"  # our own listeners
    OWN = "own"  # an address of one of this machine's interfaces
    LOOPBACK = "loopback"
    PRIVATE = "private"
    SHARED = "shared"  # carrier-grade NAT
    LINK_LOCAL = "link_local"
    UNSPECIFIED = "unspecified"  # "this network": connecting to it means the machine itself
    MULTICAST = "multicast"
    DOCUMENTATION = "documentation"
    BENCHMARK = "benchmark"
    PROTOCOL = "protocol"  # assigned to a protocol, not to a host
    RESERVED = "reserved"
    EMBEDDED = "embedded"  # holds an IPv4 address: mapped, translated, 6to4, Teredo, ISATAP
    SCOPED = "scoped"  # has a scope id


# Nothing in a policy opens these.
FLOOR = frozenset(
    {
        AddressClass.METADATA,
        AddressClass.GATEWAY,
        AddressClass.UNSPECIFIED,
        AddressClass.MULTICAST,
        AddressClass.SCOPED,
    }
)


def _v4(*texts: str) -> tuple[IPv4Network, ...]:
    return tuple(IPv4Network(text) for text in texts)


def _v6(*texts: str) -> tuple[IPv6Network, ...]:
    return tuple(IPv6Network(text) for text in texts)


METADATA: tuple[Network, ...] = (
    *_v4("169.254.169.0/24", "169.254.170.0/24"),  # AWS, GCP, Azure, OpenStack and most others; ECS and EKS
    *_v4("169.254.42.42", "169.254.0.23"),  # Scaleway, Tencent
    *_v4("168.63.129.16"),  # Azure WireServer, in public space
    *_v4("100.100.100.200", "100.100.2.136", "100.100.2.138"),  # Alibaba
    *_v4("192.0.0.192"),  # Oracle
    *_v6("fd00:ec2::/32", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe", "fe80::a9fe:a9fe"),
)

# First match counts; the order is from narrow to wide.
IPV4: tuple[tuple[AddressClass, tuple[IPv4Network, ...]], ...] = (
    (AddressClass.UNSPECIFIED, _v4("0.0.0.0/8")),  # RFC 791
    (AddressClass.LOOPBACK, _v4("127.0.0.0/8")),  # RFC 1122
    (AddressClass.PRIVATE, _v4("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),  # RFC 1918
    (AddressClass.SHARED, _v4("100.64.0.0/10")),  # RFC 6598
    (AddressClass.LINK_LOCAL, _v4("169.254.0.0/16")),  # RFC 3927
    (AddressClass.PROTOCOL, _v4("192.0.0.0/24")),  # RFC 6890
    (AddressClass.PROTOCOL, _v4("192.31.196.0/24", "192.175.48.0/24")),  # RFC 7535, 7534: AS112
    (AddressClass.PROTOCOL, _v4("192.52.193.0/24", "192.88.99.0/24")),  # RFC 7450: AMT; RFC 7526: 6to4 relay
    (AddressClass.DOCUMENTATION, _v4("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")),  # RFC 5737
    (AddressClass.BENCHMARK, _v4("198.18.0.0/15")),  # RFC 2544
    (AddressClass.MULTICAST, _v4("224.0.0.0/4")),  # RFC 5771
    (AddressClass.RESERVED, _v4("240.0.0.0/4")),  # RFC 1112, with 255.255.255.255
)

_GLOBAL_UNICAST = IPv6Network("2000::/3")  # RFC 4291
IPV6_NAMED: tuple[tuple[AddressClass, tuple[IPv6Network, ...]], ...] = (
    (AddressClass.UNSPECIFIED, _v6("::")),  # RFC 4291
    (AddressClass.LOOPBACK, _v6("::1")),
    (AddressClass.PRIVATE, _v6("fc00::/7", "fec0::/10")),  # RFC 4193, 3879
    (AddressClass.LINK_LOCAL, _v6("fe80::/10")),
    (AddressClass.MULTICAST, _v6("ff00::/8")),
)
IPV6: tuple[tuple[AddressClass, tuple[IPv6Network, ...]], ...] = (
    (AddressClass.BENCHMARK, _v6("2001:2::/48")),  # RFC 5180
    (AddressClass.PROTOCOL, _v6("2001::/23", "2620:4f:8000::/48")),  # RFC 2928; RFC 7534: AS112
    (AddressClass.DOCUMENTATION, _v6("2001:db8::/32", "3fff::/20")),  # RFC 3849, 9637
    (AddressClass.RESERVED, _v6("3ffe::/16")),  # RFC 3701: 6bone, returned
)

# Prefix, and how far the embedded IPv4 address stands from the right.
_EMBEDDED: tuple[tuple[IPv6Network, int], ...] = (
    (IPv6Network("::ffff:0:0/96"), 0),  # RFC 4291: mapped
    (IPv6Network("::/96"), 0),  # RFC 4291: compatible
    (IPv6Network("::ffff:0:0:0/96"), 0),  # RFC 2765: translated
    (IPv6Network("64:ff9b::/96"), 0),  # RFC 6052: NAT64
    (IPv6Network("64:ff9b:1::/48"), 0),  # RFC 8215, and below
    (IPv6Network("2002::/16"), 80),  # RFC 3056: 6to4
    (IPv6Network("2001::/32"), 64),  # RFC 4380: Teredo, the server
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # RFC 8215: any RFC 6052 length from here on
_TEREDO = IPv6Network("2001::/32")
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})  # RFC 5214 6.1: the upper half of the interface id


def parse_ip(text: str) -> Address:
    """Read an address in its canonical spelling, without scope id. Raises AddressError."""
    try:
        address = ip_address(text)
    except ValueError:
        raise AddressError(f"{text!r} is not an address", "write a.b.c.d in decimal, or an IPv6 address") from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise AddressError(f"{text!r} has a scope id", "leave out the part from the percent sign on")
    return address


def unmap(address: Address) -> Address:
    """The IPv4 address of a mapped one, as getpeername of a dual-stack socket gives it; others as they are."""
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


@lru_cache(maxsize=1024)
def classify(address: Address) -> AddressClass:
    """What an address is, by the table alone."""
    if isinstance(address, IPv6Address):
        return _classify_v6(address)
    if _within(address, METADATA):
        return AddressClass.METADATA
    return _lookup(address, IPV4) or AddressClass.PUBLIC


def closed(
    address: Address,
    *,
    networks: Iterable[Network] = (),
    pins: Collection[Address] = (),
    own: frozenset[Address] = frozenset(),
    listeners: frozenset[Address] = frozenset(),
) -> AddressClass | None:
    """The class that closes an address for an endpoint with these `networks` and `pins`; None: it may be dialled.

    `own` are the addresses of this machine's interfaces (opened as private ones are), `listeners` those that the
    gateway itself listens on (never opened). A prefix over addresses that embed an IPv4 address opens those whose
    IPv4 address is open as well, so that NAT64 is no way around the table.
    """
    named = tuple(networks)
    kind = classify(address)
    if kind in FLOOR:
        return kind
    if address in listeners:
        return AddressClass.GATEWAY
    if address in pins:
        return None
    if _within(address, named):
        return None if _inner_open(address, named, own, listeners) else kind
    return AddressClass.OWN if address in own else (None if kind is AddressClass.PUBLIC else kind)


def _inner_open(
    address: Address, networks: tuple[Network, ...], own: frozenset[Address], listeners: frozenset[Address]
) -> bool:
    inner = _embedded(address) if isinstance(address, IPv6Address) else iter(())
    return all(closed(v4, networks=networks, own=own, listeners=listeners) is None for v4 in inner)


def _classify_v6(address: IPv6Address) -> AddressClass:
    bare = IPv6Address(int(address))
    inner = frozenset(_embedded(bare))
    if _within(bare, METADATA) or any(_within(v4, METADATA) for v4 in inner):
        return AddressClass.METADATA
    if address.scope_id is not None:
        return AddressClass.SCOPED
    named = _lookup(bare, IPV6_NAMED)
    if named:
        return named
    if inner:
        return AddressClass.EMBEDDED
    if bare not in _GLOBAL_UNICAST:
        return AddressClass.RESERVED
    return _lookup(bare, IPV6) or AddressClass.PUBLIC


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    value = int(address)
    for prefix, shift in _EMBEDDED:
        if address in prefix:
            yield IPv4Address(value >> shift & 0xFFFFFFFF)
    if address in _LOCAL_NAT64:
        # RFC 6052 2.2: bits 64 to 71 are zero and no part of the address
        packed = value >> 64 << 56 | value & (1 << 56) - 1
        yield from (IPv4Address(packed >> 120 - 32 - length & 0xFFFFFFFF) for length in (48, 56, 64))
    if address in _TEREDO:
        yield IPv4Address(~value & 0xFFFFFFFF)  # RFC 4380 4: the client's address is sent inverted
    if value >> 32 & 0xFFFFFFFF in _ISATAP:
        yield IPv4Address(value & 0xFFFFFFFF)


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def _lookup[N: (IPv4Network, IPv6Network)](
    address: Address, table: tuple[tuple[AddressClass, tuple[N, ...]], ...]
) -> AddressClass | None:
    return next((kind for kind, networks in table if _within(address, networks)), None)


def parse_network(text: str) -> Network:
    """Read a prefix with its host bits zero. Raises AddressError."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise AddressError(f"{text!r} is not a prefix: {error}", 'write it as "10.20.0.0/16"') from None
