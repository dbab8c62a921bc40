"""Key pins: checked besides the certificate, on whichever key of the verified chain is pinned."""

import asyncio
import hashlib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.credgate.gateway_rig import Rig, rig
from tests.targets.pki import Authority as TargetCa

BOTH = ("h2", "http/1.1")


def digest(pem: Path) -> bytes:
    key = x509.load_pem_x509_certificate(pem.read_bytes()).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def pinned(r: Rig, endpoint: str, *pins: bytes) -> None:
    object.__setattr__(r.run.policy.endpoints[endpoint], "spki", frozenset(pins))
    r.run.generation += 1  # as a reload: no connection that was made before is used again


async def status(r: Rig, host: str = "api.good.test") -> tuple[int, str]:
    client = await r.tunnel(host)
    answer = await client.get(host=f"{host}:{r.direct}")
    return answer.status, answer.code if answer.verdict else ""


@pytest.mark.parametrize("which", ["leaf", "authority", "second of two"])
def test_a_pinned_key_of_the_chain_is_enough(which: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            leaf, authority = digest(tmp_path / "api.good.test.pem"), digest(tmp_path / "targets.pem")
            pins = {"leaf": [leaf], "authority": [authority], "second of two": [bytes(32), leaf]}[which]
            pinned(r, "good", *pins)
            assert await status(r) == (200, "")

    asyncio.run(main())


def test_another_key_is_no_connection_though_the_certificate_is_good(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            assert await status(r) == (200, "")  # the control: the certificate is good
            other = digest(tmp_path / "evil.test.pem")  # of the same authority
            pinned(r, "good", other)
            seen = len(r.good.seen)
            assert await status(r) == (502, "upstream_tls")
            assert len(r.good.seen) == seen
            assert r.records("outcome")[-1]["reason"] == "upstream_tls"
            # one client connection goes on to be answered, and its next try is a new one
            client = await r.tunnel()
            for expected in (502, 502):
                assert (await client.get(host=f"api.good.test:{r.direct}")).status == expected
            pinned(r, "good")
            assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200

    asyncio.run(main())


def test_a_pinned_key_does_not_make_a_bad_certificate_good(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "other").mkdir()
        async with rig(tmp_path, good_hosts=("evil.test",)) as r:
            pinned(r, "good", digest(tmp_path / "evil.test.pem"), digest(tmp_path / "targets.pem"))
            assert await status(r) == (502, "upstream_tls")
            assert r.good.raw == b""

    asyncio.run(main())


def test_an_unknown_authority_with_the_pinned_key(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "x").mkdir()
        other = TargetCa(tmp_path / "x", "others")
        async with rig(tmp_path) as r:
            pinned(r, "good", digest(tmp_path / "api.good.test.pem"))
            object.__setattr__(r.run.policy.endpoints["good"], "ca", str(other.ca))
            assert await status(r) == (502, "upstream_tls")

    asyncio.run(main())


def test_http2(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            for pin, expected in ((digest(tmp_path / "h2.good.test.pem"), 200), (bytes(32), 502)):
                pinned(r, "h2", pin)
                code, out = await r.curl(
                    *("--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"),
                    f"https://h2.good.test:{r.direct}/ok/a",
                )
                assert (code, out) == (0, f"2 {expected}")

    asyncio.run(main())


@pytest.mark.parametrize("lane", ["h1", "h2"])
def test_a_ca_file_counts_as_it_is_now(lane: str, tmp_path: Path) -> None:
    """Renewed, it is read again; gone, no handshake is begun, and the ledger says why."""

    async def main() -> None:
        (tmp_path / "x").mkdir()
        other = TargetCa(tmp_path / "x", "others").ca.read_bytes()
        async with rig(tmp_path, alpn=BOTH) as r:
            ca = r.extra["ca"].ca
            good = ca.read_bytes()
            host, flag = ("h2.good.test", "--http2") if lane == "h2" else ("api.good.test", "--http1.1")
            for content, expected in ((good, 200), (other, 502), (None, 502), (good, 200)):
                if content is None:
                    ca.unlink()
                else:
                    ca.write_bytes(content)
                for i in r.gateway._instances["run-1"]:
                    r.gateway._hooks.pool.close(i.run)
                code, out = await r.curl(
                    *(flag, "-o", "/dev/null", "-w", "%{http_code}"), f"https://{host}:{r.direct}/ok/a"
                )
                assert (code, out) == (0, str(expected)), content
            failed = [o for o in r.records("outcome") if o.get("reason")]
            assert [o["reason"] for o in failed] == ["upstream_tls"] * 2
            assert failed[1]["detail"].endswith("No such file or directory")

    asyncio.run(main())
