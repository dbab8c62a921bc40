"""The trust stores that are bound over the system's: the system's own certificates, and ours beside them."""

import hashlib
import os
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from credgate import browserstore, javastore, trust
from credgate.ca import Authority
from credgate.errors import CredgateError
from credgate.trust import INSIDE_BUNDLE, INSIDE_CA, INSIDE_JAVA


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


def test_java_has_a_store_of_the_whole_bundle(ca: bytes, other: bytes, state: Path) -> None:
    system = state / "system.pem"
    system.write_bytes(other)
    made = trust.prepare(ca, state, system=system)
    both = inside(made, INSIDE_BUNDLE).read_bytes()
    assert inside(made, INSIDE_JAVA).read_bytes() == Path(made.java).read_bytes() == javastore.write(both)


@pytest.mark.parametrize("name", ["cert.pem", "ca-bundle.pem", "certs/ca-bundle.crt"])
def test_other_systems_names_below_etc_ssl_lead_to_the_bundle(ca: bytes, state: Path, name: str) -> None:
    made = trust.prepare(ca, state)
    assert inside(made, f"/etc/ssl/{name}").read_bytes() == inside(made, INSIDE_BUNDLE).read_bytes()
    assert not os.readlink(inside(made, f"/etc/ssl/{name}")).startswith("/")  # it leads there in the jail too


def test_places_that_a_host_has_elsewhere_are_covered(
    ca: bytes, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchors, there, missing = tmp_path / "anchors", tmp_path / "there.pem", tmp_path / "missing.pem"
    anchors.mkdir()
    there.write_text("theirs")
    monkeypatch.setattr(trust, "ELSEWHERE", {str(there): "ssl/certs/java/cacerts", str(missing): "ssl/cert.pem"})
    monkeypatch.setattr(trust, "ANCHORS", str(anchors))
    made = trust.prepare(ca, state)
    places = {at: source for source, at in made.mounts}
    assert places.keys() == {"/etc/ssl", str(there), f"{anchors}/credgate-ca.pem"}
    assert Path(places[str(there)]).read_bytes() == Path(made.java).read_bytes()
    assert Path(places[f"{anchors}/credgate-ca.pem"]).read_bytes() == ca


@pytest.mark.needs("certutil")
def test_browsers_have_a_database_that_trusts_ours(ca: bytes, state: Path) -> None:
    made = trust.prepare(ca, state)
    list_it = ["certutil", "-L", "-d", f"sql:{made.browser}"]
    said = subprocess.run(list_it, capture_output=True, text=True, timeout=30, check=True).stdout
    assert ["credgate", "C,,"] in [line.split() for line in said.splitlines()], said
    alone = subprocess.run([*list_it, "-n", "credgate", "-a"], capture_output=True, text=True, timeout=30, check=True)
    assert ssl.PEM_cert_to_DER_cert(alone.stdout) == ssl.PEM_cert_to_DER_cert(ca.decode())


def test_a_host_without_nss_has_none_and_goes_on(ca: bytes, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browserstore, "make", lambda folder, ca: False)
    made = trust.prepare(ca, state)
    assert made.browser == ""
    assert trust.stores(made, "/home/ann", (), "/work", "").copied == ()


def test_a_database_that_cannot_be_made_is_told_and_stops_nothing(
    ca: bytes, state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(folder: Path, ca: Path) -> bool:
        raise browserstore.StoreError("PK11_InitPin failed")

    monkeypatch.setattr(browserstore, "make", broken)
    assert trust.prepare(ca, state).browser == ""
    assert "PK11_InitPin" in caplog.text


@pytest.mark.needs("certutil")
@pytest.mark.parametrize(
    "ca_text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_makes_no_database(tmp_path: Path, ca_text: str) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "ca.pem").write_text(ca_text)
    with pytest.raises(browserstore.StoreError):
        browserstore.make(tmp_path / "db", tmp_path / "ca.pem")


MADE = trust.Trust(mounts=(("/s/ssl", "/etc/ssl"),), bundle_sha256="", java="/s/java", browser="/s/nssdb")


def test_a_run_gets_a_mount_for_each_jdk_and_a_database_to_write(tmp_path: Path) -> None:
    tree = str(tmp_path.resolve())
    store = tmp_path.resolve() / "lib/security/cacerts"
    store.parent.mkdir(parents=True)
    store.write_bytes(b"theirs")
    found = trust.stores(MADE, "/home/ann", (tree,), "/work", "")
    assert found.mounts[:1] == MADE.mounts
    assert ("/s/java", str(store)) in found.mounts
    assert ("/s/nssdb/cert9.db", "/home/ann/.pki/nssdb/cert9.db") in found.copied
    assert found.env == {}
    assert ("/s/java", str(store)) not in trust.stores(MADE, "/home/ann", (), "/work", "").mounts  # control


def test_a_jdk_in_the_work_tree_is_told_by_a_variable(tmp_path: Path) -> None:
    work = tmp_path.resolve()
    (work / "jdk").mkdir()
    found = trust.stores(MADE, "/home/ann", (), str(work), str(work / "jdk"))
    assert found.env == {"JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={INSIDE_JAVA}"}
    assert trust.stores(MADE, "/home/ann", (), str(work), "/usr/lib/jvm/default-java").env == {}
    assert trust.stores(MADE, "/home/ann", (), str(work), "").env == {}


@pytest.mark.parametrize("tree", ["/home/ann/.pki", "/home/ann/.pki/nssdb"])
def test_a_database_of_the_users_own_stands(tree: str) -> None:
    assert trust.stores(MADE, "/home/ann", (tree,), "/work", "").copied == ()


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
