"""The two ends of HTTP/1: strict and bounded heads, no answers of mitmproxy's own, no 1xx from the upstream."""

import time
from dataclasses import dataclass

from mitmproxy import http
from mitmproxy.connection import Client
from mitmproxy.net.http import http1
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import _http1 as mitm
from mitmproxy.proxy.layers.http._base import HttpEvent, ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestHeaders,
    RequestProtocolError,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)

from credgate.gateway.head import MAX_HEAD, HeadError, RequestHead, cut, parse_request_head, parse_response_head
from credgate.gateway.refusal import HEADER

HEAD_TIMEOUT = 30.0  # seconds for a head, from its first byte
LINGER = 5.0  # seconds in which a client may still send a body that was refused: it has to see the answer
_MAX_IDLE_BUFFER = MAX_HEAD * 2  # pipelined bytes, or a chunk's size line

type Commands = layer.CommandGenerator[None]


@dataclass
class BadHead:
    """What the client sent is no HTTP head. `answer` is set by the hook; empty closes without one."""

    client: Client
    http: bool
    detail: str
    answer: bytes = b""


@dataclass
class BadHeadHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """A head could not be parsed; nothing is known of the request."""

    data: BadHead


class _DropsTrailers(mitm.Http1Connection):
    """Takes a chunked body with trailers as one without (RFC 9110 6.5.1); mitmproxy's own raises and hangs there."""

    def read_body(self, event: events.Event) -> Commands:
        """Read what there is of a body."""
        try:
            yield from super().read_body(event)
        except NotImplementedError:
            if self.stream_id is None:
                raise
            yield ReceiveHttp(self.ReceiveEndOfMessage(self.stream_id))
            is_request = isinstance(self, mitm.Http1Server)
            yield from self.mark_done(request=is_request, response=not is_request)


class GateHttp1Server(_DropsTrailers, mitm.Http1Server):
    """The side that faces the jail."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._seen = 0
        self._waiting: commands.RequestWakeup | None = None
        self._linger: commands.RequestWakeup | None = None
        self._last = False  # the client wants no answer after this one
        self._over = False  # the connection was closed from our side: what still comes is not read

    def _handle_event(self, event: events.Event) -> Commands:
        if self._over:
            return
        if isinstance(event, events.Wakeup):
            if event.command in (self._waiting, self._linger):
                yield from self._close()
            return
        yield from super()._handle_event(event)
        # What is left here is an unfinished head, a chunk's size line, or requests sent ahead: none may grow for ever.
        if len(self.buf) > _MAX_IDLE_BUFFER and self.state not in (self.passthrough, self.done):
            pending = self.request is not None
            yield from self._close()
            if pending:
                error = RequestProtocolError(self.stream_id, "too many bytes ahead", ErrorCode.GENERIC_CLIENT_ERROR)
                yield ReceiveHttp(error)

    def _close(self) -> Commands:
        self._over, self.state = True, self.done
        self.buf = type(self.buf)()
        yield commands.CloseConnection(self.conn)

    def read_headers(self, event: events.ConnectionEvent) -> Commands:
        """Read one request head."""
        if not isinstance(event, events.DataReceived):
            yield commands.CloseConnection(self.conn)
            return
        data = bytes(self.buf)
        if not self._seen and data.startswith(b"\r\n"):  # RFC 9112 2.2: one empty line before a request is nothing
            self.buf.maybe_extract_at_most(2)
            data = data[2:]
        try:
            head = cut(data, self._seen)
            if head is None:
                self._seen = len(data)
                yield from self._wait()
                return
            request = _request(parse_request_head(head))
            size = http1.expected_http_body_size(request)
        except (HeadError, ValueError) as error:
            yield from self._bad(error)
            return
        self.buf.maybe_extract_at_most(len(head) + 4)
        self._seen, self._waiting = 0, None
        self._last = _asks_to_close(request)  # now: the rewrite takes the header out
        self.request = request
        yield ReceiveHttp(RequestHeaders(self.stream_id, request, size == 0))
        self.body_reader = mitm.make_body_reader(size)
        self.state = self.read_body
        yield from self.state(event)

    def mark_done(self, *, request: bool = False, response: bool = False) -> Commands:
        """End the connection where the client asked for that."""
        yield from super().mark_done(request=request, response=response)
        if self._last and self.state == self.read_headers:
            yield from self._close()

    def _wait(self) -> Commands:
        if self._waiting is None and self._seen:
            self._waiting = commands.RequestWakeup(HEAD_TIMEOUT)
            yield self._waiting

    def _bad(self, error: Exception) -> Commands:
        is_http = error.http if isinstance(error, HeadError) else True
        # ValueError comes from mitmproxy and quotes the input: its text stays here
        bad = BadHead(self.context.client, is_http, str(error) if isinstance(error, HeadError) else "framing")
        yield BadHeadHook(bad)
        if bad.answer:
            yield commands.SendData(self.conn, bad.answer)
        yield from self._close()

    def send(self, event: HttpEvent) -> Commands:
        """Send one part of an answer. Errors close: they are never explained by mitmproxy's own page."""
        if isinstance(event, ResponseProtocolError):
            yield from self._close()
            return
        yield from super().send(event)
        early = isinstance(event, ResponseEndOfMessage) and self.response_done and not self.request_done
        if early and self.response is not None and HEADER in _names(self.response):
            self._linger = commands.RequestWakeup(LINGER)
            yield self._linger


class GateHttp1Client(_DropsTrailers, mitm.Http1Client):
    """The side that faces the upstream."""

    _seen = 0

    def _handle_event(self, event: events.Event) -> Commands:
        yield from super()._handle_event(event)
        if len(self.buf) > _MAX_IDLE_BUFFER and self.state not in (self.passthrough, self.done):
            yield from self._invalid("a line that does not end")

    def _invalid(self, detail: str) -> Commands:
        self.state = self.done
        self.buf = type(self.buf)()
        yield commands.CloseConnection(self.conn)
        if self.stream_id is not None:
            yield ReceiveHttp(ResponseProtocolError(self.stream_id, detail, ErrorCode.GENERIC_SERVER_ERROR))

    def read_headers(self, event: events.ConnectionEvent) -> Commands:
        """Read heads until a final one comes: we answer Expect ourselves, so 1xx is nothing the client waits for."""
        if not isinstance(event, events.DataReceived) or not self.request or self.stream_id is None:
            if isinstance(event, events.DataReceived):
                self.buf = type(self.buf)()  # bytes that nobody asked for: the base class would quote them
            yield from super().read_headers(event)
            return
        try:
            response = self._final()
            if response is None:
                return
            size = http1.expected_http_body_size(self.request, response)
        except (HeadError, ValueError):
            yield from self._invalid("not a response")
            return
        self.response = response
        yield ReceiveHttp(ResponseHeaders(self.stream_id, response, size == 0))
        self.body_reader = mitm.make_body_reader(size)
        self.state = self.read_body
        yield from self.state(event)

    def _final(self) -> http.Response | None:
        while (head := cut(bytes(self.buf), self._seen)) is not None:
            self.buf.maybe_extract_at_most(len(head) + 4)
            self._seen = 0
            parsed = parse_response_head(head)
            if parsed.status == 101 or parsed.status >= 200:
                return http.Response(
                    http_version=parsed.version,
                    status_code=parsed.status,
                    reason=parsed.phrase,
                    headers=http.Headers(parsed.fields),
                    content=None,
                    trailers=None,
                    timestamp_start=time.time(),
                    timestamp_end=None,
                )
        self._seen = len(self.buf)
        return None


def _request(head: RequestHead) -> http.Request:
    connect = head.method == b"CONNECT"
    return http.Request(
        host="",  # judged first: the hook fills in what the policy names
        port=0,
        method=head.method,
        scheme=head.scheme,
        authority=head.target if connect else head.authority,
        path=b"" if connect else head.target,
        http_version=head.version,
        headers=http.Headers(head.fields),
        content=None,
        trailers=None,
        timestamp_start=time.time(),
        timestamp_end=None,
    )


def _asks_to_close(request: http.Request) -> bool:
    closing: bool = http1.connection_close(request.http_version, request.headers)  # type: ignore[no-untyped-call]
    return closing


def _names(response: http.Response) -> set[bytes]:
    return {name.lower() for name, _ in response.headers.fields}
