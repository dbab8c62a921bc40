"""[endpoint.NAME] tables into Endpoint values."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from rules.addresses import FLOOR, METADATA, AddressClass, AddressError, classify, parse_ip, parse_network, unmap
from rules.hosts import HostError, HostPattern
from rules.load_rules import allow_rules, deny_rules
from rules.pack_rules import Packs
from rules.policy import Address, Endpoint, Foreign, Network
from rules.tables import Table, show

KEYS = ("host", "port", "address", "dial_port", "tls", "alpn", "ca", "foreign", "protocol", "allow", "deny")
LATER = ("host_from", "spki", "route", "proxy", "listen")
ALPN = ("http/1.1", "h2")
_DNS_PORT = 53
_WIDEST = {4: 8, 6: 7}  # 10.0.0.0/8 (RFC 1918) and fc00::/7 (RFC 4193) are the widest private ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the loader of one endpoint needs from outside the file."""

    packs: Packs
    base_dir: str


def load_endpoints(tables: Mapping[str, Table], context: Context) -> dict[str, Endpoint]:
    """Return the endpoints; faults go to the tables' report, and a host with a fault has no labels."""
    return {name: _endpoint(name, table, context) for name, table in tables.items()}


def _endpoint(name: str, table: Table, context: Context) -> Endpoint:
    tls = table.flag("tls", default=True)
    port = _port(table, tls=tls)
    _protocol(table)
    networks, pins = _addresses(table)
    ids: set[str] = set()
    allow = allow_rules(table, ids)
    deny = deny_rules(table, ids, context.packs)
    alpn = _alpn(table, tls=tls)
    ca = _ca(table, context.base_dir, tls=tls)
    return Endpoint(
        name=name,
        host=_host(table),
        port=port,
        dial_port=table.number("dial_port", port, low=1, high=65535),
        tls=tls,
        alpn=alpn,
        ca=ca,
        foreign=table.choice("foreign", Foreign, Foreign.STRIP),
        networks=networks,
        pins=pins,
        allow=allow,
        deny=deny,
    )


def _host(table: Table) -> HostPattern:
    text = table.text("host", required=True)
    if text:
        try:
            return HostPattern.parse(text)
        except HostError as fault:
            table.fault("host", fault.detail, fault.hint)
    return HostPattern(text=text, labels=())


def _port(table: Table, *, tls: bool) -> int:
    port = table.number("port", 443 if tls else 80, low=1, high=65535)
    if port == _DNS_PORT:
        table.fault("port", "got 53, where the jail's resolver answers", "use dial_port where the target listens there")
    return port


def _protocol(table: Table) -> None:
    word = table.text("protocol", "http")
    if word == "tcp":
        table.fault("protocol", "not yet: opaque tcp endpoints are not built", 'write protocol = "http"')
    elif word != "http":
        table.fault("protocol", f'got {show(word)}, expected "http"')


def _alpn(table: Table, *, tls: bool) -> tuple[str, ...]:
    if not table.has("alpn"):
        return ("http/1.1",)
    words = table.texts("alpn", empty=False)
    for word in words:
        if word not in ALPN:
            table.fault("alpn", f"got {show(word)}, expected {' or '.join(show(a) for a in ALPN)}")
    if not tls:
        table.fault("alpn", "got it beside tls = false, where nothing negotiates", "take one of them out")
    return words


def _ca(table: Table, base_dir: str, *, tls: bool) -> str:
    path = table.text("ca")
    if not path:
        return ""
    if path.startswith("~"):
        table.fault("ca", f"got {show(path)}", "write the whole path, or one relative to the policy file")
    if not tls:
        table.fault("ca", "got a ca on an endpoint with tls = false", "take one of them out")
    return posixpath.normpath(posixpath.join(base_dir, path))


def _addresses(table: Table) -> tuple[tuple[Network, ...], tuple[Address, ...]]:
    networks: list[Network] = []
    pins: list[Address] = []
    for i, text in enumerate(table.texts("address", empty=False)):
        try:
            value = parse_network(text) if "/" in text else parse_ip(text)
        except AddressError as fault:
            table.report.add(f"{table.at('address')}[{i}]", fault.detail, _address_hint(text) or fault.hint)
            continue
        _check_address(table, f"{table.at('address')}[{i}]", text, value)
        if isinstance(value, IPv4Network | IPv6Network):
            networks.append(value)
        else:
            pins.append(value)
    return tuple(networks), tuple(pins)


def _check_address(table: Table, where: str, text: str, value: Network | Address) -> None:
    if isinstance(value, IPv4Address | IPv6Address):
        closed = f"a {classify(value)} address" if classify(value) in FLOOR else ""
        mapped = unmap(value)
    else:
        closed = "a range of addresses" if _in_floor(value) else ""
        mapped = value.network_address
    if closed:
        table.report.add(where, f"got {text}, {closed} that nothing opens", "take it out")
    elif mapped.version != value.version:
        # Python 3.13 spells these otherwise than 3.12, so neither is the canonical spelling
        table.report.add(where, f"got {text}, an IPv4 address in IPv6 clothes", f'write "{mapped}"')
    elif str(value) != text:
        table.report.add(where, f"got {show(text)}, expected the canonical spelling", f'write "{value}"')
    elif isinstance(value, IPv4Network | IPv6Network) and value.prefixlen < _WIDEST[value.version]:
        table.report.add(
            where, f"got {text}, expected a prefix of at least /{_WIDEST[value.version]}", "name the range"
        )


def _in_floor(network: Network) -> bool:
    """Tell whether a range holds floor addresses alone; in one that holds others too the floor stays shut."""
    if isinstance(network, IPv4Network):
        inside = any(network.subnet_of(row) for row in METADATA if isinstance(row, IPv4Network))
    else:
        inside = any(network.subnet_of(row) for row in METADATA if isinstance(row, IPv6Network))
    first, last = classify(network[0]), classify(network[-1])
    return inside or (first is last and first in FLOOR and first is not AddressClass.METADATA)


def _address_hint(text: str) -> str:
    if "/" not in text:
        return ""
    try:
        return f'write "{ip_network(text, strict=False)}": the bits behind the prefix must be zero'
    except ValueError:
        return ""
