"""Our own reading of rtnetlink says what pyroute2 says, and takes no bytes for what they are not."""

import os
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2 import IPRoute

from jail import netdump
from jail.errors import JailError
from tests.jail import own
from tests.jail.forked import USERS, attempt

_UP = 1


def _link(message: Any, names: dict[int, str]) -> dict[str, Any]:
    name = message.get_attr("IFLA_IFNAME")
    names[message["index"]] = name
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else None
    flags = ["up"] if message["flags"] & _UP else []
    return {"name": name, "kind": kind, "flags": flags, "mtu": message.get_attr("IFLA_MTU")}


def _address(message: Any, names: dict[int, str]) -> dict[str, Any]:
    address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    return {"link": names.get(message["index"], "?"), "address": address, "prefixlen": message["prefixlen"]}


def _route(message: Any, names: dict[int, str]) -> dict[str, Any]:
    via = message.get_attr("RTA_VIA") or message.get_attr("RTA_MULTIPATH") or message.get_attr("RTA_NH_ID")
    return {
        "family": message["family"],
        "table": message.get_attr("RTA_TABLE") or message["table"],
        "type": message["type"],
        "scope": message["scope"],
        "dst": f"{message.get_attr('RTA_DST') or 'default'}/{message['dst_len']}",
        "link": names.get(message.get_attr("RTA_OIF") or 0, "?"),
        "gateway": message.get_attr("RTA_GATEWAY") or (str(via) if via else ""),
    }


def _rule(message: Any) -> dict[str, Any]:
    selectors = ("FRA_SRC", "FRA_DST", "FRA_IIFNAME", "FRA_OIFNAME", "FRA_FWMARK", "FRA_UID_RANGE", "FRA_GOTO")
    return {
        "family": message["family"],
        "table": message.get_attr("FRA_TABLE") or message["table"],
        "priority": message.get_attr("FRA_PRIORITY") or 0,
        "action": message["action"],
        "selects": [name for name in selectors if message.get_attr(name) is not None],
    }


def by_pyroute2() -> dict[str, Any]:
    names = {0: ""}
    with IPRoute() as route:
        links = [_link(message, names) for message in list(route.get_links())]
        return {
            "links": links,
            "addresses": [_address(m, names) for m in list(route.get_addr(family=socket.AF_UNSPEC))],
            "routes": [_route(m, names) for m in list(route.get_routes(family=socket.AF_UNSPEC))],
            "rules": [_rule(m) for m in list(route.get_rules(family=socket.AF_UNSPEC))],
        }


def furnished() -> object:
    """A namespace with a link of each kind of thing that is read, and both readings of it."""
    own.user_namespace()
    os.unshare(os.CLONE_NEWNET)
    with IPRoute() as route:
        route.link("add", ifname="one", kind="veth", peer={"ifname": "other"})
        one, other = (route.link_lookup(ifname=name)[0] for name in ("one", "other"))
        for index in (1, one, other):
            route.link("set", index=index, state="up")
        route.addr("add", index=one, address="192.0.2.1", prefixlen=24)
        route.addr("add", index=one, address="2001:db8::1", prefixlen=64, family=socket.AF_INET6)
        route.route("add", dst="198.51.100.0/24", gateway="192.0.2.7")
        route.route("add", dst="203.0.113.0/24", oif=one, table=1000)
        route.route("add", dst="default", gateway="192.0.2.9")
        route.rule("add", src="192.0.2.0/25", table=1000, priority=77)
        route.rule("add", fwmark=5, table=10, priority=78)
    return [netdump.facts(), by_pyroute2()]


@pytest.mark.needs("userns", "netns")
def test_it_says_what_pyroute2_says() -> None:
    ours, theirs = attempt(furnished, uid=USERS[-1]).value
    assert ours == theirs
    assert {link["name"] for link in ours["links"]} >= {"lo", "one", "other"}
    assert {rule["priority"] for rule in ours["rules"]} >= {0, 77, 78, 32766}
    assert any(route["dst"] == "default/0" and route["gateway"] == "192.0.2.9" for route in ours["routes"])
    assert any(each["address"] == "2001:db8::1" for each in ours["addresses"])


@given(data=st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        for _, _, body in netdump._messages(data):
            netdump._attributes(body)
    except (ValueError, struct.error):
        return


class _Kernel:
    """A socket whose answer is what the test says."""

    def __init__(self, *answers: bytes, flags: int = 0) -> None:
        self._answers, self._flags = list(answers), flags

    def sendall(self, _data: bytes) -> None:
        """Taken."""

    def recvmsg(self, _size: int) -> tuple[bytes, list[object], int, None]:
        return self._answers.pop(0), [], self._flags, None


def message(kind: int, body: bytes = b"", flags: int = 0) -> bytes:
    return netdump._HEADER.pack(netdump._HEADER.size + len(body), kind, flags, 0, 0) + body


@pytest.mark.parametrize(
    "kernel",
    [
        _Kernel(message(2, struct.pack("=i", -1))),
        _Kernel(message(18, bytes(16), flags=0x10), message(3)),
        _Kernel(message(3), flags=socket.MSG_TRUNC),
    ],
)
def test_an_error_an_interruption_or_a_cut_is_no_answer(kernel: Any) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - three numbers
        list(netdump._dump(kernel, 18, netdump._LINK))


def test_a_namespace_that_says_no_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> socket.socket:
        raise OSError(1, "no")

    monkeypatch.setattr("jail.netdump.socket.socket", refuses)
    with pytest.raises(JailError, match="berth_facts"):
        netdump.facts()


def attribute(kind: int, value: bytes) -> bytes:
    return (struct.pack("=HH", 4 + len(value), kind) + value).ljust(4 + (len(value) + 3) // 4 * 4, b"\0")


def named(table: bytes, name: bytes, packets: int, kind: int = 1) -> bytes:
    """What the kernel says of an object of a table: linux/netfilter/nf_tables.h."""
    data = attribute(1, (7).to_bytes(8)) + attribute(2, packets.to_bytes(8))
    has = attribute(1, table + b"\0") + attribute(2, name + b"\0") + attribute(3, kind.to_bytes(4))
    return message(10 << 8 | 18, bytes(4) + has + attribute(4 | 0x8000, data))


def test_counters_are_those_of_the_table_alone() -> None:
    quota = named(b"mine", b"quota", 5, kind=2)
    said = named(b"mine", b"one", 1 << 40) + named(b"other", b"one", 3) + quota + named(b"mine", b"two", 0)
    kernel: Any = _Kernel(said, message(3))
    assert netdump.counters(kernel, "mine") == {"one": 1 << 40, "two": 0}


@pytest.mark.parametrize(
    "said",
    [
        message(2, struct.pack("=i", -1)),
        message(10 << 8 | 18, bytes(4) + attribute(1, b"mine\0")),
        message(10 << 8 | 18, bytes(4) + attribute(1, b"mine\0") + attribute(3, (1).to_bytes(4))),
        b"\x03",
    ],
)
def test_counters_of_another_shape_are_none(said: bytes) -> None:
    kernel: Any = _Kernel(said, message(3))
    with pytest.raises(JailError, match="berth_counters"):
        netdump.counters(kernel, "mine")


def test_counters_are_not_for_whoever_has_no_right_over_the_namespace() -> None:
    """The control of what the keeper reads: it made the namespace."""
    assert (
        attempt(lambda: netdump.counters(netdump.firewall_socket(), "credgate"), uid=USERS[-1]).code == "berth_counters"
    )
