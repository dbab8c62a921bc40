"""A listening socket that somebody else made, the run it belongs to, and the connections that were accepted on it."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from mitmproxy.options import Options
from mitmproxy.proxy.mode_specs import ProxyMode

from credgate.gateway.accepting import Acceptor, Share
from credgate.gateway.bridge import StreamsEnd
from credgate.gateway.client import Client
from credgate.gateway.connects import Connects
from credgate.gateway.crowd import Crowd
from credgate.gateway.dial import Streams
from credgate.gateway.exchange import ClientState
from credgate.gateway.front import Front
from credgate.gateway.handler import Agreed, GateHandler
from credgate.gateway.hooks import Hooks
from credgate.gateway.leaves import Leaves
from credgate.gateway.tunnel import Tunnel, is_shared, tunnel_for
from credgate.gateway.ways import Ways
from credgate.runs import Listener, Run
from rules.policy import Endpoint

MAX_CONNECTIONS = 512  # of one run: a jail can't take the daemon's descriptors from the other runs
_CLOSING = 5.0  # seconds in which connections have to be gone that were killed

type Handler = Client | GateHandler | Tunnel


@dataclass(frozen=True)
class CredgateMode(ProxyMode):  # type: ignore[no-untyped-call]
    """What mitmproxy is told of a listener: its engine asks for it."""

    transport_protocol: Literal["tcp"] = "tcp"
    description: str = "credgate listener"

    def __post_init__(self) -> None:
        """Nothing to check: the spec is made below."""

    @property
    def default_port(self) -> int:
        """The socket has its port already."""
        return 0


class _Surplus(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()


class CredgateInstance:
    """Accepts on one listener. What it is asked to do by a connection is `client.Door`."""

    def __init__(self, run: Run, listener: Listener, *, hooks: Hooks, options: Options, crowd: Crowd) -> None:
        self.run, self.listener, self.front = run, listener, Front()
        self.connects, self.leaves = Connects(), Leaves(hooks.authority)
        self.ways = Ways()
        self.handlers: set[Handler] = set()
        self._hooks, self._options, self._crowd = hooks, options, crowd
        self._tasks: set[asyncio.Task[Any]] = set()
        self._empty = asyncio.Event()
        self.share: Share | None = None  # with the processes that accept on the same sockets
        self._server: Acceptor | None = None

    async def start(self) -> None:
        """Accept on the socket we were given. Raises OSError where it does not listen."""
        sock = self.listener.sock
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError(f"socket for port {self.listener.port} does not listen")
        self._server = Acceptor(sock, self.share, self._accept, partial(is_shared, self.run, self.listener))

    def _accept(self) -> asyncio.BaseProtocol:
        """What a port leads to is asked anew for each connection: a reload may have changed it."""
        if not self._crowd.enter(self.run.id, MAX_CONNECTIONS):
            return _Surplus()
        self._count(1)
        state = ClientState(run=self.run, listener=self.listener)
        opaque = None if self.listener.proxy else tunnel_for(self.run, self.listener.port)
        if opaque is not None:
            reader = asyncio.StreamReader()
            return asyncio.StreamReaderProtocol(reader, partial(self._piped, state, opaque))
        client = Client(self, state, self._hooks)
        self.handlers.add(client)
        return client.pipe

    async def _piped(self, state: ClientState, opaque: Endpoint, *streams: Any) -> None:
        try:
            # as in Pipe.connection_made
            streams[1].get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._run(Tunnel(streams, opaque, state=state, hooks=self._hooks))
        finally:
            self._leave(state)

    async def _run(self, handler: GateHandler | Tunnel) -> None:
        self.handlers.add(handler)
        try:
            await handler.handle_client()
        finally:
            self._left(handler)

    def hand_over(self, client: Client, data: bytes) -> None:
        """Have mitmproxy's engine go on with a connection; `data` came of it already."""
        streams = StreamsEnd(client.pipe, client.handed_back).streams(data)
        agreed = Agreed(tls=client.pipe.secure, sni=client.sni, alpn=client.pipe.alpn)
        self.handlers.discard(client)
        task = asyncio.get_running_loop().create_task(self._run(self._engine(client.state, streams, agreed)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _engine(self, state: ClientState, streams: Streams, agreed: Agreed) -> GateHandler:
        spec = f"{state.run.id}/{self.listener.port}"
        mode = CredgateMode(f"credgate:{spec}", spec, None, self.listener.port)
        return GateHandler(streams, self._options, mode, state=state, hooks=self._hooks, agreed=agreed)

    def gone(self, client: Client) -> None:
        """A connection that was accepted is closed."""
        self._left(client)
        self._leave(client.state)

    def _leave(self, state: ClientState) -> None:
        self._crowd.leave(state.run.id)
        self._count(-1)

    def _count(self, change: int) -> None:
        if self.share is not None:
            self.share.more(change)

    def cut(self, detail: str, binding: str = "") -> int:
        """End every connection at once, or those that `binding` was used on; how many they were."""
        found = [h for h in tuple(self.handlers) if not binding or binding in h.state.bindings]
        for handler in found:
            handler.close(detail)
        return len(found)

    async def shut(self) -> None:
        """Stop accepting, end every connection, and return when all are gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for handler in tuple(self.handlers):
            handler.close("the run ended")
        if self.handlers:
            self._empty.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await self._empty.wait()

    def _left(self, handler: Handler) -> None:
        self.handlers.discard(handler)
        if not self.handlers:
            self._empty.set()
