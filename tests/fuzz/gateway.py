"""Fuzz the gateway: no secret byte at a wrong place, no unjudged request upstream, no crash, no hang over 5 seconds.

    python -m tests.fuzz.gateway [SECONDS] [SEED]

The real gateway in this process, between a client that sends mutated bytes and targets that keep every byte and may
answer with mutated ones. What a target got is read by a parser that is not ours (h11); what the ledger was told is
compared with it. Inputs that reach new lines of the gateway are kept as seeds.
"""

import asyncio
import contextlib
import json
import logging
import ssl
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import h11

from credgate.gateway import lane, lanetarget
from credgate.gateway.steps import Timeouts
from tests.credgate.gateway_rig import SECRET, Rig, rig, server_tls
from tests.credgate.h2_rig import H2Client
from tests.fuzz.lines import Lines
from tests.fuzz.mutate import frames_changed, mutated, pieces

LIMIT = 5.0  # seconds for a case
QUIET = 0.01  # seconds of silence after which nothing more is expected
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BOTH = ("h2", "http/1.1")
SECRETS = (SECRET.encode(), SECRET[::-1].encode())
WAYS = (
    "tls",
    "tls",
    "tls",
    "plain",
    "plain",
    "plain",
    "proxy",
    "raw tunnel",
    "raw direct",
    "h2",
    "answer",
    "answer",
    "plain answer",
)


class Violation(Exception):
    """An invariant does not hold."""


@dataclass
class Upstream:
    """A target that keeps every byte; `answers` are written instead of good ones, in pieces, `then` it closes."""

    tls: ssl.SSLContext | None
    answers: list[bytes] = field(default_factory=list)
    closes: bool = False
    requests: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)  # method, target, host
    raw: bytearray = field(default_factory=bytearray)
    faults: list[str] = field(default_factory=list)
    port: int = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Accept no more."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            while data := await reader.read(65536):
                self.raw += data
                try:
                    parser.receive_data(data)
                    await self._requests(parser, writer)
                except h11.RemoteProtocolError as error:
                    self.faults.append(str(error))
                    break
        writer.close()

    async def _requests(self, parser: h11.Connection, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            event = parser.next_event()
            if isinstance(event, h11.Request):
                hosts = [value for name, value in event.headers if name == b"host"]
                self.requests.append((event.method, event.target, b" ".join(hosts)))
                if self.answers:
                    await self._odd(writer)
            elif isinstance(event, h11.EndOfMessage):
                good = parser.send(h11.Response(status_code=200, headers=[("content-length", "2")])) or b""
                if self.requests[-1][0] != b"HEAD":
                    good += parser.send(h11.Data(data=b"ok")) or b""
                good += parser.send(h11.EndOfMessage()) or b""
                if not self.answers:
                    writer.write(good)
                if parser.our_state is h11.MUST_CLOSE:
                    writer.close()
                    return
                parser.start_next_cycle()
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return

    async def _odd(self, writer: asyncio.StreamWriter) -> None:
        for part in self.answers:
            if writer.is_closing():
                return
            writer.write(part)
            await asyncio.sleep(0)
        if self.closes:
            writer.close()


@dataclass
class Fuzzer:
    """One gateway for all cases."""

    r: Rig
    rng: Random
    lines: Lines
    good: Upstream
    plain: Upstream
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seeds: dict[str, list[bytes]] = field(default_factory=dict)
    case: dict[str, object] = field(default_factory=dict)
    late: list[tuple[str, str, str]] = field(default_factory=list)

    def prepare(self) -> None:
        """Seeds, and ears for what the ledger is told and what is logged."""
        host, plain = b"api.good.test:%d" % self.r.direct, b"plain.good.test:%d" % self.r.cleartext
        self.seeds = {"tls": _requests(host), "plain": _requests(plain), "answer": _answers()}
        absolute = [x.replace(b" /", b" http://" + plain + b"/", 1) for x in _requests(plain)]
        connect = b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (host, host)
        self.seeds["proxy"] = [*absolute, connect, connect + b"\x16\x03\x01\x00\x05hello"]
        self.seeds["raw tunnel"] = [*_requests(host), b"\x16\x03\x01\x00\x05hello" + bytes(40), b"SSH-2.0-x\r\n"]
        self.seeds["raw direct"] = self.seeds["raw tunnel"]
        file, told = self.r.extra["ledger"]._file, self.told
        calls: Any = file._calls

        class Heard(calls):  # type: ignore[misc] - what it is made of is known only here
            @staticmethod
            def write(fd: int, lines: bytes) -> int:
                for line in lines.splitlines():
                    fields = json.loads(line)
                    told.append((fields["ev"], fields))
                return int(calls.write(fd, lines))

        file._calls = Heard
        logging.getLogger("credgate").addHandler(_Ears(self.faults))
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: self._loop(context))

    def _loop(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ConnectionError | ssl.SSLError):
            self.faults.append(f"{context.get('message')}: {error!r}")

    async def one(self) -> None:
        """One case. Raises Violation."""
        way = self.rng.choice(WAYS)
        self.counts[way] = self.counts.get(way, 0) + 1
        for upstream in (self.good, self.plain):
            upstream.requests.clear()
            upstream.raw.clear()
            upstream.faults.clear()
            upstream.answers, upstream.closes = [], False
        self.r.good.sessions.clear()
        self.told.clear()
        self.faults.clear()
        before = self.lines.count
        started = time.monotonic()
        try:
            got = await asyncio.wait_for(self._drive(way), LIMIT)
            await asyncio.wait_for(self._settled(), LIMIT)
        except TimeoutError:
            raise Violation(f"a hang of {time.monotonic() - started:.1f} s") from None
        self._check(way, got)
        if self.lines.count > before and way != "h2":
            kind = "answer" if way.endswith("answer") else way
            data = self.case.get("data")
            if isinstance(data, bytes) and len(self.seeds[kind]) < 2000:
                self.seeds[kind].append(data)

    async def _drive(self, way: str) -> bytes:
        r, rng = self.r, self.rng
        if way == "h2":
            return await self._drive_h2()
        kind = "answer" if way.endswith("answer") else way
        data = mutated(rng, rng.choice(self.seeds[kind]), rng.choice(self.seeds[kind]))
        self.case = {"way": way, "data": data}
        if kind == "answer":
            return await self._drive_answer(way, data)
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            match way:
                case "tls":
                    client = await (r.tunnel() if rng.randrange(2) else r.tls())
                case "raw tunnel":
                    client = await r.tunnel(sni=None)
                case _:
                    client = await r.dial({"plain": r.cleartext, "proxy": r.proxy, "raw direct": r.direct}[way])
            return await self._talk(client, pieces(rng, data))
        return b""

    async def _drive_answer(self, way: str, data: bytes) -> bytes:
        upstream = self.plain if way.startswith("plain") else self.good
        upstream.answers, upstream.closes = pieces(self.rng, data), bool(self.rng.randrange(2))
        head = self.rng.choice((b"GET", b"GET", b"HEAD", b"POST")) if upstream is self.good else b"GET"
        self.case |= {"method": head, "closes": upstream.closes}
        name, port = (
            (b"plain.good.test", self.r.cleartext) if upstream is self.plain else (b"api.good.test", self.r.direct)
        )
        length = b"Content-Length: 2\r\n" if head == b"POST" else b""
        request = b"%s /ok/a HTTP/1.1\r\nHost: %s:%d\r\n%s\r\n" % (head, name, port, length)
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            client = await (self.r.dial(port) if upstream is self.plain else self.r.tunnel())
            got = await self._talk(client, [request + (b"ab" if length else b"")])
            _one_answer(head, got)
            return got
        return b""

    async def _drive_h2(self) -> bytes:
        r, rng = self.r, self.rng
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            opened = await r.tunnel("h2.good.test", alpn=BOTH)
            writer = opened.writer
            client = H2Client(opened.reader, _Catch())  # type: ignore[arg-type]
            for method in rng.sample((b"GET", b"POST", b"PUT", b"DELETE"), 2):
                stream = client.conn.get_next_available_stream_id()
                path = rng.choice((b"/ok/a", b"/no", b"/ok/../a", b"/ok/mint/x"))
                pseudo = {b":method": method, b":scheme": b"https", b":path": path}
                pseudo[b":authority"] = b"%s:%d" % (
                    rng.choice((b"h2.good.test", b"h2.good.test", b"evil.test")),
                    r.direct,
                )
                body = method != b"GET"
                client.conn.send_headers(stream, [*pseudo.items(), (b"x-a", b"b")], end_stream=not body)
                if body:
                    client.conn.send_data(stream, b"hello", end_stream=True)
            made = client.conn.data_to_send()
            data = PREFACE + frames_changed(rng, client.writer.data.removeprefix(PREFACE) + made)  # type: ignore[attr-defined]
            self.case = {"way": "h2", "data": data}
            opened.writer = writer
            return await self._talk(opened, pieces(rng, data))
        return b""

    async def _talk(self, client: Any, parts: list[bytes]) -> bytes:
        got = b""
        try:
            for part in parts:
                client.writer.write(part)
                await asyncio.sleep(0)
            while True:
                async with asyncio.timeout(QUIET):
                    more = await client.reader.read(65536)
                if not more:
                    break
                got += more
        except (TimeoutError, ConnectionError, ssl.SSLError):
            pass
        finally:
            client.close()
            self.r.clients.clear()
        return got

    async def _settled(self) -> None:
        """Every connection of clients is gone, and so is what waited in the pool where an answer was odd."""
        while any(i.handlers for instances in self.r.gateway._instances.values() for i in instances):
            await asyncio.sleep(0.001)
        if self.good.answers or self.plain.answers:
            self.r.gateway._hooks.pool.close(self.r.run)
            await asyncio.sleep(0)

    def _check(self, way: str, got: bytes) -> None:
        if self.faults:
            raise Violation(f"a crash: {self.faults[0]}")
        for secret in SECRETS:
            if secret in got or secret in self.plain.raw:
                raise Violation("a secret at the client, or on a plain connection")
            if secret in repr(self.told).encode():
                raise Violation("a secret in the ledger")
        if self.good.faults or self.plain.faults:
            raise Violation(f"a target could not read its request: {self.good.faults + self.plain.faults}")
        in_place = self.good.raw.count(b"\r\nauthorization: Bearer " + SECRETS[0] + b"\r\n")
        if self.good.raw.count(SECRETS[0]) != in_place or SECRETS[1] in self.good.raw:
            raise Violation("a secret out of its place")
        self._check_judged()

    def _check_judged(self) -> None:
        intents = [f for ev, f in self.told if ev == "intent"]
        outcomes = [f["intent_seq"] for ev, f in self.told if ev == "outcome"]
        if sorted(outcomes) != sorted(f["seq"] for f in intents):
            raise Violation(f"intents {intents} and outcomes {outcomes}")
        if any(f.get("reason") == "internal" for _, f in self.told):
            raise Violation("an exception in a step or a hook")
        now = [(f["method"], f["path"], f"{f['host']}:{f['port']}") for f in intents]
        # A client may leave while its request is on the way: the target can read it in the time of the next case.
        judged, self.late = [*self.late, *now], now
        spelled = [(m, t.partition(b"?")[0], h) for u in (self.good, self.plain) for m, t, h in u.requests]
        for session in self.r.good.sessions:
            pairs = [dict(s.fields) for s in session.seen]
            spelled += [(p[b":method"], p[b":path"].partition(b"?")[0], p[b":authority"]) for p in pairs]
        for method, target, host in spelled:
            known = (method.decode(), target.decode(), host.decode())
            if known not in judged:
                raise Violation(f"nobody judged {known}")
            judged.remove(known)


def _one_answer(method: bytes, got: bytes) -> None:
    """What the client got is one answer, whole or cut off; never two, and nothing that h11 does not take."""
    if not got:
        return
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    parser.send(h11.Request(method=method, target="/", headers=[("host", "x"), ("content-length", "0")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(got)
    try:
        while True:
            event = parser.next_event()
            if isinstance(event, h11.EndOfMessage):
                break
            if event in (h11.NEED_DATA, h11.PAUSED):
                return
    except h11.RemoteProtocolError as error:
        raise Violation(f"the client could not read its answer: {error}") from None
    if parser.trailing_data[0]:
        raise Violation(f"bytes behind the answer: {parser.trailing_data[0]!r}")


@dataclass
class _Catch:
    data: bytes = b""

    def write(self, data: bytes) -> None:
        self.data += data


class _Ears(logging.Handler):
    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.append(record.getMessage())


def _requests(host: bytes) -> list[bytes]:
    def one(line: bytes, *fields: bytes, body: bytes = b"") -> bytes:
        return b"\r\n".join((line, b"Host: " + host, *fields)) + b"\r\n\r\n" + body

    get = one(b"GET /ok/a?b=c HTTP/1.1", b"Accept: */*", b"Authorization: Bearer mine")
    post = one(b"POST /ok/a HTTP/1.1", b"Content-Length: 5", body=b"hello")
    chunked = one(
        b"POST /ok/a HTTP/1.1", b"Transfer-Encoding: chunked", body=b"5;x=y\r\nhello\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"
    )
    return [
        get,
        post,
        chunked,
        one(b"HEAD /ok/a HTTP/1.1", b"Connection: close"),
        one(b"GET /ok/a HTTP/1.0"),
        one(b"PUT /ok/a HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 5", body=b"hello"),
        one(b"GET /no HTTP/1.1"),
        one(b"GET /ok/a HTTP/1.1", b"Connection: upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
        get + post + chunked + get,
        post + one(b"GET /ok/../a HTTP/1.1") + get,
    ]


def _answers() -> list[bytes]:
    return [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Request-Id: a\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 None\r\n\r\n",
        b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nraw",
    ]


async def fuzz(seconds: float, seed: int, place: Path) -> tuple[Fuzzer, Violation | None]:
    """Run cases until the time is over, or one violates an invariant."""
    limits = Timeouts(connect=1.0, tls=1.0, first_byte=0.3, resolve=1.0, idle=30.0)
    lanetarget.LINGER = lane.SHORT_LINGER = 0.05
    lines = Lines(Path(lane.__file__).parent)
    async with rig(place, timeouts=limits, alpn=BOTH) as r:
        good = Upstream(server_tls(r.extra["ca"], "api.good.test"))
        plain = Upstream(None)
        for name, upstream in (("good", good), ("plain", plain)):
            await upstream.start()
            object.__setattr__(r.run.policy.endpoints[name], "dial_port", upstream.port)
        fuzzer = Fuzzer(r=r, rng=Random(seed), lines=lines, good=good, plain=plain)
        fuzzer.prepare()
        until, found = time.monotonic() + seconds, None
        with lines:
            while time.monotonic() < until and found is None:
                try:
                    await fuzzer.one()
                except Violation as violation:
                    found = violation
        for upstream in (good, plain):
            upstream.close()
        return fuzzer, found


def main(argv: list[str]) -> int:
    seconds = float(argv[0]) if argv else 60.0
    seed = int(argv[1]) if len(argv) > 1 else int(time.time())
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # the targets write to whom has left
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        fuzzer, violation = asyncio.run(fuzz(seconds, seed, Path(place)))
    seconds = time.monotonic() - started
    total = sum(fuzzer.counts.values())
    print(f"seed {seed}: {total} cases in {seconds:.0f} s")
    print("  " + ", ".join(f"{way} {count}" for way, count in sorted(fuzzer.counts.items())))
    print(f"  seeds kept: {sum(map(len, fuzzer.seeds.values()))}")
    for line in fuzzer.lines.report():
        print(f"  {line}")
    if violation is not None:
        with tempfile.NamedTemporaryFile("w", prefix="credgate-fuzz-", suffix=".txt", delete=False) as file:
            file.write(f"{violation}\n{fuzzer.case}\n")
        print(f"violated: {violation}\n  case {total} is in {file.name}")
    return 0 if violation is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
