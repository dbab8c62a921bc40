"""Body rules in both lanes: nothing reaches the target before the whole body was judged, and what does is that body."""

import asyncio
import gzip
import json
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli
import pytest

from credgate.gateway import judge, waiting
from credgate.gateway.decoded import Undecodable, decoded
from tests.credgate.gateway_rig import POLICY, SECRET, Client, Rig, rig
from tests.credgate.h2_rig import H2Client

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

BODIES = POLICY.replace(
    '[[endpoint.good.deny]]\nid = "minting"',
    """[[endpoint.good.allow]]
id = "model"
methods = ["POST"]
paths = ["/m"]
body = {{ type = "json", max = "64KiB", in = {{ "model" = ["small", "tiny"] }} }}
[[endpoint.good.allow]]
id = "large"
methods = ["POST"]
paths = ["/large"]
body = {{ type = "json", max = "32MiB", equals = {{ "model" = "small" }} }}
[[endpoint.good.allow]]
id = "graphql"
methods = ["POST"]
paths = ["/graphql"]
body = {{ type = "graphql", operations = ["query.viewer"] }}
[[endpoint.good.deny]]
id = "minting\"""",
).replace('rules = ["ok", "query", "slash"]', 'rules = ["ok", "query", "slash", "model", "large"]')
BODIES = BODIES.replace(
    "[endpoint.looked-up]",
    """[[endpoint.h2.allow]]
id = "model"
methods = ["POST"]
paths = ["/m"]
body = {{ type = "json", max = "64KiB", in = {{ "model" = ["small", "tiny"] }} }}
[endpoint.looked-up]""",
).replace('rules = ["ok"]', 'rules = ["ok", "model"]')

GOOD = json.dumps({"model": "small", "text": "é" * 100}).encode()
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}


def head(r: Rig, length: int | None, path: str = "/m", **more: str) -> bytes:
    framing = {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
    fields = {"Host": f"api.good.test:{r.direct}", "Content-Type": "application/json", **framing, **more}
    return (
        f"POST {path} HTTP/1.1\r\n" + "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in fields.items())
    ).encode() + b"\r\n"


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("framed", ["length", "chunks"])
@pytest.mark.parametrize("coding", ["", *CODINGS])
def test_what_was_judged_is_sent_byte_for_byte(coding: str, framed: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            body = CODINGS[coding](GOOD) if coding else GOOD
            more = {"Content_Encoding": coding} if coding else {}
            for _ in range(2):  # on one connection
                if framed == "length":
                    answer = await client.ask(head(r, len(body), **more) + body)
                else:
                    answer = await client.ask(head(r, None, **more) + chunked(body, 7))
                assert (answer.status, answer.body) == (200, b"ok %d" % len(body))
            assert [seen.body for seen in r.good.seen] == [body, body]
            assert r.good.seen[0].values(b"authorization") == [b"Bearer " + SECRET.encode()]
            assert [i["rule"] for i in r.records("intent")] == ["good.model"] * 2
            assert [o["req_bytes"] for o in r.records("outcome")] == [len(body)] * 2
            assert r.run.held == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"model":"large"}',
        b'{"model":"small","model":"large"}',
        b'{"model":"small","Model":"large"}',
        b'{"model":"small"',
        b'{"model":["small"]}',
        gzip.compress(GOOD, mtime=0),
        b"\xef\xbb\xbf" + GOOD,
        b"model=small",
    ],
)
def test_a_refused_body_never_leaves(body: bytes, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            for raw in (head(r, len(body)) + body, head(r, None) + (chunked(body, 5) if body else b"0\r\n\r\n")):
                answer = await client.ask(raw)
                assert (answer.status, answer.code, answer.verdict) == (403, "body_refused", True)
            assert r.untouched
            assert r.good.connections == 0
            assert r.vault.fetched == []
            denied = r.records("deny")
            assert [d["reason"] for d in denied] == ["body_refused"] * 2
            assert all(d["detail"].startswith("a body that rule good.model takes; this one: ") for d in denied)
            assert r.records("intent") == []
            assert r.run.held == 0

    asyncio.run(main())


def test_the_same_bytes_pass_where_no_rule_asks(tmp_path: Path) -> None:
    """The control: without a body term they are streamed."""

    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            assert (await client.ask(head(r, 2, "/ok/a") + b"{}")).status == 200

    asyncio.run(main())


FETCHERS: dict[str, dict[str, object]] = {
    "a tool that fetches": {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
    "a server of tools": {"mcp_servers": [{"type": "url", "url": "https://evil.test/"}]},
    "a picture to fetch": {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
    "a webhook": {"metadata": {"webhook": "https://evil.test/"}},
}


@pytest.mark.parametrize("way", ["strict", "h2"])
def test_a_server_is_asked_to_fetch_nothing(way: str, tmp_path: Path) -> None:
    """A target that fetches for its client is a way out; its rule lists the keys of a body, and what they may hold."""
    said: dict[str, object] = {"model": "small", "messages": [{"role": "user", "content": "hello"}]}
    rule = (
        """body = {{ type = "json", max = "64KiB", keys = ["model", "messages"], equals = {{ "model" = "small" }}, """
    )
    rule += """in = {{ "messages[*].content[*].type" = ["text"] }} }}"""
    term = 'body = {{ type = "json", max = "64KiB", in = {{ "model" = ["small", "tiny"] }} }}'
    text_only = {**said, "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}

    async def main() -> None:
        async with rig(tmp_path, policy=BODIES.replace(term, rule), alpn=("h2", "http/1.1")) as r:
            for more, status in [({}, 200), *((more, 403) for more in FETCHERS.values())]:
                body = json.dumps({**text_only, **more}).encode()
                if way == "h2":
                    opened = await r.tunnel("h2.good.test", alpn=("h2", "http/1.1"))
                    host = b"h2.good.test:%d" % r.direct
                    pseudo = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", host), (b":path", b"/m")]
                    client = H2Client(opened.reader, opened.writer)
                    answer = await client.ask([*pseudo, (b"content-type", b"application/json")], body)
                    assert answer.status == status, more
                else:
                    assert (await (await r.tunnel()).ask(head(r, len(body)) + body)).status == status, more
            assert b"evil.test" not in r.good.raw + b"".join(s.body for x in r.good.sessions for s in x.seen)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["length", "chunks", "bomb"])
def test_a_body_over_max_is_refused_as_soon_as_it_shows(how: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            big = b'{"model":"small","x":"' + b"x" * (1 << 20) + b'"}'
            if how == "length":
                client.writer.write(head(r, len(big)))  # not one byte of it
            elif how == "chunks":
                client.writer.write(head(r, None) + b"%x\r\n" % len(big) + big[: 70 << 10])  # its end never comes
            else:
                packed = gzip.compress(big)
                client.writer.write(head(r, len(packed), Content_Encoding="gzip") + packed)
            answer = await client.answer()
            assert (answer.status, answer.code) == (403, "body_refused")
            assert "over max" in r.records("deny")[0]["detail"]
            assert r.good.connections == 0
            assert r.run.held == 0

    asyncio.run(main())


def test_a_client_that_waits_for_100_gets_it_before_the_target_is_dialled(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            client.writer.write(head(r, len(GOOD), Expect="100-continue"))
            async with asyncio.timeout(60):
                assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            assert r.good.connections == 0
            answer = await client.ask(GOOD)
            assert answer.status == 200
            assert r.good.seen[0].body == GOOD
            assert r.good.seen[0].values(b"expect") == []

    asyncio.run(main())


def test_a_large_body_in_pieces(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            body = b'{"x":"' + b"x" * (6 << 20) + b'","model":"small"}'
            client.writer.write(head(r, len(body), "/large"))
            for start in range(0, len(body), 1 << 18):
                client.writer.write(body[start : start + (1 << 18)])
                await client.writer.drain()
                if start == 1 << 20:
                    await asyncio.sleep(0.2)
                    assert 0 < r.run.held < len(body)
                    assert r.good.connections == 0
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, b"ok %d" % len(body))
            assert r.good.seen[0].body == body

    asyncio.run(main())


def test_bodies_of_one_run_share_a_bound_and_give_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_RUN", 3 << 20)

    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            waiting_ones = [await r.tunnel() for _ in range(2)]
            for client in waiting_ones:
                client.writer.write(head(r, 4 << 20, "/large") + b"x" * (1 << 20))
                await client.writer.drain()
            await asyncio.sleep(0.3)
            assert r.run.held == 2 << 20
            third = await r.tunnel()
            third.writer.write(head(r, 4 << 20, "/large") + b"x" * (2 << 20))
            answer = await third.answer()
            assert (answer.status, answer.code) == (403, "body_refused")
            for client in waiting_ones:
                client.close()
            async with asyncio.timeout(60):
                while r.run.held:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_client_that_leaves_in_the_middle(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            client.writer.write(head(r, len(GOOD)) + GOOD[:-1])
            await client.writer.drain()
            await asyncio.sleep(0.1)
            client.close()
            await asyncio.sleep(0.2)
            assert r.untouched
            assert r.run.held == 0

    asyncio.run(main())


def test_revoked_while_the_body_was_on_its_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            client.writer.write(head(r, len(GOOD)) + GOOD[:-1])
            await client.writer.drain()
            await asyncio.sleep(0.1)
            r.run.revoked = True
            answer = await client.ask(GOOD[-1:])
            assert (answer.status, answer.code) == (403, "revoked")
            assert r.untouched

    asyncio.run(main())


def test_graphql(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            for query, status in (("{ viewer { login } }", 200), ("mutation { x: deleteRepo }", 403), ("{", 403)):
                body = json.dumps({"query": query}).encode()
                assert (await client.ask(head(r, len(body), "/graphql") + body)).status == status
            assert [seen.body for seen in r.good.seen] == [b'{"query": "{ viewer { login } }"}']

    asyncio.run(main())


async def h2(r: Rig) -> H2Client:
    opened = await r.tunnel("h2.good.test", alpn=("h2", "http/1.1"))
    return H2Client(opened.reader, opened.writer)


def h2_head(r: Rig, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    pseudo = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"h2.good.test:%d" % r.direct)]
    return [*pseudo, (b":path", b"/m"), (b"content-type", b"application/json"), *more]


@pytest.mark.parametrize("coding", ["", *CODINGS])
def test_http2_is_judged_alike(coding: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES, alpn=("h2", "http/1.1")) as r:
            more = ((b"content-encoding", coding.encode()),) if coding else ()
            client = await h2(r)
            for body, status in ((GOOD, 200), (b'{"model":"large"}', 403), (GOOD.replace(b"small", b"tiny"), 200)):
                raw = CODINGS[coding](body) if coding else body
                answer = await client.ask(h2_head(r, *more), raw)
                assert answer.status == status, answer
                if status == 200:
                    assert answer.body == b"ok %d" % len(raw)
            assert [i["rule"] for i in r.records("intent")] == ["h2.model"] * 2
            assert [d["reason"] for d in r.records("deny")] == ["body_refused"]
            [session] = r.good.sessions
            assert len(session.seen) == 2
            assert session.seen[0].values(b"authorization") == [b"Bearer " + SECRET.encode()]
            assert r.run.held == 0

    asyncio.run(main())


def test_http2_over_max_in_pieces(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BODIES, alpn=("h2", "http/1.1")) as r:
            client = await h2(r)
            stream = client.conn.get_next_available_stream_id()
            client.conn.send_headers(stream, h2_head(r))
            client.flush()
            async with asyncio.timeout(60):
                client.conn.receive_data(await client.reader.read(65536))  # the gateway's own windows
            for _ in range(5):
                client.conn.send_data(stream, b"x" * (13 << 10))
                client.flush()
                await asyncio.sleep(0.02)
            answer = await client.answer(stream)
            assert answer.status == 403
            assert json.loads(answer.body)["error"]["code"] == "body_refused"
            assert r.good.sessions == []
            assert r.run.held == 0
            # the connection goes on
            assert (await client.ask(h2_head(r), GOOD)).status == 200

    asyncio.run(main())


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("what", ["cut", "more", "twice", "other", "raw"])
def test_what_a_coding_does_not_say_is_refused(coding: str, what: str) -> None:
    packed = CODINGS[coding](GOOD)
    raw = {"cut": packed[:-1], "more": packed + b"x", "twice": packed * 2, "other": b"x" + packed, "raw": GOOD}[what]
    with pytest.raises(Undecodable):
        decoded(((b"content-encoding", coding.encode()),), raw, 1 << 20)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_costs_no_more_than_the_bound(coding: str) -> None:
    raw = CODINGS[coding](bytes(32 << 20))
    tracemalloc.start()
    with pytest.raises(Undecodable, match="over max"):
        decoded(((b"content-encoding", coding.encode()),), raw, 1 << 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("size", [0, 1, 4095, 4096])
@pytest.mark.parametrize("coding", ["", "identity", *CODINGS])
def test_the_bound_is_of_what_comes_out(coding: str, size: int) -> None:
    data = bytes(size)
    raw = CODINGS[coding](data) if coding in CODINGS else data
    fields = ((b"Content-Encoding", coding.upper().encode()),) if coding else ()
    assert decoded(fields, raw, size) == data
    if size:
        with pytest.raises(Undecodable, match="over max"):
            decoded(fields, raw, size - 1)


@pytest.mark.parametrize("name", [b"Content_Encoding", b"content_encoding"])
def test_a_coding_in_another_spelling_counts(name: bytes) -> None:
    assert decoded(((name, b"gzip"),), gzip.compress(b"{}"), 100) == b"{}"
    with pytest.raises(Undecodable):
        decoded(((b"content-encoding", b"gzip"), (name, b"br")), gzip.compress(b"{}"), 100)


@pytest.mark.parametrize("framed", ["length", "chunks"])
def test_the_same_on_a_connection_that_asked_for_a_websocket(framed: str, tmp_path: Path) -> None:
    """From there on it is in mitmproxy's layers, in HTTP/1.1 too."""

    async def asked(r: Rig) -> Client:
        client = await r.tunnel()
        upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        first = await client.ask(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n%s" % (r.direct, upgrade))
        assert first.status == 426
        return client

    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await asked(r)
            for body, status in ((GOOD, 200), (GOOD, 200), (b'{"model":"large"}', 403)):
                raw = head(r, None) + chunked(body, 9) if framed == "chunks" else head(r, len(body)) + body
                assert (await client.ask(raw)).status == status
            assert [seen.body for seen in r.good.seen] == [GOOD, GOOD]
            assert r.run.held == 0
            client = await asked(r)
            client.writer.write(head(r, None) + b"%x\r\n" % (1 << 20) + b"x" * (70 << 10))
            assert (await client.answer()).code == "body_refused"
            assert len(r.good.seen) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    "codings", [(b"gzip, br",), (b"gzip", b"gzip"), (b"compress",), (b"",), (b"identity", b"gzip")]
)
def test_one_coding_alone_is_known(codings: tuple[bytes, ...]) -> None:
    with pytest.raises(Undecodable, match="content coding"):
        decoded(tuple((b"content-encoding", c) for c in codings), gzip.compress(b"{}"), 100)


@pytest.mark.parametrize("named", ["content-type", "Content_Type", "content-encoding"])
def test_a_header_that_goes_no_further_says_nothing_of_the_body(named: str, tmp_path: Path) -> None:
    """Connection takes it out of what is sent (RFC 9110 7.6.1): judged by it, the body had two readings."""

    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client, body = await r.tunnel(), gzip.compress(GOOD)
            for connection, status in (("keep-alive", 200), (f"keep-alive, {named}", 403)):
                answer = await client.ask(head(r, len(body), Content_Encoding="gzip", Connection=connection) + body)
                assert answer.status == status
            assert [seen.body for seen in r.good.seen] == [body]

    asyncio.run(main())


def test_a_body_in_chunks_of_two_bytes_is_kept_in_its_size(tmp_path: Path) -> None:
    """An object for each of them took twenty times as much."""

    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            body = json.dumps({"model": "small", "text": "a" * (1 << 20)}).encode()
            wire = head(r, None, "/large") + chunked(body, 2)
            tracemalloc.start()
            try:
                client.writer.write(wire[:-5])
                await client.writer.drain()
                while r.run.held < len(body):
                    await asyncio.sleep(0.01)
                kept, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            answer = await client.ask(wire[-5:])
            assert answer.status == 200
            assert r.good.seen[0].body == body
            assert kept < 8 * len(body)

    asyncio.run(main())


@pytest.mark.parametrize(("size", "aside"), [(100, False), (1 << 20, True)])
def test_a_body_that_is_large_once_decoded_is_judged_and_written_aside(
    size: int, aside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be small as sent. Whatever parses it on the loop holds up every other run."""
    threads: dict[str, bool] = {}

    def watch(name: str, work: Callable[..., object]) -> None:
        def told(*args: object) -> object:
            threads[name] = threading.current_thread() is not threading.main_thread()
            return work(*args)

        monkeypatch.setattr(judge, name, told)

    for name in ("decide", "injected", "rewrite", "signed"):
        watch(name, getattr(judge, name))

    async def main() -> None:
        async with rig(tmp_path, policy=BODIES) as r:
            client = await r.tunnel()
            body = zstd.compress(json.dumps({"model": "small", "text": "a" * size}).encode())
            assert len(body) < judge.QUICK
            answer = await client.ask(head(r, len(body), "/large", Content_Encoding="zstd") + body)
            assert answer.status == 200

    asyncio.run(main())
    assert threads == dict.fromkeys(("decide", "injected", "rewrite", "signed"), aside)
