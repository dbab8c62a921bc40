"""One request of the strict lane and its answer, and both as the bytes that are sent on."""

from typing import TYPE_CHECKING

import msgspec

from credgate.gateway.exchange import Exchange
from credgate.gateway.framing import Body, Chunked, Counted, Fields, UntilClose, tokens, values
from credgate.gateway.head import RequestHead, ResponseHead
from credgate.gateway.link import Link
from credgate.gateway.prepared import Spelt, lines_of
from credgate.gateway.refusal import Refusal
from rules.request import Outgoing, Wire

if TYPE_CHECKING:
    from credgate.gateway.beaten import Track

# Of this hop alone (RFC 9110 7.6.1), or about trailers, which go nowhere: we frame and persist by our own rules.
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"transfer-encoding"}
)
_SMALL = 4 << 10  # bytes
_SHORT = 1 << 20  # bytes of a refused body that are read so that its connection can go on


class Turn(msgspec.Struct, eq=False, kw_only=True):
    """What the lane knows of one request on its way."""

    exchange: Exchange
    wire: Wire
    head: RequestHead
    body: Counted | Chunked | None  # None: framed in a way that has more than one reading, which the rules refuse
    client_keeps: bool  # the client wants to go on after the answer
    expects: bool  # it waits for a 100 before it sends the body
    out: Outgoing | None = None  # what to send; set by Allow
    collecting: bool = False  # the body is read before it is judged
    kept: list[bytes] = msgspec.field(default_factory=list)  # what of it was read
    link: Link | None = None
    head_sent: bool = False
    retried: bool = False
    held: bytes = b""  # of an answer's unfinished head
    seen: int = 0
    interim: int = 0
    answer: Body | None = None  # set once the head of a final answer was taken
    chunked: bool = False  # the answer goes to the client in chunks
    unsent: bytes = b""  # the head of an answer that waits until its coding is known to hold
    keep: bool = False  # the target keeps its connection
    detail: str = ""  # for the ledger
    track: "Track | None" = None  # the beaten one, if it is on it

    @property
    def request_done(self) -> bool:
        """Whether the request is whole."""
        return self.body is not None and self.body.done

    def take(self, out: Outgoing) -> None:
        """Go on with what was admitted; a body that was written anew takes the place of the one that was kept."""
        self.out, self.collecting = out, False
        if out.body is not None:
            self.body, self.kept = Counted(0), [out.body]

    def keep_body(self, pieces: list[bytes]) -> None:
        """Keep what was read of the body. An object for each chunk of two bytes would be twenty times their size."""
        more = b"".join(pieces)
        if self.kept and len(self.kept[-1]) < _SMALL:
            self.kept[-1] += more
        else:
            self.kept.append(more)

    @property
    def rest_is_short(self) -> bool:
        """Whether what is still to come of the body is known to come, and soon over. Behind a 100 it may never come."""
        return isinstance(self.body, Counted) and self.body.left <= _SHORT and not self.expects

    @property
    def may_retry(self) -> bool:
        """Whether nobody can tell a second sending from the first: RFC 9110 9.2.1, no body, and no byte came back."""
        reused = self.link is not None and self.link.uses > 0 and not self.retried
        safe = self.head.method in {b"GET", b"HEAD"} and not self.exchange.has_body
        return reused and safe and self.answer is None and not (self.held or self.interim or self.exchange.failure)


def keeps(version: bytes, fields: Fields) -> bool:
    """Whether the sender of a head keeps the connection. HTTP/1.0 never does: keep-alive there is nobody's standard."""
    return version == b"HTTP/1.1" and b"close" not in tokens(fields, b"connection")


def request_bytes(turn: Turn) -> bytes:
    """The head that was judged, with its secret, framed as its body will be sent."""
    request, out = turn.exchange.request, turn.out
    if request is None or out is None:
        raise RuntimeError("sent before it was judged")
    head = out.lines if isinstance(out, Spelt) else lines_of(request, out.target, out.fields)
    if isinstance(turn.body, Chunked):
        head += b"transfer-encoding: chunked\r\n"
    lengths = turn.head.fields if out.body is None else out.fields
    for length in values(lengths, b"content-length"):
        head += b"content-length: %d\r\n" % int(length)
    return head + b"\r\n"


def answer_lines(turn: Turn, head: ResponseHead, fields: Fields) -> bytes:
    """The answer's head for the client, framed as its body will be sent, but for its end."""
    named = tokens(head.fields, b"connection")
    drop = _HOP | named if named else _HOP
    if head.status == 204:  # RFC 9110 8.6
        drop |= frozenset({b"content-length"})
    lines = [b"%b: %b\r\n" % field for field in fields if field[0].lower() not in drop]
    chunked = b"transfer-encoding: chunked\r\n" if turn.chunked else b""
    return b"HTTP/1.1 %d %b\r\n%b%b" % (head.status, head.phrase, b"".join(lines), chunked)


def ended(turn: Turn, lines: bytes) -> bytes:
    """That head with its end."""
    return lines + (b"connection: close\r\n\r\n" if closes(turn) else b"\r\n")


def closes(turn: Turn) -> bool:
    """Whether the client's connection ends behind the answer."""
    lost = not turn.request_done and not turn.keep  # the target won't take the rest of the request
    return lost or not turn.client_keeps or isinstance(turn.answer, UntilClose)


def refusal_bytes(turn: Turn, refusal: Refusal, *, close: bool) -> bytes:
    """A refusal as the answer to this request."""
    refusal = refusal.told_to(next(iter(values(turn.head.fields, b"user-agent")), b""))
    lines = [b"HTTP/1.1 %d %s" % (refusal.deny.status, refusal.phrase)]
    lines += [name + b": " + value for name, value in refusal.fields(h2=False, close=close)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if turn.head.method == b"HEAD" else refusal.body())
