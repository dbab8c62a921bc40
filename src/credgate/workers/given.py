"""What a worker is given by the daemon as whole objects: pickled, and that way alone.

The daemon reads nothing of this kind from anybody; the worker reads it from the socket that it was born with.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field

from credgate.gateway.steps import Timeouts
from rules.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """`known`: name, value and Basic text of each value that is looked for. `slot`: the worker's among the loads."""

    slot: int
    ca_key: bytes = field(repr=False)  # PEM, as `ca`
    ca: bytes
    fingerprint_key: bytes = field(repr=False)
    system_roots: str
    timeouts: Timeouts
    known: tuple[tuple[str, str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A live run. `ports`: of the listeners that come with it, and whether it is the explicit proxy's."""

    id: str
    policy: Policy
    role: str
    gateway_ip: str
    proxy_port: int
    decoys: Mapping[str, str] = field(repr=False)
    parent: str
    started: int  # nanoseconds of runs.now
    generation: int
    proof: str
    revoked: bool
    paused: bool
    revoked_bindings: frozenset[str]
    ports: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Another policy for a run; `ports`: those that the worker may go on accepting at."""

    id: str
    policy: Policy
    generation: int
    ports: frozenset[int]


type Given = Setup | Run | Swap


def pack(given: Given) -> bytes:
    """As the daemon sends it."""
    return pickle.dumps(given, pickle.HIGHEST_PROTOCOL)


def unpack[G: Setup | Run | Swap](kind: type[G], data: bytes) -> G:
    """As the worker reads it. Raises TypeError where it is something else."""
    found = pickle.loads(data)  # noqa: S301 - of the daemon, by the socket that this process was started with
    if not isinstance(found, kind):
        raise TypeError(f"got a {type(found).__name__}, expected a {kind.__name__}")
    return found
