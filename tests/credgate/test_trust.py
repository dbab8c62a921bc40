"""The trust stores that are bound over the system's: the system's own certificates, and ours beside them."""

import hashlib
import os
import ssl
import stat
from pathlib import Path

import pytest

from credgate import trust
from credgate.ca import Authority
from credgate.errors import CredgateError
from credgate.trust import INSIDE_BUNDLE, INSIDE_CA


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("ca")
    folder.chmod(0o700)
    return Authority.load_or_create(folder / "ca").ca_pem


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("other")
    folder.chmod(0o700)
    return Authority.load_or_create(folder / "ca").ca_pem


@pytest.fixture
def state(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def inside(made: trust.Trust, path: str) -> Path:
    """Where the jail's path lies on the host."""
    for host, mounted in made.mounts:
        if path == mounted or path.startswith(mounted + "/"):
            return Path(host + path.removeprefix(mounted))
    raise AssertionError(path)


def subjects(path: Path) -> set[object]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    return {str(certificate["subject"]) for certificate in context.get_ca_certs()}


def test_the_bundle_is_the_systems_with_ours(ca: bytes, other: bytes, state: Path) -> None:
    system = state / "system.pem"
    system.write_bytes(other)
    made = trust.prepare(ca, state, system=system)
    bundle = inside(made, INSIDE_BUNDLE)
    assert bundle.read_bytes().count(b"BEGIN CERTIFICATE") == 2
    assert hashlib.sha256(bundle.read_bytes()).hexdigest() == made.bundle_sha256
    assert subjects(system) <= subjects(bundle)


def test_ours_alone_is_there_for_clients_that_add_it(ca: bytes, state: Path) -> None:
    assert inside(trust.prepare(ca, state), INSIDE_CA).read_bytes() == ca


def test_a_bundle_without_a_last_newline_joins_nothing(ca: bytes, other: bytes, state: Path) -> None:
    system = state / "system.pem"
    system.write_bytes(other.rstrip(b"\n"))
    bundle = inside(trust.prepare(ca, state, system=system), INSIDE_BUNDLE).read_bytes()
    assert b"-----END CERTIFICATE----------BEGIN" not in bundle
    assert bundle.count(b"BEGIN CERTIFICATE") == 2


def test_openssl_finds_ours_by_its_hash(ca: bytes, state: Path) -> None:
    folder = inside(trust.prepare(ca, state), INSIDE_CA).parent
    names = [path.name for path in folder.iterdir() if path.is_symlink() and os.readlink(path) == "credgate-ca.pem"]
    assert len(names) == 1
    assert len(names[0].partition(".")[0]) == 8


def test_java_has_a_store(ca: bytes, state: Path) -> None:
    store = inside(trust.prepare(ca, state), "/etc/ssl/certs/java/cacerts").read_bytes()
    assert store[:1] == b"\x30"  # a PKCS#12 file is a DER sequence


def test_it_is_made_once_for_a_pair(ca: bytes, other: bytes, state: Path) -> None:
    first = trust.prepare(ca, state)
    again = trust.prepare(ca, state)
    assert again == first
    assert trust.prepare(other, state) != first
    assert not [path for path in (state / "trust").iterdir() if path.name.startswith(".draft-")]


def test_nobody_else_can_write_there(ca: bytes, state: Path) -> None:
    made = trust.prepare(ca, state)
    assert stat.S_IMODE((state / "trust").stat().st_mode) == 0o700
    assert {Path(host).stat().st_uid for host, _ in made.mounts} == {os.geteuid()}


def test_a_machine_without_a_bundle(ca: bytes, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "BUNDLES", ("/no/such/bundle.pem",))
    with pytest.raises(CredgateError) as caught:
        trust.prepare(ca, state)
    assert (caught.value.code, "ca-certificates" in caught.value.hint) == ("no_trust_store", True)
