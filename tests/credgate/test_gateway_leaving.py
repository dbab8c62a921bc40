"""Requests that hold a real secret: refused and alarmed at, wherever it stands but at its place."""

import asyncio
import base64
import contextlib
import gzip
import json
import ssl
from pathlib import Path
from urllib.parse import quote

import pytest

from credgate.gateway import floods
from credgate.gateway.leaving import Leak, Leaving
from rules.needles import needles
from rules.scrub import Table
from tests.credgate.gateway_rig import SECRET, Rig, Seen
from tests.credgate.h2_rig import H2Client
from tests.credgate.test_gateway_scrub import POLICY_H2, WAYS, Field, connection, with_rig

S = SECRET.encode()
FORMS: dict[str, bytes] = {
    "raw": S,
    "base64": base64.b64encode(b"x:" + S + b"."),
    "base64 for URLs": base64.urlsafe_b64encode(b"xy" + S),
    "percent": b"".join(b"%%%02X" % c for c in S),
    "hex": S.hex().encode(),
    "JSON": b"".join(b"\\u%04x" % c for c in S),
}


class Knowing:
    """The rig with a client connection of a lane, on which the secret was used once: so it is known."""

    def __init__(self, r: Rig, way: str) -> None:
        self.r, self.way, self.heard = r, way, list[tuple[str, str]]()
        r.run.alarm = lambda kind, detail: self.heard.append((kind, detail))

    async def ask(
        self, target: bytes = b"/ok/a", *more: Field, body: bytes | None = None, method: bytes = b""
    ) -> tuple[int, str]:
        """Status and code of the answer; 0 where there is none."""
        method = method or (b"GET" if body is None else b"POST")
        client = await connection(self.r, self.way)
        host = b"api.good.test:%d" % self.r.direct
        try:
            if self.way == "h2":
                pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", host), (b":path", target)]
                h2 = H2Client(client.reader, client.writer)
                answer = await h2.ask([*pseudo, *((n.lower(), v) for n, v in more)], body or b"")
                return answer.status, code(answer.body)
            length = [(b"Content-Length", b"%d" % len(body))] if body is not None else []
            lines = [method + b" " + target + b" HTTP/1.1", b"Host: " + host, b"Connection: close"]
            lines += [n + b": " + v for n, v in (*more, *length)]
            client.writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""))
            try:
                got = await client.answer()
            except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                return 0, ""
            return got.status, code(got.body)
        finally:
            client.close()

    @property
    def arrived(self) -> bytes:
        """All that the target got behind the headers that we write, HTTP/2 spelled out; without the place."""
        streams = [s for session in self.r.good.sessions for s in session.seen]
        spelled = b"".join(name + b": " + value + b"\n" for s in streams for name, value in s.fields)
        got = self.r.good.raw + spelled + b"".join(s.body for s in streams)
        return got.replace(b"Bearer " + S, b"")


def code(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"]) if body.startswith(b'{"error"') else ""


async def knowing(r: Rig, way: str) -> Knowing:
    k = Knowing(r, way)
    assert (await k.ask())[0] == 200
    return k


def leaks(k: Knowing) -> bool:
    return any(form in k.arrived for form in needles(SECRET))


@pytest.mark.parametrize("way", WAYS)
def test_in_the_head(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floods, "LINES", 1 << 20)  # each refusal has its own line, however many are alike

    async def main(r: Rig) -> None:
        k = await knowing(r, way)
        places: dict[str, tuple[bytes, tuple[Field, ...]]] = {}
        for name, form in FORMS.items():
            if name != "JSON":  # no target can hold a backslash
                escaped = quote(form, safe="=%").encode()
                places[f"{name} in the path"] = (b"/ok/" + escaped, ())
                places[f"{name} in the query"] = (b"/ok/a?q=" + escaped, ())
                places[f"{name} at a path that is refused anyway"] = (b"/no/" + escaped, ())
            places[f"{name} in a header"] = (b"/ok/a", ((b"X-Note", b"see " + form),))
            places[f"{name} in a cookie"] = (b"/ok/a", ((b"Cookie", b"k=" + form),))
        places["in the user agent"] = (b"/ok/a", ((b"User-Agent", S),))
        wrong = {}
        for name, (target, fields) in places.items():
            before = len(r.records("deny"))
            answer = await k.ask(target, *fields)
            lines = r.records("deny")[before:]
            said = [(line["reason"], line["status"]) for line in lines if line["reason"] != "upgrade_refused"]
            # an escape that is needless has no normal form: refused for it, or for the secret
            if answer != (403, "secret_misplaced") or said != [("secret_misplaced", 403)]:
                wrong[name] = (answer, said)
        assert not wrong
        assert not leaks(k)
        assert set(k.heard) == {
            ("secret_misplaced", "secret 'token' (binding h2, token) in the head of a request"),
        }
        written = b"".join(f.read_bytes() for f in r.ledger_dir.iterdir())
        assert not any(form in written for form in needles(SECRET))

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_control_without_it_they_pass(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        k = await knowing(r, way)
        for text in (S[:-1], S[1:], base64.b64encode(S[:-3]), S.swapcase()):
            assert (await k.ask(b"/ok/" + text.replace(b"=", b""), (b"X-Note", text)))[0] == 200
            assert (await k.ask(body=text))[0] == 200
        assert k.heard == []

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_in_its_place_it_is_let_through(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        k = await knowing(r, way)
        assert (await k.ask(b"/ok/a", (b"Authorization", b"Bearer " + S)))[0] == 200
        # where no rule lets it have a place, the same header is none
        assert await k.ask(b"/no", (b"Authorization", b"Bearer " + S)) == (403, "secret_misplaced")

    with_rig(tmp_path, main)


@pytest.mark.parametrize("way", WAYS)
def test_in_a_body(way: str, tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        k = await knowing(r, way)
        wrong = {}
        bodies = {name: (b'{"x": "' + form + b'"}', ()) for name, form in FORMS.items()}
        coded = gzip.compress(b'{"x": "' + S + b'"}')
        bodies["gzip"] = (coded, ((b"Content-Encoding", b"gzip"),))
        if way != "h2":  # whose client here waits for no window
            bodies["behind 6 MB"] = (b"x" * (6 << 20) + S, ())
        for name, (body, fields) in bodies.items():
            before = len(r.records("outcome"))
            answer = await k.ask(b"/ok/a", *fields, body=body)
            async with asyncio.timeout(60):
                while len(r.records("outcome")) == before:
                    await asyncio.sleep(0.01)
            (line,) = r.records("outcome")[before:]
            # the strict lane has not answered yet and says why; mitmproxy's layers end the connection
            if answer[0] not in (403, 0) or line["reason"] != "secret_misplaced":
                wrong[name] = (answer, line)
        assert not wrong
        assert not leaks(k)
        assert coded not in k.arrived
        assert {kind for kind, _ in k.heard} == {"secret_misplaced"}
        if way == "strict":
            assert await k.ask(body=S) == (403, "secret_misplaced")

    with_rig(tmp_path, main)


def test_a_streamed_body_ends_without_its_end(tmp_path: Path) -> None:
    """What was sent before goes on; the chunk that would complete the secret doesn't, and there is no last one."""

    async def main(r: Rig) -> None:
        await knowing(r, "strict")
        r.good.raw, got, ended = b"", bytearray(), asyncio.Event()

        async def script(_seen: Seen, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while data := await reader.read(65536):
                    got.extend(data)
            ended.set()

        r.good.script = script
        client = await connection(r, "strict")
        host = b"api.good.test:%d" % r.direct
        client.writer.write(b"POST /ok/a HTTP/1.1\r\nHost: " + host + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"begin " + S[:4], S[4:30], S[30:]):
            client.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await asyncio.sleep(0.05)
        answer = await client.answer()
        assert (answer.status, answer.code) == (403, "secret_misplaced")
        async with asyncio.timeout(60):
            await ended.wait()
        assert bytes(got) == b"a\r\nbegin " + S[:4] + b"\r\n"

    with_rig(tmp_path, main)


def test_a_value_is_known_from_its_first_use_on(tmp_path: Path) -> None:
    """The very request that fetches it is searched for it too."""

    async def main(r: Rig) -> None:
        k = Knowing(r, "strict")
        assert await k.ask(b"/ok/a", (b"X-Note", S)) == (403, "secret_misplaced")
        assert r.good.raw == b""

    with_rig(tmp_path, main)


def test_in_a_place_that_is_no_header(tmp_path: Path) -> None:
    """What the client itself put where the secret goes is written over with the same."""

    async def main(r: Rig) -> None:
        k = await knowing(r, "strict")
        assert (await k.ask(b"/ok/a?key=" + S))[0] == 200
        assert await k.ask(b"/ok/a?key=" + S + b"&other=" + S) == (403, "secret_misplaced")
        assert await k.ask(b"/ok/a?other=" + S) == (403, "secret_misplaced")

    policy = POLICY_H2.replace(
        'place = "header:authorization"\nformat = "Bearer {{secret}}"', 'place = "query:key"\nformat = "{{secret}}"', 1
    )
    policy = policy.replace('rules = ["ok", "query", "slash"]', 'rules = ["ok"]')
    with_rig(tmp_path, main, policy)


def test_a_body_that_is_judged_is_searched(tmp_path: Path) -> None:
    async def main(r: Rig) -> None:
        k = await knowing(r, "strict")
        for way in WAYS:
            k.way = way
            said = ((b"Content-Type", b"application/json"),)
            assert (await k.ask(b"/judged", *said, body=b'{"a": "x"}'))[0] == 200
            assert await k.ask(b"/judged", *said, body=b'{"a": "' + S + b'"}') == (403, "secret_misplaced")
            coded = gzip.compress(b'{"a": "' + S + b'"}')
            more = (*said, (b"Content-Encoding", b"gzip"))
            assert await k.ask(b"/judged", *more, body=coded) == (403, "secret_misplaced")
        assert not leaks(k)

    rule = """[[endpoint.good.allow]]
id = "judged"
methods = ["POST"]
paths = ["/judged"]
body = {{ type = "json", max = "64KiB" }}
"""
    with_rig(tmp_path, main, POLICY_H2.replace("[[endpoint.good.deny]]", rule + "[[endpoint.good.deny]]", 1))


@pytest.mark.parametrize("name", [b"Content-Encoding", b"content_encoding"])
def test_a_coding_is_taken_off_however_its_header_is_spelt(name: bytes) -> None:
    """CGI and WSGI servers read the second as the first, and so does what decodes a body for the rules."""
    table, body = Table({SECRET.encode(): "token"}), gzip.compress(SECRET.encode())
    Leaving(table, ()).feed(body)  # as it came it holds nothing
    with pytest.raises(Leak):
        Leaving(table, ((name, b"gzip"),)).feed(body)
