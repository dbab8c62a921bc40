"""What is known of one request on its way, and of the client connection that it came on."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec
from mitmproxy.http import HTTPFlow

from credgate.gateway.cleaning import Cleaning
from credgate.gateway.clientcert import Identity
from credgate.gateway.deadline import Deadline
from credgate.gateway.digests import Digests
from credgate.gateway.leaving import Leaving
from credgate.gateway.quoted import Quoted
from credgate.gateway.refusal import Refusal, lift
from credgate.runs import Listener, Run
from credgate.secretvalue import Secret
from rules.policy import Address, Endpoint
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Allow

if TYPE_CHECKING:
    from credgate.gateway.prepared import Sent

_META = "credgate"
_MAX_TARGETS = 64  # judged hosts that one client connection remembers beyond its open upstream connections

# mitmproxy's address of an upstream connection, by which it finds one to use again: endpoint and host, port, and the
# certificate that is shown. The address that is dialled is not in it, and two endpoints never share a connection.
type Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a judged request goes: the endpoint and its judged addresses, in the order in which they are dialled."""

    host: str
    endpoint: Endpoint
    addresses: tuple[Address, ...]  # the proxy's, where the endpoint goes through one
    note: str = field(default="", compare=False)  # what changed since the host was looked up last
    secret: Secret | None = field(default=None, compare=False)  # the proxy's
    judged: float = field(default=0.0, compare=False)  # when the addresses were, by the clock of the pins
    client: Identity | None = None  # what the gateway shows in the TLS handshake
    key: Key = field(init=False, compare=False)  # how mitmproxy knows it
    first: str = field(init=False, compare=False)  # the address that is dialled first

    def __post_init__(self) -> None:
        """Spell what each request asks for."""
        shown = "" if self.client is None else f" {self.client.sha256}"
        object.__setattr__(self, "key", (f"{self.endpoint.name} {self.host}{shown}", self.endpoint.port))
        object.__setattr__(self, "first", str(self.addresses[0]) if self.addresses else "")

    def pin(self, address: str) -> str:
        """What the ledger says of where it goes: through a proxy the address is nobody's here."""
        return "proxy" if self.endpoint.proxy is not None else address


class Exchange(msgspec.Struct, eq=False, kw_only=True):
    """One request and what became of it. Holds no header and no body."""

    authority: bytes = b""  # of an absolute-form target or :authority, before mitmproxy drops it
    scheme: bytes = b""
    h2: bool = False
    has_body: bool = False
    fault: Reason | None = None  # what was wrong before anybody judged
    refusal: Refusal | None = None  # set: this is the answer, and nothing else is
    request: Request | None = None  # its headers are the client's
    allow: Allow | None = None
    asked: str = ""  # host and port that the client named, where the request was sent to another target of the endpoint
    cred_fp: str = ""  # of the credentials that were put in
    path: str = ""  # for the ledger: without what a binding writes into it; "": the request's own
    query_names: tuple[str, ...] | None = None  # of what is sent; None: the request's own
    sent: "Sent | None" = None  # what it was rewritten to
    intent_seq: int = 0
    target: Target | None = None
    pin: str = ""
    tunnels: tuple[str, ...] = ()  # when a corporate proxy was asked for a connection for it
    body_max: int = 0  # bytes of a body that is read before it is judged; 0: it isn't
    held: int = 0  # bytes of it that are kept
    hold: Callable[[bytes], bool] | None = None  # counts them; True: refused
    count: Callable[[bool, int], str] | None = None  # of a WebSocket: Steps.passed
    keep: Callable[[int], str] | None = None  # likewise: waiting.keep
    messages: int = 0  # of a WebSocket's client that were judged
    failure: Reason | None = None  # why the upstream gave no answer, or not a whole one
    why: str = ""  # more of it, for the ledger alone
    leaving: Leaving | None = None  # of its body, where that is streamed
    cleaning: Cleaning | None = None  # of its answer, where that is searched
    quoted: Quoted | None = None  # looks for placeholders in the request's body
    digests: Digests | None = None  # of its bodies, where the endpoint asks for them
    scrubbed: list[str] = msgspec.field(default_factory=list)  # what was written over, in words of the ledger
    client_gone: bool = False
    finished: bool = False  # an outcome or a denial is in the ledger
    status: int = 0
    ids: dict[str, str] = msgspec.field(default_factory=dict)
    req_bytes: int = 0
    resp_bytes: int = 0
    started: float = msgspec.field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | Deadline | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.intent_seq}>"  # not its parts: a request's headers are among them

    @property
    def ms(self) -> int:
        """Milliseconds since the head was read."""
        return int((time.monotonic() - self.started) * 1000)

    def look(self, pieces: list[bytes]) -> None:
        """Look for placeholders in bytes of the request's body that go out."""
        if self.quoted is not None:
            self.quoted.feed(pieces)

    def pass_on(self) -> None:
        """Nothing stands against it any more: the stamp is lifted."""
        if self.refusal is not None:
            if not self.finished:  # else its id is in the ledger
                lift(self.refusal)
            self.refusal = None

    def disarm(self) -> None:
        """Stop waiting for the upstream."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def attach(flow: HTTPFlow, exchange: Exchange) -> Exchange:
    """Bind an exchange to mitmproxy's flow."""
    flow.metadata[_META] = exchange
    return exchange


def exchange_of(flow: HTTPFlow) -> Exchange:
    """The exchange of a flow. Raises KeyError for a flow that never came through our layers: nothing passes then."""
    return cast("Exchange", flow.metadata[_META])


@dataclass(slots=True, kw_only=True, eq=False)
class ClientState:
    """One client connection. The run is the listener's: nothing that the client says changes it."""

    run: Run
    listener: Listener
    connect_host: bytes = b""
    connect_port: int = 0
    targets: dict[Key, Target] = field(default_factory=dict)
    pins: dict[Key, str] = field(default_factory=dict)  # the address that the open connection goes to
    exchanges: set[Exchange] = field(default_factory=set)  # with an intent and without an outcome
    bindings: set[str] = field(default_factory=set)  # names of those that requests on this connection were allowed with
    held: int = 0  # bytes of bodies that are kept to be judged
    closed: bool = False  # killed: nothing more may be written down or sent for it

    @property
    def port(self) -> int:
        """The port that the client means."""
        return self.connect_port or self.listener.port

    def know(self, target: "Target", connected: frozenset[Key]) -> None:
        """Remember a target that was judged; `connected` are those of open connections."""
        if len(self.targets) >= _MAX_TARGETS:  # a wildcard host has names without end
            self.targets = {key: kept for key, kept in self.targets.items() if key in connected}
        self.targets[target.key] = target

    def asked(self, key: Key, at: str) -> None:
        """Note with the exchange that waits for it (the first that had none) that a proxy was asked for a tunnel."""
        waiting = [one for one in self.exchanges if one.target is not None and one.target.key == key]
        if waiting:
            one = min(waiting, key=lambda one: (len(one.tunnels), one.intent_seq))
            one.tunnels += (at,)

    def blame(self, key: Key | None, reason: Reason, why: str = "") -> None:
        """Give every exchange that waits for this upstream the reason why it will not come."""
        for exchange in self.exchanges:
            if exchange.target is not None and exchange.target.key == key and exchange.failure is None:
                exchange.failure, exchange.why = reason, why
