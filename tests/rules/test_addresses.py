"""Every prefix of the table from both sides of its borders, every metadata address, every embedded form."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import pytest

from rules.addresses import (
    FLOOR,
    METADATA,
    AddressClass,
    AddressError,
    classify,
    closed,
    parse_ip,
    parse_network,
    unmap,
)

C = AddressClass

# prefix, class, and the classes of the addresses just below and just above it
BORDERS = [
    ("0.0.0.0/8", C.UNSPECIFIED, None, C.PUBLIC),
    ("10.0.0.0/8", C.PRIVATE, C.PUBLIC, C.PUBLIC),
    ("100.64.0.0/10", C.SHARED, C.PUBLIC, C.PUBLIC),
    ("127.0.0.0/8", C.LOOPBACK, C.PUBLIC, C.PUBLIC),
    ("168.63.129.16/32", C.METADATA, C.PUBLIC, C.PUBLIC),
    ("169.254.0.0/16", C.LINK_LOCAL, C.PUBLIC, C.PUBLIC),
    ("172.16.0.0/12", C.PRIVATE, C.PUBLIC, C.PUBLIC),
    ("192.0.0.0/24", C.PROTOCOL, C.PUBLIC, C.PUBLIC),
    ("192.0.2.0/24", C.DOCUMENTATION, C.PUBLIC, C.PUBLIC),
    ("192.31.196.0/24", C.PROTOCOL, C.PUBLIC, C.PUBLIC),
    ("192.52.193.0/24", C.PROTOCOL, C.PUBLIC, C.PUBLIC),
    ("192.88.99.0/24", C.PROTOCOL, C.PUBLIC, C.PUBLIC),
    ("192.168.0.0/16", C.PRIVATE, C.PUBLIC, C.PUBLIC),
    ("192.175.48.0/24", C.PROTOCOL, C.PUBLIC, C.PUBLIC),
    ("198.18.0.0/15", C.BENCHMARK, C.PUBLIC, C.PUBLIC),
    ("198.51.100.0/24", C.DOCUMENTATION, C.PUBLIC, C.PUBLIC),
    ("203.0.113.0/24", C.DOCUMENTATION, C.PUBLIC, C.PUBLIC),
    ("224.0.0.0/4", C.MULTICAST, C.PUBLIC, C.RESERVED),
    ("240.0.0.0/4", C.RESERVED, C.MULTICAST, None),
    ("169.254.169.0/24", C.METADATA, C.LINK_LOCAL, C.METADATA),
    ("169.254.170.0/24", C.METADATA, C.METADATA, C.LINK_LOCAL),
    ("100.100.100.200/32", C.METADATA, C.SHARED, C.SHARED),
    ("192.0.0.192/32", C.METADATA, C.PROTOCOL, C.PROTOCOL),
    ("::/128", C.UNSPECIFIED, None, C.LOOPBACK),
    ("::1/128", C.LOOPBACK, C.UNSPECIFIED, C.EMBEDDED),
    ("::ffff:0:0/96", C.EMBEDDED, C.RESERVED, C.RESERVED),
    ("::ffff:0:0:0/96", C.EMBEDDED, C.RESERVED, C.RESERVED),
    ("64:ff9b::/96", C.EMBEDDED, C.RESERVED, C.RESERVED),
    ("64:ff9b:1::/48", C.EMBEDDED, C.RESERVED, C.RESERVED),
    ("100::/64", C.RESERVED, C.RESERVED, C.RESERVED),
    ("100:0:0:1::/64", C.RESERVED, C.RESERVED, C.RESERVED),
    ("2000::/16", C.PUBLIC, C.RESERVED, C.EMBEDDED),  # Teredo begins at 2001::
    ("2001::/32", C.EMBEDDED, C.PUBLIC, C.PROTOCOL),
    ("2001:1::1/128", C.PROTOCOL, C.PROTOCOL, C.PROTOCOL),
    ("2001:2::/48", C.BENCHMARK, C.PROTOCOL, C.PROTOCOL),
    ("2001:3::/32", C.PROTOCOL, C.PROTOCOL, C.PROTOCOL),
    ("2001:4:112::/48", C.PROTOCOL, C.PROTOCOL, C.PROTOCOL),
    ("2001:10::/28", C.PROTOCOL, C.PROTOCOL, C.PROTOCOL),
    ("2001:20::/28", C.PROTOCOL, C.PROTOCOL, C.PROTOCOL),
    ("2001:30::/28", C.PROTOCOL, C.PROTOCOL, C.PROTOCOL),
    ("2001:1ff::/32", C.PROTOCOL, C.PROTOCOL, C.PUBLIC),
    ("2001:db8::/32", C.DOCUMENTATION, C.PUBLIC, C.PUBLIC),
    ("2002::/16", C.EMBEDDED, C.PUBLIC, C.PUBLIC),
    ("2620:4f:8000::/48", C.PROTOCOL, C.PUBLIC, C.PUBLIC),
    ("3ffe::/16", C.RESERVED, C.PUBLIC, C.DOCUMENTATION),
    ("3fff::/20", C.DOCUMENTATION, C.RESERVED, C.PUBLIC),
    ("3fff:ffff::/32", C.PUBLIC, C.PUBLIC, C.RESERVED),
    ("5f00::/16", C.RESERVED, C.RESERVED, C.RESERVED),
    ("fc00::/7", C.PRIVATE, C.RESERVED, C.RESERVED),
    ("fe80::/10", C.LINK_LOCAL, C.RESERVED, C.PRIVATE),
    ("fec0::/10", C.PRIVATE, C.LINK_LOCAL, C.MULTICAST),
    ("ff00::/8", C.MULTICAST, C.PRIVATE, None),
    ("fd00:ec2::/32", C.METADATA, C.PRIVATE, C.PRIVATE),
]


@pytest.mark.parametrize(("prefix", "inside", "below", "above"), BORDERS, ids=[row[0] for row in BORDERS])
def test_each_prefix_from_both_sides_of_its_borders(
    prefix: str, inside: AddressClass, below: AddressClass | None, above: AddressClass | None
) -> None:
    network = ip_network(prefix)
    first, last = network.network_address, network.broadcast_address
    assert (classify(first), classify(last)) == (inside, inside)
    if below is not None:
        assert classify(first - 1) == below
    if above is not None:
        assert classify(last + 1) == above


CLOUD = [
    "169.254.169.254",
    "169.254.169.253",
    "169.254.169.123",
    "169.254.169.250",
    "169.254.169.251",
    "169.254.169.252",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.42.42",
    "169.254.0.23",
    "168.63.129.16",
    "100.100.100.200",
    "100.100.2.136",
    "100.100.2.138",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::253",
    "fd00:ec2::123",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fe80::a9fe:a9fe",
    "fd00:42::42",
    "::ffff:a9fe:a9fe",
    "::ffff:0:a9fe:a9fe",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2606:4700::5efe:a9fe:a9fe",
    "2606:4700::200:5efe:a9fe:a9fe",
    "2001:0:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:5601:5601",
    "fe80::a9fe:a9fe%eth0",
    "::ffff:168.63.129.16",
    "64:ff9b:1:0:a9:fea9:fe00:0",
]


@pytest.mark.parametrize("text", CLOUD)
def test_nothing_opens_a_metadata_address(text: str) -> None:
    address = ip_address(text)
    assert classify(address) is C.METADATA
    everything = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))
    assert closed(address, networks=everything, pins=(address,), own=frozenset({address})) is C.METADATA


@pytest.mark.parametrize("text", ["100.100.100.100", "fd7a:115c:a1e0::53", "198.18.0.7", "10.96.0.1", "127.0.0.1"])
def test_an_overlay_or_private_address_is_closed_until_named(text: str) -> None:
    address = ip_address(text)
    assert closed(address) is classify(address)
    assert closed(address, networks=(ip_network(text),)) is None
    assert closed(address, pins=(address,)) is None


BLOCKED = [
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::127.0.0.1",
    "::8.8.8.8",
    "64:ff9b::808:808",
    "fec0::1",
    "192.0.0.10",
    "224.0.0.251",
    "239.255.255.250",
    "ff02::fb",
    "240.0.0.1",
    "255.255.255.255",
    "3fff::1",
    "3ffe::1",
    "5f00::1",
    "100:0:0:1::1",
    "0.0.0.0",
    "::",
]


@pytest.mark.parametrize("text", BLOCKED)
def test_each_blocked_row_is_closed(text: str) -> None:
    assert closed(ip_address(text)) is not None


@pytest.mark.parametrize("text", ["fe80::1%lo", "::1%lo", "2606:4700::1%eth0"])
def test_a_scope_id_closes_any_address(text: str) -> None:
    address = ip_address(text)
    assert closed(address, networks=(IPv6Network("::/0"),), pins=(address,)) is C.SCOPED


@pytest.mark.parametrize("text", ["8.8.8.8", "140.82.121.6", "2606:4700::1", "2a00:1450:4001::200e", "1.1.1.1"])
def test_public_addresses_are_open(text: str) -> None:
    assert classify(ip_address(text)) is C.PUBLIC
    assert closed(ip_address(text)) is None


@pytest.mark.parametrize("text", ["0.0.0.0", "224.0.0.1", "ff02::1", "::"])
def test_floor_classes_stay_closed_when_named(text: str) -> None:
    address = ip_address(text)
    assert classify(address) in FLOOR
    assert closed(address, networks=(ip_network(text),), pins=(address,)) is classify(address)


def test_an_own_interface_opens_only_when_named_and_a_listener_never() -> None:
    address = ip_address("93.184.216.34")
    mine = frozenset({address})
    assert closed(address) is None
    assert closed(address, own=mine) is C.OWN
    assert closed(address, own=mine, networks=(ip_network("93.184.216.0/24"),)) is None
    assert closed(address, own=mine, pins=(address,)) is None
    assert closed(address, listeners=mine, networks=(ip_network("93.184.216.0/24"),), pins=(address,)) is C.GATEWAY


def test_a_prefix_of_nat64_opens_only_what_is_open_inside() -> None:
    nat64 = (IPv6Network("64:ff9b::/96"),)
    assert closed(ip_address("64:ff9b::808:808"), networks=nat64) is None
    assert closed(ip_address("64:ff9b::a00:1"), networks=nat64) is C.EMBEDDED
    assert closed(ip_address("64:ff9b::a00:1"), networks=(*nat64, ip_network("10.0.0.0/8"))) is None


def test_a_named_range_opens_no_other() -> None:
    networks = (ip_network("10.20.0.0/16"),)
    assert closed(ip_address("10.20.255.255"), networks=networks) is None
    assert closed(ip_address("10.21.0.0"), networks=networks) is C.PRIVATE
    assert closed(ip_address("fd00::1"), networks=networks) is C.PRIVATE


def test_a_mapped_peer_is_unmapped() -> None:
    assert unmap(ip_address("::ffff:8.8.8.8")) == ip_address("8.8.8.8")
    assert unmap(ip_address("2606:4700::1")) == ip_address("2606:4700::1")
    assert unmap(ip_address("8.8.8.8")) == ip_address("8.8.8.8")


@pytest.mark.parametrize(
    "text", ["127.1", "0177.0.0.1", "127.000.000.001", "0x7f000001", "fe80::1%lo", "", "a.b", "\u2460.1.1.1"]
)
def test_only_canonical_spellings_are_addresses(text: str) -> None:
    with pytest.raises(AddressError, match=r"is not an address|scope id"):
        parse_ip(text)


def test_parse_ip_and_parse_network() -> None:
    assert parse_ip("10.0.0.1") == ip_address("10.0.0.1")
    assert parse_ip("fd00::1") == ip_address("fd00::1")
    assert parse_network("10.20.0.0/16") == ip_network("10.20.0.0/16")
    with pytest.raises(AddressError, match="host bits"):
        parse_network("10.20.0.1/16")


def test_the_metadata_table_names_no_public_range_wider_than_one_host() -> None:
    """A control on the table itself: outside closed ranges it may hold single addresses only."""
    wide = [n for n in METADATA if n.num_addresses > 1]
    assert all(not n.is_global for n in wide)
