"""What the gateway does where mitmproxy asks. Deny first: a denial is stamped, and lifted by Allow alone.

mitmproxy's addon manager swallows an exception of a hook and goes on, which lets the request through (tried). So no
addon manager is used: `handler.GateHandler` calls these methods itself, and ends the connection when one raises.
"""

import asyncio
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING

from mitmproxy.connection import Client, Server
from mitmproxy.http import Headers, HTTPFlow
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.tls import TlsData

from credgate.ca import Authority
from credgate.errors import CredgateError
from credgate.gateway import waiting
from credgate.gateway.cleaning import Unreadable
from credgate.gateway.exchange import ClientState, Exchange, Target, exchange_of
from credgate.gateway.http1 import BadHead
from credgate.gateway.judge import Judge, apply, wire_of
from credgate.gateway.leaving import misplaced
from credgate.gateway.link import Pool
from credgate.gateway.steps import Steps, Timeouts
from credgate.gateway.upstream import UpstreamTls
from credgate.gateway.waiting import BodyWanted, let_all_go
from credgate.gateway.websocket import SocketEnd, SocketMessage
from rules.addresses import unmap
from rules.reasons import Reason
from rules.verdict import Deny

if TYPE_CHECKING:
    from credgate.gateway.handler import GateHandler

MESSAGES = 8  # of a WebSocket that are judged in one turn of the loop: a read holds a thousand short ones

# Hooks with a method here. Each has a test that makes it raise.
HOOKS = (
    "bad_head",
    "requestheaders",
    "request",
    "server_connect",
    "server_connected",
    "server_connect_error",
    "tls_start_server",
    "tls_established_server",
    "tls_failed_server",
    "responseheaders",
    "response",
    "socket_message",
    "socket_end",
    "error",
    "server_disconnected",
    "client_disconnected",
)
# Hooks that need nothing of us. Any other one (tcp_start, udp_start, dns_request, websocket_start, ...) ends the
# connection: it means that bytes would pass which nobody judged.
QUIET = frozenset({"client_connected"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """One method for each name of HOOKS, called with the connection's handler and mitmproxy's argument."""

    judge: Judge
    authority: Authority
    upstream: UpstreamTls
    timeouts: Timeouts = field(default_factory=Timeouts)
    pool: Pool = field(default_factory=Pool)
    steps: Steps = field(init=False)  # what this lane shares with the other one

    def __post_init__(self) -> None:
        """Make them once."""
        object.__setattr__(self, "steps", Steps(judge=self.judge, timeouts=self.timeouts))

    async def client_disconnected(self, handler: "GateHandler", _client: Client) -> None:
        """The client's connection ended: so do its exchanges."""
        for exchange in tuple(handler.state.exchanges):
            self.steps.finish(handler.state, exchange, detail="client closed the connection")
        let_all_go(handler.state)

    async def bad_head(self, handler: "GateHandler", bad: BadHead) -> None:
        """What came is no HTTP head."""
        refusal = self.steps.bad_head(handler.state, http=bad.http, detail=bad.detail)
        tunnel = bool(handler.state.connect_port) and not bad.client.tls_established
        bad.answer = b"" if tunnel and not bad.http else refusal.wire()

    async def requestheaders(self, handler: "GateHandler", flow: HTTPFlow) -> None:
        """Judge one request; on Allow its headers are the judged ones with the secret in place."""
        exchange, state = exchange_of(flow), handler.state
        wire = wire_of(flow, state, exchange)
        admitted = await self.steps.admit(state, exchange, wire, handler.connected_keys())
        if admitted is None:
            return
        if isinstance(admitted, BodyWanted):
            exchange.hold = lambda data: self.steps.hold(state, exchange, wire, len(data))
        else:
            apply(flow, exchange, admitted)
            flow.request.stream = lambda data: self._sent(handler, flow, exchange, data)
        exchange.refusal = None

    async def request(self, handler: "GateHandler", flow: HTTPFlow) -> None:
        """The request is whole. Trailers were not judged, so they go no further (RFC 9110 6.5.1)."""
        exchange = exchange_of(flow)
        flow.request.trailers = None
        if exchange.hold is not None and not await self._judged_whole(handler, flow, exchange):
            return
        self._await_answer(handler, flow, exchange)

    async def _judged_whole(self, handler: "GateHandler", flow: HTTPFlow, exchange: Exchange) -> bool:
        """Judge a request with the body that was kept; what is sent are its very bytes."""
        state, body = handler.state, flow.request.raw_content or b""
        wire = wire_of(flow, state, exchange)
        admitted = await self.steps.admit(state, exchange, wire, handler.connected_keys(), body)
        if admitted is None or isinstance(admitted, BodyWanted):  # the latter leaves the stamp
            return False
        apply(flow, exchange, admitted)
        sent = flow.request.raw_content or b""
        exchange.look([sent])
        over = self.steps.sent(state, exchange, len(sent))
        if over is not None:
            self.steps.refuse(state, exchange, wire, over)
            return False
        if exchange.digests is not None:
            exchange.digests.sent((flow.request.raw_content or b"",))
        exchange.refusal = None
        return True

    async def server_connect(self, handler: "GateHandler", data: ServerConnectionHookData) -> None:
        """A dial is about to start: only to a target that was judged on this connection."""
        if data.server.address not in handler.state.targets:
            data.server.error = Reason.INTERNAL.value

    async def server_connected(self, handler: "GateHandler", data: ServerConnectionHookData) -> None:
        """Compare the peer with the pin: whatever moved the connection, the address was not judged."""
        target = _target(handler.state, data.server)
        peer = unmap(ip_address((data.server.peername or ("",))[0]))
        if peer not in target.addresses:
            raise RuntimeError("the peer's address is not the pin")
        handler.state.pins[target.key] = str(peer)
        for exchange in handler.state.exchanges:
            if exchange.target is not None and exchange.target.key == target.key:
                exchange.pin = str(peer)

    async def server_connect_error(self, handler: "GateHandler", data: ServerConnectionHookData) -> None:
        """No connection: those who wait for it learn why."""
        handler.state.blame(data.server.address, Reason(data.server.error or Reason.INTERNAL.value))

    async def server_disconnected(self, handler: "GateHandler", data: ServerConnectionHookData) -> None:
        """Forget the pin of a connection that is gone."""
        if data.server.address is not None:
            handler.state.pins.pop(data.server.address, None)

    async def tls_start_server(self, handler: "GateHandler", start: TlsData) -> None:
        """Ask for the policy's name, verify it, and speak the protocol that the client speaks."""
        if not isinstance(start.conn, Server):
            raise TypeError("not an upstream connection")
        target = _target(handler.state, start.conn)
        alpn = b"h2" if start.context.client.alpn == b"h2" else b"http/1.1"
        if alpn.decode() not in target.endpoint.alpn and alpn == b"h2":
            raise RuntimeError("HTTP/2 was not offered for this endpoint")
        try:
            start.ssl_conn = self.upstream.connection(target.endpoint, target.host, alpn, target.client)
        except CredgateError as error:  # a CA file that is gone; without a connection there is no handshake
            handler.state.blame(target.key, Reason.UPSTREAM_TLS, error.detail)
            handler.drop(start.conn)

    async def tls_established_server(self, handler: "GateHandler", data: TlsData) -> None:
        """The target's certificate was good."""
        handler.connecting_done(data.conn)

    async def tls_failed_server(self, handler: "GateHandler", data: TlsData) -> None:
        """No handshake: those who wait learn why, and the next request may try again."""
        handler.connecting_done(data.conn)
        closed = Reason.UPSTREAM_RESET if data.conn.error == "connection closed" else Reason.UPSTREAM_TLS
        reason = Reason.UPSTREAM_TIMEOUT if handler.is_late(data.conn) else closed
        handler.state.blame(data.conn.address if isinstance(data.conn, Server) else None, reason)
        data.conn.error = None  # mitmproxy would refuse every later request with it

    async def responseheaders(self, handler: "GateHandler", flow: HTTPFlow) -> None:
        """Let an answer through, streamed, without what would lead the client around us."""
        exchange, state = exchange_of(flow), handler.state
        response = flow.response
        if response is None:
            raise RuntimeError("an answer without a head")
        fields = self.steps.answered(state, exchange, response.status_code, tuple(response.headers.fields))
        if fields is None:
            return
        response.headers = Headers(fields)
        cleaning = exchange.cleaning
        if cleaning is not None:
            response.data.reason = cleaning.text(response.data.reason, "the reason phrase")
            if cleaning.decodes and not exchange.h2:  # its length is not known any more
                response.headers["transfer-encoding"] = "chunked"
        exchange.count = lambda outward, size: self.steps.passed(state, exchange, outward, size)
        exchange.keep = lambda size: waiting.keep(state, exchange, size)
        response.stream = lambda data: self._received(handler, exchange, data)
        exchange.refusal = None

    async def response(self, handler: "GateHandler", flow: HTTPFlow) -> None:
        """The answer is whole, unless its connection was reset before: then, but in HTTP/2, nothing told its end."""
        if not exchange_of(flow).h2 and handler.is_broken(flow.server_conn):
            handler.end(Reason.UPSTREAM_RESET, "the host reset a response without length")
            return
        if exchange_of(flow).status == 101:
            return  # a WebSocket begins, and `socket_end` is its end
        cleaning, answer = exchange_of(flow).cleaning, flow.response
        if cleaning is not None and answer is not None and answer.trailers is not None:
            answer.trailers = Headers(cleaning.fields(tuple(answer.trailers.fields), "the trailers"))
        self.steps.finish(handler.state, exchange_of(flow))

    async def socket_message(self, handler: "GateHandler", message: SocketMessage) -> None:
        """A client's message waits for its verdict."""
        exchange = exchange_of(message.flow)
        exchange.messages += 1
        if not exchange.messages % MESSAGES:
            await asyncio.sleep(0)
        message.why = await self.steps.judge_message(handler.state.run, exchange, message.text)

    async def socket_end(self, handler: "GateHandler", end: SocketEnd) -> None:
        """A WebSocket is over: what passed is in its exchange."""
        if end.reason in (Reason.BODY_REFUSED, Reason.SECRET_MISPLACED):
            handler.state.run.denied += 1
        detail = misplaced(handler.state.run.policy, end.leaked, "messages").hint if end.leaked else end.detail
        self.steps.finish(handler.state, exchange_of(end.flow), reason=end.reason, detail=detail)

    async def error(self, handler: "GateHandler", flow: HTTPFlow) -> None:
        """An exchange broke: record how, and have the refusal ready that is spoken if nothing was yet."""
        self.steps.broke(handler.state, exchange_of(flow))

    def _sent(self, handler: "GateHandler", flow: HTTPFlow, exchange: Exchange, data: bytes) -> list[bytes]:
        """What of a request's body goes on; no data is its end. Never b"", which would end it in chunks."""
        exchange.look([data])
        clean = self.steps.leaving(handler.state, exchange, data, last=not data)
        if isinstance(clean, Deny):
            handler.end(clean.reason, clean.hint)
            return []
        refused = self.steps.sent(handler.state, exchange, len(clean))
        if refused is not None:  # in the middle of a body nothing is left but to break it off
            handler.end(refused.reason, refused.hint)
        elif exchange.digests is not None:
            exchange.digests.sent((clean,))
        self._await_answer(handler, flow, exchange)
        return [clean] if clean else []

    def _received(self, handler: "GateHandler", exchange: Exchange, data: bytes) -> list[bytes]:
        """What of an answer's body goes on; no data is its end. Never b"", which would end it in chunks."""
        cleaning = exchange.cleaning
        if cleaning is not None:
            try:
                data = cleaning.feed(data) if data else cleaning.finish()
            except Unreadable as why:
                handler.end(Reason.RESPONSE_UNREADABLE, str(why))
                return []
        self.steps.received(exchange, len(data))
        if exchange.digests is not None:
            exchange.digests.received((data,))
        return [data] if data else []

    def _await_answer(self, handler: "GateHandler", flow: HTTPFlow, exchange: Exchange) -> None:
        connected = flow.server_conn.connected  # the connection may be another one by the time of the call
        self.steps.await_answer(exchange, connected=connected, drop=lambda: handler.drop(flow.server_conn))


def _text(host: bytes) -> str:
    return host.decode("ascii", "replace").strip("[]")


def _target(state: ClientState, server: Server) -> Target:
    if server.address is None:
        raise RuntimeError("an upstream connection without an address")
    return state.targets[server.address]
