"""`host_from` of an endpoint: one endpoint for each host that the client's configuration names."""

from collections.abc import Mapping
from dataclasses import replace

from rules.hosts import HostPattern
from rules.paths import PathPattern
from rules.policy import AllowRule, Endpoint, Origin
from rules.registries import Client, Registry
from rules.tables import Table

type Registries = Mapping[Client, tuple[Registry, ...]]

_BESIDE = ("host", "port", "tls", "protocol", "listen")


def spread(endpoint: Endpoint, table: Table, registries: Registries) -> tuple[Endpoint, ...]:
    """Return the endpoint as it is, or with `host_from` one for each registry: NAME, then NAME~2 and so on (a name
    of the file holds no "~"). Paths of allow rules start behind the path of the registry's URL.
    """
    if not table.has("host_from"):
        return (endpoint,)
    before = len(table.report.problems)
    client = table.choice("host_from", Client, Client.NPM)
    for key in _BESIDE:
        if table.has(key):
            table.fault(key, f"got it beside host_from, which says where {client} fetches from", "take one of them out")
    if len(table.report.problems) > before:
        return (endpoint,)
    found = registries.get(client, ())
    if not found:
        table.fault("host_from", f"{client} names no registry", "name the host yourself: host = ...")
    return tuple(_at(endpoint, client, registry, i) for i, registry in enumerate(found, start=1))


def _at(endpoint: Endpoint, client: Client, registry: Registry, number: int) -> Endpoint:
    moved = endpoint.dial_port != endpoint.port  # dial_port was written
    return replace(
        endpoint,
        name=endpoint.name if number == 1 else f"{endpoint.name}~{number}",
        host=HostPattern.parse(registry.host),
        port=registry.port,
        dial_port=endpoint.dial_port if moved else registry.port,
        tls=registry.scheme == "https",
        alpn=endpoint.alpn,
        allow=tuple(_below(rule, registry.path) for rule in endpoint.allow),
        origin=Origin(client=client, registry=registry),
    )


def _below(rule: AllowRule, prefix: str) -> AllowRule:
    if not prefix:
        return rule
    return replace(rule, paths=tuple(PathPattern.parse(prefix + path.text) for path in rule.paths))
