"""The strict HTTP/1.1 lane, between the bytes of a client and those of the targets, without mitmproxy.

It takes the plain grammar (`head`, `framing`) and nothing else, and obeys what the steps say. One request at a time:
what a client sends ahead waits, bounded. An exception anywhere ends the connection with nothing more sent: see
`Client.failed`. From its first WebSocket handshake on a connection is mitmproxy's HTTP layers', as HTTP/2 is.
"""

from typing import TYPE_CHECKING

from credgate.gateway.beaten import Asked, Beaten
from credgate.gateway.exchange import Exchange, Key
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
    take_request,
)
from credgate.gateway.refusal import deny
from credgate.gateway.turn import Turn, keeps
from rules.reasons import Reason
from rules.request import Via, Wire

if TYPE_CHECKING:
    from credgate.gateway.client import Client
    from credgate.gateway.link import Link

HEAD_TIMEOUT = 30.0  # seconds for a head, from its first byte
SHORT_LINGER = 1.0  # the same behind what was no head
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"  # the answer to a CONNECT that is taken
MAX_AHEAD = MAX_HEAD * 2  # bytes of requests sent ahead of an answer


class Lane(Beaten):
    """One client connection in HTTP/1.1. `outer`: the explicit proxy's port, before any CONNECT."""

    def __init__(self, client: "Client", *, outer: bool) -> None:
        super().__init__(client)
        self._outer = outer
        self._seen = 0  # of an unfinished head

    # -- what comes ---------------------------------------------------------------------------------------------------

    def begin(self, data: bytes) -> None:
        """Take the first that the client sends."""
        if not self.again(data):
            self.received(data)

    def received(self, data: bytes) -> None:
        """Take what the client sends, which was not the last request again."""
        if self._over:
            return
        if self._lingering:
            self._forget(data)
            self._go_on()
            return
        self._buffer += data
        turn = self._turn
        if not self._judging and turn is not None:
            if turn.collecting:
                self._collect(turn)
            elif turn.head_sent and not turn.request_done:
                self._upload(turn)
        self._go_on()

    def left(self) -> None:
        """The client sends nothing more, and so gets nothing more."""
        if self._judging:
            self._gone = True
        elif self._turn is not None:
            self._cut_off("client closed the connection")
        else:
            self._close()

    def heard(self, link: "Link") -> None:
        """Something came of a target."""
        self.look_at(link)
        self._go_on()

    def crowded(self, full: bool) -> None:
        """Sending is behind on one side, or no longer so."""
        if full:  # told in the middle of a write: nothing is begun here
            self._flow()
        else:
            self._go_on()

    def killed(self) -> None:
        """The connection ends, with nothing more sent on either side."""
        self._over, self._buffer = True, b""
        self._wait(None)
        self._deadline.stop()
        link, self._link = self._link, None
        if link is not None:
            self._client.pool.busy(link)
            link.reset()

    @property
    def open_to(self) -> frozenset[Key]:
        """Where its connection goes that a request may use again."""
        link = self._link
        return frozenset({link.owned.target.key}) if link is not None and not link.over else frozenset()

    def _go_on(self) -> None:
        if self._turn is None:
            self._next()
        ahead = self._turn.request_done if self._turn is not None else not self._is_held
        if len(self._buffer) > MAX_AHEAD and not self._judging and ahead:
            self._cut_off("too many bytes ahead")
        self._flow()

    def _flow(self) -> None:
        """Read no more than can go on: of a request that waits for its verdict or its connection, and of either side
        while the other one is behind.
        """
        turn, link = self._turn, self._link
        waits = self._judging or (not (turn.head_sent or turn.collecting) if turn is not None else self._is_held)
        behind = link is not None and turn is not None and link.is_full and not turn.request_done
        self._pipe.pause(bool(waits and self._buffer) or behind)
        if link is not None:
            link.pause(self._pipe.full)

    @property
    def _is_held(self) -> bool:
        """Whether no request is begun: the client takes no answers, or the other connections have their turn first."""
        return self._yields or self._pipe.full

    def _cut_off(self, detail: str) -> None:
        """The client is gone, or has to go: its exchange ends with it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.exchange.client_gone = True
            self._steps.finish(self._state, turn.exchange, detail=detail)
        self._drop()
        self._close()

    # -- the request ------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Take the request that is next in the buffer. A refusal is spoken at once, and the one behind it waits for the
        loop's next turn: thousands of them fit in one read.
        """
        if self._buffer and not (self._is_held or self._judging or self._over or self._lingering):
            if not self._seen and self._buffer.startswith(b"\r\n"):  # RFC 9112 2.2: an empty line ahead is nothing
                self._buffer = self._buffer[2:]
            try:
                asked = self._take()
            except HeadError as error:
                self._bad_head(error)
                return
            if asked is None:
                self._seen = len(self._buffer)
                if self._timer is None and self._seen:
                    self._wait(HEAD_TIMEOUT)
                return
            self._seen = 0
            if self._timer is not None:
                self._wait(None)
            if asked.websocket:
                self._park()
                self._deadline.stop()
                data, self._buffer, self._over = self._buffer, b"", True
                self._client.hand_over(data)
                return
            self._buffer = self._buffer[len(asked.raw) :]
            self._arrive(asked)
            self._give_way()

    def _give_way(self) -> None:
        """Where another request waits, and none is on its way, go on in the loop's next turn."""
        if self._buffer and self._turn is None and not (self._judging or self._over):
            self._yields = True
            self._client.later(0, self._resumes)

    def _resumes(self) -> None:
        self._yields = False
        self._go_on()

    def _take(self) -> Asked | None:
        """The head that is next, None where it is not whole. A client repeats itself: the same bytes are the same head.

        Raises HeadError.
        """
        asked = self._asked
        if asked is not None and not self._seen and self._buffer.startswith(asked.raw):
            return asked
        taken = take_request(self._buffer, self._seen)
        if taken is None:
            return None
        head, size = taken
        asked = self._asked = Asked(
            raw=self._buffer[:size],
            head=head,
            wire=self._wire(head),
            keeps=keeps(head.version, head.fields),
            expects=b"100-continue" in tokens(head.fields, b"expect"),
            websocket=self._is_websocket(head),
        )
        self._client.ways.keep(self._client, asked)
        return asked

    def _bad_head(self, error: HeadError) -> None:
        bare = bool(self._state.connect_port) and not self._pipe.secure
        refusal = self._steps.bad_head(self._state, http=error.http, detail=str(error))
        if error.http or not bare:  # a tunnel that holds no HTTP at all is not spoken to
            self._send(refusal.wire())
            self._linger(seconds=SHORT_LINGER)
        else:
            self._close()

    def _is_websocket(self, head: RequestHead) -> bool:
        return not self._outer and head.method == b"GET" and b"websocket" in tokens(head.fields, b"upgrade")

    def _arrive(self, asked: Asked) -> None:
        """Have one request judged, and go on with it or refuse it."""
        if asked.head.method == b"CONNECT":
            self._connect(asked)
            return
        self._judge(self._turn_of(asked))

    def _judge(self, turn: Turn) -> None:
        self._judging = True
        if self._client.admit(turn, self._came_back):
            self._judged(turn)

    def _came_back(self, turn: Turn) -> None:
        self._judged(turn)
        self._go_on()

    def _judged(self, turn: Turn) -> None:
        """Go on with a request, or refuse it."""
        self._judging = False
        refused = turn.exchange.refusal is not None
        if self._gone:
            self._turn = None if refused else turn
            self.left()
        elif refused:
            self._refuse(turn)
        else:
            self._admitted(turn)

    def _admitted(self, turn: Turn) -> None:
        if turn.body is None or (turn.exchange.target is None and not turn.collecting):
            raise RuntimeError("allowed without a body's length, or without a target")
        self._turn = turn
        if not turn.collecting:
            self._open(turn)
            return
        if turn.expects and not turn.request_done and not self._buffer:
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._collect(turn)

    def _collect(self, turn: Turn) -> None:
        """Keep the body until it is whole, and have the request judged with it: nothing is sent before."""
        body = turn.body
        if body is None:
            raise RuntimeError("a body without its length")
        pieces, self._buffer = body.feed(self._buffer)
        if body.fault is not None:
            self._steps.refuse(self._state, turn.exchange, turn.wire, deny(Reason.MALFORMED))
            self._refuse(turn)
        elif self._steps.hold(self._state, turn.exchange, turn.wire, sum(map(len, pieces))):
            self._refuse(turn)
        else:
            turn.keep_body(pieces)
            if body.done:
                self._judge(turn)

    def _turn_of(self, asked: Asked) -> Turn:
        head, wire = asked.head, asked.wire
        body = _body_of(head) if wire.has_body else Counted(0)
        exchange = Exchange(authority=head.authority, scheme=head.scheme, has_body=wire.has_body)
        return Turn(exchange=exchange, wire=wire, head=head, body=body, client_keeps=asked.keeps, expects=asked.expects)

    def _wire(self, head: RequestHead) -> Wire:
        state, pipe = self._state, self._pipe
        connect, body = head.method == b"CONNECT", _body_of(head)
        return Wire(
            via=Via.ABSOLUTE if self._outer else Via.CONNECT if state.connect_port else Via.DIRECT,
            http_version=head.version.decode("latin-1"),
            method=head.method,
            target=b"" if connect else head.target,
            headers=head.fields,
            tls=pipe.secure,
            authority=head.target if connect else head.authority,
            scheme=head.scheme,
            connect_host=state.connect_host,
            connect_port=state.connect_port,
            sni=self._client.sni,
            listen_port=state.listener.port,
            has_body=body is None or not body.done,
        )

    def _connect(self, asked: Asked) -> None:
        """Open a tunnel, in which everything begins anew; or refuse."""
        refused = deny(Reason.MALFORMED)
        if self._outer and not asked.wire.has_body:
            opened = self._steps.open_tunnel(self._state, asked.head.target)
            if opened is None:
                self._tunnel()
                return
            refused = opened
        turn = self._turn_of(asked)
        self._steps.refuse(self._state, turn.exchange, turn.wire, refused)
        self._refuse(turn)

    def _tunnel(self) -> None:
        self._park()
        data, self._buffer, self._over = self._buffer, b"", True
        self._send(ESTABLISHED)
        self._client.tunnelled(data)


def _body_of(head: RequestHead) -> Counted | Chunked | None:
    """How the request's body is framed; None: in a way that has more than one reading."""
    try:
        return request_body(head.fields, head.version)
    except FramingError:
        return None
