"""The secret goes out where a rule says so, and nowhere else; what the client sent of its own does not."""

import asyncio
import base64
from pathlib import Path

import pytest

from tests.credgate.gateway_rig import DECOY, POLICY, SECRET, Rig, rig


def bearer(secret: str = SECRET) -> bytes:
    return b"Bearer " + secret.encode()


@pytest.mark.parametrize("via", ["connect", "direct"])
def test_overwrite(via: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await (r.tunnel() if via == "connect" else r.tls())
            answer = await client.get(host=f"api.good.test:{r.direct}", Authorization="Bearer mine", X_Api_Key="k")
            assert answer.status == 200
            assert r.good.seen[0].values(b"authorization") == [bearer()]
            assert r.good.seen[0].values(b"x-api-key") == []
            assert b"mine" not in r.good.raw
            assert b"set-cookie" not in answer.head.lower()
            assert b"alt-svc" not in answer.head.lower()
            intent, outcome = r.records("intent", "outcome")
            assert (intent["binding"], intent["secret"], intent["rule"]) == ("token", "token", "good.ok")
            assert (intent["pin"], intent["via"], intent["proof"]) == ("127.0.0.1", via, "proof-1")
            assert outcome["intent_seq"] == intent["seq"]
            assert (outcome["status"], outcome["resp_bytes"], outcome["ids"]) == (200, 4, {"x-request-id": "target-1"})
            assert (r.run.allowed, r.run.denied) == (1, 0)

    asyncio.run(main())


def test_placeholder_is_swapped_in_its_place_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            host = f"api.good.test:{r.direct}"
            assert (await client.get("/ph/a", host=host, Authorization=f"token {DECOY}")).status == 200
            assert r.good.seen[-1].values(b"authorization") == [b"token " + SECRET[::-1].encode()]
            assert (await client.get("/ph/a", host=host)).status == 200
            assert r.good.seen[-1].values(b"authorization") == []
            misplaced = await client.get("/ok/a", host=host, Authorization=f"token {DECOY}")
            assert (misplaced.status, misplaced.code) == (403, "placeholder_misplaced")
            assert DECOY.encode() not in r.good.raw

    asyncio.run(main())


def test_an_endpoint_without_a_binding_gets_no_credential_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            answer = await client.get(
                "/free/a", host=f"api.good.test:{r.direct}", Authorization="Bearer mine", Cookie="a=b"
            )
            assert answer.status == 200
            assert b"set-cookie" in answer.head.lower()  # no binding says that it is dropped
            assert r.good.seen[0].values(b"authorization") == []
            assert r.good.seen[0].values(b"cookie") == []
            assert r.vault.fetched == []
            assert "secret" not in r.records("intent")[0]

    asyncio.run(main())


def test_basic(tmp_path: Path) -> None:
    text = POLICY.replace(
        'place = "header:authorization"\nformat = "Bearer {{secret}}"', 'place = "basic"\nformat = "x:{{secret}}"'
    )

    async def main() -> None:
        async with rig(tmp_path, policy=text) as r:
            client = await r.tunnel()
            assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200
            assert r.good.seen[0].values(b"authorization") == [b"Basic " + base64.b64encode(f"x:{SECRET}".encode())]

    assert text != POLICY
    asyncio.run(main())


def test_plain_http_carries_no_secret(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            host = f"plain.good.test:{r.cleartext}"
            via_proxy = await r.dial(r.proxy)
            request = f"GET http://{host}/ok/a?x=1 HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic eA==\r\n\r\n"
            assert (await via_proxy.ask(request.encode())).status == 200
            direct = await r.dial(r.cleartext)
            assert (await direct.get("/ok/b", host=host, Authorization="Bearer mine")).status == 200
            assert [s.line for s in r.plain.seen] == [b"GET /ok/a?x=1 HTTP/1.1", b"GET /ok/b HTTP/1.1"]
            assert b"uthorization" not in r.plain.raw
            assert [i["via"] for i in r.records("intent")] == ["absolute", "direct"]
            assert r.records("intent")[0]["query_names"] == ["x"]

    asyncio.run(main())


@pytest.mark.parametrize("host", ["API.Good.Test", "api.good.test."])
def test_a_host_is_made_canonical(host: str, tmp_path: Path) -> None:
    """Row 9: case and one last dot are the same name; what is sent is the one spelling."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.get(host=f"{host}:{r.direct}")).status == 200
            assert r.good.seen[0].values(b"host") == [f"api.good.test:{r.direct}".encode()]

    asyncio.run(main())


def test_hop_by_hop_headers_stay_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            answer = await client.get(
                host=f"api.good.test:{r.direct}",
                Connection="X-Mine, Authorization",
                X_Mine="1",
                Proxy_Authorization="Basic eA==",
                Proxy_Connection="keep-alive",
                Keep_Alive="300",
                Accept_Encoding="gzip, br",
            )
            assert answer.status == 200
            seen = r.good.seen[0]
            for name in (b"connection", b"x-mine", b"proxy-authorization", b"proxy-connection", b"keep-alive"):
                assert seen.values(name) == []
            assert seen.values(b"authorization") == [bearer()]
            assert seen.values(b"accept-encoding") == [b"identity"]  # an answer in a coding could not be searched

    asyncio.run(main())


def test_an_encoded_slash_is_sent_as_it_was_judged(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.get("/pkg/@scope%2fname", host=f"api.good.test:{r.direct}")).status == 200
            assert r.good.seen[0].line == b"GET /pkg/@scope%2fname HTTP/1.1"

    asyncio.run(main())


def test_redirects_go_to_the_client_and_are_judged_anew(tmp_path: Path) -> None:
    """Row 32."""

    async def main() -> None:
        async with rig(tmp_path) as r:

            async def redirect(_seen: object, _reader: object, writer: asyncio.StreamWriter) -> None:
                target = f"https://evil.test:{r.direct}/a".encode()
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % target)

            r.good.script = redirect
            code, out = await r.curl("-L", "-i", f"https://api.good.test:{r.direct}/ok/a")
            assert code == 0
            assert "302 Found" in out
            assert "host_unlisted" in out
            assert r.evil.raw == b""
            assert len(r.good.seen) == 1

    asyncio.run(main())


def test_a_connection_is_used_again_and_never_for_another_endpoint(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            for _ in range(3):
                assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200
            assert r.good.connections == 1
            other = await r.tunnel("up.good.test")  # the same address
            assert (await other.get("/a", host=f"up.good.test:{r.direct}")).status == 200
            assert r.good.connections == 2

    asyncio.run(main())


def test_connection_close_and_http_1_0_are_honoured(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            for version, field in (("1.1", "Connection: close\r\n"), ("1.0", "")):
                client = await r.tunnel()
                head = f"GET /ok/a HTTP/{version}\r\nHost: api.good.test:{r.direct}\r\n{field}\r\n"
                client.writer.write(head.encode())
                assert (await client.rest()).endswith(b"ok 0")

    asyncio.run(main())


def test_the_secret_is_in_no_log_and_not_in_the_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            caplog.set_level(0)
            client = await r.tunnel()
            await client.get(host=f"api.good.test:{r.direct}", Cookie="private=1")
            await use_wrong_certificate(r)
        text = "".join(f.read_text() for f in r.ledger_dir.glob("*.jsonl")) + caplog.text
        assert SECRET not in text
        assert "private" not in text
        assert "/ok/a" not in caplog.text

    asyncio.run(main())


async def use_wrong_certificate(r: Rig) -> None:
    r.run.policy.endpoints["looked-up"]
    client = await r.tunnel("up.good.test")
    await client.get("/a", host=f"up.good.test:{r.direct}")


def test_the_intent_is_on_the_disk_before_the_secret_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            ledger = r.extra["ledger"]
            asked: list[int] = []
            durable = ledger.durable

            async def slow(seq: int) -> None:
                asked.append(seq)
                await asyncio.sleep(0.2)
                assert r.good.connections == 0
                await durable(seq)

            monkeypatch.setattr(type(ledger), "durable", lambda _self, seq: slow(seq))
            client = await r.tunnel()
            assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200
            assert asked == [r.records("intent")[0]["seq"]]
            assert (await client.get("/free/a", host=f"api.good.test:{r.direct}")).status == 200
            assert len(asked) == 1  # without a secret the write alone is waited for

    asyncio.run(main())


def test_revoked_while_the_secret_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            fetch = r.vault.fetch

            async def slow(*args: object) -> object:
                secret = await fetch(*args)  # type: ignore[arg-type]
                r.run.revoked = True
                return secret

            monkeypatch.setattr(r.vault, "fetch", slow)
            client = await r.tunnel()
            answer = await client.get(host=f"api.good.test:{r.direct}")
            assert (answer.status, answer.code) == (403, "revoked")
            assert r.untouched

    asyncio.run(main())


def test_revoked_while_the_intent_is_put_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            ledger = r.extra["ledger"]
            durable = ledger.durable

            async def slow(seq: int) -> None:
                await durable(seq)
                r.run.revoked = True

            monkeypatch.setattr(type(ledger), "durable", lambda _self, seq: slow(seq))
            client = await r.tunnel()
            answer = await client.get(host=f"api.good.test:{r.direct}")
            assert (answer.status, answer.code) == (403, "revoked")
            assert r.untouched
            (outcome,) = r.records("outcome")  # the intent was written: this is its end
            assert (outcome["reason"], outcome["intent_seq"]) == ("revoked", r.records("intent")[0]["seq"])

    asyncio.run(main())
