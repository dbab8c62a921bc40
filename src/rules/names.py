"""What the resolver says about a name: a table taken from the policy, and one verdict a name.

Labels are compared as tuples of bytes, never as text: a label may hold a dot on the wire.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rules.hosts import HostError, HostPattern, is_metadata_name, normalize_host
from rules.policy import Policy, Unlisted
from rules.problems import TableError

__all__ = ["NameTable", "NameVerdict", "decide_name", "from_json", "table_for", "to_json"]

type Labels = tuple[str, ...]


class NameVerdict(StrEnum):
    """The row of the resolver's table that a name falls under."""

    ALLOW = "allow"
    ALLOW_WILDCARD = "allow_wildcard"
    UNLISTED_GATEWAY = "unlisted_gateway"  # answered with the gateway's address; the gateway refuses with a reason
    DENY = "deny"
    METADATA = "metadata"  # metadata names, and *.internal and *.local without an exact entry with an address
    LOOPBACK = "loopback"  # RFC 6761: localhost and below
    REVERSE = "reverse"
    SPECIAL = "special"
    SEARCH_JUNK = "search_junk"  # a listed name with a search suffix behind it
    SINGLE_LABEL = "single_label"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTable:
    """Names of one role. `placed` are the exact names that have an address of their own in the policy."""

    gateway_ip: str
    unlisted: Unlisted = Unlisted.GATEWAY
    exact: frozenset[Labels] = frozenset()
    wildcards: tuple[HostPattern, ...] = ()
    placed: frozenset[Labels] = frozenset()


_REVERSE = (("in-addr", "arpa"), ("ip6", "arpa"), ("in-addr",))
# RFC 9462 (DDR), the canary of a browser's own resolver, RFC 7686, RFC 6761
_SPECIAL = (("resolver", "arpa"), ("use-application-dns", "net"), ("onion",), ("invalid",))
_CLOSED_ZONES = (("internal",), ("local",))


def table_for(policy: Policy, role: str, gateway_ip: str) -> NameTable:
    """The table of a role."""
    endpoints = policy.endpoints_of(role)
    exact = [endpoint for endpoint in endpoints if endpoint.host.exact]
    return NameTable(
        gateway_ip=gateway_ip,
        unlisted=policy.unlisted,
        exact=frozenset(endpoint.host.labels for endpoint in exact),
        wildcards=tuple(dict.fromkeys(e.host for e in endpoints if not e.host.exact)),
        placed=frozenset(endpoint.host.labels for endpoint in exact if endpoint.networks or endpoint.pins),
    )


def decide_name(table: NameTable, labels: tuple[bytes, ...]) -> NameVerdict:
    """The verdict on a name as it stands in a query, root label left out, in any case."""
    name = _host_labels(labels)
    if name is None:
        return NameVerdict.DENY if len(labels) > 1 else NameVerdict.SINGLE_LABEL
    return _closed_name(table, name) or _listed(table, name) or _unlisted(table, name)


def _host_labels(labels: tuple[bytes, ...]) -> Labels | None:
    """The labels of a host name in normal form; None for a name that no request could carry as its host.

    An underscore label is let through: names like _dns.resolver.arpa have a row of their own.
    """
    lowered = tuple(label.lower() for label in labels)
    if not all(lowered) or any(b"." in label for label in lowered):
        return None
    try:
        normal = normalize_host(b".".join(label.replace(b"_", b"x") for label in lowered))
    except HostError:
        return None
    return tuple(label.decode("ascii") for label in lowered) if isinstance(normal, str) else None


def _closed_name(table: NameTable, name: Labels) -> NameVerdict | None:
    if is_metadata_name(name):
        return NameVerdict.METADATA
    if _below(name, _CLOSED_ZONES) and name not in table.placed:
        return NameVerdict.METADATA
    if name[-1] == "localhost":
        return NameVerdict.LOOPBACK
    if _below(name, _REVERSE):
        return NameVerdict.REVERSE
    if _below(name, _SPECIAL) or (name[0] == "wpad" and name not in table.exact):
        return NameVerdict.SPECIAL
    return None


def _listed(table: NameTable, name: Labels) -> NameVerdict | None:
    if name in table.exact:
        return NameVerdict.ALLOW
    if any(pattern.matches_labels(name) for pattern in table.wildcards):
        return NameVerdict.ALLOW_WILDCARD
    return None


def _unlisted(table: NameTable, name: Labels) -> NameVerdict:
    if len(name) == 1:
        return NameVerdict.SINGLE_LABEL
    if any(_listed(table, name[:end]) for end in range(1, len(name))):
        return NameVerdict.SEARCH_JUNK
    if table.unlisted is Unlisted.NXDOMAIN or any("_" in label for label in name):
        return NameVerdict.DENY
    return NameVerdict.UNLISTED_GATEWAY


def _below(name: Labels, zones: Iterable[Labels]) -> bool:
    return any(name[-len(zone) :] == zone for zone in zones)


def to_json(table: NameTable) -> str:
    """The table as one line of JSON; the same table gives the same text."""
    return json.dumps(
        {
            "gateway_ip": table.gateway_ip,
            "unlisted": table.unlisted,
            "exact": sorted(".".join(labels) for labels in table.exact),
            "wildcards": sorted(pattern.text for pattern in table.wildcards),
            "placed": sorted(".".join(labels) for labels in table.placed),
        },
        sort_keys=True,
    )


def from_json(text: str) -> NameTable:
    """Read back what to_json wrote. Raises TableError."""
    try:
        raw = json.loads(text)
        return NameTable(
            gateway_ip=str(raw["gateway_ip"]),
            unlisted=Unlisted(raw["unlisted"]),
            exact=frozenset(tuple(name.split(".")) for name in raw["exact"]),
            wildcards=tuple(HostPattern.parse(pattern) for pattern in raw["wildcards"]),
            placed=frozenset(tuple(name.split(".")) for name in raw["placed"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableError(f"the name table cannot be read: {error}") from None
