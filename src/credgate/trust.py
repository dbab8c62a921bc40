"""Trust stores for the jail: the system's own plus our CA, never ours alone (a CA-only file breaks other TLS).

Written once per pair of (system bundle, our CA) below the state directory and bound read-only over the system's paths.
"""

import hashlib
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.utils import CryptographyDeprecationWarning
from OpenSSL import crypto

from credgate.errors import CredgateError
from credgate.paths import private_dir

# Where distributions keep the one bundle that most clients read: Debian, Fedora, Alpine and BSD-likes, SUSE.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
INSIDE_CA = "/etc/ssl/certs/credgate-ca.pem"
INSIDE_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
JAVA_PASSWORD = b"changeit"  # the public default of every JDK's cacerts; it guards nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """`mounts`: (host path, path inside) to bind read-only. `bundle_sha256`: hex digest of INSIDE_BUNDLE's bytes."""

    mounts: tuple[tuple[str, str], ...]
    bundle_sha256: str


def prepare(ca_pem: bytes, state: Path, *, system: Path | None = None) -> Trust:
    """Make (or find) the trust directory. `system` stands in for the system's bundle in tests.

    Raises CredgateError where the machine has no bundle to add ours to.
    """
    source = system or _system_bundle()
    bundle = source.read_bytes().rstrip(b"\n") + b"\n" + ca_pem
    digest = hashlib.sha256(bundle).hexdigest()
    home = private_dir(state / "trust") / digest[:32]
    if not home.is_dir():
        _write(home, bundle, ca_pem)
    return Trust(mounts=_mounts(home), bundle_sha256=digest)


def _system_bundle() -> Path:
    for name in BUNDLES:
        if Path(name).is_file():
            return Path(name)
    raise CredgateError(
        "no_trust_store", f"no CA bundle at any of {', '.join(BUNDLES)}", "install the ca-certificates package", 3
    )


def _write(home: Path, bundle: bytes, ca_pem: bytes) -> None:
    # A directory of another name, renamed when it is whole: two runs at once, or a crash, leave no half of one.
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=home.parent))
    certs = draft / "ssl" / "certs"
    system = Path("/etc/ssl/certs")
    if system.is_dir():
        shutil.copytree(system, certs, symlinks=True, ignore=shutil.ignore_patterns("java", "ca-certificates.crt"))
    else:
        certs.mkdir(parents=True)
    (certs / "ca-certificates.crt").write_bytes(bundle)
    (certs / "credgate-ca.pem").write_bytes(ca_pem)
    (certs / _hash_link(ca_pem, certs)).symlink_to("credgate-ca.pem")
    (certs / "java").mkdir()
    (certs / "java" / "cacerts").write_bytes(_java_store(bundle))
    if Path("/etc/ssl/openssl.cnf").is_file():
        shutil.copy("/etc/ssl/openssl.cnf", draft / "ssl" / "openssl.cnf")
    try:
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft)
        if not home.is_dir():
            raise


def _hash_link(ca_pem: bytes, certs: Path) -> str:
    """The name by which OpenSSL finds a certificate in a directory: subject hash, then the first free number."""
    certificate = crypto.load_certificate(crypto.FILETYPE_PEM, ca_pem)
    base = f"{certificate.subject_name_hash():08x}"
    return next(f"{base}.{n}" for n in range(100) if not os.path.lexists(certs / f"{base}.{n}"))


def _java_store(bundle: bytes) -> bytes:
    """A PKCS#12 trust store: JDK 9 and newer read it whatever their default type is."""
    with warnings.catch_warnings():  # old roots with odd serial numbers: the system trusts them, so do we
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        certificates = x509.load_pem_x509_certificates(bundle)
    entries = [pkcs12.PKCS12Certificate(c, f"ca-{n}".encode()) for n, c in enumerate(certificates)]
    return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(JAVA_PASSWORD))


def _mounts(home: Path) -> tuple[tuple[str, str], ...]:
    bundle = str(home / "ssl" / "certs" / "ca-certificates.crt")
    others = [(bundle, name) for name in BUNDLES if not name.startswith("/etc/ssl/certs/") and Path(name).is_file()]
    outside_ssl = [pair for pair in others if not pair[1].startswith("/etc/ssl/")]
    return ((str(home / "ssl"), "/etc/ssl"), *outside_ssl)
