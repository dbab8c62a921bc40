"""[proxy.NAME] tables into CorporateProxy values."""

from collections.abc import Mapping

from rules.hosts import HostError, HostPattern
from rules.load_endpoints import load_addresses, load_ca
from rules.policy import CorporateProxy
from rules.tables import Table, show

PROXY_KEYS = ("host", "port", "tls", "ca", "address", "secret", "user")


def load_proxies(tables: Mapping[str, Table], base_dir: str) -> dict[str, CorporateProxy]:
    """Return the proxies; faults go to the tables' report."""
    return {name: _proxy(name, table, base_dir) for name, table in tables.items()}


def _proxy(name: str, table: Table, base_dir: str) -> CorporateProxy:
    tls = table.flag("tls", default=False)
    networks, pins = load_addresses(table)
    if not table.has("port"):
        table.fault("port", "missing, expected the proxy's port", "add: port = 3128")
    if table.has("secret") != table.has("user"):
        table.fault("secret", "secret and user make one Basic credential", "write both, or none")
    return CorporateProxy(
        name=name,
        host=_host(table),
        port=table.number("port", 1, low=1, high=65535),
        tls=tls,
        ca=load_ca(table, base_dir, tls=tls),
        networks=networks,
        pins=pins,
        secret=table.text("secret"),
        user=_user(table),
    )


def _host(table: Table) -> str:
    text = table.text("host", required=True)
    try:
        if text and not HostPattern.parse(text).exact:
            table.fault("host", f"got {show(text)}, expected one host", "a proxy is one machine")
    except HostError as fault:
        table.fault("host", fault.detail, fault.hint)
    return text


def _user(table: Table) -> str:
    user = table.text("user")
    if ":" in user or not user.isascii():
        table.fault("user", f"got {show(user)}, expected a name in ascii without a colon", "RFC 7617")
    return user
