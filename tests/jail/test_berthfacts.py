"""Invariant: facts that differ from a sound berth's in any one value are told."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from jail import berthfacts, firewall
from jail.berthfacts import GATE, INSIDE, Json, Side

PORTS = [53, 80, 443, 3128]


def route(dst: str, link: str, table: int = 254, kind: int = 1, **more: object) -> Json:
    scope = 253 if kind != 2 else 254
    return {"family": 2, "table": table, "type": kind, "scope": scope, "dst": dst, "link": link, "gateway": ""} | more


def namespace(side: Side) -> Json:
    local = [f"{side.address}/32", "127.0.0.0/8", "127.0.0.1/32"]
    return {
        "links": [{"name": name, "kind": "veth", "flags": ["up"], "mtu": 1500} for name in ("lo", side.link)],
        "addresses": [
            {"link": "lo", "address": "127.0.0.1", "prefixlen": 8},
            {"link": side.link, "address": side.address, "prefixlen": 32},
        ],
        "routes": [
            route(f"{side.peer}/32", side.link),
            *(route(dst, "lo", 255, 2) for dst in local),
            route("127.255.255.255/32", "lo", 255, 3),
        ],
        "rules": [
            {"family": family, "table": table, "priority": 0, "action": 1, "selects": []}
            for family, table in ((2, 255), (2, 254), (2, 253), (10, 255), (10, 254), (128, 253))
        ],
        "sysctl": berthfacts.expected_settings(side.link),
    }


def sound() -> Json:
    nft = json.dumps(firewall.ruleset(PORTS))
    return {"jail": namespace(INSIDE), "gate": namespace(GATE), "nft": nft, "ports": PORTS}


def no_ipv6(facts: Json) -> None:
    for side in ("jail", "gate"):
        settings = facts[side]["sysctl"]
        settings |= {path: None for path in settings if path.startswith("ipv6/")}


def fallback_tunnel(facts: Json) -> None:
    facts["jail"]["links"].append({"name": "tunl0", "kind": "ipip", "flags": [], "mtu": 1480})


def old_broadcast(facts: Json) -> None:
    facts["jail"]["routes"].append(route("127.0.0.0/32", "lo", 255, 3))


@pytest.mark.parametrize("edit", [lambda facts: None, no_ipv6, fallback_tunnel, old_broadcast])
def test_what_other_kernels_show_of_a_sound_berth_is_sound(edit: Callable[[Json], None]) -> None:
    facts = sound()
    edit(facts)
    assert berthfacts.wrong(facts, reversed(PORTS)) == []


EDITS: dict[str, Callable[[Json], object]] = {
    "no route": lambda s: s["routes"].pop(0),
    "second route": lambda s: s["routes"].append(route("0.0.0.0/0", "lo")),
    "route by a gateway": lambda s: s["routes"][0].update(gateway="10.213.0.9"),
    "route of another scope": lambda s: s["routes"][0].update(scope=0),
    "blackhole instead": lambda s: s["routes"][0].update(type=6),
    "local route of ipv6": lambda s: s["routes"].append(route("::1/128", "lo", 255, 2, family=10)),
    "local route of more": lambda s: s["routes"].append(route("0.0.0.0/0", "lo", 255, 2)),
    "link gone": lambda s: s["links"].pop(),
    "link more": lambda s: s["links"].append({"name": "eth0", "kind": None, "flags": ["up"], "mtu": 1500}),
    "link down": lambda s: s["links"][1].update(flags=[]),
    "ipv6 address": lambda s: s["addresses"].append({"link": "lo", "address": "::1", "prefixlen": 128}),
    "wide address": lambda s: s["addresses"][1].update(prefixlen=24),
    "rule with a selector": lambda s: s["rules"][0].update(selects=["FRA_SRC"]),
    "rule to another table": lambda s: s["rules"][0].update(table=7),
    "rule that jumps": lambda s: s["rules"][0].update(action=2),
}


@pytest.mark.parametrize("side", ["jail", "gate"])
@pytest.mark.parametrize("name", EDITS)
def test_one_edit_is_told_with_its_side(name: str, side: str) -> None:
    facts = sound()
    EDITS[name](facts[side])
    found = berthfacts.wrong(facts, PORTS)
    assert len(found) == 1
    assert found[0].startswith(f"{side}: ")


@pytest.mark.parametrize("side", [INSIDE, GATE])
@pytest.mark.parametrize("value", ["", "7", None])
def test_each_setting_counts(side: Side, value: str | None) -> None:
    for path in berthfacts.expected_settings(side.link):
        facts = namespace(side)
        facts["sysctl"] = facts["sysctl"] | {path: value}
        assert berthfacts.differences(side, facts) == [
            f"{path}: got {value}, expected {berthfacts.expected_settings(side.link)[path]}"
        ]


def test_ports_are_the_callers_word_not_the_holders() -> None:
    facts = sound()
    assert len(berthfacts.wrong(facts, [53, 80, 443])) == 2
    assert len(berthfacts.wrong(facts | {"ports": [53]}, PORTS)) == 0


def test_facts_of_another_shape_are_an_error() -> None:
    with pytest.raises(KeyError):
        berthfacts.wrong({}, PORTS)


def test_the_daemon_compares_without_pyroute2() -> None:
    code = "import sys, jail.berthfacts, jail.keeper_client; sys.exit('pyroute2' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0
