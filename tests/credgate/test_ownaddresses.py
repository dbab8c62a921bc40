"""The host's own addresses, and names by its resolver."""

import asyncio
from ipaddress import ip_address

import pytest
from pyroute2 import IPRoute

from credgate.ownaddresses import local_ipv4, local_ipv6, own, resolve

FIB = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.0
           /24 link UNICAST
        |-- 192.0.2.7
           /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
"""


def test_only_local_leaves_count() -> None:
    assert local_ipv4(FIB) == {ip_address("192.0.2.7")}


def test_ipv6_addresses_are_the_first_column() -> None:
    line = "20010db8000000000000000000000001 02 40 00 80 eth0\n"
    assert local_ipv6(line) == {ip_address("2001:db8::1")}
    assert local_ipv6("") == frozenset()


def test_agrees_with_netlink_on_this_host() -> None:
    with IPRoute() as route:
        messages = list(route.get_addr())
    expected = {ip_address(m.get_attr("IFA_LOCAL") or m.get_attr("IFA_ADDRESS")) for m in messages}
    assert expected, "netlink shows no address at all"
    assert expected <= own()


def test_a_name_of_the_host_itself() -> None:
    assert ip_address("127.0.0.1") in asyncio.run(resolve("localhost", lambda: None))


def test_a_label_over_63_bytes_is_no_address_and_no_surprise() -> None:
    with pytest.raises(OSError, match="not a name"):
        asyncio.run(resolve("a" * 64 + ".test", lambda: None))
