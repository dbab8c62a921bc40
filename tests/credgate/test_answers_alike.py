"""Answers' heads that differ in values alone: what comes of the second is what comes of it where nothing is known."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from credgate.gateway import laneanswer
from credgate.gateway.exchange import ClientState, Exchange
from credgate.gateway.framing import Counted
from credgate.gateway.head import RequestHead, take_response
from credgate.gateway.laneanswer import Answering
from credgate.gateway.steps import Steps, Timeouts
from credgate.gateway.turn import Turn
from credgate.known import KnownValues
from rules.decide import decide
from rules.load import load_policy
from rules.parse import parse_request
from rules.reasons import Reason
from rules.request import Request, Via, Wire
from rules.verdict import Allow
from tests.credgate.gateway_rig import POLICY, SECRET

type Said = tuple[object, ...]

LOADED = load_policy(
    POLICY.format(ca="/ca.pem", good=1, plain=2, h2=3, direct=443, cleartext=80).encode(), packs={}, base_dir="/"
)
S = SECRET.encode()
KNOWN = KnownValues()
KNOWN.add("token", SECRET)
RUN = SimpleNamespace(policy=LOADED, held=0, alarm=lambda *_: None)
STATE = cast("ClientState", SimpleNamespace(run=RUN, held=0))
JUDGE: Any = SimpleNamespace(known=KNOWN, doubt=lambda *_: None)
STEPS = Steps(judge=JUDGE, timeouts=Timeouts())
NAMES = (
    *(b"Date", b"X-Request-Id", b"x-gitlab-meta", b"ETag", b"Server", b"X-Own", b"Set-Cookie", b"Alt-Svc"),
    *(b"Content-Length", b"Transfer-Encoding", b"Connection", b"Keep-Alive", b"Content-Encoding", b"Upgrade"),
    *(b"grpc-encoding", b"credgate-verdict", b"date", b"content-length", b"Bad Name", b""),
)
VALUES = (
    *(b"a", b"b", b"", b" c\t", b"a: b", b"5", b"7", b"05", b"0", b"9" * 20, b"5, 5", b"-1"),
    *(b"chunked", b"close", b"x-own", b"date", b"keep-alive", b"gzip", b"identity", b"timeout=9", b"timeout=3"),
    *(S, b"v=" + S, S[:-1], b"\x01", b"\x00", b"\xff", b"a\rb", b"a\nb", b"a\r\n b", b"x" * 300, b"y" * 4100),
    *(b'{"correlation_id":"abc"}', b'{"correlation_id":"def"}', b'{"correlation_id":"' + S + b'"}'),
)
STATUS = (
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 404 a: b",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No",
    b"HTTP/1.1 401",
)


def judged(method: bytes) -> tuple[Wire, Request, Allow]:
    wire = Wire(
        via=Via.DIRECT,
        http_version="HTTP/1.1",
        method=method,
        target=b"/ok/a",
        headers=((b"host", b"api.good.test"),),
        tls=True,
        sni="api.good.test",
        listen_port=443,
    )
    request = parse_request(wire)
    assert isinstance(request, Request)
    allow = decide(LOADED, "dev", request, {}, ())
    assert isinstance(allow, Allow) and allow.bindings
    return wire, request, allow


REQUESTS = {method: judged(method) for method in (b"GET", b"HEAD")}


class Probe(Answering):
    """The lane's half that takes an answer, and what it made of its head."""

    def __init__(self, sent: object) -> None:
        self._steps, self._state, self._sent = STEPS, STATE, cast("Any", sent)
        self.said: Said = ()

    def take(self, method: bytes, *pieces: bytes) -> Said:
        wire, request, allow = REQUESTS[method]
        turn = Turn(
            exchange=Exchange(request=request, allow=allow, sent=self._sent),
            wire=wire,
            head=RequestHead(method=method, target=b"/ok/a", version=b"HTTP/1.1", scheme=b"", authority=b"", fields=()),
            body=Counted(0),
            client_keeps=True,
            expects=False,
            link=cast("Any", SimpleNamespace(idle=60.0)),
        )
        self.said = ()
        for piece in pieces:
            self._answer(turn, piece)
        return self.said

    def _download(self, turn: Turn, data: bytes) -> None:
        exchange, body, link = turn.exchange, turn.answer, turn.link
        if self.said:
            self.said = (*self.said, data)
            return
        assert exchange.cleaning is not None and link is not None
        framing = (type(body).__name__, getattr(body, "left", None), turn.chunked, turn.keep, link.idle)
        passed = (turn.unsent, data, exchange.cleaning.decodes, exchange.cleaning.table)
        self.said = (*framing, *passed, exchange.status, list(exchange.ids.items()), exchange.scrubbed)

    def _no_answer(self, turn: Turn, default: Reason) -> None:
        self.said = ("none", turn.exchange.failure or default)


def fresh() -> Any:
    return SimpleNamespace(again=None, secrets={})


def spelt(status: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join([status, *(name + b": " + value for name, value in fields), b"", b""])


fields = st.lists(st.tuples(st.sampled_from(NAMES[:12]), st.sampled_from(VALUES[:12])), max_size=6)
changes = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=3)
ordinary = st.lists(
    st.sampled_from(
        [(b"Date", b"a"), (b"X-Request-Id", b"a"), (b"ETag", b"b"), (b"Content-Length", b"5"), (b"Server", b"c")]
    ),
    unique=True,
)


@st.composite
def heads(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A head, and others that come from it by changing a line or two."""
    first, status = draw(st.one_of(ordinary, fields)), draw(st.sampled_from(STATUS))
    others = []
    for _ in range(3):
        changed = list(first)
        for at, name, value in draw(changes):
            if at < len(changed):
                same_name = draw(st.integers(0, 3))
                changed[at] = (changed[at][0] if same_name else name, value)
            elif draw(st.booleans()):
                changed.append((name, value))
        again = status if draw(st.integers(0, 5)) else draw(st.sampled_from(STATUS))
        others.append(spelt(again, changed))
    return spelt(status, first), others


LENGTH = spelt(STATUS[0], [(b"Content-Length", b"5")])


@given(heads(), st.sampled_from([b"GET", b"GET", b"HEAD"]), st.integers(1, 60))
@example((LENGTH, [LENGTH.replace(b"5", b"7"), LENGTH.replace(b"5", S), LENGTH.replace(b"5", b"-1")]), b"GET", 20)
@example((LENGTH, [LENGTH.replace(b"5", b"7"), LENGTH.replace(b"5", b"0"), LENGTH.replace(b"5", b"5")]), b"HEAD", 9)
def test_it_is_as_if_nothing_were_known(of: tuple[bytes, list[bytes]], method: bytes, cut: int) -> None:
    first, others = of
    probe, body = Probe(fresh()), b"hello\r\n\r\nand more"
    for raw in (first, *others, first):
        whole = raw + body
        for pieces in ((whole,), (whole[:cut], whole[cut:])):
            assert probe.take(method, *pieces) == Probe(fresh()).take(method, *pieces)


@pytest.mark.parametrize(
    ("name", "value", "again"),
    [
        (b"Date", b"Tue", True),
        (b"X-Request-Id", b"r-2", True),
        (b"Content-Length", b"7", True),
        (b"ETag", b"", True),
        (b"Set-Cookie", b"a=b", True),
        (b"ETag", S, False),
        (b"X-Request-Id", b"\xff", False),
        (b"Content-Length", b"7, 7", False),
        (b"ETag", b"\x01", False),
        (b"Keep-Alive", b"timeout=3", False),
        (b"Connection", b"close", False),
        (b"X-Own", b"2", True),
        (b"X-Own", S, False),
        (b"Alt-Svc", b"clear", True),
    ],
)
def test_which_lines_may_differ(name: bytes, value: bytes, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [(b"Date", b"Mon"), (b"X-Request-Id", b"r-1"), (b"Content-Length", b"5"), (b"ETag", b"e")]
    before += [
        (b"Set-Cookie", b"c=d"),
        (b"Keep-Alive", b"timeout=9"),
        (b"Connection", b"x-own"),
        (b"X-Own", b"1"),
        (b"Alt-Svc", b"h3"),
    ]
    after = [(n, value if n == name else v) for n, v in before]
    probe = Probe(fresh())
    probe.take(b"GET", spelt(STATUS[0], before))
    read: list[bytes] = []

    def taken(data: bytes, seen: int) -> object:
        read.append(data)
        return take_response(data, seen)

    monkeypatch.setattr(laneanswer, "take_response", taken)
    for _ in range(2):
        probe.take(b"GET", spelt(STATUS[0], after))
    assert bool(read) is not again
