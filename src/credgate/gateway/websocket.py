"""What a client connection becomes behind an agreed WebSocket handshake: frames pass by, held to RFC 6455.

Where the handshake's rules ask of messages the client's are kept until each was judged. One that is refused ends the
socket: Close 1008 ("policy violation", RFC 6455 7.4.1) to the client, 1001 to the target, which did nothing wrong.
"""

from dataclasses import dataclass

from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context

from credgate.gateway.exchange import Exchange, exchange_of
from credgate.gateway.frames import FrameError, Frames
from credgate.gateway.leaving import Leak
from credgate.gateway.messages import MessageRefused, Messages, Piece, close_frame
from credgate.gateway.searched import CleanFrames, LeavingFrames
from rules.messages import max_of
from rules.reasons import Reason

_POLICY_VIOLATION, _GOING_AWAY = 1008, 1001

type Commands = layer.CommandGenerator[None]


@dataclass
class SocketEnd:
    """How a WebSocket ended; `detail` for the ledger."""

    flow: HTTPFlow
    detail: str
    reason: Reason | None = None  # None: nobody did wrong
    leaked: frozenset[str] = frozenset()  # names of secrets that a message held


@dataclass
class SocketEndHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """A WebSocket is over, on both sides."""

    data: SocketEnd


@dataclass
class SocketMessage:
    """A text message of a client that waits for its verdict. `why` is "" once it may go on."""

    flow: HTTPFlow
    text: bytes
    why: str = "it was not judged"


@dataclass
class SocketMessageHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """A client's message is whole."""

    data: SocketMessage


class WebSocket(layer.Layer):
    """Passes frames. `Exchange.count` is asked before bytes go on, `Exchange.keep` for what waits to be judged."""

    def __init__(self, context: Context, flow: HTTPFlow) -> None:
        super().__init__(context)
        self._flow = flow
        self._exchange: Exchange = exchange_of(flow)
        asked = self._exchange.allow.messages if self._exchange.allow is not None else ()
        self._messages = Messages(limit=max_of(asked)) if asked else None
        leaving, cleaning = self._exchange.leaving, self._exchange.cleaning
        self._known = leaving.table if leaving is not None else None
        streamed = Frames(masked=True) if self._known is None else LeavingFrames(self._known)
        self._client: Frames = self._messages or streamed
        self._server = Frames(masked=False) if cleaning is None else CleanFrames(cleaning)
        self._over = False

    def _handle_event(self, event: events.Event) -> Commands:
        if self._over or not isinstance(event, events.ConnectionEvent):
            return
        ours = event.connection == self.context.client
        if isinstance(event, events.DataReceived):
            yield from self._judge(event.data) if ours and self._messages else self._pass(event.data, ours=ours)
        elif isinstance(event, events.ConnectionClosed):
            closed = self._client.closed and self._server.closed
            who = "client" if ours else "target"
            yield from self._end("" if closed else f"the {who} ended the connection without a close frame")

    def _pass(self, data: bytes, *, ours: bool) -> Commands:
        try:
            data = (self._client if ours else self._server).through(data)
        except FrameError as error:
            yield from self._end(str(error), Reason.MALFORMED if ours else Reason.UPSTREAM_INVALID)
            return
        except Leak as leak:
            yield from self._leaked(leak.names)
            return
        if data:
            yield from self._send(data, outward=ours)

    def _judge(self, data: bytes) -> Commands:
        try:
            pieces = self._messages.take(data) if self._messages else []
        except FrameError as error:
            yield from self._end(str(error), Reason.MALFORMED)
            return
        except MessageRefused as error:
            yield from self._refuse(str(error))
            return
        for piece in pieces:
            yield from self._send_piece(piece)
            if self._over:
                return
        why = self._exchange.keep(self._messages.held if self._messages else 0) if self._exchange.keep else ""
        if why:
            yield from self._refuse(why)

    def _send_piece(self, piece: Piece) -> Commands:
        if piece.text is not None:
            names = self._known.found(piece.text) if self._known is not None else frozenset()
            if names:
                yield from self._leaked(names)
                return
            message = SocketMessage(self._flow, piece.text)
            yield SocketMessageHook(message)
            if message.why:
                yield from self._refuse(message.why)
                return
        yield from self._send(piece.raw, outward=True)

    def _send(self, data: bytes, *, outward: bool) -> Commands:
        why = self._exchange.count(outward, len(data)) if self._exchange.count else "nobody counts"
        if why:
            yield from self._end(why)
            return
        yield commands.SendData(self.context.server if outward else self.context.client, data)

    def _leaked(self, names: frozenset[str]) -> Commands:
        """A message of the client's holds secrets. The target may be in the middle of it, and gets no end."""
        yield from self._tell(Reason.SECRET_MISPLACED)
        yield from self._end("", Reason.SECRET_MISPLACED, names)

    def _tell(self, reason: Reason) -> Commands:
        """In the middle of a frame of the target's the client would take a Close of ours for a part of it."""
        if self._server.between and not self._server.closed:
            close = close_frame(_POLICY_VIOLATION, masked=False, reason=reason.value)
            yield commands.SendData(self.context.client, close)

    def _refuse(self, why: str) -> Commands:
        yield from self._tell(Reason.BODY_REFUSED)
        if not self._client.closed:
            yield commands.SendData(self.context.server, close_frame(_GOING_AWAY, masked=True))
        yield from self._end(why, Reason.BODY_REFUSED)

    def _end(self, detail: str, reason: Reason | None = None, leaked: frozenset[str] = frozenset()) -> Commands:
        self._over = True
        for connection in (self.context.client, self.context.server):
            yield from _closed(connection)
        yield SocketEndHook(SocketEnd(self._flow, detail, reason, leaked))


def _closed(connection: Connection) -> Commands:
    if connection.state is not ConnectionState.CLOSED:
        yield commands.CloseConnection(connection)
