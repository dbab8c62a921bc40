"""nftables of the gate namespace: the ruleset as a pure value, the way into the kernel, and the way back out.

`ruleset()` decides, a backend carries, `read()` asks the kernel, `differences()` compares. Everything arrives on gw0,
so the first judgement is made in prerouting: there a packet for a foreign address still exists (routing drops it
right after, forwarding being off) and can be counted by name.
"""

import ctypes
import importlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Protocol

from jail import netdump
from jail.errors import JailError, Unsupported

type Json = dict[str, Any]

TABLE = "credgate"
GATEWAY = "10.213.0.1"
JAIL = "10.213.0.2"
GATE_LINK = "gw0"
PORTS = "gateway_ports"  # set of TCP ports; claims add to it

# Where clouds hand credentials to whoever asks (vendors' documentation). All lie in a closed prefix too, but Azure's.
METADATA = (
    "100.100.2.136/32",  # Alibaba
    "100.100.2.138/32",
    "100.100.100.200/32",
    "168.63.129.16/32",  # Azure WireServer, in public space
    "169.254.0.23/32",  # Tencent
    "169.254.42.42/32",  # Scaleway
    "169.254.169.0/24",  # AWS, GCP, Azure, Oracle, OpenStack and most others
    "169.254.170.0/24",  # AWS ECS and EKS
    "192.0.0.192/32",  # Oracle classic
)
# IANA IPv4 special-purpose registry, and multicast, which has a registry of its own. No two overlap: nft would merge.
CLOSED = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",  # multicast and 240.0.0.0/4
)
# What each counter counts; docs/network.md lists them (a test compares).
COUNTERS = (
    "metadata",  # to a cloud metadata address
    "private",  # to any other address of a closed range
    "foreign",  # to any other address that is not the gateway's
    "ipv6",
    "spoofed",  # not from the jail's address, or not in by the veth
    "accepted",  # new flows to the gateway's ports
    "refused",  # to the gateway, anything else: other ports, ICMP, UDP-Lite, SCTP and every other protocol
    "invalid",  # conntrack can make nothing of it
    "forwarded",
    "leaving",  # sent by the gate namespace of its own accord
)


def ruleset(ports: Iterable[int]) -> list[Json]:
    """The whole ruleset as commands of libnftables-json(5), spelled as the kernel's listing comes back."""
    return [
        {"table": {"family": "inet", "name": TABLE}},
        *({"counter": {"family": "inet", "table": TABLE, "name": name}} for name in COUNTERS),
        _set("metadata_addresses", "ipv4_addr", [_prefix(text) for text in METADATA], interval=True),
        _set("closed_ranges", "ipv4_addr", [_prefix(text) for text in CLOSED], interval=True),
        _set(PORTS, "inet_service", sorted(set(ports))),
        _chain("prerouting", -150),  # after conntrack (-200), so that a refusal's answer is "related" on its way out
        _chain("input", 0),
        _chain("forward", 0),
        _chain("output", 0),
        *_prerouting(),
        *_input(),
        _rule("forward", _count("forwarded"), _DROP),
        _rule("output", _match({"ct": {"key": "state"}}, ["established", "related"], "in"), _ACCEPT),
        _rule("output", _count("leaving"), _DROP),
    ]


def _prerouting() -> list[Json]:
    daddr = _payload("ip", "daddr")
    return [
        _rule("prerouting", _match({"meta": {"key": "iifname"}}, "lo"), _ACCEPT),
        _rule("prerouting", _match({"meta": {"key": "nfproto"}}, "ipv6"), _count("ipv6"), _DROP),
        _rule("prerouting", _match({"meta": {"key": "iifname"}}, GATE_LINK, "!="), _count("spoofed"), _DROP),
        _rule("prerouting", _match(_payload("ip", "saddr"), JAIL, "!="), _count("spoofed"), _DROP),
        _rule("prerouting", _match(daddr, GATEWAY), _ACCEPT),
        *_refuse("prerouting", "metadata", _match(daddr, "@metadata_addresses")),
        *_refuse("prerouting", "private", _match(daddr, "@closed_ranges")),
        *_refuse("prerouting", "foreign"),
    ]


def _input() -> list[Json]:
    new = _match({"ct": {"key": "state"}}, "new", "in")
    return [
        _rule("input", _match({"ct": {"key": "state"}}, ["established", "related"], "in"), _ACCEPT),
        # A reset for an out-of-window segment would let a stray packet end a good connection.
        _rule("input", _match({"ct": {"key": "state"}}, "invalid", "in"), _count("invalid"), _DROP),
        _rule("input", _from_gate(), new, _match(_payload("tcp", "dport"), f"@{PORTS}"), _count("accepted"), _ACCEPT),
        _rule("input", _from_gate(), new, _match(_payload("udp", "dport"), 53), _count("accepted"), _ACCEPT),
        *_refuse("input", "refused"),
    ]


def _from_gate() -> Json:
    return _match({"meta": {"key": "iifname"}}, GATE_LINK)


def _refuse(chain: str, counter: str, *matches: Json) -> list[Json]:
    """Count, then reset TCP (a wrong port fails at once) and answer any other protocol with port unreachable."""
    tcp = _match({"meta": {"key": "l4proto"}}, "tcp")
    return [
        _rule(chain, *matches, tcp, _count(counter), {"reject": {"type": "tcp reset"}}),
        _rule(chain, *matches, _count(counter), {"reject": {"type": "icmpx", "expr": "port-unreachable"}}),
    ]


_ACCEPT: Json = {"accept": None}
_DROP: Json = {"drop": None}


def _count(name: str) -> Json:
    return {"counter": name}


def _payload(protocol: str, field: str) -> Json:
    return {"payload": {"protocol": protocol, "field": field}}


def _match(left: Json, right: object, op: str = "==") -> Json:
    return {"match": {"op": op, "left": left, "right": right}}


def _rule(chain: str, *expr: Json) -> Json:
    return {"rule": {"family": "inet", "table": TABLE, "chain": chain, "expr": list(expr)}}


def _prefix(text: str) -> Json | str:
    address, _, length = text.partition("/")
    return {"prefix": {"addr": address, "len": int(length)}} if length != "32" else address  # as it is listed


def _chain(hook: str, prio: int) -> Json:
    chain: Json = {"family": "inet", "table": TABLE, "name": hook, "type": "filter", "hook": hook, "prio": prio}
    return {"chain": chain | {"policy": "drop"}}


def _set(name: str, kind: str, elem: list[Any], *, interval: bool = False) -> Json:
    body: Json = {"family": "inet", "name": name, "table": TABLE, "type": kind}
    return {"set": body | ({"flags": ["interval"]} if interval else {}) | {"elem": elem}}


class Backend(Protocol):
    """A way to the kernel's nf_tables; opened and used while the process is in the namespace that it is for."""

    def run(self, commands: list[Json]) -> None:
        """Apply all commands in one transaction, or none; raises JailError."""

    def listing(self) -> list[Json]:
        """The kernel's whole ruleset, every table; raises JailError."""


type Open = Callable[[], Backend]


class _Library:
    """libnftables through its Python binding."""

    def __init__(self, module: Any) -> None:
        self._nft = module.Nftables()
        self._nft.set_json_output(True)

    def run(self, commands: list[Json]) -> None:
        code, _, error = self._nft.json_cmd({"nftables": commands})
        _check(code, error)

    def listing(self) -> list[Json]:
        code, output, error = self._nft.cmd("list ruleset")
        _check(code, error)
        return _parse(output)


class _Binary:
    """`nft -j -f -`. An exec by an ordinary uid drops capabilities, so the one it needs is lent as ambient."""

    def __init__(self, path: str) -> None:
        self._path = path
        _lend_net_admin()

    def run(self, commands: list[Json]) -> None:
        self._nft(["-f", "-"], json.dumps({"nftables": commands}))

    def listing(self) -> list[Json]:
        return _parse(self._nft(["list", "ruleset"]))

    def _nft(self, arguments: list[str], stdin: str = "") -> str:
        command = [self._path, "-j", *arguments]
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, check=False, timeout=10, env={}, cwd="/"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JailError("berth_firewall", f"{self._path}: {error}") from error
        _check(done.returncode, done.stderr)
        return done.stdout


def find(
    load: Callable[[str], Any] = importlib.import_module, which: Callable[[str], str | None] = shutil.which
) -> Open:
    """Find the way to nf_tables that this host has: the binding with its library, else the program on PATH.

    The binding is GPL-2 and no dependency of ours: it is used where it is installed. Returns what opens a Backend in
    the calling process's network namespace. Raises Unsupported where there is neither.
    """
    try:
        module = load("nftables")
        module.Nftables()  # finds libnftables.so.1, or raises OSError
    except (ImportError, OSError):
        path = which("nft")
        if path is None:
            raise Unsupported(
                "nftables_missing",
                "got neither the nftables python binding with libnftables nor the program nft, expected one of them",
                "as root: apt-get install nftables (or dnf install nftables)",
            ) from None
        return lambda: _Binary(path)
    return lambda: _Library(module)


def apply(backend: Backend, ports: Iterable[int]) -> None:
    """Put the ruleset into an empty gate namespace in one transaction; raises JailError."""
    backend.run([{"add": command} for command in ruleset(ports)])


def allow(backend: Backend, ports: Iterable[int]) -> None:
    """Accept more TCP ports of the gateway; raises JailError."""
    body = {"family": "inet", "table": TABLE, "name": PORTS, "elem": sorted(set(ports))}
    backend.run([{"add": {"element": body}}])


class Wording:
    """Listings of rulesets, each worded once for the same bytes of the kernel's.

    The berths of one host have the same, to the byte: libnftables takes 3 ms of CPU to read one into words, at each
    run's read-back, and the kernel 0.1 to show it.
    """

    MOST = 8  # kept; each set of ports is another

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def text(self, open_firewall: Open) -> str:
        """The listing of the namespace that this process is in, as JSON, with counts of any time. Raises JailError."""
        shown = netdump.ruleset()
        found = self._known.get(shown)
        if found is None:
            found = json.dumps(open_firewall().listing(), separators=(",", ":"))
            if netdump.ruleset() == shown:  # else it was changed meanwhile, and these words are of neither
                if len(self._known) >= self.MOST:
                    self._known.clear()
                self._known[shown] = found
        return found


def worded(text: str, ports: Iterable[int]) -> list[str]:
    """Differences of a listing as JSON. Pure; raises JailError for another shape."""
    return _differences(_normal_of(text), ports)


def differences(listing: list[Json], ports: Iterable[int]) -> list[str]:
    """What the kernel has and should not have, and the other way round; empty when it is as planned. Pure."""
    return _differences(_normal(listing), ports)


@lru_cache(maxsize=4)
def _normal_of(text: str) -> list[str]:
    return _normal(_parse(f'{{"nftables":{text}}}'))


def _differences(got: list[str], ports: Iterable[int]) -> list[str]:
    expected = _planned(frozenset(ports))
    lost = [f"missing: {line}" for line in expected if line not in got]
    found = [f"unexpected: {line}" for line in got if line not in expected]
    return lost + found or (["rules in another order, or twice"] if tuple(got) != expected else [])


@lru_cache(maxsize=16)
def _planned(ports: frozenset[int]) -> tuple[str, ...]:
    return tuple(_normal(ruleset(ports)))


def counted(sock: socket.socket) -> dict[str, int]:
    """Packets by counter name, of the namespace that a `netdump.firewall_socket` is of. Raises JailError."""
    found = netdump.counters(sock, TABLE)
    try:
        return {name: found[name] for name in COUNTERS}
    except KeyError as error:
        raise JailError("berth_firewall", f"the kernel shows no counter {error}") from error


def _normal(listing: list[Json]) -> list[str]:
    """One line an entry, without what the kernel adds; order is kept among rules, where alone it has a meaning."""
    lines: list[tuple[bool, str]] = []
    for entry in listing:
        for kind, body in entry.items():
            if kind == "metainfo":
                continue
            kept = {k: v for k, v in body.items() if k not in {"handle", "packets", "bytes"}}
            if "elem" in kept:
                kept["elem"] = sorted(kept["elem"], key=json.dumps)
            lines.append((kind == "rule", json.dumps({kind: kept}, sort_keys=True)))
    return sorted(line for rule, line in lines if not rule) + [line for rule, line in lines if rule]


def _parse(output: str) -> list[Json]:
    try:
        listing: list[Json] = json.loads(output)["nftables"]
    except (ValueError, KeyError, TypeError) as error:
        raise JailError("berth_firewall", f"the ruleset can't be read back: {error!r}") from error
    return listing


def _check(code: int, error: str) -> None:
    # libnftables reports through its return code alone; a rule set that failed is a berth without a firewall.
    if code != 0:
        line = (error.strip() or f"return code {code}").splitlines()[0]
        hint = "the kernel needs nf_tables (modprobe nf_tables nft_reject_inet nft_ct), nft needs json support"
        raise Unsupported("berth_firewall", f"nftables: {line}", hint)


_CAPABILITY_VERSION_3 = 0x20080522
_NET_ADMIN = 12
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2


def _lend_net_admin() -> None:
    """Put CAP_NET_ADMIN, held over our own user namespace only, into the inheritable and the ambient set."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their upper halves
    failed = libc.capget(header, sets)
    sets[2] |= 1 << _NET_ADMIN
    failed = failed or libc.capset(header, sets)
    failed = failed or libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _NET_ADMIN, 0, 0)
    if failed:
        number = ctypes.get_errno()
        raise JailError("berth_firewall", f"lending CAP_NET_ADMIN to nft: {os.strerror(number)}", "", number)
