"""mitmproxy's HTTP layers, held to our rules: refusals in our own words and at once, bounded heads, no translation.

Where mitmproxy would answer by itself (an HTML page that quotes the input) or would read a whole body before it says
no, these classes say no. They hold no policy: the hooks decide, the layers obey `Exchange.refusal`.
"""

from collections.abc import Callable
from typing import Any

from mitmproxy import flow as mitm_flow
from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.http import Headers, Response
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import ClientTLSLayer
from mitmproxy.proxy.layers import http as mitm
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestHeaders,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._hooks import HttpErrorHook, HttpRequestHeadersHook

from credgate.gateway.exchange import Exchange, attach, exchange_of
from credgate.gateway.http1 import GateHttp1Client, GateHttp1Server
from credgate.gateway.http2 import Cutter, GateHttp2Client, GateHttp2Server, at_target, backlog
from credgate.gateway.websocket import WebSocket
from rules.reasons import Reason

type Commands = layer.CommandGenerator[None]
type Truth = layer.CommandGenerator[bool]


def install() -> None:
    """Make mitmproxy's HTTP layer build our upstream sides; it has no other seam for that than these names."""
    module: Any = mitm
    module.Http1Client, module.Http2Client = GateHttp1Client, GateHttp2Client


def http_layer(context: Context, full: Callable[[], bool], cut: Cutter) -> "GateHttpLayer":
    """An HTTP layer whose client side is ours. HTTP/2 is spoken only where ALPN agreed on it, and only while there is
    room for a stream; `cut` is what its bytes come through.
    """
    gate = GateHttpLayer(context, HTTPMode.transparent)
    inner = gate.context.fork()
    h2 = context.client.alpn == b"h2"
    gate.connections[context.client] = GateHttp2Server(inner, full, cut) if h2 else GateHttp1Server(inner)
    return gate


class GateHttpLayer(mitm.HttpLayer):
    """HttpLayer whose streams are GateStreams."""

    def make_stream(self, stream_id: int) -> Commands:
        """Start one exchange."""
        self.streams[stream_id] = GateStream(self.context.fork(), stream_id)
        yield from self.event_to_child(self.streams[stream_id], events.Start())

    def backlogs(self) -> tuple[int, int]:
        """Bytes of HTTP/2 bodies that wait for the client, and for all upstreams together."""
        client = self.context.client
        to_targets = sum(backlog(end) for connection, end in self.connections.items() if connection is not client)
        return backlog(self.connections.get(client)), to_targets

    def unread(self) -> int:
        """Bytes of HTTP/2 of all upstreams together that wait to be looked at."""
        return sum(end.unread for end in map(at_target, self.connections.values()) if end is not None)

    def forget(self, connection: Connection) -> None:
        """An upstream connection is given up: nothing of what it said is looked at any more."""
        end = at_target(self.connections.get(connection))
        if end is not None:
            end.forget()


class GateStream(mitm.HttpStream):
    """One exchange. Adds to HttpStream: what was raw is kept, a refusal is spoken at once, failures get our words."""

    _has_body = False
    _connected = False
    _answering = False  # the head of an answer has gone to the client

    def state_wait_for_request_headers(self, event: RequestHeaders) -> Commands:
        """Keep what only the event tells."""
        self._has_body = not event.end_stream
        yield from super().state_wait_for_request_headers(event)

    def check_invalid(self, request: bool) -> Truth:
        """Called by HttpStream before any hook, for the request's head and again for the response's."""
        if request:
            return (yield from self._arrive())
        return (yield from self._check_response())

    def _arrive(self) -> Truth:
        data = self.flow.request.data
        exchange = Exchange(
            authority=data.authority,
            scheme=data.scheme,
            h2=data.http_version == b"HTTP/2.0",
            has_body=self._has_body,
            fault=self._fault(),
        )
        attach(self.flow, exchange)
        if not data.host:
            data.host, data.port = "unjudged.invalid", 1  # HttpStream would take the Host header instead
        if exchange.fault is None:
            return False
        yield HttpRequestHeadersHook(self.flow)
        yield from self._refuse(exchange)
        return True

    def _fault(self) -> Reason | None:
        request = self.flow.request
        if request.data.method.upper() == b"CONNECT":
            return Reason.MALFORMED  # the strict lane alone opens tunnels
        try:
            validate_headers(request)
            promised = int(request.headers.get("content-length", "0"))
        except ValueError:
            return Reason.MALFORMED
        # HTTP/2 can end a message at its head whatever length it promised
        return Reason.MALFORMED if promised and not self._has_body else None

    def _check_response(self) -> Truth:
        response = self.flow.response
        try:
            if response is None:
                raise ValueError("no response")
            validate_headers(response)
        except ValueError:
            yield from self._fail(Reason.UPSTREAM_INVALID)
            return True
        return False

    def check_killed(self, emit_error_hook: bool) -> Truth:
        """Called by HttpStream right after each hook that may deny."""
        exchange = exchange_of(self.flow)
        if exchange.refusal is not None and not self._answering:
            yield from self._refuse(exchange)
            return True
        return (yield from super().check_killed(emit_error_hook))

    def state_consume_request_body(self, event: events.Event) -> Commands:
        """Keep a body that is judged, as far as that is allowed."""
        exchange = exchange_of(self.flow)
        if isinstance(event, RequestData) and exchange.hold is not None and exchange.hold(event.data):
            self.request_body_buf = type(self.request_body_buf)()
            yield from self._refuse(exchange)
            return
        yield from super().state_consume_request_body(event)

    def state_stream_response_body(self, event: events.Event) -> Commands:
        """Pass an answer's body on. HTTP/2 may have empty parts, which would look like its end to who filters it."""
        if not (isinstance(event, ResponseData) and not event.data):
            yield from super().state_stream_response_body(event)

    def state_stream_request_body(self, event: events.Event) -> Commands:
        """Pass a request's body on, in the same way."""
        if not (isinstance(event, RequestData) and not event.data):
            yield from super().state_stream_request_body(event)

    def send_response(self, already_streamed: bool = False) -> Commands:
        """End the answer where it ends. mitmproxy waits for the request's end, which may wait for the answer's: who is
        told no in the middle of an upload would never hear that this was all (RFC 9113 8.1).
        """
        yield from super().send_response(already_streamed)
        if self._answered_early():
            yield mitm.SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def _answered_early(self) -> bool:
        """Whether the answer is whole, and the request isn't, in HTTP/2."""
        going_on = self.client_state == self.state_stream_request_body
        return self.context.client.alpn == b"h2" and going_on and self.server_state == self.state_done

    def flow_done(self) -> Commands:
        """Begin the WebSocket that was agreed on; mitmproxy's own layer for it keeps whole messages."""
        exchange = exchange_of(self.flow)
        if exchange.status != 101 or exchange.count is None:
            yield from super().flow_done()
            return
        self.child_layer = WebSocket(self.context, self.flow)
        self._handle_event = self.passthrough
        yield from self.child_layer.handle_event(events.Start())
        yield mitm.SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def start_response_stream(self) -> Commands:
        """From here on the client has a head: what goes wrong later closes its connection."""
        self._answering = True
        yield from super().start_response_stream()

    def make_server_connection(self) -> Truth:
        """Get the upstream connection; one that speaks another HTTP than the client is none."""
        connection, error = yield mitm.GetHttpConnection(
            (self.flow.request.host, self.flow.request.port), self.flow.request.scheme == "https", None
        )
        if error is None and (connection.alpn == b"h2") != (self.context.client.alpn == b"h2"):
            yield commands.CloseConnection(connection)
            error = "protocol"
        if error is not None:
            yield from self._fail(Reason.UPSTREAM_TLS)
            return False
        self.context.server = self.flow.server_conn = connection
        self._connected = True
        return True

    def handle_protocol_error(self, event: RequestProtocolError | ResponseProtocolError) -> Commands:
        """Answer 502 or 504 while there is no answer yet; later the client's connection ends unclean."""
        exchange = exchange_of(self.flow)
        if isinstance(event, ResponseProtocolError) and self._answered_early():
            self.flow.live = False  # the target takes no more of the request, whose answer stands
            self.client_state = self.server_state = self.state_errored
            yield mitm.DropStream(self.stream_id)
            return
        done = self.server_state in (self.state_done, self.state_errored)
        if isinstance(event, RequestProtocolError):
            exchange.client_gone = exchange.client_gone or not done
        elif not done:
            if not self._answering:
                reset = event.message == "server closed connection"
                yield from self._fail(Reason.UPSTREAM_RESET if reset else Reason.UPSTREAM_INVALID)
                return
            exchange.failure = exchange.failure or Reason.UPSTREAM_INVALID
        yield from super().handle_protocol_error(event)

    def _fail(self, default: Reason) -> Commands:
        """End an exchange whose upstream gave no answer. The error hook records it and makes the refusal."""
        exchange = exchange_of(self.flow)
        exchange.failure = exchange.failure or default
        self.flow.error = mitm_flow.Error(exchange.failure.value)
        yield HttpErrorHook(self.flow)
        if exchange.client_gone:  # nobody is left to be told
            self.client_state = self.server_state = self.state_errored
            return
        yield from self._refuse(exchange)

    def _refuse(self, exchange: Exchange) -> Commands:
        refusal = exchange.refusal
        if refusal is None:
            raise RuntimeError("refused without a reason")  # the handler turns this into the end of the connection
        h2 = self.context.client.alpn == b"h2"
        refusal = refusal.told_to(self.flow.request.headers.get("user-agent", "").encode("utf-8", "surrogateescape"))
        response = Response(
            http_version=b"HTTP/2.0" if h2 else b"HTTP/1.1",
            status_code=refusal.deny.status,
            reason=b"" if h2 else refusal.phrase,
            headers=Headers(refusal.fields(h2=h2, close=self._has_body)),
            content=None,
            trailers=None,
            timestamp_start=0.0,
            timestamp_end=None,
        )
        self.flow.response = response
        if self._connected:
            gone = RequestProtocolError(self.stream_id, "refused", ErrorCode.CANCEL)
            yield mitm.SendHttp(gone, self.context.server)
        head_only = self.flow.request.data.method == b"HEAD"
        self._answering = True
        yield mitm.SendHttp(ResponseHeaders(self.stream_id, response, head_only), self.context.client)
        if not head_only:
            yield mitm.SendHttp(ResponseData(self.stream_id, refusal.body()), self.context.client)
        yield mitm.SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        self.flow.live = False
        self.client_state = self.server_state = self.state_errored
        yield mitm.DropStream(self.stream_id)


class GateClientTls(ClientTLSLayer):
    """TLS towards the jail. What follows bytes that were no ClientHello is dropped: mitmproxy's own fails on it."""

    def receive_data(self, data: bytes) -> Commands:
        """Pass decrypted bytes on."""
        if self.tls is not None:
            yield from super().receive_data(data)


class Closer(layer.Layer):
    """Closes the client connection whatever comes: what a tunnel becomes that holds neither TLS nor HTTP."""

    def _handle_event(self, event: events.Event) -> Commands:
        if self.context.client.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.context.client)
