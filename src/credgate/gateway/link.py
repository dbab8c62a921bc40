"""One HTTP/1.1 connection to a target, and the pool in which it waits for the next client connection of its run.

The socket's reader runs as long as the connection lives; who gets what it reads, the owner, changes. Without an owner
a byte is one that nobody asked for, and closes the connection as the target's own end does.
"""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mitmproxy.connection import ConnectionState, Server
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import ServerTLSLayer

from credgate.gateway.exchange import Target
from credgate.runs import Run

if TYPE_CHECKING:
    from credgate.gateway.dial import Streams
    from credgate.gateway.handler import GateHandler

IDLE = 60.0  # seconds in the pool; a target that says less by Keep-Alive is believed
MAX_IDLE_RUN, MAX_IDLE = 16, 128  # connections in the pool: of one run, of all

type Commands = Generator[commands.Command, object, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Whose connection it is: it is used again for the very same run, policy and endpoint, host and pin alone."""

    run: Run
    generation: int  # of the policy: a reload leaves no connection behind that the new one did not make
    target: Target

    def serves(self, run: Run, target: Target, pin: str) -> bool:
        """Whether a request of `run` that was judged to go to `target` may use a connection to `pin`."""
        same = self.run is run and self.generation == run.generation
        mine = self.target
        return (
            same
            and mine.endpoint == target.endpoint
            and mine.host == target.host
            and mine.client == target.client
            and pin in {str(address) for address in target.addresses}
        )


class _Inner(layer.Layer):
    """What stands behind TLS: it asks for the connection, and keeps what came until the lane takes it."""

    def __init__(self, context: Context, link: "Link") -> None:
        super().__init__(context)
        self._link = link

    def handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Never waits: the base class would queue what comes before the handshake is known to be done."""
        link = self._link
        if isinstance(event, events.Start):
            opening = commands.OpenConnection(link.server)
            opening.blocking = self  # type: ignore[assignment] # a layer as the value: none above it waits
            yield opening
        elif isinstance(event, events.OpenConnectionCompleted):
            link.opened, link.failed = event.reply is None, event.reply is not None
        elif isinstance(event, events.DataReceived):
            link.inbox.append(event.data)
        elif isinstance(event, events.ConnectionClosed):
            link.closed = True

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class Link:
    """One connection. The lane reads `opened`, `failed`, `closed` and `inbox` after each event it passes on."""

    server: Server
    owned: Owned
    owner: "GateHandler | None"
    top: layer.Layer | None = None  # ServerTLSLayer, or what asks for a plain connection
    streams: "Streams | None" = None
    task: "asyncio.Task[None] | None" = None
    opened: bool = False
    failed: bool = False
    closed: bool = False  # the target's end: no more bytes come
    broken: bool = False  # by a reset, not by an end
    over: bool = False  # closed on both sides
    uses: int = 0  # answers that came whole
    idle: float = IDLE
    pin: str = ""
    inbox: list[bytes] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    lane: layer.Layer | None = None  # of the owner

    @classmethod
    def make(cls, context: Context, run: Run, target: Target, owner: "GateHandler") -> "Link":
        """Prepare a connection for a judged target; `start` dials it."""
        forked = context.fork()
        forked.server = Server(address=target.key)
        link = cls(forked.server, Owned(run=run, generation=run.generation, target=target), owner)
        inner = _Inner(forked, link)
        link.top = inner
        if target.endpoint.tls:
            forked.server.sni = target.host
            link.top = ServerTLSLayer(forked)
            link.top.child_layer = inner
        return link

    def handle(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Pass one event through TLS."""
        if self.top is not None:
            yield from self.top.handle_event(event)

    def send(self, data: bytes) -> layer.CommandGenerator[None]:
        """Send bytes to the target."""
        if isinstance(self.top, ServerTLSLayer):
            yield from self.top.send_data(data)
        else:
            yield commands.SendData(self.server, data)

    def taken(self) -> bytes:
        """What came since the last call."""
        data = b"".join(self.inbox)
        self.inbox.clear()
        return data

    @property
    def is_quiet(self) -> bool:
        """Whether nothing came that was not asked for: neither taken, nor still in the reader."""
        reader = self.streams[0] if self.streams else None
        waiting = vars(reader).get("_buffer") if reader is not None else b"?"
        return not (self.over or self.closed or self.inbox or waiting or (reader is not None and reader.at_eof()))

    def give(self, owner: "GateHandler") -> None:
        """Let another client connection have it. mitmproxy's object for it is a new one: the old one's was closed."""
        old = self.server
        self.server = Server(address=old.address)
        self.server.state = ConnectionState.OPEN
        self.server.peername, self.server.sockname, self.server.sni = old.peername, old.sockname, old.sni
        if isinstance(self.top, ServerTLSLayer):
            self.server.tls, self.server.alpn = True, old.alpn
            self.server.timestamp_tls_setup = old.timestamp_tls_setup
            self.top.conn = self.top.tunnel_connection = self.server
        self.owner = owner


async def pump(link: Link) -> None:
    """Read until either side ends it. Closes the socket, whatever happens."""
    try:
        await _read(link)
    except asyncio.CancelledError:
        pass  # by `GateHandler.drop`, by the pool, by the end of the client's connection
    finally:
        link.over = True
        if link.streams is not None:
            link.streams[1].close()
    if link.owner is not None:
        await link.owner.link_over(link)


async def _read(link: Link) -> None:
    if link.streams is None:
        return
    reader = link.streams[0]
    while True:
        if link.owner is not None:
            await link.owner.server_gate.wait()
        try:
            data = await reader.read(65536)
        except OSError:
            link.broken = True
            return
        owner = link.owner
        if not data or owner is None:
            return
        await owner.server_event(events.DataReceived(link.server, data))
        await owner.drain_writers()


class Pool:
    """Connections that wait, bounded in number and time. Not thread-safe: it lives on the daemon's loop."""

    def __init__(self) -> None:
        self._idle: list[Link] = []

    def __len__(self) -> int:
        return len(self._idle)

    def put(self, link: Link) -> None:
        """Keep a connection that has no owner any more; the one that waited longest makes room."""
        for ended in [other for other in self._idle if other.over]:
            self._forget(ended)
        link.owner = None
        self._idle.append(link)
        loop = asyncio.get_running_loop()
        link.timer = loop.call_later(link.idle, self._discard, link)
        mine = [other for other in self._idle if other.owned.run is link.owned.run]
        if len(mine) > MAX_IDLE_RUN:
            self._discard(mine[0])
        if len(self._idle) > MAX_IDLE:
            self._discard(self._idle[0])

    def take(self, run: Run, target: Target) -> Link | None:
        """The connection that was used last, of those that may be used."""
        for link in reversed(self._idle):
            if link.is_quiet and link.owned.serves(run, target, link.pin):
                self._forget(link)
                return link
        return None

    def close(self, run: Run) -> None:
        """Close all of a run's."""
        for link in tuple(self._idle):
            if link.owned.run is run:
                self._discard(link)

    def _discard(self, link: Link) -> None:
        self._forget(link)
        if link.task is not None:
            link.task.cancel()

    def _forget(self, link: Link) -> None:
        if link.timer is not None:
            link.timer.cancel()
            link.timer = None
        if link in self._idle:
            self._idle.remove(link)
