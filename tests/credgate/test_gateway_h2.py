"""HTTP/2: the same judge, only where the endpoint offers it, never translated."""

import asyncio
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.gateway.gates import Gate, GatedReader
from credgate.gateway.http2 import PREFACE, Cutter
from credgate.gateway.steps import Timeouts
from tests.credgate.gateway_rig import SECRET, Rig, rig
from tests.credgate.h2_rig import Fields, H2Client

BOTH = ("h2", "http/1.1")


async def client(r: Rig, via: str = "connect", host: str = "h2.good.test") -> H2Client:
    opened = await (r.tunnel(host, alpn=BOTH) if via == "connect" else r.tls(host, alpn=BOTH))
    assert opened.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    return H2Client(opened.reader, opened.writer)


def fields(
    r: Rig, *more: tuple[bytes, bytes], method: bytes = b"GET", path: bytes = b"/ok/a", host: str = ""
) -> Fields:
    authority = f"{host or 'h2.good.test'}:{r.direct}".encode()
    pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", authority), (b":path", path)]
    return [*pseudo, *more]


@pytest.mark.parametrize("via", ["connect", "direct"])
def test_injection(via: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            c = await client(r, via)
            for n in range(3):
                own = ((b"authorization", b"Bearer mine"), (b"cookie", b"a=b"))
                answer = await c.ask(fields(r, *own, method=b"POST"), b"x" * n)
                assert (answer.status, answer.body) == (200, b"ok %d" % n)
            (session,) = r.good.sessions
            assert [s.values(b"authorization") for s in session.seen] == [[b"Bearer " + SECRET.encode()]] * 3
            assert session.seen[0].values(b":authority") == [f"h2.good.test:{r.direct}".encode()]
            assert session.seen[0].values(b"cookie") == []
            assert r.records("intent")[0]["http_version"] == "HTTP/2.0"
            assert r.records("outcome")[0]["ids"] == {"x-request-id": "target-2"}

    asyncio.run(main())


def test_streams_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            c = await client(r)
            paths = [b"/ok/%d" % n if n % 2 else b"/no/%d" % n for n in range(20)]
            streams = []
            for path in paths:
                streams.append(c.conn.get_next_available_stream_id())
                c.conn.send_headers(streams[-1], fields(r, path=path), end_stream=True)
            c.flush()
            seen: dict[int, int] = {}
            async with asyncio.timeout(60):
                while len(seen) < len(paths):
                    for event in c.conn.receive_data(await c.reader.read(65536)):
                        if type(event).__name__ == "ResponseReceived":
                            seen[event.stream_id] = int(dict(event.headers)[b":status"])
            assert [seen[s] for s in streams] == [200 if b"ok" in p else 403 for p in paths]
            sent = sorted(s.values(b":path")[0] for s in r.good.sessions[0].seen)
            assert sent == sorted(p for p in paths if b"ok" in p)
            assert r.good.connections == 1

    asyncio.run(main())


def test_curl(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            code, out = await r.curl("--http2", "-i", "-d", "hello", f"https://h2.good.test:{r.direct}/ok/a")
            assert code == 0
            assert "HTTP/2 200" in out
            assert out.endswith("ok 5")
            code, out = await r.curl("--http2", "-i", f"https://h2.good.test:{r.direct}/no")
            assert "HTTP/2 403" in out
            assert "credgate-verdict: deny" in out
            assert json.loads(out.rpartition("\r\n")[2])["error"]["code"] == "no_rule"

    asyncio.run(main())


def test_not_offered_where_the_endpoint_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            for host in ("api.good.test", "evil.test"):
                opened = await r.tunnel(host, alpn=BOTH)
                assert opened.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            opened = await r.tunnel("h2.good.test")
            assert (await opened.get(host=f"h2.good.test:{r.direct}")).status == 200
            assert r.good.sessions == []  # HTTP/1.1 from the client is HTTP/1.1 to the target

    asyncio.run(main())


def test_never_translated(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:  # the target speaks HTTP/1.1 alone
            c = await client(r)
            answer = await c.ask(fields(r))
            assert answer.status == 502
            assert json.loads(answer.body)["error"]["code"] == "upstream_tls"
            assert r.untouched
            assert r.records("outcome")[0]["reason"] == "upstream_tls"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("more", "change", "status", "code"),
    [
        ([], {"host": "api.good.test"}, 403, "identity_mismatch"),  # 11
        ([], {"host": "evil.test"}, 403, "identity_mismatch"),
        ([(b"host", b"evil.test")], {}, 403, "identity_mismatch"),
        ([], {"path": b"/x HTTP/1.1\r\nHost: evil\r\n\r\nGET /smug"}, 400, "malformed"),  # 13
        ([], {"path": b"/ok/a b"}, 400, "malformed"),
        ([], {"path": b"/ok/../admin"}, 403, "path_ambiguous"),
        ([], {"path": b"*"}, 400, "malformed"),
        ([], {"path": b"https://evil.test/"}, 400, "malformed"),
        ([], {"method": b"get"}, 403, "method_invalid"),
        ([], {"method": b"GET /ok/a HTTP/1.1\r\nX: "}, 403, "method_invalid"),
        ([(b"x-a", b"b\r\nc: d")], {}, 400, "malformed"),  # 18
        ([(b"x-a", b"b\x00c")], {}, 400, "malformed"),
        ([(b"transfer-encoding", b"chunked")], {"method": b"POST"}, 400, "malformed"),  # 15
        ([(b"connection", b"close")], {}, 400, "malformed"),
        ([(b"te", b"gzip")], {}, 400, "malformed"),
        ([(b"X-Upper", b"a")], {}, 400, "malformed"),
        ([(b"upgrade", b"websocket")], {}, 400, "malformed"),
        ([(b"content-length", b"3")], {"method": b"POST"}, 400, "malformed"),  # and no body
        ([(b":path", b"/ok/b")], {}, 400, "malformed"),
        ([(b"x-http-method-override", b"DELETE")], {"method": b"POST"}, 403, "method_invalid"),
    ],
)
def test_refused(more: Fields, change: dict[str, Any], status: int, code: str, tmp_path: Path) -> None:
    """HTTP/2's own library may end the stream or the connection before anybody judges: that is a refusal too."""

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            c = await client(r)
            answer = await c.ask(fields(r, *more, **change))
            assert r.untouched
            assert not r.records("intent")
            if answer.status:
                assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
                assert r.reasons() == [code]
            else:
                assert r.reasons() == ["malformed"]

    asyncio.run(main())


def test_trailers_of_the_client_are_not_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            c = await client(r)
            stream = c.conn.get_next_available_stream_id()
            c.conn.send_headers(stream, fields(r, method=b"POST"))
            c.conn.send_data(stream, b"hello")
            c.conn.send_headers(stream, [(b"authorization", b"Bearer mine")], end_stream=True)
            c.flush()
            assert (await c.answer(stream)).body == b"ok 5"
            assert r.good.sessions[0].seen[0].trailers == []

    asyncio.run(main())


def test_a_large_upload_to_a_slow_target_is_not_held(tmp_path: Path) -> None:
    """mitmproxy gives the client a window of two GiB and queues what the target does not take yet."""

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH, timeouts=Timeouts()) as r:
            r.good.pace = 0.001
            big = tmp_path / "big"
            with big.open("wb") as file:
                file.truncate(32 << 20)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            code, out = await r.curl("--http2", "-T", str(big), f"https://h2.good.test:{r.direct}/ok/a")
            assert (code, out) == (0, f"ok {32 << 20}")
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
            assert grown < 24 << 20

    asyncio.run(main())


def test_a_large_answer_to_a_slow_client_is_not_held(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH, timeouts=Timeouts()) as r:
            r.good.answer_size = 32 << 20
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            args = ("--http2", "--limit-rate", "24M", "-o", "/dev/null", "-w", "%{size_download}")
            code, out = await r.curl(*args, f"https://h2.good.test:{r.direct}/ok/a")
            assert (code, out) == (0, str(32 << 20))
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
            assert grown < 24 << 20

    asyncio.run(main())


@pytest.mark.parametrize("guarded", [True, False])
def test_others_have_their_turn_between_the_requests_of_one_read(
    guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(Cutter, "__call__", lambda _, data: len(data))

    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            c, other = await client(r), await r.tunnel()
            host = f"api.good.test:{r.direct}"
            assert (await other.get("/no/warm", host=host)).status == 403
            for number in range(80):
                stream = c.conn.get_next_available_stream_id()
                c.conn.send_headers(stream, fields(r, path=b"/no/%d" % number), end_stream=True)
            c.flush()
            asked = asyncio.create_task(other.get("/no/other", host=host))
            async with asyncio.timeout(60):
                while len(r.records("deny")) < 82:
                    c.conn.receive_data(await c.reader.read(65536))
                    c.flush()
            await asked
            paths = [line["path"] for line in r.records("deny")]
            assert (paths.index("/no/other") < 40) is guarded

    asyncio.run(main())


def frame(kind: int, size: int) -> bytes:
    return size.to_bytes(3) + bytes([kind, 0]) + b"\0\0\0\1" + b"x" * size


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 4, 6, 9]), st.sampled_from([0, 0, 0, 1, 8, 300])), max_size=300),
    st.lists(st.integers(1, 700), min_size=1, max_size=9),
)
def test_what_one_turn_takes_of_a_clients_frames(frames: list[tuple[int, int]], reads: list[int]) -> None:
    stream = b"P" * PREFACE + b"".join(frame(kind, size) for kind, size in frames)
    cut, parts, at = Cutter(), [], 0
    while at < len(stream):
        rest = stream[at : at + reads[len(parts) % len(reads)]]
        at += len(rest)
        while rest:
            size = cut(rest)
            assert 0 < size <= len(rest)
            parts.append(rest[:size])
            rest = rest[size:]
    assert b"".join(parts) == stream
    ends = [sum(map(len, parts[: number + 1])) for number in range(len(parts))]
    begins, place = [], PREFACE
    for kind, size in frames:
        begins.append((place, kind))
        place += 9 + size
    for begin, end in zip([0, *ends], ends, strict=False):
        inside = [kind for place, kind in begins if begin <= place and place + 9 <= end]
        assert len(inside) <= 64 and 1 not in inside[:-1]


def test_a_reader_gives_way_where_streams_do_not() -> None:
    async def turns(gated: bool) -> int:
        reader, seen, taken = asyncio.StreamReader(limit=1 << 20), 0, 0
        reader.feed_data(b"P" * PREFACE + frame(4, 0) * 6400)
        asked = GatedReader(reader, Gate(), lambda: None, Cutter()) if gated else reader

        async def other() -> None:
            nonlocal seen
            while True:
                seen += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        while taken < PREFACE + 9 * 6400:
            taken += len(await asked.read(65535))
        task.cancel()
        return seen

    assert asyncio.run(turns(gated=False)) == 0
    assert asyncio.run(turns(gated=True)) >= 99
