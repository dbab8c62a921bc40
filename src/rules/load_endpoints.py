"""[endpoint.NAME] tables into Endpoint values."""

import base64
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from rules.addresses import FLOOR, METADATA, AddressClass, AddressError, classify, parse_ip, parse_network, unmap
from rules.correlate import DEFAULT, Correlate
from rules.fingerprint import Fingerprint
from rules.hosts import HostError, HostPattern
from rules.load_registries import Registries, spread
from rules.load_rules import pack_name, rules_of
from rules.pack_rules import Packs, read_pack
from rules.policy import Address, CorporateProxy, Endpoint, Foreign, Network
from rules.tables import Table, closest, is_name, join, show

KEYS = (
    *("host", "port", "address", "dial_port", "tls", "alpn", "ca", "foreign", "protocol", "allow", "deny"),
    *("spki", "proxy", "listen", "correlate", "fingerprint", "digest", "pack", "host_from", "route"),
)
LATER: tuple[str, ...] = ()
ALPN = ("http/1.1", "h2")
_DNS_PORT = 53
_TAKEN = frozenset({_DNS_PORT, 80, 443})
_NOT_OPAQUE = (
    *("tls", "alpn", "ca", "spki", "proxy", "dial_port", "foreign", "allow", "deny"),
    *("correlate", "fingerprint", "digest", "pack", "route"),
)
_OF_TARGETS = (
    *("address", "dial_port", "ca", "spki", "proxy", "foreign", "host_from"),
    *("correlate", "fingerprint", "digest"),
)
_SHA256 = 32
_WIDEST = {4: 8, 6: 7}  # 10.0.0.0/8 (RFC 1918) and fc00::/7 (RFC 4193) are the widest private ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the loaders need from outside the file. `agents`: shipped profiles by name."""

    packs: Packs
    base_dir: str
    proxies: Mapping[str, CorporateProxy]
    registries: Registries
    agents: Mapping[str, str]


def load_endpoints(tables: Mapping[str, Table], context: Context) -> dict[str, Endpoint]:
    """Return the endpoints; faults go to the tables' report, and a host with a fault has no labels."""
    out: dict[str, Endpoint] = {}
    for name, table in tables.items():
        for endpoint in spread(_endpoint(name, table, context), table, context.registries):
            out[endpoint.name] = endpoint
    return out


def _endpoint(name: str, table: Table, context: Context) -> Endpoint:
    tls = table.flag("tls", default=True)
    listen = _listen(table)
    port = _port(table, listen or (443 if tls else 80))
    networks, pins = load_addresses(table)
    pack = pack_name(table, context.packs) if table.has("pack") else ""
    allow, deny = rules_of(table, context.packs, pack=pack)
    alpn = _alpn(table, tls=tls)
    ca = load_ca(table, context.base_dir, tls=tls)
    return Endpoint(
        name=name,
        host=_host(table, read_pack(pack, context.packs[pack]).host if pack else "", exact=bool(listen)),
        port=port,
        dial_port=table.number("dial_port", port, low=1, high=65535),
        tls=tls,
        alpn=alpn,
        ca=ca,
        foreign=table.choice("foreign", Foreign, Foreign.STRIP),
        networks=networks,
        pins=pins,
        spki=_spki(table, tls=tls),
        proxy=_proxy(table, context.proxies, tls=tls),
        listen=listen,
        correlate=_correlate(table),
        fingerprint=table.choice("fingerprint", Fingerprint, Fingerprint.HMAC) if table.has("fingerprint") else None,
        digest=table.flag("digest", default=False),
        allow=allow,
        deny=deny,
        route=_route(table),
    )


def _host(table: Table, packed: str, *, exact: bool) -> HostPattern:
    """Read the host, or take the pack's where none is written. With host_from there is none yet."""
    text = table.text("host", packed, required=not packed and not table.has("host_from"))
    if text:
        try:
            host = HostPattern.parse(text)
            if exact and not host.exact:
                table.fault("host", f"got {show(text)}, and opaque bytes name no host", "name the one that is dialled")
            return host
        except HostError as fault:
            table.fault("host", fault.detail, fault.hint)
    return HostPattern(text=text, labels=())


def _route(table: Table) -> tuple[tuple[str, str], ...]:
    """Read `route`: the words that roles choose by, and the endpoint behind each. How to dial is the targets' own."""
    if not table.has("route"):
        return ()
    for key in _OF_TARGETS:
        if table.has(key):
            table.fault(key, "got it beside route, whose targets say it each for itself", "write it there")
    found: list[tuple[str, str]] = []
    for word, name in table.mapping("route"):
        where = join(table.at("route"), word)
        if not is_name(word):
            table.report.add(where, f"got the word {show(word)}, expected letters, digits, - and _ (at most 64)")
        elif not isinstance(name, str):
            table.report.add(where, f"got {show(name)}, expected the name of an endpoint")
        else:
            found.append((word, name))
    if not found:
        table.fault("route", "leads nowhere", 'as in { default = "llm-cloud", sensitive = "llm-local" }')
    return tuple(found)


def _port(table: Table, default: int) -> int:
    port = table.number("port", default, low=1, high=65535)
    if port == _DNS_PORT:
        table.fault("port", "got 53, where the jail's resolver answers", "use dial_port where the target listens there")
    return port


def _listen(table: Table) -> int:
    """The port of an opaque endpoint; 0 for one that speaks HTTP."""
    word = table.text("protocol", "http")
    if word not in ("http", "tcp"):
        table.fault("protocol", f'got {show(word)}, expected "http" or "tcp"')
    if word != "tcp":
        if table.has("listen"):
            table.fault("listen", "the gateway's port of an opaque endpoint", 'write protocol = "tcp", or take it out')
        return 0
    for key in _NOT_OPAQUE:
        if table.has(key):
            table.fault(key, 'got it beside protocol = "tcp", where nothing is read', "take it out")
    if not table.has("listen"):
        table.fault(
            "listen", 'missing beside protocol = "tcp": no name is on its wire, so it has a port', "add: listen = N"
        )
    port = table.number("listen", 1, low=1, high=65535)
    if port in _TAKEN:
        table.fault("listen", f"got {port}, where the gateway judges HTTP or answers names", "take another port")
    return port


def _correlate(table: Table) -> frozenset[Correlate]:
    if not table.has("correlate"):
        return DEFAULT
    known = [item.value for item in Correlate]
    found = []
    for i, text in enumerate(table.texts("correlate")):
        if text in known:
            found.append(Correlate(text))
        else:
            hint = closest(text.lower(), known)
            table.report.add(f"{table.at('correlate')}[{i}]", f"got {show(text)}, no header of ours", hint)
    return frozenset(found)


def _spki(table: Table, *, tls: bool) -> frozenset[bytes]:
    texts = table.texts("spki", empty=False)
    if texts and not tls:
        table.fault("spki", "got it beside tls = false, where no key is shown", "take one of them out")
    return frozenset(filter(None, (_pin(table, i, text) for i, text in enumerate(texts))))


def _pin(table: Table, i: int, text: str) -> bytes:
    """The digest in "sha256/BASE64" (RFC 7469's form, without its quotes)."""
    kind, _, encoded = text.partition("/")
    try:
        digest = base64.b64decode(encoded, validate=True)
    except ValueError:
        digest = b""
    if kind == "sha256" and len(digest) == _SHA256:
        return digest
    table.report.add(
        f"{table.at('spki')}[{i}]",
        f'got {show(text)}, expected "sha256/" and 32 bytes in base64',
        "openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64",
    )
    return b""


def _proxy(table: Table, proxies: Mapping[str, CorporateProxy], *, tls: bool) -> CorporateProxy | None:
    name = table.text("proxy")
    if not name:
        return None
    if name not in proxies:
        table.fault("proxy", f"no proxy is called {show(name)}", closest(name, proxies) or f"add: [proxy.{name}]")
    if not tls:
        table.fault("proxy", "got it beside tls = false: nothing unverified goes through it", "take it out")
    if table.has("address"):
        table.fault("address", "got it beside proxy, which looks the name up by itself", f"write it in [proxy.{name}]")
    return proxies.get(name)


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


def load_ca(table: Table, base_dir: str, *, tls: bool) -> str:
    """Read `ca`: an absolute path, "" without one."""
    path = table.text("ca")
    if not path:
        return ""
    if path.startswith("~"):
        table.fault("ca", f"got {show(path)}", "write the whole path, or one relative to the policy file")
    if not tls:
        table.fault("ca", "got a ca on an endpoint with tls = false", "take one of them out")
    return posixpath.normpath(posixpath.join(base_dir, path))


def load_addresses(table: Table) -> tuple[tuple[Network, ...], tuple[Address, ...]]:
    """Read `address`: the prefixes that it opens, and the single addresses that are pins."""
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
