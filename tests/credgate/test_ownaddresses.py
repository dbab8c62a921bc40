"""The host's own addresses, and names by its resolver."""

import asyncio
import os
import socket
from ipaddress import ip_address

import pytest
from pyroute2 import IPRoute

from credgate import ownaddresses
from credgate.ownaddresses import Address, local_ipv4, local_ipv6, own, resolve
from tests.jail.forked import Outcome, attempt
from tests.jail.own import user_namespace

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


def _a_new_address() -> None:
    """In a network namespace of its own: read once while nothing changes, anew with each change."""
    reads = 0

    def read() -> frozenset[Address]:
        nonlocal reads
        reads += 1
        return own()

    known = ownaddresses.Own(read)
    with IPRoute() as route:
        (index,) = route.link_lookup(ifname="lo")
        route.link("set", index=index, state="up")
        assert known() == {ip_address("127.0.0.1"), ip_address("::1")}
        assert known() == known() and reads == 1
        for change in ("add", "delete"):
            before = reads
            route.addr(change, index=index, address="192.0.2.7", prefixlen=24)
            assert (ip_address("192.0.2.7") in known()) is (change == "add")
            assert known() == known() and reads == before + 1
        route.addr("add", index=index, address="2001:db8::7", prefixlen=64)  # the kernel says more of it a while later
        assert ip_address("2001:db8::7") in known()
        route.route("add", dst="192.0.2.9/32", type="local", scope="host", oif=index, table=255)
        assert ip_address("192.0.2.9") in known()
        for last in range(1, 201):  # more than the socket has room for
            route.addr("add", index=index, address=f"198.51.100.{last}", prefixlen=32)
        assert ip_address("198.51.100.200") in known()
        route.link("set", index=index, state="down")
        assert known() == own()


@pytest.mark.needs("userns", "netns")
def test_a_change_is_seen_at_the_next_look() -> None:
    def body() -> None:
        if os.geteuid():
            user_namespace()
        os.unshare(os.CLONE_NEWNET)
        _a_new_address()

    assert attempt(body) == Outcome()


def test_without_netlink_each_look_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("credgate.ownaddresses.socket.socket", refused)
    found = [frozenset[Address](), frozenset({ip_address("192.0.2.7")})]
    known = ownaddresses.Own(found.pop)
    assert known() == {ip_address("192.0.2.7")} and known() == frozenset()
