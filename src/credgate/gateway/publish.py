"""Ports inside a jail that the host's loopback reaches: `publish`. The other way round than everything else here.

The gateway listens on the host's 127.0.0.1; each connection is piped to 127.0.0.1 of the jail's own network namespace,
by a socket that the berth's holder made there. Nothing is routed, and no rule of the berth's firewall is changed.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from credgate.errors import CredgateError
from credgate.gateway import standing
from credgate.gateway.dial import Streams
from credgate.gateway.exchange import ClientState
from credgate.gateway.hooks import Hooks
from credgate.gateway.linefields import Pipe
from credgate.gateway.refusal import deny
from credgate.gateway.tunnel import Piped
from credgate.runs import Listener, Run
from jail.errors import JailError
from rules.reasons import Reason
from rules.verdict import Deny

logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 256  # of one run

type MakeSocket = Callable[[], Awaitable[socket.socket]]


class Inward(Piped):
    """A client of the host, and a server in the jail. What comes out of the jail counts as bytes out."""

    _leaves = False

    def __init__(self, streams: Streams, *, state: ClientState, hooks: Hooks, make: MakeSocket) -> None:
        port = state.listener.port
        super().__init__(
            streams, Pipe(rule="publish", host="localhost", port=port, via="publish"), state=state, hooks=hooks
        )
        self._make = make
        state.connect_host, state.connect_port = b"localhost", port

    async def _open(self) -> Deny | None:
        run = self.state.run
        listed = self.state.listener.port in run.role_rule.publish  # a reload may have taken it out
        closed = standing.closed(run) if listed else deny(Reason.REVOKED)
        if closed is not None:
            return closed
        self._records.tunnel(self.state, self._pipe)
        try:
            async with asyncio.timeout(self._steps.timeouts.connect):
                inside = await self._dial()
        except TimeoutError:
            self._end(Reason.UPSTREAM_TIMEOUT, "the jail's server does not answer")
            return None
        except (OSError, JailError):
            self._end(Reason.UPSTREAM_UNREACHABLE, "nothing listens there in the jail")
            return None
        self._writers.append(inside[1])
        if not self._over:
            await self._carry(inside)
        return None

    async def _dial(self) -> Streams:
        sock = await self._make()
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.state.listener.port))
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise


class Published:
    """One published port: accepts on the host for a run. The same surface as a listener of the jail's."""

    def __init__(self, run: Run, sock: socket.socket, *, hooks: Hooks, make: MakeSocket) -> None:
        self.run = run
        self.handlers: dict[Inward, asyncio.Task[Any]] = {}
        self._hooks, self._make = hooks, make
        self._listener = Listener(sock=sock, port=sock.getsockname()[1], proxy=False)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Accept. Raises OSError."""
        self._server = await asyncio.start_server(self._handle, sock=self._listener.sock)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self.handlers) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        state = ClientState(run=self.run, listener=self._listener)
        handler = Inward((reader, writer), state=state, hooks=self._hooks, make=self._make)
        self.handlers[handler] = task
        try:
            await handler.handle_client()
        finally:
            self.handlers.pop(handler, None)

    def cut(self, detail: str, binding: str = "") -> int:
        """End every connection; none of them has a binding."""
        found = [] if binding else list(self.handlers)
        for handler in found:
            handler.close(detail)
        return len(found)

    async def shut(self) -> None:
        """Stop accepting, end every connection, and return when all are gone."""
        if self._server is not None:
            self._server.close()
        self._listener.sock.close()
        tasks = tuple(self.handlers.values())
        self.cut("the run ended")
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)


def bound(port: int) -> socket.socket:
    """A listening socket on the host's loopback. Raises CredgateError where the port is taken."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(64)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise CredgateError(
            "port_taken",
            f"publish: 127.0.0.1:{port}: {error.strerror}",
            "end what listens there, or publish another port",
            125,
        ) from error
    return sock
