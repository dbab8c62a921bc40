"""A client connection in HTTP/2, or from its first WebSocket handshake on: mitmproxy's engine with our hooks, our
dialling, bounded reading and one way to end it all.

`kill` is the guard behind every guard: once it was called no event reaches a layer and no byte a socket.
"""

import asyncio
import logging
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from mitmproxy.connection import Client, Connection, ConnectionState, Server
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
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
from credgate.gateway.ending import Ending, where
from credgate.gateway.engine import Engine
from credgate.gateway.exchange import ClientState, Key, exchange_of
from credgate.gateway.gates import Gate, GatedReader, of_client
from credgate.gateway.hooks import HOOKS, QUIET, Hooks
from credgate.gateway.http2 import MAX_BACKLOG, MAX_STREAMS, MAX_UNREAD, Cutter
from credgate.gateway.judge import wire_of
from credgate.gateway.layers import GateHttpLayer, http_layer
from credgate.gateway.refusal import Refusal, deny
from credgate.ledger.record import LedgerError
from rules.reasons import Reason

if TYPE_CHECKING:
    from types import TracebackType

logger = logging.getLogger(__name__)

_NO_LINGER = struct.pack("ii", 1, 0)  # socket(7): close then discards what is queued and sends RST


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What was agreed on with a client before mitmproxy's engine has its connection. `alpn` is "" without TLS too."""

    tls: bool
    sni: str | None
    alpn: str

    def put_into(self, client: Client) -> None:
        """Tell mitmproxy of it."""
        client.tls, client.sni, client.alpn = self.tls, self.sni, self.alpn.encode("ascii") or None
        client.timestamp_tls_setup = time.time() if self.tls else None


class GateHandler(Ending, Engine):
    """Runs one client connection and its upstream ones. `state.run` is the listener's run."""

    def __init__(
        self,
        streams: Streams,
        options: Options,
        mode: ProxyMode,
        *,
        state: ClientState,
        hooks: Hooks,
        agreed: "Agreed",
    ) -> None:
        reader, writer = streams
        self.state = state
        self.dead = False
        self._hooks = hooks
        self._client_gate, self.server_gate = Gate(), Gate()
        self._broken: set[str] = set()
        self._late_ids: set[str] = set()
        self._connecting: dict[Connection, asyncio.TimerHandle | None] = {}
        cut = Cutter()
        gated = GatedReader(reader, self._client_gate, lambda: None, cut if agreed.alpn == "h2" else of_client)
        super().__init__(cast("asyncio.StreamReader", gated), writer, options, mode)
        agreed.put_into(self.client)
        context = self.layer.context
        context.server.address = ("connection.invalid", state.port)  # HttpLayer asks for one
        self.http: GateHttpLayer = http_layer(context, lambda: state.run.streams >= MAX_STREAMS, cut)
        self.layer = self.http
        self._streams = 0  # of this connection, as far as its run has counted them

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

    async def handle_client(self) -> None:
        """Run the connection to its end. Nothing that a hook may still be at reaches a layer behind that."""
        try:
            await super().handle_client()
        finally:
            self._count_streams(0)
        self.dead = True

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
        logger.error("gateway: %s at %s", detail, where(error))
        if name == "requestheaders" and isinstance(data, HTTPFlow):
            exchange = exchange_of(data)
            wire = wire_of(data, self.state, exchange)
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

    def kill(self) -> None:
        """Close the client's connection and every upstream one at once, with nothing more sent on any."""
        self.dead = self.state.closed = True
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

    # -- what the hooks ask for -------------------------------------------------------------------------------------

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
            self.http.forget(connection)
            transport.handler.cancel("dropped")

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
        try:
            await self.handle_connection(server)
        finally:
            self.connecting_done(server)
            server.timestamp_end = time.time()
            await self.handle_hook(ServerDisconnectedHook(data))

    async def _dial(self, server: Server, data: ServerConnectionHookData) -> Streams | None:
        await self.handle_hook(ServerConnectHook(data))
        if not server.error and not self.dead and server.address is not None:
            dialler, known = self._hooks.judge.dialler, self.state.targets[server.address]
            try:
                target = self.state.targets[server.address] = await dialler.fresh(known, self.state.run.lookups)
                return await dialler.connect(target, partial(self.state.asked, server.address))
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
        if self.client.alpn == b"h2":
            self._count_streams(len(self.http.streams))
            self._balance(*self.http.backlogs(), self.http.unread())

    def _count_streams(self, now: int) -> None:
        self.state.run.streams += now - self._streams
        self._streams = now

    def _balance(self, to_client: int, to_targets: int, unread: int) -> None:
        """Stop reading what would only be queued. Never both sides: each may wait for what the other one reads."""
        behind = to_client > MAX_BACKLOG or unread > MAX_UNREAD
        self.server_gate.hold_while(behind)
        self._client_gate.hold_while(to_targets > MAX_BACKLOG and not behind)

    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        """Drop mitmproxy's texts: they quote URLs, headers and bytes. A crash of a layer ends the connection."""
        if exc_info is None:
            return
        error = _raised(exc_info)
        at = where(error) if error is not None else "?"
        logger.error("gateway: layer failed: %s at %s", type(error).__name__, at)
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
