"""One client connection: mitmproxy's engine with our hooks, our dialling, bounded reading and one way to end it all.

`kill` is the guard behind every guard: once it was called no event reaches a layer and no byte a socket.
"""

import asyncio
import logging
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from mitmproxy.connection import Connection, ConnectionState, Server
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server import ConnectionIO
from mitmproxy.proxy.server_hooks import (
    ServerConnectedHook,
    ServerConnectErrorHook,
    ServerConnectHook,
    ServerConnectionHookData,
    ServerDisconnectedHook,
)

from credgate.gateway.dial import DialError, Streams
from credgate.gateway.engine import Engine
from credgate.gateway.exchange import ClientState, Key, Target, exchange_of
from credgate.gateway.gates import Gate, GatedReader
from credgate.gateway.hooks import HOOKS, QUIET, Hooks
from credgate.gateway.http2 import MAX_BACKLOG
from credgate.gateway.judge import wire_of
from credgate.gateway.link import Link, pump
from credgate.gateway.refusal import Refusal, deny
from credgate.gateway.steps import Steps
from credgate.gateway.turn import Turn
from credgate.ledger.record import LedgerError
from rules.reasons import Reason

if TYPE_CHECKING:
    from types import TracebackType

if TYPE_CHECKING:
    from credgate.gateway.layers import GateHttpLayer

logger = logging.getLogger(__name__)

_NO_LINGER = struct.pack("ii", 1, 0)  # socket(7): close then discards what is queued and sends RST


class GateHandler(Engine):
    """Runs one client connection and its upstream ones. `state.run` is the listener's run."""

    def __init__(
        self, streams: Streams, options: Options, mode: ProxyMode, *, state: ClientState, hooks: Hooks
    ) -> None:
        reader, writer = streams
        self.state = state
        self.dead = False
        self.http: GateHttpLayer | None = None  # the innermost one
        self._hooks = hooks
        self._client_gate, self.server_gate = Gate(), Gate()
        self.links: dict[Connection, Link] = {}  # connections of the strict lane that are this one's
        self._progress: asyncio.TimerHandle | None = None
        self._broken: set[str] = set()
        self._late_ids: set[str] = set()
        self._connecting: dict[Connection, asyncio.TimerHandle | None] = {}
        super().__init__(
            cast("asyncio.StreamReader", GatedReader(reader, self._client_gate, lambda: None)), writer, options, mode
        )

    # -- hooks ------------------------------------------------------------------------------------------------------

    async def run_hook(self, hook: commands.StartHook) -> None:
        """Run one hook. An exception in it never lets anything pass."""
        if self.dead:
            return
        name = hook.name
        if name in QUIET:
            return
        if name not in HOOKS:
            self.end(Reason.NOT_HTTP, f"hook {name}")
            return
        (data,) = hook.args()
        try:
            await getattr(self._hooks, name)(self, data)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a hook: it ends in a denial
            self._failed(name, data, error)
        self._record_if_dead()

    def _record_if_dead(self) -> None:
        """Where all ended while a hook was at work, what it began goes no further."""
        if self.dead:
            self._record_ends("client closed the connection")

    async def handle_client(self) -> None:
        """Run the connection to its end. Nothing that a hook may still be at reaches a layer behind that."""
        await super().handle_client()
        self.dead = True

    def _record_ends(self, detail: str) -> None:
        """Give every exchange on its way its outcome."""
        try:
            for exchange in tuple(self.state.exchanges):
                self._hooks.judge.records.outcome(self.state, exchange, detail=detail)
        except LedgerError as error:
            logger.error("gateway: %s, and the ledger can't be written: %s", detail, error.code)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Read nothing more while a hook waits for something: neither from the client nor from targets."""
        self._client_gate.hold()
        self.server_gate.hold()
        try:
            yield
        finally:
            self._client_gate.release()
            self.server_gate.release()

    def _failed(self, name: str, data: object, error: Exception) -> None:
        """End what a hook failed on. `requestheaders` has stamped its refusal already, which is spoken."""
        detail = f"hook {name}: {type(error).__name__}"
        logger.error("gateway: %s at %s", detail, _where(error))
        if name == "requestheaders" and isinstance(data, HTTPFlow):
            exchange = exchange_of(data)
            wire = wire_of(data, self.state, exchange)
        elif name == "lane_request" and isinstance(data, Turn):
            exchange, wire = data.exchange, data.wire
        else:
            self.end(Reason.INTERNAL, detail)
            return
        exchange.refusal = exchange.refusal or Refusal(deny=deny(Reason.INTERNAL))
        self.state.run.denied += 1
        records = self._hooks.judge.records
        try:
            if exchange.intent_seq:
                records.outcome(self.state, exchange, reason=Reason.INTERNAL, detail=detail)
            else:
                records.deny(self.state, exchange, exchange.refusal, wire, detail)
        except LedgerError:
            exchange.refusal = Refusal(deny=deny(Reason.LEDGER_UNAVAILABLE))

    def end(self, reason: Reason, detail: str) -> None:
        """Kill, and say so in the ledger: for each exchange on its way, else for the connection."""
        if self.dead:
            return
        self.kill()
        records = self._hooks.judge.records
        try:
            pending = tuple(self.state.exchanges)
            for exchange in pending:
                records.outcome(self.state, exchange, reason=reason, detail=detail)
            if not pending:
                records.connection(self.state, reason, detail=detail)
        except LedgerError as error:
            logger.error("gateway: %s, and the ledger can't be written: %s", detail, error.code)

    def kill(self) -> None:
        """Close the client's connection and every upstream one at once, with nothing more sent on any."""
        self.dead = self.state.closed = True
        self.progressed()
        for exchange in self.state.exchanges:
            exchange.disarm()
        for timer in self._connecting.values():
            if timer is not None:
                timer.cancel()
        for connection, transport in tuple(self.transports.items()):
            connection.state = ConnectionState.CLOSED  # half closed, mitmproxy would keep it until it is cancelled
            if isinstance(transport.writer, asyncio.StreamWriter):
                reset(transport.writer)
            if transport.handler is not None:
                transport.handler.cancel("killed")

    def close(self, detail: str) -> None:
        """End this connection because its run ended, or what it was allowed was taken back."""
        if self.dead:
            return
        self.kill()
        self._record_ends(detail)

    # -- what the hooks ask for -------------------------------------------------------------------------------------

    def expect_progress(self, seconds: float) -> None:
        """End the connection unless `progressed` is called in time."""
        self.progressed()
        self._progress = asyncio.get_running_loop().call_later(seconds, self.kill)

    def progressed(self) -> None:
        """What was expected came."""
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None

    def connected_keys(self) -> frozenset[Key]:
        """Upstream connections that a request may use again."""
        servers = (c for c in self.transports if isinstance(c, Server))
        return frozenset(s.address for s in servers if s.connected and s.address is not None)

    def connecting_done(self, connection: Connection) -> None:
        """An upstream connection is ready, or will never be."""
        if connection not in self._connecting:
            return
        timer = self._connecting.pop(connection)
        if timer is not None:
            timer.cancel()
        self._client_gate.release()

    def is_late(self, connection: Connection) -> bool:
        """Whether a handshake was cut short for taking too long."""
        return connection.id in self._late_ids

    def is_broken(self, connection: Connection) -> bool:
        """Whether a connection was reset, rather than closed."""
        return connection.id in self._broken

    def drop(self, connection: Connection) -> None:
        """Close an upstream connection; its exchange learns of it as of any other end."""
        transport = self.transports.get(connection)
        if transport is not None and transport.handler is not None:
            transport.handler.cancel("dropped")

    # -- connections of the strict lane -----------------------------------------------------------------------------

    @property
    def steps(self) -> Steps:
        """What the lanes share."""
        return self._hooks.steps

    def new_link(self, link: Link, lane: Layer) -> Link:
        """Take a connection that is about to be made. From now on nothing more is read that could not go on yet."""
        self._connecting[link.server] = None
        self._client_gate.hold()
        return self._hold(link, lane)

    def _hold(self, link: Link, lane: Layer) -> Link:
        link.lane = lane
        self.links[link.server] = link
        return link

    def take(self, target: Target, lane: Layer) -> Link | None:
        """Take a connection of the run's that waits in the pool."""
        link = self._hooks.pool.take(self.state.run, target)
        if link is None or link.streams is None:
            return None
        link.give(self)
        self.transports[link.server] = ConnectionIO(link.task, *link.streams)
        self.state.pins[target.key] = link.pin
        return self._hold(link, lane)

    def park(self, link: Link) -> None:
        """Leave a connection to the pool; one that can't be used again is closed."""
        if not link.is_quiet or self.dead:
            self.drop(link.server)
            return
        self.links.pop(link.server, None)
        self.transports.pop(link.server, None)
        link.lane = None
        self._hooks.pool.put(link)

    async def link_over(self, link: Link) -> None:
        """A connection of ours was closed, by whichever side."""
        server = link.server
        server.state, server.timestamp_end = ConnectionState.CLOSED, time.time()
        await self.server_event(events.ConnectionClosed(server))
        self.transports.pop(server, None)
        self.links.pop(server, None)
        self.connecting_done(server)
        await self.handle_hook(ServerDisconnectedHook(ServerConnectionHookData(client=self.client, server=server)))

    # -- mitmproxy's engine -----------------------------------------------------------------------------------------

    async def open_connection(self, command: commands.OpenConnection) -> None:
        """Dial the judged address of a target; mitmproxy's own would ask getaddrinfo."""
        server = command.connection
        data = ServerConnectionHookData(client=self.client, server=server)
        if server not in self._connecting:
            self._client_gate.hold()
            self._connecting[server] = None
        streams = await self._dial(server, data)
        if self.dead:
            return
        if streams is None:
            self.connecting_done(server)
            self.transports.pop(server, None)
            error, server.error = server.error or Reason.INTERNAL.value, None  # kept, it would refuse later requests
            await self.server_event(events.OpenConnectionCompleted(command, error))
            return
        self._adopt(server, streams)
        await self.handle_hook(ServerConnectedHook(data))
        await self.server_event(events.OpenConnectionCompleted(command, None))
        if not server.tls:
            self.connecting_done(server)
        link = self.links.get(server)
        if link is not None:
            await pump(link)
            return
        try:
            await self.handle_connection(server)
        finally:
            self.connecting_done(server)
            server.timestamp_end = time.time()
            await self.handle_hook(ServerDisconnectedHook(data))

    async def _dial(self, server: Server, data: ServerConnectionHookData) -> Streams | None:
        await self.handle_hook(ServerConnectHook(data))
        if not server.error and not self.dead and server.address is not None:
            try:
                return await self._hooks.judge.dialler.connect(self.state.targets[server.address])
            except DialError as error:
                server.error = error.reason.value
                self.state.blame(server.address, error.reason, error.detail)
        await self.handle_hook(ServerConnectErrorHook(data))
        return None

    def _adopt(self, server: Server, streams: Streams) -> None:
        reader, writer = streams
        server.timestamp_start = server.timestamp_tcp_setup = time.time()
        server.state = ConnectionState.OPEN
        server.peername = writer.get_extra_info("peername")
        server.sockname = writer.get_extra_info("sockname")
        link = self.links.get(server)
        if link is not None:
            link.task, link.streams, link.pin = asyncio.current_task(), streams, str(server.peername[0])
        self.transports[server] = ConnectionIO(
            handler=asyncio.current_task(),
            reader=cast(
                "asyncio.StreamReader", GatedReader(reader, self.server_gate, lambda: self._broken.add(server.id))
            ),
            writer=writer,
        )
        if server.tls:
            loop = asyncio.get_running_loop()
            self._connecting[server] = loop.call_later(self._hooks.timeouts.tls, self._late, server)

    def _late(self, server: Server) -> None:
        """A handshake takes too long."""
        self._late_ids.add(server.id)
        self.drop(server)

    def feed(self, event: events.Event) -> None:
        """Pass an event to the layers, unless all is over."""
        if self.dead:
            return
        super().feed(event)
        if self.http is not None and self.client.alpn == b"h2":
            self._balance(*self.http.backlogs())

    def _balance(self, to_client: int, to_targets: int) -> None:
        """Stop reading what would only be queued. Never both sides: each may wait for what the other one reads."""
        behind = to_client > MAX_BACKLOG
        self.server_gate.hold_while(behind)
        self._client_gate.hold_while(to_targets > MAX_BACKLOG and not behind)

    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        """Drop mitmproxy's texts: they quote URLs, headers and bytes. A crash of a layer ends the connection."""
        if exc_info is None:
            return
        error = _raised(exc_info)
        where = _where(error) if error is not None else "?"
        logger.error("gateway: layer failed: %s at %s", type(error).__name__, where)
        self.end(Reason.INTERNAL, f"layer: {type(error).__name__}")


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST: a FIN would be the proper end of a body without length."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


def _raised(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, tuple):
        return cast("tuple[type[BaseException], BaseException, TracebackType | None]", exc_info)[1]
    return sys.exc_info()[1]


def _where(error: BaseException) -> str:
    """File and line, without the error's text, which may quote what came over the wire."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
