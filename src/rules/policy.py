"""The policy as values. Built only by rules.load.load_policy, which checks; nothing here reads a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING

from rules.agents import Agent
from rules.agentstate import AgentState
from rules.correlate import DEFAULT, Correlate
from rules.fieldpaths import FieldPath
from rules.fingerprint import Fingerprint
from rules.hosts import HostPattern
from rules.paths import PathPattern
from rules.reach import Reach, scrubbed
from rules.registries import Client, Registry
from rules.sources import SecretRule

if TYPE_CHECKING:
    from rules.mints import Mint

type Network = IPv4Network | IPv6Network
type Address = IPv4Address | IPv6Address


class Foreign(StrEnum):
    """What happens to credentials that the client itself sent."""

    STRIP = "strip"
    DENY = "deny"
    ALLOW = "allow"  # endpoints without a binding only


class Mode(StrEnum):
    """overwrite: inject whatever the client sent. placeholder: only where the client put the run's decoy."""

    OVERWRITE = "overwrite"
    PLACEHOLDER = "placeholder"


class PlaceKind(StrEnum):
    """Where in the request a secret goes."""

    HEADER = "header"
    BASIC = "basic"
    QUERY = "query"
    PATH = "path"
    COOKIE = "cookie"
    JSON = "json"
    FORM = "form"
    SIGV4 = "sigv4"  # AWS: not the secret goes there but a signature made with it
    CERTIFICATE = "certificate"  # of the client, in the TLS handshake: no header carries it


class Unlisted(StrEnum):
    """Answer of the resolver to a well-formed name that the role does not list."""

    GATEWAY, NXDOMAIN = "gateway", "nxdomain"


class OnAlarm(StrEnum):
    """What an alarm does to its run, the mildest first."""

    NOTIFY = "notify"
    PAUSE = "pause"  # every request is refused until the user resumes the run
    KILL = "kill"


class Workdir(StrEnum):
    """How the work tree is seen in the jail, the narrowest first. COPY: writable there alone, the host's stays."""

    READ, COPY, WRITE = "read", "copy", "write"


class BodyType(StrEnum):
    """What a body has to be to be judged."""

    JSON = "json"
    GRAPHQL = "graphql"
    FORM = "form"


type Scalar = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTest:
    """The field at `path` holds one of `values`; no `values`: it isn't there. `path` is compared as text."""

    path: FieldPath
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyTerm:
    """What a rule asks of a body. `max` bytes, on the wire and decoded; `keys` None: any at the top.

    `operations` are "TYPE.FIELD" or "TYPE.*", of GraphQL alone.
    """

    type: BodyType
    max: int
    tests: tuple[FieldTest, ...] = ()
    keys: frozenset[str] | None = None
    operations: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowRule:
    """`methods` upper case, HEAD added where GET is; `query` None: any names; `upgrade`: to WebSocket."""

    id: str
    methods: frozenset[str]
    paths: tuple[PathPattern, ...]
    query: frozenset[str] | None = None
    encoded_slash: bool = False
    upgrade: bool = False
    body: BodyTerm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DenyRule:
    """`methods` None: every method. `pack` names the shipped pack that it came from.

    `hosts`, of a pack alone: the targets that it means, as labels with "*" for one; () means every host.
    `unless` a body: what it covers passes by an allow rule with a body term of that type, and by no other one.
    """

    id: str
    methods: frozenset[str] | None
    paths: tuple[PathPattern, ...]
    pack: str = ""
    hosts: tuple[tuple[str, ...], ...] = ()
    unless: BodyType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorporateProxy:
    """[proxy.NAME]: what an endpoint is dialled through by CONNECT. `host` is a name in normal form.

    `secret` and `user` make its Basic credential, both "" without one.
    """

    name: str
    host: str
    port: int
    tls: bool = False
    ca: str = ""
    networks: tuple[Network, ...] = ()
    pins: tuple[Address, ...] = ()
    secret: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Of an endpoint with host_from: whose configuration says that its registry is there."""

    client: Client
    registry: Registry

    def __str__(self) -> str:
        return f"{self.client} {self.registry.scope}{' ' if self.registry.scope else ''}{self.registry}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One target. `networks` open closed ranges for it; `pins` are dialled without a look-up.

    `spki` are SHA-256 digests of public keys, one of which must be in the target's verified chain. With `listen` it is
    opaque TCP: a port on the gateway, piped to `host` at `dial_port`. `fingerprint` None: as the host's log has it.
    """

    name: str
    host: HostPattern
    port: int
    dial_port: int
    tls: bool = True
    alpn: tuple[str, ...] = ("http/1.1",)
    ca: str = ""  # absolute path of a PEM file of extra trust, "" for none
    foreign: Foreign = Foreign.STRIP
    networks: tuple[Network, ...] = ()
    pins: tuple[Address, ...] = ()
    spki: frozenset[bytes] = frozenset()
    proxy: CorporateProxy | None = None
    listen: int = 0
    correlate: frozenset[Correlate] = DEFAULT
    fingerprint: Fingerprint | None = None
    digest: bool = False  # the ledger gets SHA-256 of what bodies pass
    allow: tuple[AllowRule, ...] = ()
    deny: tuple[DenyRule, ...] = ()
    origin: Origin | None = None  # with host_from: what it was resolved from
    route: tuple[tuple[str, str], ...] = ()  # word of a role's `route`, and the endpoint that stands behind it

    @property
    def entry(self) -> int:
        """The port of the gateway that leads to it."""
        return self.listen or self.port

    def behind(self, word: str) -> str:
        """The name of the endpoint that `word` leads to, "" for none."""
        return dict(self.route).get(word, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """A decoy for the jail's environment. `shape` as rules.placeholders reads it; `claims`: JSON of a "jwt" shape."""

    env: str
    shape: str
    claims: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket: `count` at once when it is full, and `count` more in `seconds`."""

    count: int
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one run may send, its children included; None: no bound."""

    requests: int | None = None
    bytes_out: int | None = None  # request heads and bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """What an AWS signature is made for. "": the client's own, which is a label of the endpoint's host then.

    `max`: bytes of a body that is read before it is signed, where the client does not say its hash. `operations`: names
    of what may be asked for, with "*" at the end for any that begins so; (): whatever the rules let through. `copy`: S3
    may copy from an object that a header names.
    """

    service: str = ""
    region: str = ""
    max: int = 1 << 20
    operations: tuple[str, ...] = ()
    copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A secret bound to rules of one endpoint. `header` lower case; `format` holds "{secret}" once.

    `format` is the text before base64, escapes or quotes of the place. `slot` names what holds it where that is no
    header: the query's parameter, the path's segment, the cookie, the field of a form or of JSON, `json_path` too then.
    `sign` goes with place "sigv4" alone; `header` is "" for place "certificate".
    """

    name: str
    secret: str
    endpoint: str
    rules: frozenset[str]  # AllowRule.id of that endpoint
    place: PlaceKind
    header: str = "authorization"
    slot: str = ""
    json_path: FieldPath | None = None
    format: str = "Bearer {secret}"
    mode: Mode = Mode.OVERWRITE
    placeholder: Placeholder | None = None
    foreign: Foreign = Foreign.STRIP
    scrub: bool = True  # answers are searched for secrets
    scrub_alarm: bool = True  # this one's secret found there is an alarm
    drop_set_cookie: bool = True
    ttl: int | None = None  # seconds from the start of a run
    max_uses: int | None = None  # requests of one run, its children included
    rates: tuple[Rate, ...] = ()  # all of them hold; the ceiling adds its own
    sign: Signing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes, counts and CPU seconds of a whole jail (open_files and file_size: of one process)."""

    memory: int = 4 << 30
    processes: int = 512
    open_files: int = 4096
    cpu: int = 3600
    file_size: int = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a run may use. Paths are as written ("~" not expanded)."""

    name: str
    bindings: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()  # reachable without a secret
    workdir: Workdir = Workdir.READ
    tools: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()  # patterns of rules.treenames: more islands
    hide: tuple[str, ...] = ()  # likewise: more hidden files
    show: tuple[str, ...] = ()  # paths in the work tree that are not hidden
    env: tuple[str, ...] = ()
    allow_debug: bool = False  # ptrace and its like, among the jail's own processes
    allow_userns: bool = False  # user namespaces below the jail's: a browser's own sandbox
    publish: tuple[int, ...] = ()  # ports inside that are reachable on the host's loopback
    children: tuple[str, ...] = ()  # roles that a child run may ask for
    deadline: int | None = None  # wall-clock seconds
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    on_alarm: OnAlarm = OnAlarm.NOTIFY
    route: str = "default"  # which way its requests go at an endpoint with several targets
    agent: Agent | None = None  # whose variables and first files the jail has
    agent_state: AgentState = AgentState.FRESH
    state: tuple[str, ...] = ()  # directories and files below the home, as written: a private copy in the jail
    within: tuple[str, ...] = ()  # roles of the same policy that must allow each request too; set by rules.intersect

    def switches(self) -> tuple[str, ...]:
        """The keys of this role that open what is closed otherwise, as banner and ledger name them."""
        on = {"allow_debug": self.allow_debug, "allow_userns": self.allow_userns}
        return tuple(name for name, value in on.items() if value)


def reached_by(role: Role, bindings: Mapping[str, Binding], endpoints: Mapping[str, Endpoint]) -> frozenset[str]:
    """The names of the endpoints that a role reaches by themselves; unknown names are passed over."""
    behind = {name for endpoint in endpoints.values() for _, name in endpoint.route}
    bound = {bindings[name].endpoint for name in role.bindings if name in bindings}
    return frozenset({*role.endpoints, *(bound - behind)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCase:
    """One [[test]] of the policy file. `reason` and `rule` are compared where they are not empty."""

    role: str
    method: str
    url: str
    verdict: str  # "allow" | "deny"
    body: str | None = None  # JSON that the request carries
    reason: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The whole file. `sha256` is the hex digest of its bytes, `ceiling_sha256` that of the ceiling above it, or ""."""

    sha256: str
    ceiling_sha256: str = ""
    default_role: str = ""
    unlisted: Unlisted = Unlisted.GATEWAY
    secrets: Mapping[str, SecretRule] = field(default_factory=dict)
    vaults: tuple[str, ...] = ()  # names of the [vault.NAME]; what they say is in the secrets that come from them
    mints: "Mapping[str, Mint]" = field(default_factory=dict)
    proxies: Mapping[str, CorporateProxy] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    bindings: Mapping[str, Binding] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    tests: tuple[TestCase, ...] = ()
    # computed when asked for; not copied by replace(), and no part of what a policy is
    _reach: dict[str, Reach] = field(init=False, compare=False, repr=False, default_factory=dict)
    _scrubbed: list[frozenset[str]] = field(init=False, compare=False, repr=False, default_factory=list)

    def reach(self, role: str) -> Reach:
        """What a role reaches. Raises KeyError for one that isn't there."""
        if role not in self._reach:
            self._reach[role] = Reach(self, role, reached_by(self.roles[role], self.bindings, self.endpoints))
        return self._reach[role]

    def scrubbed(self) -> frozenset[str]:
        """Names of the endpoints that have a binding whose answers are searched."""
        if not self._scrubbed:
            self._scrubbed.append(scrubbed(self.bindings))
        return self._scrubbed[0]

    def endpoints_of(self, role: str) -> tuple[Endpoint, ...]:
        """The endpoints that a role reaches, by binding or by name, each once, in the file's order.

        With host_from one name stands for several: NAME, NAME~2 and so on. What stands behind a route is reached by
        its own name only where the role lists it.
        """
        return self.reach(role).endpoints

    def targets_of(self, role: str) -> tuple[Endpoint, ...]:
        """What stands behind the routed endpoints of a role, each once."""
        word = self.roles[role].route
        names = dict.fromkeys(e.behind(word) for e in self.endpoints_of(role) if e.route)
        return tuple(self.endpoints[name] for name in names if name)

    def registries(self) -> tuple[str, ...]:
        """What each host_from was resolved to, each once."""
        return tuple(dict.fromkeys(str(e.origin) for e in self.endpoints.values() if e.origin))

    def tunnels_of(self, role: str) -> tuple[Endpoint, ...]:
        """Those of them that are opaque TCP."""
        return tuple(endpoint for endpoint in self.endpoints_of(role) if endpoint.listen)
