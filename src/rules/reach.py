"""What one role of a policy reaches, by what a request says of itself. Pure: it is computed of the policy alone."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rules.hostindex import HostIndex

if TYPE_CHECKING:
    from rules.policy import Binding, Endpoint, Policy

__all__ = ["Reach"]


class Reach:
    """`endpoints` are those of Policy.endpoints_of; `ports` those of HTTP. Never changes."""

    __slots__ = ("_bindings", "_http", "endpoints", "ports")

    def __init__(self, policy: "Policy", role: str, names: frozenset[str]) -> None:
        """`names`: as policy.reached_by."""
        self.endpoints = tuple(e for n, e in policy.endpoints.items() if n.partition("~")[0] in names)
        http = [e for e in self.endpoints if not e.listen]  # what is opaque has no rule that a request could match
        self.ports = frozenset(e.port for e in http)
        self._http = HostIndex((e.host, e) for e in http)
        self._bindings: dict[str, list[tuple[int, Binding]]] = {}  # by endpoint
        for number, name in enumerate(dict.fromkeys(policy.roles[role].bindings)):
            binding = policy.bindings[name]
            self._bindings.setdefault(binding.endpoint, []).append((number, binding))

    def at(self, labels: tuple[str, ...]) -> "list[Endpoint]":
        """The endpoints of HTTP that mean this host, in the file's order."""
        return self._http.matching(labels)

    def bindings(self, endpoints: Iterable[str]) -> "tuple[Binding, ...]":
        """The role's bindings at endpoints of these names, in its order."""
        found = [pair for name in dict.fromkeys(endpoints) for pair in self._bindings.get(name, ())]
        return tuple(binding for _, binding in sorted(found, key=lambda pair: pair[0]))


def scrubbed(bindings: "Mapping[str, Binding]") -> frozenset[str]:
    """Names of the endpoints that have a binding whose answers are searched."""
    return frozenset(binding.endpoint for binding in bindings.values() if binding.scrub)
