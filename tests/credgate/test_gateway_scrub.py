"""Answers that hold a secret, in every lane: it reaches the client written over, or not at all."""

import asyncio
import base64
import gzip
import json
import statistics
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import brotli
import pytest

from credgate.gateway.inflate import FLOOR
from rules.needles import needles
from rules.scrub import HEAD
from tests.credgate.gateway_rig import POLICY, SECRET, Client, Rig, Seen, rig
from tests.credgate.h2_rig import H2Client, H2Reply, H2Request

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

WAYS = ("strict", "layers", "h2")
BOTH = ("h2", "http/1.1")
POLICY_H2 = POLICY.replace('alpn = ["http/1.1"]', 'alpn = ["h2", "http/1.1"]', 1)
S = SECRET.encode()
ECHO = b'{"you sent": "Bearer ' + S + b'"}'
MASKED = ECHO.replace(S, b"*" * len(S))

type Field = tuple[bytes, bytes]


@dataclass(kw_only=True)
class Said:
    """What the target answers; HTTP/1.1 in chunks unless `framing` says otherwise."""

    status: int = 200
    phrase: bytes = b"OK"
    fields: list[Field] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    trailers: list[Field] = field(default_factory=list)
    interim: list[Field] = field(default_factory=list)
    framing: str = "chunked"


@dataclass(kw_only=True)
class Got:
    """What the client got: `all` is every byte, `ended` whether the answer was whole."""

    status: int
    body: bytes
    all: bytes
    whole: bool


def h1(said: Said) -> bytes:
    head = b"HTTP/1.1 %d %s\r\n" % (said.status, said.phrase)
    lines = [n + b": " + v for n, v in said.fields]
    body = b"".join(said.pieces)
    if said.framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        trailers = b"".join(n + b": " + v + b"\r\n" for n, v in said.trailers)
        body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in said.pieces if p) + b"0\r\n" + trailers + b"\r\n"
    elif said.framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    interim = b""
    if said.interim:
        interim = b"HTTP/1.1 103 Early Hints\r\n" + b"".join(n + b": " + v + b"\r\n" for n, v in said.interim) + b"\r\n"
    return interim + head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def serve(r: Rig, said: Said) -> None:
    async def script(seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen.line.startswith(b"HEAD"):
            writer.write(h1(said).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            return
        writer.write(h1(said))
        if said.framing == "close":
            await writer.drain()
            writer.close()

    def reply(_request: H2Request) -> H2Reply:
        return H2Reply(
            fields=[(b":status", b"%d" % said.status), *((n.lower(), v) for n, v in said.fields)],
            pieces=said.pieces,
            trailers=[(n.lower(), v) for n, v in said.trailers],
            interim=[(b":status", b"103"), *said.interim] if said.interim else [],
        )

    r.good.script, r.good.reply = script, reply


async def connection(r: Rig, way: str) -> Client:
    client = await r.tunnel(alpn=BOTH if way == "h2" else ("http/1.1",))
    if way == "layers":  # a handshake that is refused leaves the connection to mitmproxy's HTTP layers
        refused = await client.get(
            "/ok/a",
            host=f"api.good.test:{r.direct}",
            Upgrade="websocket",
            Connection="upgrade",
            Sec_WebSocket_Key=base64.b64encode(b"0123456789abcdef").decode(),
            Sec_WebSocket_Version="13",
        )
        assert refused.status == 426
    return client


async def ask(r: Rig, way: str, *more: Field, method: bytes = b"GET") -> Got:
    client = await connection(r, way)
    host = b"api.good.test:%d" % r.direct
    try:
        if way == "h2":
            pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", host), (b":path", b"/ok/a")]
            answer = await H2Client(client.reader, client.writer).ask([*pseudo, *((n.lower(), v) for n, v in more)])
            head = b"\n".join(n + b": " + v for n, v in answer.fields.items())
            status = answer.status or int(answer.fields.get(b":status", b"0"))
            return Got(status=status, body=answer.body, all=head + answer.body, whole=answer.status > 0)
        lines = [method + b" /ok/a HTTP/1.1", b"Host: " + host, b"Connection: close", *(n + b": " + v for n, v in more)]
        client.writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        raw = await client.rest()
        return h1_got(raw)
    finally:
        client.close()


def h1_got(raw: bytes) -> Got:
    head, _, rest = raw.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    if b"transfer-encoding: chunked" not in head.lower():
        return Got(status=status, body=rest, all=raw, whole=bool(head))
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if size == b"0":
            return Got(status=status, body=body, all=raw, whole=True)
        length = int(size, 16)
        assert len(rest) >= length
        body, rest = body + rest[:length], rest[length + 2 :]
    return Got(status=status, body=body, all=raw, whole=False)


def nothing_of_it(got: Got) -> bool:
    """No spelling of the secret, nor its second half in any."""
    return not any(form in got.all or form[len(form) // 2 :] in got.all for form in needles(SECRET))


def with_rig(tmp_path: Path, main: Callable[[Rig], Awaitable[object]], policy: str = POLICY_H2) -> None:
    async def inner() -> None:
        async with rig(tmp_path, policy=policy, alpn=BOTH) as r:
            await main(r)

    asyncio.run(inner())


def one(text: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in text]


_GZ, _BR, _ZS = gzip.compress(ECHO), brotli.compress(ECHO), zstd.compress(ECHO)
_RAW_DEFLATE = zlib.compressobj(wbits=-15)
CODED: dict[str, tuple[bytes, bytes]] = {
    "gzip": (b"gzip", _GZ),
    "x-gzip": (b"x-gzip", _GZ),
    "two members of gzip": (b"gzip", gzip.compress(ECHO[:30]) + gzip.compress(ECHO[30:])),
    "deflate": (b"deflate", zlib.compress(ECHO)),
    "deflate without zlib": (b"deflate", _RAW_DEFLATE.compress(ECHO) + _RAW_DEFLATE.flush()),
    "br": (b"br", _BR),
    "zstd": (b"zstd", _ZS),
}
# Each is answered with the whole, masked, in a 200.
ECHOES: dict[str, Said] = {
    "in chunks": Said(pieces=[ECHO]),
    "of a length": Said(pieces=[ECHO], framing="length"),
    "until the end": Said(pieces=[ECHO], framing="close"),
    "byte by byte": Said(pieces=[ECHO[:30], *one(ECHO[30:])]),
    "with empty parts": Said(pieces=[ECHO[:35], b"", ECHO[35:]]),
    **{
        f"{name}, {framing}": Said(fields=[(b"Content-Encoding", coding)], pieces=one(data), framing=framing)
        for name, (coding, data) in CODED.items()
        for framing in ("chunked", "length")
    },
    "gzip until the end": Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[_GZ], framing="close"),
}


@pytest.mark.parametrize("way", WAYS)
def test_echoes_are_written_over(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        wrong = {}
        for name, said in ECHOES.items():
            serve(r, said)
            got = await ask(r, way)
            masked = bytes(a if a == b else 42 for a, b in zip(got.body, ECHO, strict=False))
            shown = sum(a == b for a, b in zip(got.body, ECHO, strict=False)) - (len(ECHO) - len(S))
            fits = got.status == 200 and got.whole and got.body == masked and len(got.body) == len(ECHO)
            if not (fits and nothing_of_it(got) and shown < HEAD) or b"content-encoding" in got.all.lower():
                wrong[name] = got
        assert not wrong
        outcomes = r.records("outcome")
        assert len(outcomes) == len(ECHOES)
        assert {line["detail"] for line in outcomes} == {"scrubbed: secret 'token' (binding h2, token) in the body"}
        assert S not in b"".join(f.read_bytes() for f in r.ledger_dir.iterdir())

    with_rig(tmp_path, main)


FORMS: dict[str, bytes] = {
    "raw": S,
    **{f"base64 behind {n}": base64.b64encode(b"x" * n + S + b"y") for n in range(3)},
    **{f"base64 of URLs behind {n}": base64.urlsafe_b64encode(b"x" * n + S + b"y") for n in range(3)},
    "hex": S.hex().encode(),
    "hex, capitals": S.hex().upper().encode(),
    "percent": b"".join(b"%%%02X" % byte for byte in S),
    "json, escaped": "".join(f"\\u{byte:04x}" for byte in S).encode(),
}
SPELLED = b"{" + b"} {".join(FORMS.values()) + b"}"
STRIDE = max(map(len, FORMS.values()))  # between two cuts of one answer: no form is cut twice


def cut(first: int) -> list[bytes]:
    ends = [*range(first, len(SPELLED), STRIDE), len(SPELLED)]
    return [SPELLED[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("way", WAYS)
def test_every_form_at_every_split_of_the_body(way: str, tmp_path: Path) -> None:
    """The parts come one after the other, so that each is looked at alone."""

    async def script(seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in cut(int(seen.line.split()[1].rpartition(b"/")[2])):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0.0005)
        writer.write(b"0\r\n\r\n")

    def reply(request: H2Request) -> H2Reply:
        return H2Reply(fields=[(b":status", b"200")], pieces=cut(int(request.values(b":path")[0].rpartition(b"/")[2])))

    async def main(r: Rig) -> None:
        assert (await ask(r, "strict")).status == 200  # from here on the value is known
        r.good.script, r.good.reply = script, reply
        client = await connection(r, way)
        host = f"api.good.test:{r.direct}"
        second = H2Client(client.reader, client.writer) if way == "h2" else None
        pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", host.encode())]
        wrong = []
        for at in range(1, STRIDE + 1):
            path = f"/free/{at}"  # of a rule without a binding: no intent waits for the disk
            request = client.get(path, host) if second is None else second.ask([*pseudo, (b":path", path.encode())])
            answer = await request
            got = Got(status=answer.status, body=answer.body, all=answer.body, whole=True)
            if (got.status, len(got.body), nothing_of_it(got)) != (200, len(SPELLED), True):
                wrong.append((at, got))
        assert wrong == []

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_control_without_scrubbing_they_arrive(way: str, tmp_path: Path) -> None:
    """The same echoes reach the client where the binding switches scrubbing off."""

    async def main(r: Rig) -> None:
        for name in ("in chunks", "of a length", "byte by byte"):
            serve(r, ECHOES[name])
            assert (await ask(r, way)).body == ECHO
        serve(r, ECHOES["gzip, length"])
        got = await ask(r, way, (b"Accept-Encoding", b"gzip"), (b"Range", b"bytes=0-9"))
        assert got.body == _GZ
        seen = r.good.sessions[-1].seen[-1] if way == "h2" else r.good.seen[-1]
        assert (seen.values(b"accept-encoding"), seen.values(b"range")) == ([b"gzip"], [b"bytes=0-9"])
        assert {line.get("detail", "") for line in r.records("outcome")} == {""}

    off = POLICY_H2.replace("[binding.swap]", "response = {{ scrub = false }}\n[binding.swap]")
    with_rig(tmp_path, main, off)


HEADS: dict[str, Said] = {
    "a header": Said(fields=[(b"X-Echo", b"Bearer " + S)], pieces=[b"ok"]),
    "a header in base64": Said(fields=[(b"X-Echo", base64.b64encode(b"Bearer " + S + b"!"))], pieces=[b"ok"]),
    "the name of a header": Said(fields=[(b"x-" + S.hex().encode(), b"1")], pieces=[b"ok"]),
    "a redirect": Said(status=302, phrase=b"Found", fields=[(b"Location", b"/ok/b?k=" + S)], pieces=[b"ok"]),
    "the reason phrase": Said(phrase=b"OK " + S, pieces=[b"ok"]),
    "the request id": Said(fields=[(b"X-Request-Id", S)], pieces=[b"ok"]),
    "a cookie": Said(fields=[(b"Set-Cookie", b"k=" + S)], pieces=[b"ok"]),
    "a trailer": Said(fields=[(b"Trailer", b"X-Echo")], pieces=[b"ok"], trailers=[(b"X-Echo", S)]),
    "early hints": Said(interim=[(b"link", b"</" + S + b">; rel=preload")], pieces=[b"ok"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_heads_and_trailers(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        wrong = {}
        for name, said in HEADS.items():
            serve(r, said)
            got = await ask(r, way)
            if not (got.status == said.status and got.body == b"ok" and got.whole and nothing_of_it(got)):
                wrong[name] = got
        assert not wrong
        assert S not in b"".join(f.read_bytes() for f in r.ledger_dir.iterdir())

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_control_heads_without_a_secret_pass(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        serve(r, Said(fields=[(b"X-Echo", S[:-1])], pieces=[S[:-1]]))
        got = await ask(r, way)
        assert (got.status, got.body, got.all.count(S[:-1])) == (200, S[:-1], 2)

    with_rig(tmp_path, main)


BOMB = gzip.compress(bytes(16 * FLOOR))
UNREADABLE: dict[str, Said] = {
    "a coding nobody knows": Said(fields=[(b"Content-Encoding", b"foo")], pieces=[ECHO]),
    "two codings": Said(fields=[(b"Content-Encoding", b"gzip, br")], pieces=[_GZ]),
    "two headers of codings": Said(fields=[(b"Content-Encoding", b"gzip"), (b"Content-Encoding", b"br")], pieces=[_GZ]),
    "a part": Said(status=206, phrase=b"Partial Content", fields=[(b"Content-Range", b"bytes 0-9/99")], pieces=[ECHO]),
    "gRPC in gzip": Said(fields=[(b"Grpc-Encoding", b"gzip")], pieces=[ECHO]),
}
LYING: dict[str, Said] = {
    "gzip that lies": Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[ECHO]),
    "gzip of a length that lies": Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[ECHO], framing="length"),
    "br that lies": Said(fields=[(b"Content-Encoding", b"br")], pieces=[ECHO]),
    "zstd that lies": Said(fields=[(b"Content-Encoding", b"zstd")], pieces=[ECHO]),
    "gzip until the end that lies": Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[ECHO], framing="close"),
    "an early end before any byte": Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[_GZ[:12]]),
    "bytes behind the end": Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[_GZ + ECHO]),
    "a bomb": Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[BOMB]),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_read_is_withheld(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        wrong = {}
        for name, said in (UNREADABLE | LYING).items():
            serve(r, said)
            got = await ask(r, way)
            refused = got.status == 502 and json.loads(got.body)["error"]["code"] == "response_unreadable"
            # HTTP/2 and mitmproxy's layers have sent the head before a body shows that it lies
            ended = name in LYING and way != "strict" and not got.whole and len(got.body) <= FLOOR
            if not (refused or ended) or not nothing_of_it(got):
                wrong[name] = got
        assert not wrong
        assert {line["reason"] for line in r.records("outcome")} == {"response_unreadable"}

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_asked_for_whole_and_plain(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        serve(r, Said(pieces=[b"ok"]))
        own = ((b"Accept-Encoding", b"gzip"), (b"Range", b"bytes=0-9"), (b"If-Range", b'"a"'), (b"A-IM", b"vcdiff"))
        assert (await ask(r, way, *own)).body == b"ok"
        seen = r.good.sessions[-1].seen[-1] if way == "h2" else r.good.seen[-1]
        assert seen.values(b"accept-encoding") == [b"identity"]
        assert [seen.values(name) for name in (b"range", b"if-range", b"a-im")] == [[], [], []]

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_a_head_alone_may_name_a_coding(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        serve(r, Said(fields=[(b"Content-Encoding", b"gzip")]))
        got = await ask(r, way, method=b"HEAD")
        assert (got.status, got.body, b"content-encoding: gzip" in got.all.lower()) == (200, b"", True)

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_six_megabytes_with_echoes_all_over(way: str, tmp_path: Path) -> None:
    """No size beyond which nobody looks."""

    async def main(r: Rig) -> None:
        filler = b"x" * 65521
        serve(r, Said(pieces=[filler + ECHO] * 96))
        got = await ask(r, way)
        assert len(got.body) == 96 * (len(filler) + len(ECHO))
        assert nothing_of_it(got)
        assert got.body.count(MASKED[-len(S) :]) == 96

    with_rig(tmp_path, main)


def test_an_alarm_names_the_binding_and_not_the_value(tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        heard: list[tuple[str, str]] = []
        r.run.alarm = lambda kind, detail: heard.append((kind, detail))
        serve(r, Said(pieces=[ECHO, ECHO]))
        assert S not in (await ask(r, "strict")).all
        ((kind, detail),) = heard
        assert kind == "secret_scrubbed"
        assert detail == "secret 'token' (binding h2, token) in the body of the answer to GET api.good.test"

    with_rig(tmp_path, main)


def test_an_endpoint_without_a_binding_is_not_searched(tmp_path: Path) -> None:
    """What it answers goes on as it came, coded too; nobody sent it a secret."""

    async def main(r: Rig) -> None:
        serve(r, Said(fields=[(b"Content-Encoding", b"gzip")], pieces=[_GZ], framing="length"))
        client = await r.tunnel("up.good.test")
        answer = await client.get("/a", host=f"up.good.test:{r.direct}", Accept_Encoding="gzip")
        assert (answer.status, answer.body) == (200, _GZ)
        assert r.good.seen[-1].values(b"accept-encoding") == [b"gzip"]

    with_rig(tmp_path, main)


def test_a_rule_without_a_binding_is_searched_where_its_endpoint_has_one(tmp_path: Path) -> None:
    """The target knows the secret from other requests."""

    async def main(r: Rig) -> None:
        client = await r.tunnel()
        host = f"api.good.test:{r.direct}"
        serve(r, Said(pieces=[b"ok"]))
        assert (await client.get("/ok/a", host=host)).body == b"ok"
        serve(r, Said(pieces=[ECHO]))
        assert (await client.get("/free/a", host=host)).body == MASKED
        assert b"Bearer" not in r.good.seen[-1].raw

    with_rig(tmp_path, main)


def test_an_event_with_the_beginning_of_a_secret_does_not_wait(tmp_path: Path) -> None:
    """Fewer than HEAD characters go on at once; more wait for what follows, and are written over."""

    async def main(r: Rig) -> None:
        more = asyncio.Event()

        async def script(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in (b"data: " + S[: HEAD - 1], b"\n\ndata: " + S[:20]):
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
            await more.wait()
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(S) - 20, S[20:]))

        r.good.script = script
        client = await connection(r, "strict")
        client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
        async with asyncio.timeout(60):
            first = await client.reader.readuntil(b"\n\ndata: \r\n")
        assert S[: HEAD - 1] in first
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.reader.readexactly(1)
        more.set()
        rest = await client.reader.readuntil(b"0\r\n\r\n")
        assert b"*" * len(S) in rest

    with_rig(tmp_path, main)


def test_a_presigned_address_in_an_answer_leads_nowhere(tmp_path: Path) -> None:
    """A target may hand out a way in that needs no header; where it leads is judged like any other request."""

    async def main(r: Rig) -> None:
        signed = "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F20260101&X-Amz-Signature=" + "ab" * 32
        at_evil, at_good = b"https://evil.test/bucket/key", b"https://api.good.test:%d/bucket/key" % r.direct
        serve(r, Said(pieces=[at_evil + signed.encode() + b"\n" + at_good + signed.encode()]))
        got = await ask(r, "strict")
        assert got.body.count(signed.encode()) == 2  # it is no secret of ours
        before = len(r.good.seen)
        client = await r.tunnel("evil.test")
        answer = await client.get("/bucket/key" + signed, host=f"evil.test:{r.direct}")
        assert (answer.status, answer.code) == (403, "host_unlisted")
        client = await r.tunnel()
        answer = await client.get("/bucket/key" + signed, host=f"api.good.test:{r.direct}")
        assert (answer.status, answer.code) == (403, "no_rule")
        assert (len(r.good.seen), r.evil.raw) == (before, b"")

    with_rig(tmp_path, main)


EVENTS = 400


async def _events(r: Rig) -> tuple[float, float]:
    """CPU seconds of all three and the median delay of events in seconds, for one stream."""
    sent: list[float] = []

    async def script(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for n in range(EVENTS):
            event = b"data: %06d %s\n\n" % (n, b"token of a model's answer " * 5)
            sent.append(time.perf_counter())
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await came.wait()
            came.clear()
        writer.write(b"0\r\n\r\n")

    came, delays = asyncio.Event(), []
    r.good.script = script
    client = await r.tunnel()
    before = time.process_time()
    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
    for n in range(EVENTS):
        await client.reader.readuntil(b"\n\n\r\n")
        delays.append(time.perf_counter() - sent[n])
        came.set()
    await client.reader.readuntil(b"0\r\n\r\n")
    return time.process_time() - before, statistics.median(delays)


def test_an_event_costs_little_more(tmp_path: Path) -> None:
    """Searching an event stream against not searching it, in turn; client, gateway and target are one process."""
    off = POLICY_H2.replace("[binding.swap]", "response = {{ scrub = false }}\n[binding.swap]")
    found: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    for n in range(3):
        for name, policy in (("on", POLICY_H2), ("off", off)):

            async def main(r: Rig, name: str = name) -> None:
                found[name].append(await _events(r))

            where = tmp_path / f"{n}{name}"
            where.mkdir()
            with_rig(where, main, policy)
    cpu = {name: min(each[0] for each in runs) / EVENTS * 1e6 for name, runs in found.items()}
    delay = {name: min(each[1] for each in runs) * 1e6 for name, runs in found.items()}
    print(f"us of CPU an event: {cpu}; us until it comes: {delay}")
    assert cpu["on"] < cpu["off"] * 1.3
