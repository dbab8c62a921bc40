"""Invariant: what the kernel holds is the ruleset that was decided, or there is an error. No host is touched."""

import contextlib
import copy
import importlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from jail import firewall, netchange, netdump
from jail.errors import JailError, Unsupported
from jail.keeper import GONE
from rules.addresses import AddressClass, classify
from tests.conftest import OrdinaryUser
from tests.features import PATH, find
from tests.jail import own
from tests.jail.forked import attempt

PORTS = [53, 80, 443, 3128]
type Json = dict[str, Any]
type Listing = list[Json]


def absent(name: str) -> Any:
    raise ImportError(name)


def nft(name: str) -> str | None:
    return find(name)


def listed() -> Listing:
    """The ruleset as a kernel lists it: with handles, and a head."""
    body = copy.deepcopy(firewall.ruleset(PORTS))
    for handle, entry in enumerate(body):
        for fields in entry.values():
            fields["handle"] = handle
    for entry in body:
        if "counter" in entry:
            entry["counter"] |= {"packets": 3, "bytes": 180}
    return [{"metainfo": {"version": "1"}}, *body]


def test_every_chain_drops_by_default_and_every_hook_of_a_packet_has_one() -> None:
    chains = {e["chain"]["hook"]: e["chain"]["policy"] for e in firewall.ruleset(PORTS) if "chain" in e}
    assert chains == dict.fromkeys(["prerouting", "input", "forward", "output"], "drop")


def test_only_the_named_things_are_accepted() -> None:
    rules = [e["rule"] for e in firewall.ruleset(PORTS) if "rule" in e]
    rules = [rule for rule in rules if rule["chain"] != "prerouting" and {"accept": None} in rule["expr"]]
    accepting = [json.dumps(rule["expr"][:-1]) for rule in rules]
    assert len(accepting) == 4
    assert sum('"established", "related"' in text for text in accepting) == 2
    assert sum("@gateway_ports" in text and "gw0" in text for text in accepting) == 1
    assert sum('"udp"' in text and "gw0" in text for text in accepting) == 1


def test_listing_of_the_same_ruleset_has_no_difference() -> None:
    assert firewall.differences(listed(), [3128, 443, 80, 53, 53]) == []


def drop_rule(listing: Listing) -> None:
    listing.pop()


def change_policy(listing: Listing) -> None:
    next(e for e in listing if "chain" in e and e["chain"]["name"] == "forward")["chain"]["policy"] = "accept"


def add_port(listing: Listing) -> None:
    next(e for e in listing if "set" in e and e["set"]["name"] == firewall.PORTS)["set"]["elem"].append(22)


def add_table(listing: Listing) -> None:
    listing.append({"table": {"family": "ip", "name": "nat"}})


def add_accept(listing: Listing) -> None:
    listing.append({"rule": {"family": "inet", "table": "credgate", "chain": "forward", "expr": [{"accept": None}]}})


def swap(listing: Listing) -> None:
    listing[-1], listing[-2] = listing[-2], listing[-1]


def twice(listing: Listing) -> None:
    listing.append(listing[-1])


@pytest.mark.parametrize("edit", [drop_rule, change_policy, add_port, add_table, add_accept, swap, twice, list.clear])
def test_any_edit_is_a_difference(edit: Callable[[Listing], None]) -> None:
    listing = listed()
    edit(listing)
    assert firewall.differences(listing, PORTS)


def counters(listing: Listing) -> dict[str, int]:
    """Packets by name, as libnftables lists them."""
    found = {e["counter"]["name"]: int(e["counter"]["packets"]) for e in listing if "counter" in e}
    return {name: found[name] for name in firewall.COUNTERS}


def test_a_listing_as_text_is_judged_as_the_listing() -> None:
    listing = listed()
    assert firewall.worded(json.dumps(listing), PORTS) == []
    drop_rule(listing)
    assert firewall.worded(json.dumps(listing), PORTS) == firewall.differences(listing, PORTS) != []
    for broken in ("", "{", '"nft"'):
        with pytest.raises((JailError, TypeError, AttributeError)):
            firewall.worded(broken, PORTS)


def test_counters_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
    assert [name for name in firewall.COUNTERS if f"`{name}`" not in text] == []


def test_codes_are_documented() -> None:
    root = Path(__file__).parents[2]
    sources = "".join(path.read_text() for path in (root / "src" / "jail").glob("*.py"))
    made = r'(?:JailError|Unsupported|_closed)\(\s*"((?:berth|keeper|nftables|ports)_\w+)"'
    codes = {*re.findall(made, sources), *(f"berth_{step}" for step in re.findall(r'_ask\("(\w+)"', sources)), GONE}
    listed = (root / "docs" / "network.md").read_text().split("| code |")[1]
    assert len(codes) > 20 and codes == set(re.findall(r"`((?:berth|keeper|nftables|ports)_\w+)`", listed))


def test_ranges_agree_with_the_rules_of_the_gateway() -> None:
    metadata = [IPv4Network(text) for text in firewall.METADATA]
    closed = [IPv4Network(text) for text in firewall.CLOSED]
    assert {classify(net[0]) for net in metadata} == {AddressClass.METADATA}
    assert AddressClass.PUBLIC not in {classify(net[i]) for net in closed for i in (0, -1)}
    # Just outside each range the gateway's table has to see something else, or the other range that begins there.
    for net in closed:
        for number in (int(net[0]) - 1, int(net[-1]) + 1):
            if 0 <= number < 1 << 32:
                address = IPv4Address(number)
                inside = any(address in other for other in [*closed, *metadata])
                assert (classify(address) is AddressClass.PUBLIC) is not inside, address


def test_no_binding_and_no_program_is_unsupported_with_the_package() -> None:
    with pytest.raises(Unsupported) as caught:
        firewall.find(absent, lambda _: None)
    assert caught.value.code == "nftables_missing"
    assert "install nftables" in caught.value.hint


def test_binding_without_its_library_falls_to_the_program() -> None:
    class Broken:
        @staticmethod
        def Nftables() -> None:
            raise OSError("libnftables.so.1: cannot open shared object file")

    with pytest.raises(Unsupported):
        firewall.find(lambda _: Broken, lambda _: None)
    assert callable(firewall.find(lambda _: Broken, lambda _: "/usr/sbin/nft"))


def binding(name: str) -> Any:
    return importlib.import_module(name)


WAYS = {"binding": (binding, lambda _: None), "program": (absent, nft)}


def backend(way: str) -> firewall.Backend:
    """Open a way to nf_tables in a user and network namespace of this process's own."""
    own.user_namespace()
    os.unshare(os.CLONE_NEWNET)
    return firewall.find(*WAYS[way])()


def need_way(way: str) -> None:
    if way == "program" and shutil.which("nft", path=PATH) is None:
        pytest.skip("nft is not installed")
    if way == "binding" and importlib.util.find_spec("nftables") is None:
        pytest.skip("the nftables binding is not installed")


@pytest.mark.needs("nftables")
@pytest.mark.parametrize("way", WAYS)
def test_kernel_gives_back_what_was_applied(way: str, ordinary_user: OrdinaryUser) -> None:
    need_way(way)

    def body() -> list[object]:
        nf = backend(way)
        empty = firewall.differences(nf.listing(), PORTS)
        firewall.apply(nf, PORTS)
        applied = firewall.differences(nf.listing(), PORTS)
        firewall.allow(nf, [8443, 22])
        return [
            bool(empty),
            applied,
            firewall.differences(nf.listing(), [*PORTS, 22, 8443]),
            len(firewall.differences(nf.listing(), PORTS)),
            sum(counters(nf.listing()).values()),
        ]

    assert attempt(body, uid=ordinary_user.uid).value == [True, [], [], 2, 0]


@pytest.mark.needs("nftables")
def test_counters_asked_of_the_kernel_are_those_of_the_listing(ordinary_user: OrdinaryUser) -> None:
    def body() -> list[object]:
        nf = backend("binding" if importlib.util.find_spec("nftables") else "program")
        asking = netdump.firewall_socket()
        try:
            firewall.counted(asking)
        except JailError as error:
            nothing = error.code
        firewall.apply(nf, PORTS)
        other = {"family": "inet", "table": "other", "name": "leaving", "packets": 99, "bytes": 0}
        nf.run([{"add": {"table": {"family": "inet", "name": "other"}}}, {"add": {"counter": other}}])
        netchange.set_up(1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(3):
                with contextlib.suppress(PermissionError):  # dropped on its way out, and counted
                    sock.sendto(b"x", ("127.0.0.1", 9))
        listed = [entry for entry in nf.listing() if entry.get("counter", {}).get("table") != "other"]
        return [nothing, firewall.counted(asking), counters(listed)]

    expected = dict.fromkeys(firewall.COUNTERS, 0) | {"leaving": 3}
    assert attempt(body, uid=ordinary_user.uid).value == ["berth_firewall", expected, expected]


class Counting:
    """A way to the kernel that knows how often it worded a ruleset."""

    def __init__(self) -> None:
        self.within = backend("binding" if importlib.util.find_spec("nftables") else "program")
        self.worded = 0

    def listing(self) -> Listing:
        self.worded += 1
        return self.within.listing()


def element(name: str, value: object) -> Json:
    return {"element": {"family": "inet", "table": firewall.TABLE, "name": name, "elem": [value]}}


FORWARD = {"family": "inet", "table": firewall.TABLE, "chain": "forward"}
CHANGES: dict[str, list[Json]] = {
    "a rule more": [{"add": {"rule": {**FORWARD, "expr": [{"accept": None}]}}}],
    "a port more": [{"add": element(firewall.PORTS, 8443)}],
    "a range less": [{"delete": element("closed_ranges", {"prefix": {"addr": "10.0.0.0", "len": 8}})}],
    "a policy": [{"add": {"chain": {**firewall._chain("forward", 0)["chain"], "policy": "accept"}}}],
    "a table more": [{"add": {"table": {"family": "ip", "name": "other"}}}],
    "a chain's rules": [{"flush": {"chain": {"family": "inet", "table": firewall.TABLE, "name": "input"}}}],
    "everything": [{"flush": {"ruleset": None}}],
}  # fmt: skip


@pytest.mark.needs("nftables")
def test_a_ruleset_is_worded_once_and_again_after_any_change(ordinary_user: OrdinaryUser) -> None:
    """By what the kernel shows: packets that are counted change nothing, whatever else changes is read anew."""

    def body() -> list[object]:
        wording, way, said = firewall.Wording(), Counting(), []
        for name, commands in CHANGES.items():
            way.within = backend("binding" if importlib.util.find_spec("nftables") else "program")
            firewall.apply(way.within, PORTS)
            netchange.set_up(1)
            before = [firewall.worded(wording.text(lambda: way), PORTS), way.worded]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(PermissionError):
                sock.sendto(b"x", ("127.0.0.1", 9))
            before += [
                firewall.counted(netdump.firewall_socket())["leaving"],
                firewall.worded(wording.text(lambda: way), PORTS),
                way.worded,
            ]
            way.within.run(commands)
            said.append([name, before, bool(firewall.worded(wording.text(lambda: way), PORTS)), way.worded])
        return said

    assert attempt(body, uid=ordinary_user.uid).value == [
        [name, [[], number, 1, [], number], True, number + 1] for number, name in enumerate(CHANGES, 1)
    ]


@pytest.mark.needs("nftables")
@pytest.mark.parametrize("way", WAYS)
def test_refused_command_is_an_error_and_leaves_nothing(way: str, ordinary_user: OrdinaryUser) -> None:
    need_way(way)

    def body() -> list[object]:
        nf = backend(way)
        rule = {"family": "inet", "table": "credgate", "chain": "nowhere", "expr": [{"drop": None}]}
        commands: Listing = [{"add": {"table": {"family": "inet", "name": "credgate"}}}, {"add": {"rule": rule}}]
        try:
            nf.run(commands)
        except JailError as error:
            return [error.code, [list(entry) for entry in nf.listing()]]
        return []

    assert attempt(body, uid=ordinary_user.uid).value == ["berth_firewall", [["metainfo"]]]


@pytest.mark.needs("nftables")
@pytest.mark.parametrize("way", WAYS)
def test_outside_a_namespace_of_ones_own_nothing_is_applied(way: str, ordinary_user: OrdinaryUser) -> None:
    """The control: an ordinary user has no rights over the host's firewall, and hears of it."""
    need_way(way)

    def body() -> object:
        firewall.apply(firewall.find(*WAYS[way])(), PORTS)
        return "applied"

    assert attempt(body, uid=ordinary_user.uid).code == "berth_firewall"
