"""Our proxy mode: a listening socket that somebody else made, and the run it belongs to."""

import asyncio
import socket
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from mitmproxy.options import Options
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.mode_servers import AsyncioServerInstance
from mitmproxy.proxy.mode_specs import ProxyMode

from credgate.gateway.accepting import Acceptor, Share
from credgate.gateway.crowd import Crowd
from credgate.gateway.dial import Streams
from credgate.gateway.exchange import ClientState
from credgate.gateway.handler import GateHandler
from credgate.gateway.hooks import Hooks
from credgate.gateway.lane import Lane
from credgate.gateway.tunnel import Tunnel, tunnel_for
from credgate.runs import Listener, Run

MAX_CONNECTIONS = 512  # of one run: a jail can't take the daemon's descriptors from the other runs


class _NoRegistry:
    """mitmproxy finds connections here to inject messages into them; nothing of ours may."""

    connections: ClassVar[dict[Any, Any]] = {}

    def register_connection(self, connection_id: object, handler: object) -> NoReturn:
        """Never called: handle_stream below keeps its own."""
        raise NotImplementedError


@dataclass(frozen=True)
class CredgateMode(ProxyMode):  # type: ignore[no-untyped-call]
    """`data` names the run and the port; the socket itself comes with the instance."""

    transport_protocol: Literal["tcp"] = "tcp"
    description: str = "credgate listener"

    def __post_init__(self) -> None:
        """Nothing to check: the spec is made below."""

    @property
    def default_port(self) -> int:
        """The socket has its port already."""
        return 0


class CredgateInstance(AsyncioServerInstance[CredgateMode]):  # type: ignore[no-untyped-call]
    """Accepts on one listener. Made by `bind`."""

    run: Run
    listener: Listener
    hooks: Hooks
    options: Options
    crowd: Crowd
    share: Share | None = None  # with the processes that accept on the same sockets
    handlers: dict[GateHandler | Tunnel, asyncio.Task[Any]]

    @classmethod
    def bind(cls, run: Run, listener: Listener, *, hooks: Hooks, options: Options, crowd: Crowd) -> "CredgateInstance":
        """Make the instance of one listener; `start` accepts."""
        spec = f"credgate:{run.id}/{listener.port}"
        instance = cls(CredgateMode(spec, f"{run.id}/{listener.port}", None, listener.port), _NoRegistry())
        instance.run, instance.listener, instance.hooks, instance.options = run, listener, hooks, options
        instance.handlers, instance.crowd = {}, crowd
        return instance

    async def listen(self, host: str, port: int) -> list[Any]:
        """Accept on the socket we were given. Raises OSError where it does not listen."""
        sock = self.listener.sock
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError(f"socket for port {self.listener.port} does not listen")
        if self.share is not None:
            return [Acceptor(sock, self.share, self.handle_stream)]
        return [await asyncio.start_server(self.handle_stream, sock=sock)]

    def top_layer(self, handler: GateHandler) -> Layer:
        """CONNECT and absolute-form on the proxy port; elsewhere the first byte tells TLS from HTTP."""
        context = handler.layer.context
        if self.listener.proxy:
            return Lane(context, handler, outer=True)
        context.server.address = ("direct.invalid", self.listener.port)
        return modes.HttpProxy(context)

    def make_top_layer(self, context: Context) -> Layer:
        """Never called: `handle_stream` below has a handler of its own to make the layer for."""
        raise NotImplementedError

    async def handle_stream(self, reader: Any, writer: Any = None) -> None:
        """Run one accepted connection to its end."""
        if not self.crowd.enter(self.run.id, MAX_CONNECTIONS):
            writer.transport.abort()
            return
        try:
            await self._serve(reader, writer)
        finally:
            self.crowd.leave(self.run.id)

    async def _serve(self, reader: Any, writer: Any) -> None:
        # Accepted sockets inherit the listener's protocol number; where it is 0 asyncio leaves Nagle on.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handler = self._handler((reader, writer))
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("not in a task")
        self.handlers[handler] = task
        try:
            await handler.handle_client()
        finally:
            self.handlers.pop(handler, None)

    def _handler(self, streams: Streams) -> GateHandler | Tunnel:
        """What a port leads to is asked anew for each connection: a reload may have changed it."""
        state = ClientState(run=self.run, listener=self.listener)
        opaque = None if self.listener.proxy else tunnel_for(self.run, self.listener.port)
        if opaque is not None:
            return Tunnel(streams, opaque, state=state, hooks=self.hooks)
        handler = GateHandler(streams, self.options, self.mode, state=state, hooks=self.hooks)
        handler.layer = self.top_layer(handler)
        return handler

    def cut(self, detail: str, binding: str = "") -> int:
        """End every connection at once, or those that `binding` was used on; how many they were."""
        found = [h for h in tuple(self.handlers) if not binding or binding in h.state.bindings]
        for handler in found:
            handler.close(detail)
        return len(found)

    async def shut(self) -> None:
        """Stop accepting, end every connection, and return when all are gone."""
        if self.is_running:
            await self.stop()
        tasks = tuple(self.handlers.values())
        for handler in tuple(self.handlers):
            handler.close("the run ended")
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
