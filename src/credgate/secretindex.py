"""What `secret set` stored where: names, backends, fingerprints. No values: a keyring can't list its own names."""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from credgate.paths import PlaceError, Places, private_dir, read_private, write_private
from credgate.secretvalue import SecretUnavailable

SERVICE = "credgate"  # keyring service of `secret set`: NAME is `keyring:credgate/NAME` in a policy
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SALT_BYTES = 16
_MAX_FILE = 4 << 20
_KEYS = {"backend", "fingerprint", "name", "set_at"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored secret. `set_at` is RFC 3339 UTC; `fingerprint` 12 hex digits, comparable on this installation."""

    name: str
    backend: str
    fingerprint: str
    set_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All stored secrets by name, and the salt of this installation's fingerprints."""

    salt: bytes
    entries: Mapping[str, Entry]

    def fingerprint(self, value: str) -> str:
        """First 12 hex digits of SHA-256 over salt and value: tells whether two are the same, and no more."""
        return hashlib.sha256(self.salt + value.encode()).hexdigest()[:12]


def check_name(name: str) -> str:
    """Return the name. Raises SecretUnavailable for one that a policy or a terminal could misread."""
    if not _NAME.fullmatch(name):
        raise SecretUnavailable(
            "secret_name_invalid",
            f"secret name: got {name!r}, expected 1 to 64 of A-Z a-z 0-9 . _ - with a letter or digit first",
            "the value is never an argument: it is asked for, or read from stdin",
            exit_status=2,
        )
    return name


def read_index(places: Places) -> Index | None:
    """The index, None where nothing was ever stored. Raises PlaceError."""
    try:
        data = read_private(places.secrets, _MAX_FILE)
    except FileNotFoundError:
        return None
    try:
        document = json.loads(data)
        salt = bytes.fromhex(document["salt"])
        entries = [_entry(item) for item in document["secrets"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        hint = "move it away and set the secrets anew"
        raise PlaceError("index_damaged", f"{places.secrets}: not an index of version 1", hint) from error
    return Index(salt=salt, entries={entry.name: entry for entry in entries})


def _entry(item: Mapping[str, str]) -> Entry:
    if item.keys() != _KEYS or not all(isinstance(value, str) for value in item.values()):
        raise ValueError("not an entry")
    return Entry(**item)


@contextmanager
def locked_index(places: Places) -> Iterator[Index]:
    """The index (a new one with a new salt where there is none), with every other writer kept out."""
    private_dir(places.state)
    fd = os.open(places.state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield read_index(places) or Index(salt=os.urandom(_SALT_BYTES), entries={})
    finally:
        os.close(fd)


def write_index(places: Places, index: Index) -> None:
    """Replace the index; only inside locked_index. Raises PlaceError."""
    secrets = [asdict(entry) for _, entry in sorted(index.entries.items())]
    document = {"v": 1, "salt": index.salt.hex(), "secrets": secrets}
    write_private(places.secrets, json.dumps(document, indent=1).encode() + b"\n")
