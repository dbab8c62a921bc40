"""A certificate of the gateway's own: shown where its binding says, on a connection that carries nothing else."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from credgate.gateway.clientcert import parse_identity
from credgate.secretvalue import Secret, SecretUnavailable
from tests.credgate.gateway_rig import POLICY, Rig, rig, server_tls
from tests.targets.pki import Authority as TargetCa

HOST = "mtls.good.test"
TEXT = """
[secret.cert]
source = "keyring:credgate/cert"
[endpoint.mtls]
host = "mtls.good.test"
port = {direct}
dial_port = PORT
address = ["127.0.0.1"]
ca = "{ca}"
[[endpoint.mtls.allow]]
id = "shown"
methods = ["GET"]
paths = ["/shown"]
[[endpoint.mtls.allow]]
id = "bare"
methods = ["GET"]
paths = ["/bare"]
[binding.cert]
secret = "cert"
endpoint = "mtls"
rules = ["shown"]
place = "certificate"
"""


def pem(ca: TargetCa, name: str) -> str:
    pair = ca.issue(name, ExtendedKeyUsageOID.CLIENT_AUTH)
    return pair.certificate.read_text() + pair.key.read_text()


@asynccontextmanager
async def site(tmp: Path, *, required: bool = False) -> AsyncIterator[tuple[Rig, list[tuple[str, str]], TargetCa]]:
    """`seen`: path and common name of the client's certificate, "" without one."""
    ca, seen = TargetCa(tmp, "targets"), []
    context = server_tls(ca, HOST)
    context.load_verify_locations(ca.ca)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    context.sni_callback = None
    context.load_cert_chain(*_pair(ca))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            shown = writer.get_extra_info("peercert") or {}
            names = [value for part in shown.get("subject", ()) for _, value in part]
            seen.append((head.split()[1].decode(), "".join(names)))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    text = (POLICY + TEXT.replace("PORT", str(port))).replace('"swap", "h2"]', '"swap", "h2", "cert"]')
    try:
        async with rig(tmp, policy=text, test_ca=ca) as r:
            r.vault.values["cert"] = pem(ca, "client-one")
            yield r, seen, ca
    finally:
        server.close()


def _pair(ca: TargetCa) -> tuple[Path, Path]:
    pair = ca.issue(HOST)
    return pair.certificate, pair.key


def test_it_is_shown_by_its_binding_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (r, seen, ca):
            host = f"{HOST}:{r.direct}"
            client = await r.tunnel(HOST)
            for path in ("/shown", "/bare", "/shown", "/bare"):
                assert (await client.get(path, host=host)).status == 200
            assert seen == [("/shown", "client-one"), ("/bare", ""), ("/shown", "client-one"), ("/bare", "")]
            r.vault.values["cert"] = pem(ca, "client-two")  # rotated: the next request has the new one
            assert (await client.get("/shown", host=host)).status == 200
            assert seen[-1] == ("/shown", "client-two")
            assert [line.get("binding") for line in r.records("intent")] == ["cert", None, "cert", None, "cert"]
            r.run.revoked_bindings.add("cert")
            assert (await client.get("/shown", host=host)).code == "revoked"
            assert (await client.get("/bare", host=host)).status == 200

    asyncio.run(main())


def test_a_target_that_wants_one_gets_none_from_another_rule(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path, required=True) as (r, seen, _):
            client = await r.tunnel(HOST)
            assert (await client.get("/shown", host=f"{HOST}:{r.direct}")).status == 200
            assert (await client.get("/bare", host=f"{HOST}:{r.direct}")).status == 502
            assert seen == [("/shown", "client-one")]

    asyncio.run(main())


def test_a_value_that_is_no_certificate_is_unavailable(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (r, seen, _):
            r.vault.values["cert"] = "not a certificate"
            client = await r.tunnel(HOST)
            assert (await client.get("/shown", host=f"{HOST}:{r.direct}")).code == "secret_unavailable"
            assert seen == []

    asyncio.run(main())


def test_what_is_no_identity_is_named_without_its_text(tmp_path: Path) -> None:
    ca = TargetCa(tmp_path, "targets")
    one, other = (ca.issue(name) for name in ("one", "other"))
    certificate, key = one.certificate.read_text(), one.key.read_text()
    assert parse_identity(Secret("c", certificate + key)) == parse_identity(Secret("c", key + certificate))
    chained = parse_identity(Secret("c", certificate + ca.ca.read_text() + key))
    assert len(chained.chain) == 2
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
    )
    alien = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    faulty = [certificate, key, certificate + other.key.read_text(), certificate + locked.decode(), "x"]
    faulty += [certificate + alien.decode(), certificate + key.replace("M", "?")]
    for text in faulty:
        with pytest.raises(SecretUnavailable) as caught:
            parse_identity(Secret("c", text))
        assert "secret 'c'" in caught.value.detail
        assert "BEGIN" not in f"{caught.value!r}{caught.value.detail}{caught.value.__cause__!r}"
