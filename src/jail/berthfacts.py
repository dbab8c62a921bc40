"""What the kernel must show of a berth, compared with what it shows. Pure: the daemon judges by it, without pyroute2.

The values come from `jail.network.facts` (both namespaces) and `jail.firewall` (the ruleset) in the berth's keeper, by
way of `KeeperProcess.facts`.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jail import firewall

type Json = dict[str, Any]

_LOCAL_TABLE = 255
_BUILT_IN_TABLES = {253, 254, 255}  # default, main, local
_LOCAL, _BROADCAST = 2, 3
_TO_TABLE = 1

# ipv4 settings are copied from the host's initial namespace (net.core.devconf_inherit_init_net = 0), so a host that
# routes for containers would hand its forwarding on: each is written, and read back.
IPV4 = {
    "forwarding": "0",
    "accept_redirects": "0",
    "send_redirects": "0",
    "accept_source_route": "0",
    "route_localnet": "0",
    "proxy_arp": "0",
    "rp_filter": "1",
    "arp_ignore": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One end of the veth pair, as seen from its own namespace."""

    link: str
    address: str
    peer: str


GATE = Side(link=firewall.GATE_LINK, address=firewall.GATEWAY, peer=firewall.JAIL)
INSIDE = Side(link="jail0", address=firewall.JAIL, peer=firewall.GATEWAY)


def wrong(facts: Json, ports: Iterable[int]) -> list[str]:
    """Everything in which a berth's facts are not what they must be; empty when it is sound.

    `ports`: the gateway's TCP ports as the caller knows them (`[53, *berth.tcp]`), not as the keeper says.
    Raises JailError, KeyError or TypeError where the facts have another shape.
    """
    return [
        *[f"jail: {line}" for line in differences(INSIDE, facts["jail"])],
        *[f"gate: {line}" for line in differences(GATE, facts["gate"])],
        *[f"nft: {line}" for line in firewall.worded(facts["nft"], ports)],
    ]


def differences(side: Side, got: Json) -> list[str]:
    """Where `facts` is not what a berth's namespace must be; empty when it is. Pure."""
    return [
        *_compare("links up", {link["name"] for link in got["links"] if "up" in link["flags"]}, {"lo", side.link}),
        *_compare(
            "addresses",
            {f"{a['address']}/{a['prefixlen']} {a['link']}" for a in got["addresses"]},
            {"127.0.0.1/8 lo", f"{side.address}/32 {side.link}"},
        ),
        *_compare("routes", set(_spoken(got["routes"])), {f"{side.peer}/32 {side.link} table 254 type 1 scope 253"}),
        *[f"local route: got {r['dst']} {r['link']}" for r in got["routes"] if not _local_is_ours(side, r)],
        *[f"rule: got {rule}" for rule in got["rules"] if not _built_in(rule)],
        *_settings_off(side.link, got["sysctl"]),
    ]


def _compare(what: str, got: set[str], expected: set[str]) -> list[str]:
    return [] if got == expected else [f"{what}: got {sorted(got)}, expected {sorted(expected)}"]


def _spoken(routes: Iterable[Json]) -> list[str]:
    return [
        f"{r['dst']} {r['link']} table {r['table']} type {r['type']} scope {r['scope']}"
        + (f" via {r['gateway']}" if r["gateway"] else "")
        for r in routes
        if r["table"] != _LOCAL_TABLE
    ]


def _local_is_ours(side: Side, route: Json) -> bool:
    if route["table"] != _LOCAL_TABLE:
        return True
    own = {(_LOCAL, dst) for dst in ("127.0.0.0/8", "127.0.0.1/32", f"{side.address}/32")}
    edges = {(_BROADCAST, dst) for dst in ("127.255.255.255/32", "127.0.0.0/32")}  # the second: before Linux 5.14
    return route["family"] == socket.AF_INET and (route["type"], route["dst"]) in own | edges


def _built_in(rule: Json) -> bool:
    return rule["action"] == _TO_TABLE and rule["table"] in _BUILT_IN_TABLES and not rule["selects"]


def _settings_off(link: str, got: Json) -> list[str]:
    expected = expected_settings(link)
    ipv6 = any(got[path] is not None for path in expected if path.startswith("ipv6/"))
    return [
        f"{path}: got {got[path]}, expected {value}"
        for path, value in expected.items()
        if got[path] != value and (ipv6 or not path.startswith("ipv6/"))  # a kernel without IPv6 has no such path
    ]


def expected_settings(link: str) -> dict[str, str]:
    """Paths below /proc/sys/net and the value that each must have."""
    places = ("all", "default", "lo", link)
    ipv4 = {f"ipv4/conf/{place}/{name}": value for place in places for name, value in IPV4.items()}
    ipv6 = {f"ipv6/conf/{place}/disable_ipv6": "1" for place in places}
    return {"ipv4/ip_forward": "0"} | ipv4 | ipv6
