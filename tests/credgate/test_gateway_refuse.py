"""The attack table, over sockets: no byte at any target, the reason in the answer, one record of it."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from tests.credgate.gateway_rig import PATIENT, SECRET, Answer, Client, Rig, rig

GOOD = b"api.good.test:%(port)d"


def request(line: bytes = b"GET /ok/a HTTP/1.1", *fields: bytes, host: bytes | None = GOOD, body: bytes = b"") -> bytes:
    lines = [line, *([b"Host: " + host] if host is not None else []), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(path: bytes) -> bytes:
    return request(b"GET " + path + b" HTTP/1.1")


GET = b"GET /ok/a HTTP/1.1"
POST = b"POST /ok/a HTTP/1.1"

# name: (bytes, status, code); %(port)d is the port that the policy lists.
INSIDE: dict[str, tuple[bytes, int, str]] = {
    "3 fronting by host": (request(host=b"evil.test"), 403, "identity_mismatch"),
    "6 absolute-form inside tls": (request(b"GET https://evil.test/a HTTP/1.1"), 403, "identity_mismatch"),
    "6 absolute-form of the same host": (
        request(b"GET https://api.good.test:%(port)d/ok/a HTTP/1.1"),
        403,
        "identity_mismatch",
    ),
    "7 two hosts": (request(POST, b"Host: evil.test"), 400, "host_invalid"),
    "7 the same host twice": (request(POST, b"Host: " + GOOD), 400, "host_invalid"),
    "8 no host": (request(host=None), 400, "host_invalid"),
    "9 userinfo": (request(host=b"api.good.test@evil.test"), 400, "host_invalid"),
    "9 another port": (request(host=b"api.good.test:8443"), 403, "identity_mismatch"),
    "9 no port": (request(host=b"api.good.test"), 403, "identity_mismatch"),
    "9 two dots": (request(host=b"api.good.test..:%(port)d"), 400, "host_invalid"),
    "16 length and chunked": (
        request(POST, b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        400,
        "malformed",
    ),
    "16 two lengths": (request(POST, b"Content-Length: 3", b"Content-Length: 3", body=b"abc"), 400, "malformed"),
    "16 two other lengths": (request(POST, b"Content-Length: 3", b"Content-Length: 4", body=b"abc"), 400, "malformed"),
    "16 length with a sign": (request(POST, b"Content-Length: +3", body=b"abc"), 400, "malformed"),
    "16 length in hex": (request(POST, b"Content-Length: 0x3", body=b"abc"), 400, "malformed"),
    "16 length list": (request(POST, b"Content-Length: 3, 3", body=b"abc"), 400, "malformed"),
    "16 xchunked": (request(POST, b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), 400, "malformed"),
    "16 chunked twice": (request(POST, b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"), 400, "malformed"),
    "16 gzip, chunked": (request(POST, b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 400, "malformed"),
    "16 chunked in 1.0": (
        request(b"POST /ok/a HTTP/1.0", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        400,
        "malformed",
    ),
    "16 space before the colon": (request(POST, b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"), 400, "malformed"),
    "16 framing with an underscore": (request(POST, b"Content_Length: 3", body=b"abc"), 400, "malformed"),
    "18 bare cr in a value": (request(POST, b"X-A: b\rc"), 400, "malformed"),
    "18 nul in a value": (request(POST, b"X-A: b\x00c"), 400, "malformed"),
    "18 control byte in a value": (request(POST, b"X-A: b\x01c"), 400, "malformed"),
    "18 folded line": (request(POST, b"X-A: b\r\n  c"), 400, "malformed"),
    "18 bare lf line ends": (b"GET /ok/a HTTP/1.1\nHost: " + GOOD + b"\n\n", 400, "malformed"),
    "18 a field that is no token": (request(POST, b"X A: b"), 400, "malformed"),
    "20 dots": (get(b"/ok/../admin"), 403, "path_ambiguous"),
    "20 encoded dots": (get(b"/ok/%%2e%%2e/admin"), 403, "path_ambiguous"),
    "20 double encoded": (get(b"/ok/%%252e%%252e/admin"), 403, "path_ambiguous"),
    "20 dots with a parameter": (get(b"/ok/..;/admin"), 403, "path_ambiguous"),
    "21 backslash": (get(b"/ok/..\\admin"), 403, "path_ambiguous"),
    "21 encoded backslash": (get(b"/ok/%%5cadmin"), 403, "path_ambiguous"),
    "21 two slashes": (get(b"/ok//a"), 403, "path_ambiguous"),
    "21 fragment": (get(b"/ok/a#b"), 403, "path_ambiguous"),
    "21 encoded nul": (get(b"/ok/a%%00"), 403, "path_ambiguous"),
    "21 full-width dots": (get(b"/ok/\xef\xbc\x8e\xef\xbc\x8e\xef\xbc\x8fadmin"), 403, "path_ambiguous"),
    "21 encoded slash": (get(b"/ok/a%%2fb"), 403, "path_ambiguous"),
    "23 lower-case method": (request(b"get /ok/a HTTP/1.1"), 403, "method_invalid"),
    "23 method override": (request(POST, b"X-HTTP-Method-Override: DELETE"), 403, "method_invalid"),
    "23 a method that is no token": (request(b"g<t /ok/a HTTP/1.1"), 403, "method_invalid"),
    "23 trace": (request(b"TRACE /ok/a HTTP/1.1"), 403, "method_invalid"),
    "24 body on get": (request(b"GET /ok/a HTTP/1.1", b"Content-Length: 3", body=b"abc"), 403, "body_refused"),
    "http/9.9": (request(b"GET /ok/a HTTP/9.9"), 400, "malformed"),
    "http/0.9": (b"GET /ok/a\r\n\r\n", 400, "not_http"),
    "two spaces": (request(b"GET  /ok/a HTTP/1.1"), 400, "not_http"),
    "space in the path": (request(b"GET /ok/a b HTTP/1.1"), 400, "not_http"),
    "connect inside a tunnel": (request(b"CONNECT evil.test:443 HTTP/1.1", host=b"evil.test:443"), 400, "malformed"),
    "h2 preface without alpn": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "not_http"),
    "upgrade to h2c": (request(GET, b"Upgrade: h2c", b"Connection: upgrade"), 426, "upgrade_refused"),
    "websocket": (request(GET, b"Upgrade: websocket", b"Connection: upgrade"), 426, "upgrade_refused"),
    "deny rule": (get(b"/ok/mint/token"), 403, "deny_rule"),
    "no rule": (get(b"/admin"), 403, "no_rule"),
    "query name": (get(b"/query?page=1&token=x"), 403, "query_refused"),
    "a head over the bound": (request(POST, *(b"X-%03d: " % n + b"a" * 900 for n in range(90))), 400, "malformed"),
    "more fields than the bound": (request(POST, *(b"X-%03d: a" % n for n in range(300))), 400, "malformed"),
}


async def inside(rig: Rig, via: str) -> Client:
    return await (rig.tunnel() if via == "connect" else rig.tls())


def expect(rig: Rig, answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code)
    assert answer.verdict
    assert b"text/html" not in answer.head
    assert rig.untouched
    denials = rig.records("deny")
    assert [d["reason"] for d in denials] == [code]
    assert denials[0]["request_id"] in answer.body.decode()
    assert not rig.records("intent")
    assert rig.run.denied == 1
    assert rig.run.allowed == 0


@pytest.mark.parametrize("via", ["connect", "direct"])
def test_refused_inside_tls(via: str, tmp_path: Path) -> None:
    """One gateway for all rows: a rig for each would cost as much time as all the other tests."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            wrong = [d for name in INSIDE if (d := await difference(r, via, name))]
            assert wrong == []
            assert r.untouched
            assert not r.records("intent")
            assert r.run.denied == len(r.records("deny")) == len(INSIDE)

    asyncio.run(main())


async def difference(r: Rig, via: str, name: str) -> str:
    """How one row came out otherwise than it must."""
    raw, status, code = INSIDE[name]
    client = await inside(r, via)
    answer = await client.ask(raw % {b"port": r.direct})
    client.close()
    told = r.records("deny")[-1]
    good = (answer.status, answer.code) == (status, code) and answer.verdict and b"text/html" not in answer.head
    if good and told["reason"] == code and told["request_id"] in answer.body.decode() and r.untouched:
        return ""
    return f"{name}: {answer.status} {answer.body!r}, ledger {told['reason']}"


@pytest.mark.parametrize(
    ("connect", "sni", "host"),
    [
        ("evil.test", "evil.test", "api.good.test"),  # 2
        ("api.good.test", "api.good.test", "evil.test"),  # 3
        ("api.good.test", "evil.test", "api.good.test"),
        ("evil.test", "api.good.test", "api.good.test"),
    ],
)
def test_names_that_disagree(connect: str, sni: str, host: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel(connect, sni=sni)
            expect(r, await client.get(host=f"{host}:{r.direct}"), 403, "identity_mismatch")

    asyncio.run(main())


def test_an_address_in_connect(tmp_path: Path) -> None:
    """Row 5: the name inside is listed, the tunnel names an address."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel("127.0.0.1", sni="api.good.test")
            expect(r, await client.get(host=f"api.good.test:{r.direct}"), 403, "address_literal")

    asyncio.run(main())


def test_a_metadata_address_in_connect(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel("169.254.169.254", sni="api.good.test")
            expect(r, await client.get(host=f"api.good.test:{r.direct}"), 403, "metadata")

    asyncio.run(main())


def test_an_unlisted_host_is_told_inside_tls(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel("evil.test")
            expect(r, await client.get(host=f"evil.test:{r.direct}"), 403, "host_unlisted")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        (b"api.good.test:8443", 403, "port_unlisted"),  # 25
        (b"api.good.test:22", 403, "port_unlisted"),
        (b"user@api.good.test:443", 400, "host_invalid"),  # 27
        (b"api_x.good.test:443", 400, "host_invalid"),  # 28
        (b"0x7f.1:443", 400, "host_invalid"),  # 29
        (b"[::ffff:7f00:1:443", 400, "host_invalid"),
        (b"api.good.test", 400, "malformed"),
        (b"api.good.test:0443", 400, "malformed"),
        (b"api.good.test:99999", 400, "malformed"),
    ],
)
def test_connect_itself_is_refused(target: bytes, status: int, code: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.dial(r.proxy)
            answer = await client.ask(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target))
            expect(r, answer, status, code)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("line", "host", "status", "code"),
    [
        (b"GET http://evil.test/ok/a HTTP/1.1", b"api.good.test", 403, "identity_mismatch"),  # 1
        (b"GET http://api.good.test:%(port)d/ok/a HTTP/1.1", GOOD, 403, "port_unlisted"),  # plain to a TLS endpoint
        (b"GET https://api.good.test:%(port)d/ok/a HTTP/1.1", GOOD, 403, "identity_mismatch"),
        (b"GET http://user@plain.good.test/ok/a HTTP/1.1", b"plain.good.test", 400, "host_invalid"),  # 27
        (b"GET http://127.0.0.1/ok/a HTTP/1.1", b"127.0.0.1", 403, "address_literal"),
        (b"GET http://169.254.169.254/latest HTTP/1.1", b"169.254.169.254", 403, "metadata"),
        (b"GET http://metadata.google.internal/ HTTP/1.1", b"metadata.google.internal", 403, "metadata"),
        (b"GET http://2130706433/ HTTP/1.1", b"2130706433", 400, "host_invalid"),
        (b"GET /ok/a HTTP/1.1", b"plain.good.test", 403, "identity_mismatch"),
        (b"GET ftp://plain.good.test/ok/a HTTP/1.1", b"plain.good.test", 403, "identity_mismatch"),
    ],
)
def test_refused_on_the_proxy_port(line: bytes, host: bytes, status: int, code: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.dial(r.proxy)
            answer = await client.ask(request(line, host=host) % {b"port": r.direct})
            expect(r, answer, status, code)

    asyncio.run(main())


def test_plain_http_in_a_tunnel(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel(sni=None)
            expect(r, await client.get(host=f"api.good.test:{r.direct}"), 403, "port_unlisted")

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"\x00\x01\x02\x03", b"SSH-2.0-client\r\n", b"\x16\x03\x01\x00\x02no" + bytes(32)])
def test_neither_tls_nor_http(data: bytes, tmp_path: Path) -> None:
    """Row 26: the tunnel closes and nothing is bridged."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel(sni=None)
            client.writer.write(data)
            assert await client.rest() == b""
            assert r.untouched
            assert r.reasons() == ["not_http"]

    asyncio.run(main())


def test_what_follows_a_broken_hello(tmp_path: Path) -> None:
    """In a piece of its own: mitmproxy's layer would fail on it, which the ledger would call our fault."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            for client in (await r.dial(r.direct), await r.tunnel(sni=None)):
                client.writer.write(b"\x16\x03\x01\x00\x05hello")
                client.writer.write(bytes(200_000))
                assert await client.rest() == b""
            assert set(r.reasons()) == {"not_http"}
            assert r.untouched

    asyncio.run(main())


def test_tls_inside_tls(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            client.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64))
            assert await client.rest() == b""
            assert r.reasons() == ["not_http"]
            assert r.untouched

    asyncio.run(main())


def test_tls_without_a_server_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            for port in (r.direct, r.proxy):
                context = r.trust()
                context.check_hostname = False
                client = await r.dial(port)
                if port == r.proxy:
                    client.writer.write(b"CONNECT api.good.test:%d HTTP/1.1\r\n\r\n" % r.direct)
                    await client.reader.readuntil(b"\r\n\r\n")
                await client.writer.start_tls(context)
                answer = await client.get(host=f"api.good.test:{r.direct}")
                assert (answer.status, answer.code) == (403, "identity_mismatch")
            assert r.untouched

    asyncio.run(main())


def test_a_head_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credgate.gateway.lane.HEAD_TIMEOUT", 0.2)

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.get("/free/a", host=f"api.good.test:{r.direct}")).status == 200
            await asyncio.sleep(0.3)  # between two requests a connection may rest
            assert (await client.get("/free/a", host=f"api.good.test:{r.direct}")).status == 200
            client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost:")
            assert await client.rest() == b""

    asyncio.run(main())


def test_a_refused_upload_is_read_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credgate.gateway.lanetarget.LINGER", 0.2)

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            head = b"POST /no HTTP/1.1\r\nHost: api.good.test:%d\r\nContent-Length: 60000000\r\n\r\n" % r.direct
            assert (await client.ask(head)).status == 403
            assert await client.rest() == b""

    asyncio.run(main())


def test_silence_in_a_tunnel_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, timeouts=dataclasses.replace(PATIENT, tls=1.0)) as r:
            client = await r.tunnel(sni=None)
            assert await client.rest() == b""  # within that second, far from the minute of `rest`

    asyncio.run(main())


def test_a_head_without_end_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            client.writer.write(b"GET /ok/a HTTP/1.1\r\n")
            async with asyncio.timeout(60):
                while not client.writer.transport.is_closing():
                    client.writer.write(b"X-A: %s\r\n" % (b"a" * 1000))
                    await asyncio.sleep(0)
            assert r.reasons() == ["malformed"]
            assert r.untouched

    asyncio.run(main())


def test_requests_sent_ahead_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            release = asyncio.Event()

            async def wait(*_: object) -> None:
                await release.wait()

            r.good.script = wait
            client = await r.tunnel()
            one = b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct
            client.writer.write(one)
            async with asyncio.timeout(60):
                while not client.writer.transport.is_closing():
                    client.writer.write(one * 20)
                    await asyncio.sleep(0)
            assert len(r.records("intent")) == 1
            assert len(r.good.seen) <= 1
            release.set()

    asyncio.run(main())


@pytest.mark.parametrize(("proof", "revoked", "code"), [("", False, "proof_missing"), ("p", True, "revoked")])
def test_a_run_without_rights(proof: str, revoked: bool, code: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.run.proof, r.run.revoked = proof, revoked
            client = await r.tunnel()
            expect(r, await client.get(host=f"api.good.test:{r.direct}"), 403, code)
            assert r.vault.fetched == []

    asyncio.run(main())


def test_a_secret_that_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.vault.values.clear()
            client = await r.tunnel()
            expect(r, await client.get(host=f"api.good.test:{r.direct}"), 403, "secret_unavailable")

    asyncio.run(main())


def test_a_secret_that_no_header_can_carry(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            r.vault.values["token"] = "emoji-\N{LOCK}"
            client = await r.tunnel()
            expect(r, await client.get(host=f"api.good.test:{r.direct}"), 403, "secret_unavailable")

    asyncio.run(main())


def test_a_ledger_that_can_not_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            r.extra["ledger"].close()
            for path in ("/ok/a", "/free/a", "/no"):
                answer = await client.get(path, host=f"api.good.test:{r.direct}")
                assert (answer.status, answer.code) == (403, "ledger_unavailable")
            assert r.untouched

    asyncio.run(main())


def test_an_upload_is_refused_at_its_head(tmp_path: Path) -> None:
    """The answer comes while the body is still on its way, and none of it is kept or sent on."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            head = b"POST /no HTTP/1.1\r\nHost: api.good.test:%d\r\nContent-Length: 60000000\r\n\r\n" % r.direct
            answer = await client.ask(head + b"x" * 1000)
            expect(r, answer, 403, "no_rule")
            assert b"connection: close" in answer.head

    asyncio.run(main())


def test_expect_is_answered_by_the_refusal(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            fields = b"Content-Length: 10\r\nExpect: 100-continue"
            answer = await client.ask(b"POST /no HTTP/1.1\r\nHost: api.good.test:%d\r\n%s\r\n\r\n" % (r.direct, fields))
            expect(r, answer, 403, "no_rule")

    asyncio.run(main())


def test_a_refusal_leaves_the_connection_usable(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            host = f"api.good.test:{r.direct}"
            assert [(await client.get(p, host=host)).status for p in ("/no", "/ok/a", "/no", "/ok/b")] == [
                403,
                200,
                403,
                200,
            ]
            assert r.good.connections == 1
            assert SECRET.encode() in r.good.raw

    asyncio.run(main())


def test_refusal_of_head_has_no_body(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            for _ in range(2):  # the second one shows that the first had no byte too many
                answer = await client.ask(b"HEAD /no HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
                assert answer.status == 403
                assert answer.verdict

    asyncio.run(main())
