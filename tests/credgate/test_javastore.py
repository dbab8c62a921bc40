"""Java's trust store: what is written, read back here and by a real `java`; and where stores are looked for."""

import hashlib
import struct
import subprocess
from pathlib import Path

import pytest

from credgate import javastore
from credgate.ca import Authority
from tests.features import find

COUNT = """
import java.security.KeyStore; import javax.net.ssl.*;
public class Count { public static void main(String[] no) throws Exception {
  var factory = TrustManagerFactory.getInstance("PKIX"); factory.init((KeyStore) null);
  System.out.println(((X509TrustManager) factory.getTrustManagers()[0]).getAcceptedIssuers().length);
}}
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("ca")
    folder.chmod(0o700)
    ours = Authority.load_or_create(folder / "one").ca_pem, Authority.load_or_create(folder / "two").ca_pem
    return b"# a comment, as bundles have them\n".join(ours)


def test_every_certificate_is_in_it_under_a_name_of_its_own(bundle: bytes) -> None:
    made = javastore.write(bundle)
    magic, version, count = struct.unpack_from(">III", made)
    assert (magic, version, count) == (0xFEEDFEED, 2, 2)
    assert [made.count(f"ca-{n}".encode()) for n in range(3)] == [1, 1, 0]
    secret = javastore.PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    assert hashlib.sha1(secret + made[:-20]).digest() == made[-20:]


@pytest.mark.needs("javac")
@pytest.mark.parametrize("told", [(), ("-Djavax.net.ssl.trustStorePassword=changeit",)], ids=["no password", "told it"])
def test_java_reads_it(bundle: bytes, tmp_path: Path, told: tuple[str, ...]) -> None:
    """Without a password it reads no certificate of an encrypted PKCS#12, which this was once."""
    (tmp_path / "Count.java").write_text(COUNT)
    (tmp_path / "store").write_bytes(javastore.write(bundle))
    java = find("java")
    assert java
    argv = [java, f"-Djavax.net.ssl.trustStore={tmp_path / 'store'}", *told, str(tmp_path / "Count.java")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def jdk(home: Path, store: str = "lib/security/cacerts") -> str:
    (home / store).parent.mkdir(parents=True, exist_ok=True)
    (home / store).write_bytes(b"theirs")
    return str((home / store).resolve())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a JDK of its system's."""
    monkeypatch.setattr(javastore, "SYSTEM_HOMES", ())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("below", ["", "jdk-21", "java/temurin-25", "candidates/java/17.0.1-tem", "installs/java/x"])
def test_stores_below_a_tree_that_is_bound(tmp_path: Path, below: str) -> None:
    tree = tmp_path.resolve() / "tree"
    store = jdk(tree / below)
    assert javastore.find((str(tree),), "") == (store,)
    assert javastore.find((), "") == ()  # control


@pytest.mark.usefixtures("alone")
def test_each_kind_of_store_once(tmp_path: Path) -> None:
    tree = tmp_path.resolve()
    stores = {jdk(tree / "8", "jre/lib/security/cacerts"), jdk(tree / "8", "lib/security/jssecacerts")}
    (tree / "current").symlink_to("8")
    assert set(javastore.find((str(tree),), str(tree / "current"))) == stores
    assert len(javastore.find((str(tree),), str(tree / "current"))) == 2


def test_those_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = jdk(tmp_path / "jvm/java-21")
    monkeypatch.setattr(javastore, "SYSTEM_HOMES", (f"{tmp_path}/jvm/*", f"{tmp_path}/none/*"))
    assert javastore.find((), "") == ()  # where it really lies is not where systems keep them
    monkeypatch.setattr(javastore, "_KEPT", (str(tmp_path.resolve()),))
    assert javastore.find((), "") == (store,)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("target", ["/etc/ssl/certs/java/cacerts", "/etc/passwd", "{tree}/bin/java"])
def test_a_link_to_something_else_is_left_out(tmp_path: Path, target: str) -> None:
    """What lies in /etc/ssl is ours already; a mount over anything else but a store would break the jail."""
    tree = tmp_path.resolve() / "tree"
    (tree / "lib/security").mkdir(parents=True)
    (tree / "bin").mkdir()
    (tree / "bin/java").write_text("program")
    (tree / "lib/security/cacerts").symlink_to(target.format(tree=tree))
    assert javastore.find((str(tree),), str(tree)) == ()
