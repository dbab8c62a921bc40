"""Digests of bodies in the ledger: where an endpoint asks for them, of what target and client got, in all lanes."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from tests.credgate.gateway_rig import POLICY, Rig, rig
from tests.credgate.h2_rig import H2Client

BOTH = ("h2", "http/1.1")
ASKED = POLICY.replace('alpn = ["http/1.1"]\n', 'digest = true\nalpn = ["h2", "http/1.1"]\n', 1)
BODY = b"a body " * 4000


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def put(r: Rig, lane: str) -> bytes:
    """Send BODY through a lane; the answer's body as the client got it."""
    host = b"api.good.test:%d" % r.direct
    if lane == "h2":
        opened = await r.tunnel(alpn=BOTH)
        fields = [(b":method", b"PUT"), (b":scheme", b"https"), (b":authority", host), (b":path", b"/ok/a")]
        answer = await H2Client(opened.reader, opened.writer).ask(fields, BODY[:9000])
        assert answer.status == 200
        return answer.body
    head = b"PUT /ok/a HTTP/1.1\r\nHost: " + host + b"\r\n"
    if lane == "chunked":
        sizes = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:100], BODY[100:]))
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n" + sizes + b"0\r\n\r\n"
    else:
        raw = head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    client = await r.tls()
    answer = await client.ask(raw)
    assert answer.status == 200
    return answer.body


@pytest.mark.parametrize("lane", ["length", "chunked", "h2"])
def test_the_ledger_has_digests_of_what_both_sides_got(lane: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=ASKED, alpn=BOTH if lane == "h2" else ("http/1.1",)) as r:
            got = await put(r, lane)
            (outcome,) = r.records("outcome")
            sent = BODY[:9000] if lane == "h2" else BODY
            assert (outcome["req_sha256"], outcome["resp_sha256"]) == (digest(sent), digest(got))

    asyncio.run(main())


def test_without_being_asked_there_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            await put(r, "length")
            (outcome,) = r.records("outcome")
            assert outcome["req_bytes"] and not {"req_sha256", "resp_sha256"} & outcome.keys()

    asyncio.run(main())


def test_a_body_that_broke_off_has_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=ASKED) as r:
            client = await r.tls()
            host = b"api.good.test:%d" % r.direct
            client.writer.write(
                b"PUT /ok/a HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 9000\r\n\r\n" + BODY[:500]
            )
            await client.writer.drain()
            while not r.records("intent"):  # bounded by the test's own timeout
                await asyncio.sleep(0.01)
            client.writer.close()
            while not r.records("outcome"):
                await asyncio.sleep(0.01)
            (outcome,) = r.records("outcome")
            assert not {"req_sha256", "resp_sha256"} & outcome.keys()

    asyncio.run(main())
