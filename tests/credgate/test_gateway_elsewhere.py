"""Client certificates and minted tokens asked for from elsewhere: another endpoint, another run. The target says what
it was shown, the provider what it was asked.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from credgate.runs import Listener, Run
from tests.credgate.gateway_rig import Rig, listening, rig, server_tls
from tests.targets.idp import Idp, Provider, unsigned
from tests.targets.pki import Authority as TargetCa

IDP, HUB, OTHER = "idp.good.test", "hub.good.test", "other.good.test"
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
ACCOUNT = json.dumps(
    {"type": "service_account", "client_email": "bot@acme.example", "private_key_id": "k1", "private_key": PEM}
)
AUDIENCE = "https://pubsub.googleapis.com/"
DECOY = "ghs_decoyDecoyDecoyDecoyDecoyDecoyDecoy1"

ENDPOINT = """
[endpoint.{name}]
host = "{name}.good.test"
port = {{direct}}
dial_port = PORT
address = ["127.0.0.1"]
ca = "{{ca}}"
[[endpoint.{name}.allow]]
id = "all"
methods = ["GET"]
paths = ["/**"]
"""
BINDING = """
[[endpoint.hub.allow]]
id = "{name}"
methods = ["GET"]
paths = ["/{name}"]
[binding.{name}]
secret = "{name}"
endpoint = "hub"
rules = ["{name}"]
place = "{place}"
"""
POLICY = """
version = 1
[secret.key]
source = "keyring:credgate/key"
[secret.account]
source = "keyring:credgate/account"
[secret.cert]
source = "keyring:credgate/cert"
[secret.app]
source = "mint:app"
[secret.google]
source = "mint:google"
[secret.self]
source = "mint:self"
[endpoint.idp]
host = "idp.good.test"
dial_port = IDP_PORT
address = ["127.0.0.1"]
ca = "{ca}"
[mint.app]
type = "github-app"
secret = "key"
endpoint = "idp"
app = "Iv1"
installation = 42
permissions = {{ issues = "read" }}
[mint.google]
type = "gcp-service-account"
secret = "account"
endpoint = "idp"
scopes = ["s.read"]
[mint.self]
type = "gcp-jwt"
secret = "account"
audience = "https://pubsub.googleapis.com/"
[endpoint.hub]
host = "hub.good.test"
port = {direct}
dial_port = PORT
address = ["127.0.0.1"]
ca = "{ca}"
"""
ROLES = """
[role.dev]
bindings = ["app", "google", "self", "cert"]
endpoints = ["hub", "other"]
[role.unbound]
endpoints = ["hub", "other"]
[role.nothing]
endpoints = ["other"]
"""
PLACEHOLDER = 'mode = "placeholder"\nplaceholder = {{ env = "APP_TOKEN", shape = "ghs_{{36}}" }}\n'
SCHEMES = {
    "app": "header:authorization",
    "google": "header:authorization",
    "self": "header:authorization",
    "cert": "certificate",
}


def policy(port: int, idp: int) -> str:
    bound = "".join(BINDING.format(name=name, place=place) for name, place in SCHEMES.items())
    bound = bound.replace('secret = "app"\n', 'secret = "app"\n' + PLACEHOLDER)
    text = POLICY + bound + ENDPOINT.format(name="other") + ROLES
    return text.replace("IDP_PORT", str(idp)).replace("PORT", str(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one request showed the target: a bearer token, and the common name of a certificate, "" without."""

    host: str
    path: str
    bearer: str
    certificate: str


@dataclass(kw_only=True)
class Place:
    rig: Rig
    provider: Provider
    shown: list[Shown]

    def kind(self) -> str:
        """Which scheme's credential the last request carried: "" for none."""
        last = self.shown[-1]
        if last.certificate:
            return "cert" if not last.bearer else "several"
        if last.bearer in self.provider.living:
            asked = [a.path for a in self.provider.minted()]
            return {"/token": "google"}.get(asked[-1], "app")
        try:
            return "self" if unsigned(last.bearer, KEY.public_key())[1]["aud"] == AUDIENCE else "foreign"
        except (ValueError, InvalidSignature):
            return last.bearer

    async def second(self, role: str) -> Rig:
        """The clients' side of a run beside the first one, which lives on."""
        sock, own = listening(), self.rig.run
        port = int(sock.getsockname()[1])
        run = Run(id=role, policy=own.policy, role=role, gateway_ip="127.0.0.98", proxy_port=port, proof="proof-2")
        await self.rig.gateway.serve(run, [Listener(sock=sock, port=port, proxy=True)])
        return replace(self.rig, proxy=port)


def mutual(ca: TargetCa) -> ssl.SSLContext:
    """A target that would take a certificate under either of its names."""
    contexts = {}
    for host in (HUB, OTHER):
        pair = ca.issue(host)
        made = contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(pair.certificate, pair.key)
        made.load_verify_locations(ca.ca)
        made.verify_mode = ssl.CERT_OPTIONAL

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = contexts[name or HUB]

    contexts[HUB].sni_callback = choose
    return contexts[HUB]


@asynccontextmanager
async def place(tmp: Path) -> AsyncIterator[Place]:
    ca, shown = TargetCa(tmp, "targets"), list[Shown]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            names = [v for part in (writer.get_extra_info("peercert") or {}).get("subject", ()) for _, v in part]
            fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.splitlines()[1:])}
            bearer = fields.get("authorization", "").removeprefix("Bearer ")
            host = fields["host"].partition(":")[0]
            shown.append(Shown(host=host, path=head.split()[1], bearer=bearer, certificate="".join(names)))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=mutual(ca))
    idp = Idp(server_tls(ca, IDP), Provider(key=KEY.public_key()))
    pair = ca.issue("client-one", ExtendedKeyUsageOID.CLIENT_AUTH)
    text = policy(server.sockets[0].getsockname()[1], idp.port)
    try:
        async with rig(tmp, policy=text, test_ca=ca, decoys={"app": DECOY}) as r:
            cert = pair.certificate.read_text() + pair.key.read_text()
            r.vault.values |= {"key": PEM, "account": ACCOUNT, "cert": cert}
            yield Place(rig=r, provider=idp.provider, shown=shown)
    finally:
        idp.stop()
        server.close()


async def ask(r: Rig, host: str, name: str) -> str:
    """The status, or the reason that we refused with."""
    more = {"Authorization": f"Bearer {DECOY}"} if name == "app" else {}
    answer = await (await r.tunnel(host)).get(f"/{name}", host=f"{host}:{r.direct}", **more)
    return str(answer.status) if answer.status == 200 else answer.code


@pytest.mark.parametrize("name", SCHEMES)
def test_it_is_had_by_its_own_run_at_its_own_endpoint_alone(name: str, tmp_path: Path) -> None:
    """A decoy is refused elsewhere; where nothing was sent, the target would take the real one and is shown none."""
    refused = "placeholder_misplaced" if name == "app" else "200"

    async def main() -> None:
        async with place(tmp_path) as p:
            assert await ask(p.rig, HUB, name) == "200"  # control: the same target takes it from here
            assert p.kind() == name
            fetched, asked, before = list(p.rig.vault.fetched), len(p.provider.seen), len(p.shown)
            unbound, nothing = await p.second("unbound"), await p.second("nothing")
            elsewhere = [(p.rig, OTHER), (unbound, HUB), (unbound, OTHER), (nothing, OTHER)]
            for side, host in elsewhere:
                assert await ask(side, host, name) == refused, host
            assert await ask(nothing, HUB, name) == "host_unlisted"
            seen = p.shown[before:]
            assert [s.host for s in seen] == ([] if name == "app" else [host for _, host in elsewhere])
            assert {(s.bearer, s.certificate) for s in seen} <= {("", "")}
            assert (p.rig.vault.fetched, len(p.provider.seen)) == (fetched, asked)  # nor was anything made for them
            injected = [(line["run"], line["binding"]) for line in p.rig.records("intent") if line.get("binding")]
            assert injected == [("run-1", name)]
            assert await ask(p.rig, HUB, name) == "200"
            assert p.kind() == name

    asyncio.run(main())
