"""Invariant: a namespace that differs in one route, address, link, rule or setting is not taken for a berth's."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from jail import berthfacts, network
from jail.berthfacts import GATE, INSIDE, Json
from jail.errors import JailError
from tests.conftest import OrdinaryUser
from tests.jail import own
from tests.jail.forked import attempt

pytestmark = pytest.mark.needs("netns")


def own_network(harden: bool = True) -> int:
    os.unshare(os.CLONE_NEWNET)
    if harden:
        network.harden()
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def build(harden: bool = True) -> tuple[int, int]:
    """Both namespaces, joined and up; this process ends in the jail's. Returns gate, jail."""
    own.user_namespace()
    gate = own_network(harden)
    jail = own_network(harden)
    network.connect(gate)
    network.enter(gate)
    network.bring_up(GATE)
    network.enter(jail)
    network.bring_up(INSIDE)
    return gate, jail


def test_built_namespaces_are_as_planned(ordinary_user: OrdinaryUser) -> None:
    def body() -> list[object]:
        gate, _ = build()
        inside = network.facts(INSIDE)
        network.enter(gate)
        outside = network.facts(GATE)
        main = [r for r in inside["routes"] if r["table"] != 255]
        return [berthfacts.differences(INSIDE, inside), berthfacts.differences(GATE, outside), main]

    only = {"family": 2, "table": 254, "type": 1, "scope": 253, "dst": "10.213.0.1/32", "link": "jail0", "gateway": ""}
    assert attempt(body, uid=ordinary_user.uid).value == [[], [], [only]]


def index(route: IPRoute, name: str = "jail0") -> int:
    found: int = route.link_lookup(ifname=name)[0]
    return found


def ip(*command: str, **arguments: object) -> Callable[[], None]:
    """An edit of this namespace by netlink; the link jail0 where it says `oif` or `index`."""

    def edit() -> None:
        with IPRoute() as route:
            known = {k: index(route) if v == "jail0" else v for k, v in arguments.items()}
            getattr(route, command[0])(*command[1:], **known)

    return edit


def sysctl(path: str, value: str) -> Callable[[], None]:
    return lambda: (Path("/proc/sys/net", path).write_text(value), None)[1]


def ipv6_on() -> None:
    Path("/proc/sys/net/ipv6/conf/jail0/disable_ipv6").write_text("0")


EDITS = {
    "default route": (ip("route", "add", dst="default", gateway="10.213.0.1", oif="jail0"), "routes"),
    "another host": (ip("route", "add", dst="192.0.2.1/32", oif="jail0", scope="link"), "routes"),
    "another table": (ip("route", "add", dst="192.0.2.1/32", oif="jail0", scope="link", table=77), "routes"),
    "a large table": (ip("route", "add", dst="192.0.2.1/32", oif="jail0", scope="link", table=70000), "routes"),
    "local route": (
        ip("route", "add", dst="192.0.2.0/24", oif="jail0", type="local", scope="host", table=255),
        "local route",
    ),
    "second address": (ip("addr", "add", index="jail0", address="192.0.2.2", prefixlen=32), "addresses"),
    "wider address": (ip("addr", "add", index="jail0", address="192.0.2.2", prefixlen=24), "routes"),
    "another link": (ip("link", "add", ifname="v0", kind="veth", peer="v1", state="up"), "links up"),
    "link down": (ip("link", "set", index="jail0", state="down"), "links up"),
    "rule": (ip("rule", "add", table=77, priority=10), "rule"),
    "rule by source": (ip("rule", "add", table=254, priority=10, src="10.213.0.2/32"), "rule"),
    "ipv6": (ipv6_on, "ipv6/conf/jail0/disable_ipv6"),
    "forwarding": (sysctl("ipv4/ip_forward", "1"), "ipv4/ip_forward"),
    "one link forwards": (sysctl("ipv4/conf/jail0/forwarding", "1"), "ipv4/conf/jail0/forwarding"),
    "loopback routed": (sysctl("ipv4/conf/all/route_localnet", "1"), "ipv4/conf/all/route_localnet"),
}


@pytest.mark.parametrize("name", EDITS)
def test_one_edit_is_told(name: str, ordinary_user: OrdinaryUser) -> None:
    edit, expected = EDITS[name]

    def body() -> list[list[str]]:
        build()
        before = berthfacts.differences(INSIDE, network.facts(INSIDE))
        edit()
        return [before, berthfacts.differences(INSIDE, network.facts(INSIDE))]

    value = attempt(body, uid=ordinary_user.uid).value
    assert isinstance(value, list)
    assert value[0] == []
    assert any(line.startswith(expected) for line in value[1]), value[1]


def test_ipv6_route_is_told(ordinary_user: OrdinaryUser) -> None:
    def body() -> list[str]:
        build()
        ipv6_on()
        ip("route", "add", dst="2001:db8::/64", oif="jail0", family=socket.AF_INET6)()
        return berthfacts.differences(INSIDE, network.facts(INSIDE))

    value = attempt(body, uid=ordinary_user.uid).value
    assert isinstance(value, list)
    assert any("2001:db8::/64" in line for line in value), value


def test_link_local_address_comes_late_and_only_without_hardening(ordinary_user: OrdinaryUser) -> None:
    def up(harden: bool) -> int:
        gate = own_network(harden)
        jail = own_network(harden)
        network.connect(gate)
        for namespace, link in ((gate, "gw0"), (jail, "jail0")):
            network.enter(namespace)
            with IPRoute() as route:
                route.link("set", index=index(route, link), state="up")
        return jail

    def addresses(jail: int) -> list[str]:
        network.enter(jail)
        found: Json = network.facts(INSIDE)
        return [a["address"].split(":")[0] for a in found["addresses"]]

    def body() -> list[list[str]]:
        own.user_namespace()
        open_one, closed_one = up(harden=False), up(harden=True)
        time.sleep(3)
        return [addresses(open_one), addresses(closed_one)]

    assert attempt(body, uid=ordinary_user.uid).value == [["fe80"], []]


def test_forwarding_that_a_host_hands_on_is_taken_back(ordinary_user: OrdinaryUser) -> None:
    def body() -> list[str]:
        own.user_namespace()
        os.unshare(os.CLONE_NEWNET)
        for name in ("forwarding", "accept_redirects", "route_localnet", "proxy_arp"):
            Path("/proc/sys/net/ipv4/conf/all", name).write_text("1")
        before = Path("/proc/sys/net/ipv4/ip_forward").read_text().strip()
        network.harden()
        names = ("forwarding", "accept_redirects", "route_localnet", "proxy_arp")
        return [before, *(Path("/proc/sys/net/ipv4/conf/all", name).read_text().strip() for name in names)]

    assert attempt(body, uid=ordinary_user.uid).value == ["1", "0", "0", "0", "0"]


def test_listener_names_its_protocol_and_does_not_block(ordinary_user: OrdinaryUser) -> None:
    def body() -> list[object]:
        gate, _ = build()
        network.enter(gate)
        tcp, udp = network.listen(443), network.datagrams(53)
        told = [tcp.proto, udp.proto, tcp.getblocking(), udp.getblocking(), tcp.getsockname(), udp.getsockname()]
        return [*told, tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]

    expected = [socket.IPPROTO_TCP, socket.IPPROTO_UDP, False, False, ["10.213.0.1", 443], ["10.213.0.1", 53], 1]
    assert attempt(body, uid=ordinary_user.uid).value == expected


def test_no_rights_is_a_step_with_its_errno(ordinary_user: OrdinaryUser) -> None:
    def veth() -> None:
        network.connect(os.open("/proc/self/ns/net", os.O_RDONLY))

    got = attempt(veth, uid=ordinary_user.uid)
    assert (got.code, got.errno) == ("berth_veth", 1)
    assert attempt(network.harden, uid=ordinary_user.uid).code == "berth_sysctl"


def test_missing_link_is_told(ordinary_user: OrdinaryUser) -> None:
    def body() -> str:
        own.user_namespace()
        own_network()
        try:
            network.bring_up(INSIDE)
        except JailError as error:
            return error.code
        return ""

    assert attempt(body, uid=ordinary_user.uid).value == "berth_sysctl"  # its conf directory is missing with it
