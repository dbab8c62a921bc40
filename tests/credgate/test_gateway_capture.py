"""What is captured for the join, in both lanes: the target saw the tag, and the jail never chose it."""

import asyncio
import hashlib
import os
import stat
from pathlib import Path

import pytest

from credgate.errors import CredgateError
from credgate.gateway.capture import ID_HEADERS, MAX_ID, Fingerprints, collect_ids
from credgate.paths import PlaceError
from rules.correlate import tag_of
from rules.fingerprint import Fingerprint, fingerprint
from tests.credgate.gateway_rig import POLICY, SECRET, Rig, Seen, rig
from tests.credgate.h2_rig import H2Client

BOTH = ("h2", "http/1.1")
ASKED = """correlate = ["user-agent", "x-request-id", "x-goog-request-reason", "x-ms-client-request-id",
 "idempotency-key"]
alpn = ["h2", "http/1.1"]
"""
ALL = POLICY.replace('alpn = ["http/1.1"]\n', ASKED, 1)
OFF = POLICY.replace('alpn = ["http/1.1"]\n', "correlate = []\n", 1)
MINE = (
    (b"user-agent", b"agent/1 credgate/dead-1 Credgate/x-2"),
    (b"x-request-id", b"mine"),
    (b"x-goog-request-reason", b"mine"),
    (b"x-ms-client-request-id", b"mine"),
    (b"x_ms_client_request_id", b"mine"),
    (b"idempotency-key", b"mine"),
)
OURS = ("x-request-id", "x-goog-request-reason", "x-ms-client-request-id", "idempotency-key")


async def ask(r: Rig, lane: str, method: bytes = b"POST", path: bytes = b"/ok/a") -> dict[bytes, list[bytes]]:
    """Send MINE through a lane; the headers as the target got them, by lower-case name."""
    if lane == "h2":
        opened = await r.tunnel(alpn=BOTH)
        host = b"api.good.test:%d" % r.direct
        pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", host), (b":path", path)]
        assert (await H2Client(opened.reader, opened.writer).ask([*pseudo, *MINE])).status == 200
        pairs = r.good.sessions[-1].seen[-1].fields
    else:
        client = await (r.tunnel() if lane == "connect" else r.tls())
        lines = [b"%s %s HTTP/1.1" % (method, path), b"Host: api.good.test:%d" % r.direct, b"Content-Length: 0"]
        lines += [name + b": " + value for name, value in MINE]
        assert (await client.ask(b"\r\n".join(lines) + b"\r\n\r\n")).status == 200
        heads = r.good.seen[-1].raw.split(b"\r\n")[1:-2]
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in heads)]
    found: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("lane", ["connect", "direct", "h2"])
def test_the_target_sees_ours_and_never_the_clients(lane: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=ALL, alpn=BOTH) as r:
            sent = await ask(r, lane)
            (intent,) = r.records("intent")
            tag = tag_of("run-1", intent["seq"])
            assert intent["ua_tag"] == f"credgate/{tag}"
            assert sent[b"user-agent"] == [f"agent/1 credgate/{tag}".encode()]
            assert {name: [value.encode()] for name, value in intent["ids"].items()} == {
                name: sent[name.encode()] for name in OURS
            }
            assert b"mine" not in b" ".join(value for values in sent.values() for value in values)
            assert b"x_ms_client_request_id" not in sent
            assert sent[b"authorization"] == [b"Bearer " + SECRET.encode()]

    asyncio.run(main())


def test_by_default_it_is_the_tag_alone_and_each_request_has_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            tags = [(await ask(r, lane))[b"user-agent"] for lane in ("connect", "connect", "direct")]
            assert tags == [[b"agent/1 " + i["ua_tag"].encode()] for i in r.records("intent")]
            assert len({tag for (tag,) in tags}) == 3
            assert not any("ids" in i for i in r.records("intent"))
            assert not {b"x-request-id", b"idempotency-key"} & (await ask(r, "connect")).keys()

    asyncio.run(main())


def test_off_means_that_the_agent_goes_as_it_came(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=OFF) as r:
            assert (await ask(r, "connect"))[b"user-agent"] == [MINE[0][1]]
            assert "ua_tag" not in r.records("intent")[0]

    asyncio.run(main())


def test_a_retry_with_the_clients_key_is_one_object_at_the_target(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=ALL) as r:
            first, second = [(await ask(r, "connect"))[b"idempotency-key"] for _ in range(2)]
            assert first == second != [b"mine"]
            assert b"idempotency-key" not in await ask(r, "connect", method=b"GET")

    asyncio.run(main())


def test_the_ledger_names_the_credential_by_its_fingerprint(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            await ask(r, "connect")
            await ask(r, "connect", method=b"GET", path=b"/free/a")
            key = (tmp_path / "ledger-key/fingerprint.key").read_bytes()
            bound, free = r.records("intent")
            assert bound["cred_fp"] == fingerprint(Fingerprint.HMAC, SECRET, key)
            assert "cred_fp" not in free
            text = "".join(f.read_text() for f in r.ledger_dir.glob("*.jsonl"))
            assert SECRET not in text

    asyncio.run(main())


def test_the_policy_chooses_the_form(tmp_path: Path) -> None:
    policy = POLICY.replace('alpn = ["http/1.1"]\n', 'fingerprint = "sha256"\n', 1)

    async def main() -> None:
        async with rig(tmp_path, policy=policy) as r:
            await ask(r, "direct")
            assert r.records("intent")[0]["cred_fp"] == fingerprint(Fingerprint.SHA256, SECRET, bytes(32))

    asyncio.run(main())


def test_ids_and_date_of_the_answer(tmp_path: Path) -> None:
    async def script(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (
            b"HTTP/1.1 200 OK",
            b"Content-Length: 0",
            b"Date: Thu, 01 Jan 2026 00:00:00 GMT",
            b"X-Amzn-RequestId: 7a62c49f-347e-4fc4-9331-6e8eEXAMPLE",
            b"X-Amz-Id-2: " + b"A" * (MAX_ID + 1),
            b"CF-Ray: 230b030023ae2822-SJC",
            b"CF-Ray: second",
            b"X-Request-Id: caf\xe9",
            b'X-Gitlab-Meta: {"correlation_id":"01HXYZ","version":"1"}',
            b"X-Unknown-Id: 1",
        )
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")

    async def main() -> None:
        async with rig(tmp_path) as r:
            r.good.script = script
            await ask(r, "connect")
            assert r.records("outcome")[0]["ids"] == {
                "date": "Thu, 01 Jan 2026 00:00:00 GMT",
                "x-amzn-requestid": "7a62c49f-347e-4fc4-9331-6e8eEXAMPLE",
                "cf-ray": "230b030023ae2822-SJC",
                "x-gitlab-meta": "01HXYZ",
            }

    asyncio.run(main())


def test_every_id_of_the_list_fits_into_a_line() -> None:
    fields = tuple((name, b"i" * MAX_ID) for name in ID_HEADERS)
    assert len(collect_ids(fields)) == len(ID_HEADERS) - 1  # what is no JSON has no GitLab id in it
    assert collect_ids(((b"X-Gitlab-Meta", b'{"correlation_id":"' + b"x" * 300 + b'"}'),)) == {}
    assert collect_ids(((b"X-Correlation-Id", b"\x1b[2J"), (b"request-id", b"a\tb"))) == {}


def test_the_key_of_fingerprints_is_the_installs_own(tmp_path: Path) -> None:
    first = Fingerprints.load(tmp_path / "keys")
    assert first.key == Fingerprints.load(tmp_path / "keys").key != Fingerprints.load(tmp_path / "other").key
    file = tmp_path / "keys/fingerprint.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert hashlib.sha256(first.key).hexdigest() not in repr(first)
    assert first.key.hex() not in repr(first)
    file.write_bytes(b"short")
    with pytest.raises(CredgateError, match="got 5 bytes, expected 32"):
        Fingerprints.load(tmp_path / "keys")
    os.chmod(file, 0o644)
    with pytest.raises(PlaceError):
        Fingerprints.load(tmp_path / "keys")
