"""The strict HTTP/1.1 lane: one layer of our own between mitmproxy's TLS layers and the targets, without flow objects.

It takes the plain grammar (`head`, `framing`) and nothing else, and obeys what the steps say. One request at a time:
what a client sends ahead waits, bounded. An exception anywhere ends the connection with nothing more sent: see
`GateHandler.log`. From its first WebSocket handshake on a connection is mitmproxy's HTTP layers', as HTTP/2 is.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context

from credgate.gateway.exchange import Exchange
from credgate.gateway.framing import (
    Chunked,
    Counted,
    FramingError,
    request_body,
    tokens,
)
from credgate.gateway.head import (
    MAX_HEAD,
    HeadError,
    RequestHead,
    cut,
    parse_request_head,
)
from credgate.gateway.lanetarget import TargetSide
from credgate.gateway.layers import http_layer
from credgate.gateway.link import Link
from credgate.gateway.refusal import deny
from credgate.gateway.turn import Turn
from rules.reasons import Reason
from rules.request import Via, Wire

if TYPE_CHECKING:
    from credgate.gateway.handler import GateHandler

HEAD_TIMEOUT = 30.0  # seconds for a head, from its first byte
SHORT_LINGER = 1.0  # the same behind what was no head
MAX_AHEAD = MAX_HEAD * 2  # bytes of requests sent ahead of an answer

type Commands = layer.CommandGenerator[None]


@dataclass
class LaneRequestHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """A request is to be judged."""

    data: Turn


class Lane(TargetSide):
    """One client connection in HTTP/1.1. `outer`: the explicit proxy's port, before any CONNECT."""

    def __init__(self, context: Context, handler: "GateHandler", *, outer: bool) -> None:
        super().__init__(context, handler)
        self._outer = outer
        self._seen = 0  # of an unfinished head
        self._child: layer.Layer | None = None

    # -- events -----------------------------------------------------------------------------------------------------

    def _handle_event(self, event: events.Event) -> Commands:
        link = self._link_of(event)
        if link is not None:
            yield from self._from_link(link, event)
        elif self._child is not None:
            yield from self._child.handle_event(event)
        elif isinstance(event, events.DataReceived):
            yield from self._from_client(event.data)
        elif isinstance(event, events.ConnectionClosed):
            yield from self._client_left()
        elif isinstance(event, events.Wakeup) and event.command is self._timer:
            yield from self._close()
        if self._turn is None:
            yield from self._next()

    def _link_of(self, event: events.Event) -> Link | None:
        if isinstance(event, events.ConnectionEvent):
            link = self._handler.links.get(event.connection)
            return link if link is not None and link.lane is self else None
        if isinstance(event, events.CommandCompleted):
            return self._asked.pop(id(event.command), None)
        return None

    def _from_client(self, data: bytes) -> Commands:
        if self._over:
            return
        if self._lingering:
            yield from self._forget(data)
            return
        self._buffer += data
        turn = self._turn
        if turn is not None and turn.collecting:
            yield from self._collect(turn)
        elif turn is not None and not turn.request_done and turn.head_sent:
            yield from self._upload(turn)
        if self._turn is None:
            yield from self._next()
        if len(self._buffer) > MAX_AHEAD and (self._turn is None or self._turn.request_done):
            yield from self._cut_off("too many bytes ahead")

    def _client_left(self) -> Commands:
        if self._turn is not None:
            yield from self._cut_off("client closed the connection")
        elif not self._over:
            yield from self._close()

    def _cut_off(self, detail: str) -> Commands:
        """The client is gone, or has to go: its exchange ends with it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.exchange.client_gone = True
            self._steps.finish(self._state, turn.exchange, detail=detail)
        yield from self._drop()
        yield from self._close()

    # -- the request ------------------------------------------------------------------------------------------------

    def _next(self) -> Commands:
        """Take what requests there are in the buffer, one after the other."""
        while self._buffer and self._turn is None and self._child is None and not (self._over or self._lingering):
            if not self._seen and self._buffer.startswith(b"\r\n"):  # RFC 9112 2.2: an empty line ahead is nothing
                self._buffer = self._buffer[2:]
            try:
                raw = cut(self._buffer, self._seen)
                head = None if raw is None else parse_request_head(raw)
            except HeadError as error:
                yield from self._bad_head(error)
                return
            if raw is None or head is None:
                self._seen = len(self._buffer)
                yield from self._wait_for_head()
                return
            self._seen, self._timer = 0, None
            if self._is_websocket(head):
                yield from self._hand_over()
                return
            self._buffer = self._buffer[len(raw) + 4 :]
            yield from self._arrive(head)

    def _wait_for_head(self) -> Commands:
        if self._timer is None and self._seen:
            self._timer = commands.RequestWakeup(HEAD_TIMEOUT)
            yield self._timer

    def _bad_head(self, error: HeadError) -> Commands:
        bare = bool(self._state.connect_port) and not self.context.client.tls_established
        refusal = self._steps.bad_head(self._state, http=error.http, detail=str(error))
        if error.http or not bare:  # a tunnel that holds no HTTP at all is not spoken to
            yield from self._send(refusal.wire())
            yield from self._linger(seconds=SHORT_LINGER)
        else:
            yield from self._close()

    def _is_websocket(self, head: RequestHead) -> bool:
        return not self._outer and head.method == b"GET" and b"websocket" in tokens(head.fields, b"upgrade")

    def _hand_over(self) -> Commands:
        """Leave the connection to mitmproxy's HTTP layers, from this head on."""
        self._park()
        self._child = self._handler.http = http_layer(self.context)
        data, self._buffer = self._buffer, b""
        yield from self._child.handle_event(events.Start())
        yield from self._child.handle_event(events.DataReceived(self.context.client, data))

    def _arrive(self, head: RequestHead) -> Commands:
        """Have one request judged, and go on with it or refuse it."""
        turn = self._turn_of(head)
        if head.method == b"CONNECT":
            yield from self._connect(turn)
            return
        yield from self._judge(turn)

    def _judge(self, turn: Turn) -> Commands:
        yield LaneRequestHook(turn)
        if turn.exchange.refusal is not None:
            yield from self._refuse(turn)
            return
        if turn.body is None or (turn.exchange.target is None and not turn.collecting):
            raise RuntimeError("allowed without a body's length, or without a target")
        self._turn = turn
        if not turn.collecting:
            yield from self._open(turn)
            return
        if turn.expects and not turn.request_done and not self._buffer:
            yield from self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        yield from self._collect(turn)

    def _collect(self, turn: Turn) -> Commands:
        """Keep the body until it is whole, and have the request judged with it: nothing is sent before."""
        body = turn.body
        if body is None:
            raise RuntimeError("a body without its length")
        pieces, self._buffer = body.feed(self._buffer)
        if body.fault is not None:
            self._steps.refuse(self._state, turn.exchange, turn.wire, deny(Reason.MALFORMED))
            yield from self._refuse(turn)
        elif self._steps.hold(self._state, turn.exchange, turn.wire, sum(map(len, pieces))):
            yield from self._refuse(turn)
        else:
            turn.keep_body(pieces)
            if body.done:
                yield from self._judge(turn)

    def _turn_of(self, head: RequestHead) -> Turn:
        body: Counted | Chunked | None
        try:
            body = request_body(head.fields, head.version)
        except FramingError:
            body = None
        exchange = Exchange(
            authority=head.authority,
            scheme=head.scheme,
            has_body=body is None or not body.done,
        )
        return Turn(exchange=exchange, wire=self._wire(head, exchange), head=head, body=body)

    def _wire(self, head: RequestHead, exchange: Exchange) -> Wire:
        state, client = self._state, self.context.client
        connect = head.method == b"CONNECT"
        return Wire(
            via=Via.ABSOLUTE if self._outer else Via.CONNECT if state.connect_port else Via.DIRECT,
            http_version=head.version.decode("latin-1"),
            method=head.method,
            target=b"" if connect else head.target,
            headers=head.fields,
            tls=client.tls_established,
            authority=head.target if connect else head.authority,
            scheme=head.scheme,
            connect_host=state.connect_host,
            connect_port=state.connect_port,
            sni=client.sni,
            listen_port=state.listener.port,
            has_body=exchange.has_body,
        )

    def _connect(self, turn: Turn) -> Commands:
        """Open a tunnel, in which everything begins anew; or refuse."""
        refused = deny(Reason.MALFORMED)
        if self._outer and not turn.exchange.has_body:
            opened = self._steps.open_tunnel(self._state, turn.head.target)
            if opened is None:
                yield from self._tunnel()
                return
            refused = opened
        self._steps.refuse(self._state, turn.exchange, turn.wire, refused)
        yield from self._refuse(turn)

    def _tunnel(self) -> Commands:
        self._handler.expect_progress(self._steps.timeouts.tls)
        self._park()
        self.context.server.address = ("tunnel.invalid", self._state.connect_port)  # HttpLayer asks for one
        self._child = layer.NextLayer(self.context)
        data, self._buffer = self._buffer, b""
        yield from self._send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        yield from self._child.handle_event(events.Start())
        if data:
            yield from self._child.handle_event(events.DataReceived(self.context.client, data))
