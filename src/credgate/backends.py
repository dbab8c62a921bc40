"""Which keyring keeps the secrets of this host. keyring's own search is not used: it follows PYTHON_KEYRING_BACKEND
and a configuration file, by which a caller could choose plain text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from credgate.paths import Places
from credgate.secretvalue import SecretUnavailable

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

CREDENTIAL = "credgate-key"  # name of the systemd credential that is the sealed backend's key
FORCED = "PYTHON_KEYRING_BACKEND"  # never followed; doctor and `secret set` say so
# null forgets, fail fails, a chainer hides which one answered, keyrings.alt keeps text that anyone can decode
_REFUSED_MODULES = ("keyring.backends.null", "keyring.backends.fail", "keyring.backends.chainer", "keyrings.alt")
_REFUSED_WORDS = ("plaintext", "uncrypted", "unencrypted")
_DESKTOP = ("keyring.backends.SecretService", "keyring.backends.libsecret", "keyring.backends.kwallet")


class BackendKind(StrEnum):
    """desktop: unlocked by the login. sealed: our own file. other: a backend that was installed beside us."""

    DESKTOP = "desktop"
    SEALED = "sealed"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One keyring. `name` is MODULE.CLASS, stable enough to be kept in the index."""

    name: str
    kind: BackendKind
    ring: "KeyringBackend" = field(repr=False)


def choose_backend(places: Places, env: Mapping[str, str]) -> Backend:
    """The best real keyring that works here, else the sealed file. `env` is this process's own environment.

    A locked keyring is a real one: its lock is an error when a value is asked for, and no reason to go elsewhere.
    """
    real = _real_backends()
    return real[0] if real else sealed_backend(places, env)


def backend_named(name: str, places: Places, env: Mapping[str, str]) -> Backend:
    """The backend that the index names. Raises SecretUnavailable when it is refused or can't be used here."""
    if is_refused(name):
        raise SecretUnavailable("keyring_refused", f"keyring backend {name} is refused", "set the secret anew")
    for backend in (*_real_backends(), sealed_backend(places, env)):
        if backend.name == name:
            return backend
    raise SecretUnavailable(
        "keyring_missing",
        f"keyring backend {name}, which keeps the secret, can't be reached from here",
        "from a session of that desktop: credgate gateway stop, and start the run again; or set the secret anew",
    )


def is_refused(name: str) -> bool:
    """Whether a backend of this MODULE.CLASS must not keep secrets."""
    module, _, cls = name.rpartition(".")
    by_module = any(module == refused or module.startswith(f"{refused}.") for refused in _REFUSED_MODULES)
    return by_module or any(word in cls.lower() for word in _REFUSED_WORDS)


def sealed_backend(places: Places, env: Mapping[str, str]) -> Backend:
    """Our own file; its key comes from a systemd credential where `env` names a credentials directory with one."""
    from credgate.sealed import SealedKeyring  # noqa: PLC0415  keyring is a slow import

    return _as_backend(SealedKeyring(places.sealed, _credentials(env)))


def sealed_files(places: Places, env: Mapping[str, str]) -> tuple[Path, Path]:
    """Where the sealed backend's values are, and their key: what it gives depends on these two files alone."""
    credentials = _credentials(env)
    return places.sealed / "values.json", places.sealed / "key" if credentials is None else credentials / CREDENTIAL


def _credentials(env: Mapping[str, str]) -> Path | None:
    held = env.get("CREDENTIALS_DIRECTORY", "")
    return Path(held) if held and (Path(held) / CREDENTIAL).exists() else None


def _real_backends() -> list[Backend]:
    """Best first. Whether one works is what the backend itself says by its priority, without asking for a value."""
    from keyring.backend import get_all_keyring  # noqa: PLC0415  slow: it loads every installed backend

    usable = [ring for ring in get_all_keyring() if ring.priority > 0 and not is_refused(_name(ring))]
    usable.sort(key=lambda ring: (-ring.priority, _name(ring)))
    return [backend for backend in map(_as_backend, usable) if backend.kind is not BackendKind.SEALED]


def _as_backend(ring: "KeyringBackend") -> Backend:
    name = _name(ring)
    if name.startswith("credgate.sealed."):
        kind = BackendKind.SEALED
    else:
        kind = BackendKind.DESKTOP if name.startswith(_DESKTOP) else BackendKind.OTHER
    return Backend(name=name, kind=kind, ring=ring)


def _name(ring: "KeyringBackend") -> str:
    return f"{type(ring).__module__}.{type(ring).__name__}"
