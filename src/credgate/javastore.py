"""Java's trust store: written here without a JDK, and where on this host the JDKs look for theirs.

JKS, not PKCS#12: `java` opens its default store without a password, and of an encrypted PKCS#12 it then reads no
certificate at all (measured: 0 of 144, JDK 25). JDK 9 and newer read JKS whatever their default type is.
"""

import hashlib
import os
import re
import ssl
import struct
from collections.abc import Iterator, Sequence

from jail.plan import under

PASSWORD = "changeit"  # noqa: S105 - the public default of every JDK's cacerts; it guards nothing
# What a JDK lies in: of the system, and below a tree that is bound (SDKMAN, asdf, mise). "*x": names that hold x.
SYSTEM_HOMES = ("/usr/lib/jvm/*", "/usr/lib64/jvm/*", "/usr/java/*", "/usr/local/*jdk", "/usr/local/*jre")
_BELOW = ("", "*", "java/*", "jvm/*", "candidates/java/*", "installs/java/*")
_STORES = ("lib/security", "jre/lib/security")  # the second: JDK 8
_KEPT = ("/usr", "/nix/store", "/gnu/store", "/etc/pki")
_NAMES = ("cacerts", "jssecacerts")  # the latter wins where it is there
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2


def write(bundle: bytes) -> bytes:
    """The certificates of a PEM bundle as a JKS trust store with PASSWORD.

    The format is that of OpenJDK's sun.security.provider.JavaKeyStore: big-endian numbers, strings with a length of two
    octets, and a SHA-1 over password and content, which `java` checks only where it is told the password.
    """
    found = [ssl.PEM_cert_to_DER_cert(block.decode("ascii")) for block in _BLOCK.findall(bundle)]
    content = struct.pack(">III", _MAGIC, _VERSION, len(found))
    content += b"".join(_entry(f"ca-{number}", der) for number, der in enumerate(found))
    salted = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + content
    return content + hashlib.sha1(salted, usedforsecurity=False).digest()


def _entry(alias: str, der: bytes) -> bytes:
    dated = struct.pack(">Q", 0)  # milliseconds since 1970; nothing reads it
    return struct.pack(">I", _TRUSTED) + _text(alias) + dated + _text("X.509") + struct.pack(">I", len(der)) + der


def _text(value: str) -> bytes:
    data = value.encode("ascii")
    return struct.pack(">H", len(data)) + data


def find(trees: Sequence[str], java_home: str) -> tuple[str, ...]:
    """Real paths of the stores of every JDK of the system, of bound `trees`, and at `java_home`, outside of /etc/ssl.

    A store that is a link leads where it leads: what lies neither in one of `trees` nor where systems keep them is no
    JDK's, and is left out.
    """
    homes = [*SYSTEM_HOMES, *(os.path.normpath(f"{tree}/{below}") for tree in trees for below in _BELOW)]
    known = [*trees, *_KEPT]
    present = _present([*homes, *([java_home] if java_home else [])])
    found = (os.path.realpath(path) for path in present if not _leads_to_ours(path))
    return tuple(dict.fromkeys(path for path in found if _is_store(path) and any(under(path, tree) for tree in known)))


def _leads_to_ours(path: str) -> bool:
    """Debian's are links to one: told by one call, where realpath(3) would make thirteen for each."""
    return os.path.islink(path) and os.readlink(path).startswith("/etc/ssl/certs/")  # noqa: PTH114 - as above


def _is_store(path: str) -> bool:
    return os.path.basename(path) in _NAMES and not under(path, "/etc/ssl")  # noqa: PTH119 - on the path of each launch


def _present(homes: Sequence[str]) -> Iterator[str]:
    for home in homes:
        for each in _expanded(home):
            for store in _STORES:
                folder = f"{each}/{store}"
                if os.access(folder, os.X_OK):  # of all names that might be a JDK's few have it
                    yield from (path for name in _NAMES if os.access(path := f"{folder}/{name}", os.R_OK))


def _expanded(home: str) -> list[str]:
    folder, star, wanted = home.partition("/*")
    if not star:
        return [home]
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder) if wanted in name]  # noqa: PTH208 - as above
    except OSError:  # none there, or none to be read by the user, whom it then serves for nothing
        return []
