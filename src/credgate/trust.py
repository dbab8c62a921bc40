"""Trust stores for the jail: the system's own plus our CA, never ours alone (a CA-only file breaks other TLS).

Written once per pair of (system bundle, our CA) below the state directory and bound read-only over the system's paths.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from OpenSSL import crypto

from credgate import browserstore, javastore
from credgate.errors import CredgateError
from credgate.paths import private_dir
from jail.plan import under

# Where distributions keep the one bundle that most clients read: Debian, Fedora, Alpine and BSD-likes, SUSE.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
INSIDE_CA = "/etc/ssl/certs/credgate-ca.pem"
INSIDE_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
INSIDE_JAVA = "/etc/ssl/certs/java/cacerts"
_CA, _BUNDLE, _JAVA = (path.removeprefix("/etc/") for path in (INSIDE_CA, INSIDE_BUNDLE, INSIDE_JAVA))
# The other places, bound where the host has them: Fedora (with what p11-kit reads), Arch, SUSE.
ELSEWHERE = {
    "/etc/pki/tls/certs/ca-bundle.crt": _BUNDLE,
    "/etc/pki/tls/cert.pem": _BUNDLE,
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": _BUNDLE,
    "/etc/pki/ca-trust/extracted/java/cacerts": _JAVA,
    "/etc/pki/java/cacerts": _JAVA,
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem": _BUNDLE,
    "/var/lib/ca-certificates/ca-bundle.pem": _BUNDLE,
    "/var/lib/ca-certificates/java-cacerts": _JAVA,
}
ANCHORS = "/etc/pki/ca-trust/source/anchors"  # a directory of the host's, of which the jail sees ours alone
_SAME = ("cert.pem", "ca-bundle.pem", "certs/ca-bundle.crt")  # below /etc/ssl: links to the bundle
_FORMAT = b"2"  # of what is written; another one is another directory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """`mounts`: (host path, path inside) to bind read-only. `bundle_sha256`: hex digest of INSIDE_BUNDLE's bytes.

    `java`, `browser`: host paths of the store for JDKs and of the directory for browsers ("": no NSS on this host).
    """

    mounts: tuple[tuple[str, str], ...]
    bundle_sha256: str
    java: str
    browser: str


def prepare(ca_pem: bytes, state: Path, *, system: Path | None = None) -> Trust:
    """Make (or find) the trust directory. `system` stands in for the system's bundle in tests.

    Raises CredgateError where the machine has no bundle to add ours to.
    """
    source = system or _system_bundle()
    bundle = source.read_bytes().rstrip(b"\n") + b"\n" + ca_pem
    digest = hashlib.sha256(bundle).hexdigest()
    home = private_dir(state / "trust") / hashlib.sha256(bundle + _FORMAT).hexdigest()[:32]
    if not home.is_dir():
        _write(home, bundle, ca_pem)
    browser = str(home / "nssdb") if (home / "nssdb").is_dir() else ""
    return Trust(mounts=_mounts(home), bundle_sha256=digest, java=str(home / _JAVA), browser=browser)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What one run gets: all its mounts, what it has a copy of (both as in Trust), variables for a JDK out of reach."""

    mounts: tuple[tuple[str, str], ...]
    copied: tuple[tuple[str, str], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def stores(trust: Trust, home: str, trees: Sequence[str], written: str, java_home: str) -> Stores:
    """Find the JDKs of the system, of the run's read-only `trees`, and the one of its caller's JAVA_HOME.

    `written`: the work tree, in which nothing is bound over a file of the user's; a JDK there is told by a variable,
    which each of its programs remarks on stderr.
    """
    taken = {inside for _, inside in trust.mounts}
    java = [(trust.java, path) for path in javastore.find(trees, java_home) if path not in taken]
    folder = f"{home}/{browserstore.INSIDE}"
    wanted = trust.browser and not any(
        under(folder, tree) for tree in (*trees, written)
    )  # one of the user's own stands
    copied = [(f"{trust.browser}/{name}", f"{folder}/{name}") for name in browserstore.FILES if wanted]
    theirs = bool(java_home) and under(os.path.realpath(java_home), written)
    env = {"JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={INSIDE_JAVA}"} if theirs else {}
    return Stores(mounts=(*trust.mounts, *java), copied=tuple(copied), env=env)


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
    certs = _certificates(draft / "ssl" / "certs")
    (draft / _BUNDLE).write_bytes(bundle)
    (draft / _CA).write_bytes(ca_pem)
    (certs / _hash_link(ca_pem, certs)).symlink_to(Path(_CA).name)
    (draft / _JAVA).parent.mkdir()
    (draft / _JAVA).write_bytes(javastore.write(bundle))
    for name in _SAME:
        (draft / "ssl" / name).symlink_to(os.path.relpath(draft / _BUNDLE, (draft / "ssl" / name).parent))
    if Path("/etc/ssl/openssl.cnf").is_file():
        shutil.copy("/etc/ssl/openssl.cnf", draft / "ssl" / "openssl.cnf")
    _for_browsers(draft)
    try:
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft)
        if not home.is_dir():
            raise


def _certificates(certs: Path) -> Path:
    """The system's single certificates and their hash links, without what is written anew."""
    system = Path("/etc/ssl/certs")
    anew = shutil.ignore_patterns("java", "ca-certificates.crt", "ca-bundle.crt")
    if system.is_dir():
        shutil.copytree(system, certs, symlinks=True, ignore=anew)
    else:
        certs.mkdir(parents=True)
    return certs


def _for_browsers(draft: Path) -> None:
    """A browser without it turns our certificates down, which its user sees; everything else goes on."""
    folder = draft / "nssdb"
    folder.mkdir(mode=0o700)
    try:
        made = browserstore.make(folder, draft / _CA)
    except browserstore.StoreError as error:
        log.warning("no certificate database for browsers: %s", error)
        made = False
    if not made:
        shutil.rmtree(folder)


def _hash_link(ca_pem: bytes, certs: Path) -> str:
    """The name by which OpenSSL finds a certificate in a directory: subject hash, then the first free number."""
    certificate = crypto.load_certificate(crypto.FILETYPE_PEM, ca_pem)
    base = f"{certificate.subject_name_hash():08x}"
    return next(f"{base}.{n}" for n in range(100) if not os.path.lexists(certs / f"{base}.{n}"))


def _mounts(home: Path) -> tuple[tuple[str, str], ...]:
    elsewhere = [(str(home / ours), path) for path, ours in ELSEWHERE.items() if Path(path).is_file()]
    anchors = [(str(home / _CA), f"{ANCHORS}/credgate-ca.pem")] if Path(ANCHORS).is_dir() else []
    return ((str(home / "ssl"), "/etc/ssl"), *elsewhere, *anchors)
