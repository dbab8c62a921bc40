"""What a client connection becomes behind an agreed WebSocket handshake: frames pass by, held to RFC 6455."""

from collections.abc import Callable
from dataclasses import dataclass

from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context

from credgate.gateway.frames import FrameError, Frames

type Commands = layer.CommandGenerator[None]


@dataclass
class SocketEnd:
    """How a WebSocket ended; `detail` for the ledger."""

    flow: HTTPFlow
    detail: str
    fault: str = ""  # "client" or "server": who broke the protocol


@dataclass
class SocketEndHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """A WebSocket is over, on both sides."""

    data: SocketEnd


class WebSocket(layer.Layer):
    """Passes frames. `count` is asked before bytes go on: a text, when they may not."""

    def __init__(self, context: Context, flow: HTTPFlow, count: Callable[[bool, int], str]) -> None:
        super().__init__(context)
        self._flow, self._count = flow, count
        self._frames: dict[Connection, Frames] = {
            context.client: Frames(masked=True),
            context.server: Frames(masked=False),
        }
        self._over = False

    def _handle_event(self, event: events.Event) -> Commands:
        if self._over or not isinstance(event, events.ConnectionEvent):
            return
        ours = event.connection == self.context.client
        if isinstance(event, events.DataReceived):
            yield from self._pass(event.data, ours=ours)
        elif isinstance(event, events.ConnectionClosed):
            closed = all(frames.closed for frames in self._frames.values())
            who = "client" if ours else "target"
            yield from self._end("" if closed else f"the {who} ended the connection without a close frame")

    def _pass(self, data: bytes, *, ours: bool) -> Commands:
        both: tuple[Connection, Connection] = (self.context.client, self.context.server)
        source, other = both if ours else both[::-1]
        try:
            self._frames[source].feed(data)
        except FrameError as error:
            yield from self._end(str(error), fault="client" if ours else "server")
            return
        why = self._count(ours, len(data))
        if why:
            yield from self._end(why)
            return
        yield commands.SendData(other, data)

    def _end(self, detail: str, fault: str = "") -> Commands:
        self._over = True
        for connection in (self.context.client, self.context.server):
            yield from _closed(connection)
        yield SocketEndHook(SocketEnd(self._flow, detail, fault))


def _closed(connection: Connection) -> Commands:
    if connection.state is not ConnectionState.CLOSED:
        yield commands.CloseConnection(connection)
