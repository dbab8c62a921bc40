"""Minted tokens through the gateway: what the target gets, what the jail's own refresh call gets, and other runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from credgate.minting import minter
from rules.mints import decoy_key
from tests.credgate.gateway_rig import POLICY, Answer, Client, Rig, rig, server_tls
from tests.credgate.h2_rig import H2Client
from tests.credgate.test_upstream_proxy import Corporate
from tests.targets.idp import Idp, Provider
from tests.targets.pki import Authority as TargetCa

HOST = "idp.good.test"
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
DECOY, ACCESS_DECOY = "rt_decoydecoydecoydecoydecoydecoydecoy00", "at_decoydecoydecoydecoydecoydecoydecoy00"
TEXT = """
[secret.refresh]
source = "keyring:credgate/refresh"
[endpoint.idp]
host = "idp.good.test"
port = {direct}
dial_port = PORT
address = ["127.0.0.1"]
ca = "{ca}"
[[endpoint.idp.allow]]
id = "api"
methods = ["GET", "POST"]
paths = ["/**"]
[mint.oauth]
type = "oauth2-refresh"
secret = "refresh"
endpoint = "idp"
path = "/oauth/token"
placeholder = {{ env = "REFRESH_TOKEN", shape = "rt_{{40}}" }}
[secret.oauth]
source = "mint:oauth"
[binding.oauth]
secret = "oauth"
endpoint = "idp"
rules = ["api"]
place = "header:authorization"
mode = "placeholder"
placeholder = {{ env = "ACCESS_TOKEN", shape = "at_{{40}}" }}
"""


@asynccontextmanager
async def site(
    tmp: Path, change: Callable[[str, int], str] = lambda text, _: text
) -> AsyncIterator[tuple[Rig, Provider]]:
    """`change` gets the policy and the provider's port."""
    ca = TargetCa(tmp, "targets")
    idp = Idp(server_tls(ca, HOST), Provider(key=KEY.public_key()))
    text = (POLICY + TEXT.replace("PORT", str(idp.port))).replace('"swap", "h2"]', '"swap", "h2", "oauth"]')
    text = change(text, idp.port)
    try:
        async with rig(tmp, policy=text, test_ca=ca) as r:
            r.run.decoys = {"oauth": ACCESS_DECOY, decoy_key("oauth"): DECOY}
            r.vault.values |= {"refresh": "refresh-0", "key": PEM}
            yield r, idp.provider
    finally:
        idp.stop()


async def post(r: Rig, client: Client, body: str, kind: str = "application/x-www-form-urlencoded") -> Answer:
    head = f"POST /oauth/token HTTP/1.1\r\nHost: {HOST}:{r.direct}\r\nContent-Type: {kind}\r\n"
    return await client.ask(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())


def form(**fields: str) -> str:
    return urlencode({"grant_type": "refresh_token", **fields})


def test_the_target_gets_a_token_and_the_jail_a_decoy(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            client = await r.tunnel(HOST)
            host = f"{HOST}:{r.direct}"
            for _ in range(3):
                assert (await client.get("/api", host=host, Authorization=f"Bearer {ACCESS_DECOY}")).status == 200
            assert [(a.path, a.bearer) for a in provider.seen] == [("/oauth/token", False), *[("/api", True)] * 3]
            assert r.vault.values["refresh"] == provider.refresh != "refresh-0"
            answered = await post(r, client, form(refresh_token=DECOY))
            said = json.loads(answered.body)
            assert answered.status == 200
            assert (said["access_token"], said["refresh_token"]) == (ACCESS_DECOY, DECOY)
            assert said["expires_in"] > 7 * 86400  # no reason to ask again
            assert b"credgate-verdict: answered" in answered.head
            again = await post(
                r, client, json.dumps({"grant_type": "refresh_token", "refresh_token": DECOY}), "application/json"
            )
            assert again.status == 200
            assert (await client.get("/api", host=host, Authorization=f"Bearer {said['access_token']}")).status == 200
            assert len(provider.minted()) == 1
            lines = [line for line in r.records("mint") if line.get("verdict") == "answered"]
            assert [line["rule"] for line in lines] == ["mint.oauth"] * 2
            text = repr(r.records()) + answered.body.decode()
            assert not any(token in text for token in (*provider.living, provider.refresh, "refresh-0"))

    asyncio.run(main())


REFUSED = [
    form(refresh_token="of-somebody-else"),
    form(refresh_token="rt_ofanotherrunofanotherrunofanotherrun0"),
    form(refresh_token="refresh-0"),
    urlencode({"grant_type": "authorization_code", "code": "x"}),
    urlencode({"grant_type": "client_credentials"}),
    form(refresh_token=DECOY) + "&refresh_token=x",
    form(refresh_token=DECOY) + "&grant_type=client_credentials",
    "",
    "{",
    '{"refresh_token": 1}',
]


def test_nothing_else_is_redeemed_or_forwarded(tmp_path: Path) -> None:
    """The rule of the endpoint would let it through: the token endpoint of a mint is the gateway's all the same."""

    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            client = await r.tunnel(HOST)
            for body in REFUSED:
                answer = await post(r, client, body)
                assert (answer.status, answer.code) == (403, "foreign_credential"), body
            assert provider.seen == []

    asyncio.run(main())


def test_a_long_body_and_another_method_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            client = await r.tunnel(HOST)
            assert (await post(r, client, "x" * 20000)).code == "body_refused"
            client = await r.tunnel(HOST)
            for path in ("/oauth/token", "/oauth/token/", "/OAuth/Token", "/oauth/token.json", "/oauth/token?x=1"):
                assert (await client.get(path, host=f"{HOST}:{r.direct}")).code == "foreign_credential"
            assert provider.seen == []

    asyncio.run(main())


def test_a_run_without_the_binding_has_no_token_endpoint(tmp_path: Path) -> None:
    """Wrong run: a role that does not use the mint gets neither an answer nor a token."""

    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            role = r.run.policy.roles["dev"]
            bare = replace(role, bindings=("token",), endpoints=())
            r.run.policy = replace(r.run.policy, roles={"dev": bare})
            answer = await post(r, await r.tunnel(HOST), form(refresh_token=DECOY))
            assert answer.code == "host_unlisted"
            assert provider.seen == []

    asyncio.run(main())


def test_without_its_decoy_no_token_is_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            client = await r.tunnel(HOST)
            assert (await client.get("/api", host=f"{HOST}:{r.direct}")).status == 401
            assert [a.path for a in provider.seen] == ["/api"]
            misplaced = await client.get(f"/api?x={DECOY}", host=f"{HOST}:{r.direct}")
            assert misplaced.code == "placeholder_misplaced"

    asyncio.run(main())


def test_a_provider_that_refuses_is_a_refusal_with_a_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            provider.fault = lambda: (400, {"error": "invalid_grant"})
            answer = await (await r.tunnel(HOST)).get(
                "/api", host=f"{HOST}:{r.direct}", Authorization=f"Bearer {ACCESS_DECOY}"
            )
            assert (answer.status, answer.code) == (403, "secret_unavailable")
            assert "invalid_grant" in r.records("deny")[0]["detail"]
            assert [a.path for a in provider.seen] == ["/oauth/token"]

    asyncio.run(main())


def test_a_decoy_is_worth_nothing_at_another_endpoint(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            client = await r.tunnel()
            for decoy in (ACCESS_DECOY, DECOY):
                answer = await client.get(host=f"api.good.test:{r.direct}", Authorization=f"Bearer {decoy}")
                assert answer.code == "placeholder_misplaced"
            assert provider.seen == []
            assert r.good.seen == []

    asyncio.run(main())


GITHUB = """
[secret.key]
source = "keyring:credgate/key"
[mint.app]
type = "github-app"
secret = "key"
endpoint = "idp"
app = "Iv1"
installation = 42
permissions = {{ issues = "read" }}
[secret.app]
source = "mint:app"
[endpoint.hub]
host = "idp.good.test"
port = {direct}
dial_port = PORT
address = ["127.0.0.1"]
ca = "{ca}"
[[endpoint.hub.allow]]
id = "issues"
methods = ["GET"]
paths = ["/issues"]
[binding.app]
secret = "app"
endpoint = "hub"
rules = ["issues"]
place = "header:authorization"
[role.dev]
bindings = ["token", "app"]
"""


def test_a_token_of_a_run_ends_with_it(tmp_path: Path) -> None:
    """The role reaches neither the mint's paths nor its endpoint: the call is the gateway's own."""

    def only_github(text: str, port: int) -> str:
        return (
            text.partition("[role.dev]")[0]
            + text.partition("[role.dev]")[2].partition("\n\n")[2]
            + GITHUB.replace("PORT", str(port))
        )

    async def main() -> None:
        async with site(tmp_path, only_github) as (r, provider):
            client = await r.tunnel(HOST)
            host = f"{HOST}:{r.direct}"
            for _ in range(2):
                assert (await client.get("/issues", host=host)).status == 200
            minting = b"POST /app/installations/42/access_tokens HTTP/1.1\r\nContent-Length: 0\r\n"
            assert (await client.ask(minting + f"Host: {host}\r\n\r\n".encode())).code == "no_rule"
            (token,) = provider.living
            await r.gateway.close("run-1")
            assert provider.living == {}
            assert [a.method for a in provider.seen] == ["POST", "GET", "GET", "DELETE"]
            calls = r.records("mint")
            assert [line.get("rule") for line in calls] == ["mint.app", None, "revoke.app", None]
            assert [line.get("status") for line in calls] == [None, 201, None, 204]
            assert token not in repr(r.records())
            assert calls[1]["cred_fp"] == r.records("intent")[0]["cred_fp"]

    asyncio.run(main())


def test_http2(tmp_path: Path) -> None:
    async def main() -> None:
        def both(text: str, _: int) -> str:
            return text.replace(f'host = "{HOST}"', f'host = "{HOST}"\nalpn = ["h2", "http/1.1"]')

        async with site(tmp_path, both) as (r, provider):
            opened = await r.tunnel(HOST, alpn=("h2", "http/1.1"))
            client = H2Client(opened.reader, opened.writer)
            authority = f"{HOST}:{r.direct}".encode()
            head = [
                (b":method", b"POST"),
                (b":scheme", b"https"),
                (b":authority", authority),
                (b":path", b"/oauth/token"),
            ]
            answered = await client.ask(head, form(refresh_token=DECOY).encode())
            assert answered.status == 200
            assert json.loads(answered.body)["access_token"] == ACCESS_DECOY
            refused = await client.ask(head, form(refresh_token="x").encode())
            assert refused.status == 403
            assert provider.seen == []

    asyncio.run(main())


def test_own_calls_go_through_the_endpoints_proxy(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate()

        def through(text: str, port: int) -> str:
            proxy.to = port
            table = (
                f'[proxy.corp]\nhost = "proxy.good.test"\nport = {proxy.port}\naddress = ["127.0.0.1"]\n[endpoint.idp]'
            )
            dialled = f'dial_port = {port}\naddress = ["127.0.0.1"]'
            return text.replace(dialled, f'dial_port = {port}\nproxy = "corp"').replace("[endpoint.idp]", table)

        async with proxy.up(), site(tmp_path, through) as (r, _):
            client = await r.tunnel(HOST)
            answer = await client.get("/api", host=f"{HOST}:{r.direct}", Authorization=f"Bearer {ACCESS_DECOY}")
            assert answer.status == 200
            assert [head.split()[1] for head in proxy.heads] == [f"{HOST}:{proxy.to}".encode()] * 2
            assert [line["pin"] for line in r.records("mint")] == ["proxy", "proxy"]
            assert b"refresh-0" not in proxy.carried

    asyncio.run(main())


@pytest.mark.parametrize(("age", "statuses"), [(0.0, [200, 401, 200]), (300.0, [200, 401, 401])])
def test_a_token_that_the_target_took_back_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, statuses: list[int]
) -> None:
    """Unless it is young: a jail can have as many refusals as it likes, and each would be a refresh."""

    async def main() -> None:
        async with site(tmp_path) as (r, provider):
            client, host, got = await r.tunnel(HOST), f"{HOST}:{r.direct}", []
            for _ in range(3):
                got.append((await client.get("/api", host=host, Authorization=f"Bearer {ACCESS_DECOY}")).status)
                if len(got) == 1:
                    provider.living.clear()
            assert got == statuses
            assert len(provider.minted()) == 1 + (age == 0)
            # a refusal of what never had the token says nothing of it
            assert (await client.get("/api", host=host)).status == 401
            assert len(provider.minted()) == 1 + (age == 0)

    monkeypatch.setattr(minter, "DOUBT", age)
    asyncio.run(main())
