"""An endpoint with several targets, on the wire: the targets' logs are the witnesses."""

import asyncio
from pathlib import Path

import pytest

from tests.credgate.gateway_rig import SECRET, Rig, Target, rig, server_tls
from tests.credgate.h2_rig import Fields, H2Client
from tests.targets.pki import Authority as TargetCa

POLICY = """\
version = 1
[secret.token]
source = "env:T"
[endpoint.llm]
host = "llm.good.test"
port = {direct}
route = {{ default = "cloud", sensitive = "local" }}
[[endpoint.llm.allow]]
id = "chat"
methods = ["POST", "GET"]
paths = ["/ok/**"]
[endpoint.cloud]
host = "api.good.test"
dial_port = {good}
address = ["127.0.0.1"]
ca = "{ca}"
[[endpoint.cloud.allow]]
id = "all"
methods = ["POST", "GET"]
paths = ["/**"]
[endpoint.local]
host = "plain.good.test"
port = 11434
dial_port = {plain}
address = ["127.0.0.1"]
tls = false
[[endpoint.local.allow]]
id = "all"
methods = ["POST", "GET"]
paths = ["/ok/a"]
[binding.cloud]
secret = "token"
endpoint = "cloud"
rules = ["all"]
place = "header:authorization"
[role.dev]
endpoints = ["llm"]
bindings = ["cloud"]
"""
SENSITIVE = POLICY + 'route = "sensitive"\n'


@pytest.mark.parametrize("via", ["connect", "direct"])
def test_the_default_goes_to_the_cloud_with_its_secret(via: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=POLICY) as r:
            client = await (r.tunnel("llm.good.test") if via == "connect" else r.tls("llm.good.test"))
            host = f"llm.good.test:{r.direct}"
            assert (await client.get(host=host, Authorization="Bearer mine")).status == 200
            assert (await client.get("/ok/b", host=host)).status == 200  # the connection is used again
            assert [seen.values(b"host") for seen in r.good.seen] == [[b"api.good.test"]] * 2
            assert r.good.seen[0].values(b"authorization") == [f"Bearer {SECRET}".encode()]
            assert r.plain.seen == []
            intent = r.records("intent")[0]
            assert (intent["rule"], intent["route"], intent["asked"]) == ("llm.chat", "default: cloud.all", host)
            assert (intent["host"], intent["port"], intent["binding"]) == ("api.good.test", 443, "cloud")

    asyncio.run(main())


def test_the_sensitive_role_s_go_to_the_local_one_without(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=SENSITIVE) as r:
            client = await r.tunnel("llm.good.test")
            host = f"llm.good.test:{r.direct}"
            body = "POST /ok/a HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer mine\r\nContent-Length: 5\r\n\r\nhello"
            assert (await client.ask(body.format(host).encode())).status == 200
            refused = await client.get("/ok/b", host=host)
            assert (refused.status, refused.code) == (403, "no_rule")
            assert [seen.line for seen in r.plain.seen] == [b"POST /ok/a HTTP/1.1"]
            assert r.plain.seen[0].values(b"host") == [b"plain.good.test:11434"]
            assert r.plain.seen[0].values(b"authorization") == []
            assert r.good.seen == []
            assert r.vault.fetched == []
            intent = r.records("intent")[0]
            assert (intent["route"], intent["scheme"], intent["port"]) == ("sensitive: local.all", "http", 11434)

    asyncio.run(main())


@pytest.mark.parametrize("host", ["api.good.test", "plain.good.test"])
def test_a_target_is_not_reached_by_its_own_name(host: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=SENSITIVE) as r:
            client = await r.tunnel(host)
            refused = await client.get(host=f"{host}:{r.direct}")
            assert (refused.status, refused.code) == (403, "host_unlisted")
            assert r.good.seen == r.plain.seen == []

    asyncio.run(main())


BOTH = ("h2", "http/1.1")
LOCAL = 'host = "local.good.test"\nport = 8443\ndial_port = {h2}\naddress = ["127.0.0.1"]\nca = "{ca}"\n'
PLAIN = 'host = "plain.good.test"\nport = 11434\ndial_port = {plain}\naddress = ["127.0.0.1"]\ntls = false\n'


def over_h2(policy: str) -> str:
    """The same, with a local target that has TLS: HTTP/2 is never turned into HTTP/1.1."""
    text = policy.replace(PLAIN, LOCAL)
    for name in ("llm", "api", "local"):
        line = f'host = "{name}.good.test"\n'
        text = text.replace(line, f'{line}alpn = ["h2", "http/1.1"]\n')
    return text


def fields(r: Rig, path: bytes = b"/ok/a") -> Fields:
    authority = f"llm.good.test:{r.direct}".encode()
    pseudo = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", authority), (b":path", path)]
    return [*pseudo, (b"authorization", b"Bearer mine")]


@pytest.mark.parametrize("via", ["connect", "direct"])
@pytest.mark.parametrize("word", ["default", "sensitive"])
def test_over_http2(word: str, via: str, tmp_path: Path) -> None:
    """Two streams of one connection go where the role's word says, under the target's name; the other gets nothing."""
    sensitive = word == "sensitive"

    async def main() -> None:
        ca = TargetCa(tmp_path, "targets")
        policy = over_h2(SENSITIVE if sensitive else POLICY)
        async with (
            Target(server_tls(ca, "local.good.test", alpn=BOTH)) as local,
            rig(tmp_path, policy=policy, alpn=BOTH, h2_port=local.port, test_ca=ca) as r,
        ):
            opened = await (r.tunnel if via == "connect" else r.tls)("llm.good.test", alpn=BOTH)
            client = H2Client(opened.reader, opened.writer)
            answers = [await client.ask(fields(r, path), b"hello") for path in (b"/ok/a", b"/ok/b")]
            assert [answer.status for answer in answers] == [200, 403 if sensitive else 200]
            chosen, other = (local, r.good) if sensitive else (r.good, local)
            (session,) = chosen.sessions
            assert (other.sessions, other.raw) == ([], b"")
            authority = b"local.good.test:8443" if sensitive else b"api.good.test"
            keys = [] if sensitive else [f"Bearer {SECRET}".encode()]
            assert {tuple(seen.values(b":authority")) for seen in session.seen} == {(authority,)}
            assert [seen.values(b"authorization") for seen in session.seen] == [keys] * (1 if sensitive else 2)
            assert [seen.body for seen in session.seen] == [b"hello"] * len(session.seen)
            assert r.vault.fetched == ([] if sensitive else ["token"] * 2)
            intent = r.records("intent")[0]
            route = "sensitive: local.all" if sensitive else "default: cloud.all"
            assert (intent["route"], intent["http_version"]) == (route, "HTTP/2.0")
            assert r.reasons() == (["no_rule"] if sensitive else [])

    asyncio.run(main())
