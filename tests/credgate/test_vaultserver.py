"""HashiCorp Vault's and OpenBao's protocol: against OpenBao itself, and against answers that it would not give."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from credgate.gateway.capture import Fingerprints
from credgate.gateway.dial import Dialler
from credgate.gateway.pins import Pins
from credgate.gateway.upstream import UpstreamTls
from credgate.known import KnownValues
from credgate.ledger.writer import Ledger
from credgate.minting.calls import Calls
from credgate.minting.forms import Answered, Asked
from credgate.paths import Places
from credgate.secretvalue import SecretUnavailable
from credgate.vault import Vault
from credgate.vaultserver import VaultServers
from rules.load import load_policy
from rules.policy import Address, Policy
from tests.targets import bao
from tests.targets.bao import Bao

POLICY = """\
version = 1
[secret.token]
source = "env:VAULT_TOKEN"
[secret.secret-id]
source = "env:SECRET_ID"
[endpoint.vault]
host = "vault.acme.example"
dial_port = {port}
address = ["127.0.0.1"]
ca = "{ca}"
[vault.corp]
endpoint = "vault"
token = "token"
[vault.app]
endpoint = "vault"
approle = {{ role_id = "{role}", secret = "secret-id" }}
[secret.github]
source = "vault:corp/secret/data/github#token"
[secret.kept]
source = "vault:corp/secret/data/github#token"
keep = "1h"
[secret.old]
source = "vault:corp/kv1/github#token"
[secret.user]
source = "vault:corp/rabbitmq/creds/reader#username"
[secret.password]
source = "vault:corp/rabbitmq/creds/reader#password"
[secret.by-role]
source = "vault:app/secret/data/github#token"
[secret.nowhere]
source = "vault:corp/secret/data/nowhere#token"
[secret.no-field]
source = "vault:corp/secret/data/github#tokn"
[secret.no-mount]
source = "vault:corp/nothing/x#y"
"""


@dataclass(kw_only=True)
class Rig:
    """Servers with a real dialler and a real ledger; `now` moves their clock."""

    servers: VaultServers
    policy: Policy
    known: KnownValues
    env: dict[str, str]
    ledger: Path
    now: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)

    async def read(self, name: str) -> str:
        return (await self.servers.read(self.policy.secrets[name], self.env)).reveal()

    async def code(self, name: str) -> str:
        with pytest.raises(SecretUnavailable) as fault:
            await self.read(name)
        self.now += 2  # a failure is the answer for a second
        assert self.env["VAULT_TOKEN"] not in str(fault.value)
        assert fault.value.hint
        return fault.value.code

    def mints(self) -> list[dict[str, Any]]:
        segments = sorted(self.ledger.glob("seg-*.jsonl"))
        lines = [json.loads(line) for path in segments for line in path.read_text().splitlines()]
        return [line for line in lines if line["ev"] == "mint" and "rule" in line]


@asynccontextmanager
async def rig(tmp: Path, server: Bao, role: str = "none", secret_id: str = "") -> AsyncIterator[Rig]:
    text = POLICY.format(port=server.port, ca=server.ca, role=role)
    policy = load_policy(text.encode(), packs={}, base_dir="/")

    async def resolve(_: str) -> tuple[Address, ...]:
        return (ip_address("127.0.0.1"),)

    upstream = UpstreamTls()
    dialler = Dialler(
        pins=Pins(resolve, 60.0),
        own_addresses=frozenset,
        listeners=frozenset,
        resolve_timeout=5.0,
        connect_timeout=5.0,
    )
    ledger = Ledger.open(tmp / "ledger")
    env = {"VAULT_TOKEN": server.token, "SECRET_ID": secret_id}
    vault = Vault(Places.from_env({"HOME": str(tmp)}), env)
    known = KnownValues()
    prints = Fingerprints(key=bytes(32))
    calls = Calls(ledger=ledger, dialler=dialler, upstream=upstream, fingerprints=prints)
    made: Rig
    servers = VaultServers(calls, vault.fetch, known, lambda: made.now)
    made = Rig(servers=servers, policy=policy, known=known, env=env, ledger=tmp / "ledger")
    try:
        yield made
    finally:
        ledger.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bao]:
    with bao.serving(tmp_path_factory.mktemp("bao")) as running:
        running.api("secret/data/github", {"data": {"token": "first-value-0001"}})
        running.api("kv1/github", {"token": "version-one-0001"})
        running.api("rabbitmq/roles/reader", {"vhosts": '{"/": {"read": ".*"}}'})
        running.api("sys/policies/acl/reader", {"policy": 'path "secret/data/*" { capabilities = ["read"] }'})
        running.api("auth/approle/role/reader", {"token_policies": "reader", "token_ttl": "1h"})
        yield running


@pytest.mark.needs("clients")
def test_kv_is_read_anew_and_a_rotation_counts_at_once(server: Bao, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, server) as r:
            server.api("secret/data/github", {"data": {"token": "first-value-0001"}})
            assert await r.read("old") == "version-one-0001"
            assert await r.read("github") == await r.read("kept") == "first-value-0001"
            server.api("secret/data/github", {"data": {"token": "second-value-0002"}})
            assert await r.read("github") == "second-value-0002"
            assert await r.read("kept") == "first-value-0001"  # by keep = "1h"
            r.now += 3600
            assert await r.read("kept") == "second-value-0002"
            lines = r.mints()
            assert {(line["rule"], line["host"], line["pin"]) for line in lines} == {
                ("vault.corp", "vault.acme.example", "127.0.0.1")
            }
            assert [line["path"] for line in lines][:2] == ["/v1/kv1/github", "/v1/secret/data/github"]
            assert lines[1]["secret"] == "github"
            written = b"".join(path.read_bytes() for path in r.ledger.glob("*"))
            for value in (b"first-value", b"second-value", b"version-one", server.token.encode()):
                assert value not in written
            assert r.known.table().found(f"x {server.token} y".encode()) == {"vault.corp"}

    asyncio.run(main())


@pytest.mark.needs("clients")
def test_a_lease_is_shared_used_until_its_end_and_taken_back(server: Bao, tmp_path: Path) -> None:
    async def main() -> None:
        server.users.clear()
        server.api("rabbitmq/config/lease", {"ttl": "1h", "max_ttl": "1h"})
        async with rig(tmp_path, server) as r:
            found = await asyncio.gather(*(r.read(name) for name in ["user", "password"] * 4))
            assert len(set(found)) == 2  # one user with its password
            assert [method for method, _ in server.users] == ["PUT"]
            r.now += 3500  # a minute or a tenth before its end
            assert await r.read("user") == found[0]
            r.now += 60
            assert await r.read("user") != found[0]
            assert [method for method, _ in server.users] == ["PUT", "PUT"]
            await r.servers.close()
            second = server.users[1][1]
            assert ("DELETE", second) in server.users  # the broker is the witness

    asyncio.run(main())


@pytest.mark.needs("clients")
def test_approle_logs_in_once_and_again_when_its_token_is_revoked(server: Bao, tmp_path: Path) -> None:
    def text(path: str, key: str, body: Mapping[str, object] | None = None) -> str:
        data = server.api(path, body)["data"]
        assert isinstance(data, dict)
        return str(data[key])

    role = text("auth/approle/role/reader/role-id", "role_id")
    secret_id = text("auth/approle/role/reader/secret-id", "secret_id", {})
    server.api("secret/data/github", {"data": {"token": "first-value-0001"}})

    async def main() -> None:
        async with rig(tmp_path, server, role, secret_id) as r:
            assert await r.read("by-role") == await r.read("by-role") == "first-value-0001"
            logins = [line for line in r.mints() if line["path"] == "/v1/auth/approle/login"]
            assert len(logins) == 1
            for accessor in _accessors(server):
                server.api("auth/token/revoke-accessor", {"accessor": accessor})
            assert await r.read("by-role") == "first-value-0001"
            r.env["SECRET_ID"] = "wrong"
            assert await r.code("by-role") == "vault_refused"

    asyncio.run(main())


def _accessors(server: Bao) -> list[str]:
    listed = server.api("auth/token/accessors?list=true")["data"]
    assert isinstance(listed, dict)
    found = []
    for accessor in listed["keys"]:
        data = server.api("auth/token/lookup-accessor", {"accessor": accessor})["data"]
        assert isinstance(data, dict)
        if data["display_name"] == "approle":
            found.append(accessor)
    return found


@pytest.mark.needs("clients")
def test_faults_have_their_codes(server: Bao, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, server) as r:
            assert await r.code("nowhere") == "vault_not_found"
            assert await r.code("no-mount") == "vault_not_found"
            assert await r.code("no-field") == "vault_field"
            r.env["VAULT_TOKEN"] = "no-such-token-00"
            assert await r.code("github") == "vault_denied"
            r.env["VAULT_TOKEN"] = server.token
            assert await r.read("github")  # control

    asyncio.run(main())


@pytest.mark.needs("clients")
def test_a_server_that_is_not_there_or_not_itself(server: Bao, tmp_path: Path) -> None:
    async def main() -> None:
        for change in ({"port": 1}, {"ca": "/etc/ssl/certs/ca-certificates.crt"}):
            other = Bao(**{"port": server.port, "ca": server.ca, "token": server.token, "plain": 0, **change})
            async with rig(tmp_path / str(change)[2:4], other) as r:
                assert await r.code("github") == "vault_unreachable"

    asyncio.run(main())


ANSWERS: dict[str, tuple[int, bytes, str]] = {
    "sealed": (503, b'{"errors": []}', "vault_sealed"),
    "busy": (429, b"", "vault_busy"),
    "broken": (500, b"x", "vault_failed"),
    "moved": (307, b"", "vault_failed"),
    "no json": (200, b"<html>", "vault_invalid"),
    "deep": (200, b"[" * 100_000, "vault_invalid"),
    "a list": (200, b"[]", "vault_invalid"),
    "no data": (200, b"{}", "vault_invalid"),
    "deleted": (200, b'{"data": {"data": null, "metadata": {"destroyed": false}}}', "vault_not_found"),
    "a number": (200, b'{"data": {"token": 1}}', "vault_field"),
    "a line break": (200, b'{"data": {"token": "a\\nb"}}', "secret_invalid"),
    "empty": (200, b'{"data": {"token": ""}}', "secret_invalid"),
}


class Stub:
    """Stands for Calls: one answer for all."""

    def __init__(self, answer: Callable[[Asked], Answered]) -> None:
        self.asked: list[Asked] = []
        self._answer = answer

    async def call(self, _purpose: object, _endpoint: object, asked: Asked, _proxy: object = None) -> Answered:
        self.asked.append(asked)
        await asyncio.sleep(0)
        return self._answer(asked)


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_are_none(name: str, tmp_path: Path) -> None:
    status, body, code = ANSWERS[name]
    policy = load_policy(POLICY.format(port=1, ca="/x", role="r").encode(), packs={}, base_dir="/")
    stub = Stub(lambda _: Answered(status=status, fields=(), body=body))
    env = {"VAULT_TOKEN": "a-token-of-mine"}
    vault = Vault(Places.from_env({"HOME": str(tmp_path)}), env)
    servers = VaultServers(stub, vault.fetch, KnownValues())  # type: ignore[arg-type]
    read = servers.read(policy.secrets["old"], env)
    with pytest.raises(SecretUnavailable) as fault:
        asyncio.run(read)
    assert fault.value.code == code


def test_a_namespace_is_sent_and_a_tree_s_policy_names_no_vault(tmp_path: Path) -> None:
    text = POLICY.format(port=1, ca="/x", role="r").replace('token = "token"', 'token = "token"\nnamespace = "team/a"')
    policy = load_policy(text.encode(), packs={}, base_dir="/")
    stub = Stub(lambda _: Answered(status=200, fields=(), body=b'{"data": {"token": "value-of-mine"}}'))
    env = {"VAULT_TOKEN": "a-token-of-mine"}
    vault = Vault(Places.from_env({"HOME": str(tmp_path)}), env)
    servers = VaultServers(stub, vault.fetch, KnownValues())  # type: ignore[arg-type]
    asyncio.run(servers.read(policy.secrets["old"], env))
    fields = dict(stub.asked[0].fields)
    assert fields[b"x-vault-namespace"] == b"team/a"
    assert fields[b"x-vault-token"] == b"a-token-of-mine"
    assert "a-token" not in repr(stub.asked[0])
