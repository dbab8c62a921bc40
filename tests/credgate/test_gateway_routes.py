"""An endpoint with several targets, on the wire: the targets' logs are the witnesses."""

import asyncio
from pathlib import Path

import pytest

from tests.credgate.gateway_rig import SECRET, rig

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
