"""A keyring backend for machines without a keyring: values sealed in one file, AES-256-GCM.

What it keeps: a copy of the file alone says nothing, and a changed byte or a value moved to another name is an error.
What it can't keep: whoever can read both files (any process of this user, a backup of the whole home) has the values;
an old copy of the file put back is not noticed.
"""

import base64
import binascii
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError

from credgate.backends import CREDENTIAL
from credgate.errors import CredgateError
from credgate.paths import open_private, private_dir, read_private, sync_dir, write_private

_KEY_BYTES = 32
_NONCE_BYTES = 12  # NIST SP 800-38D: random 96-bit nonces are safe for 2**32 values under one key
_MAX_FILE = 64 << 20
_RESTORE = "restore both files from one backup, or remove both and set the secrets anew"

type _Values = dict[str, dict[str, str]]  # service -> name -> base64(nonce + ciphertext + tag)


class SealedError(CredgateError):
    """The sealed file or its key is damaged, missing or not ours."""


class SealedKeyring(KeyringBackend):
    """Sealed values in `directory`. The key: a systemd credential where there is one, else a 0600 file beside it.

    Built with a directory alone, so keyring's own search (constructors without arguments) never picks it.
    """

    priority = 0.5  # keyring: below 1 is "suitable, not recommended"

    def __init__(self, directory: Path, credentials: Path | None = None) -> None:
        # not super().__init__(): it sets attributes from KEYRING_PROPERTY_* of the environment
        self._directory = directory
        self._file = directory / "values.json"
        self._key_file = directory / "key"
        self._credential = credentials / CREDENTIAL if credentials is not None else None

    def get_password(self, service: str, username: str) -> str | None:
        """Return the value, None for none. Raises SealedError and PlaceError."""
        try:
            key_id, values = self._read()
        except FileNotFoundError:
            return None
        sealed = values.get(service, {}).get(username)
        if sealed is None:
            return None
        return self._unseal(self._key(key_id), service, username, sealed)

    def set_password(self, service: str, username: str, password: str) -> None:
        """Seal a value and put it on the disk. Raises SealedError and PlaceError; the old file then stays."""
        with self._locked():
            try:
                key_id, values = self._read()
                key = self._key(key_id)
            except FileNotFoundError:
                key, values = self._first_key(), {}
            nonce = os.urandom(_NONCE_BYTES)
            sealed = nonce + AESGCM(key).encrypt(nonce, password.encode(), _bound_to(service, username))
            values.setdefault(service, {})[username] = base64.b64encode(sealed).decode()
            self._write(key, values)

    def delete_password(self, service: str, username: str) -> None:
        """Remove a value. Raises PasswordDeleteError where there is none, SealedError and PlaceError."""
        with self._locked():
            try:
                key_id, values = self._read()
            except FileNotFoundError:
                raise PasswordDeleteError("no such value") from None
            if values.get(service, {}).pop(username, None) is None:
                raise PasswordDeleteError("no such value")
            self._write(self._key(key_id), values)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        private_dir(self._directory)
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _read(self) -> tuple[str, _Values]:
        data = read_private(self._file, _MAX_FILE)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._damaged("it is not JSON") from error
        if not _is_document(document):
            raise self._damaged("it has not the shape of version 1")
        return document["key"], cast("_Values", document["values"])

    def _write(self, key: bytes, values: _Values) -> None:
        document = {"v": 1, "key": _key_id(key), "values": {name: held for name, held in values.items() if held}}
        write_private(self._file, json.dumps(document, sort_keys=True, indent=1).encode() + b"\n")

    def _unseal(self, key: bytes, service: str, username: str, sealed: str) -> str:
        try:
            data = base64.b64decode(sealed, validate=True)
            value = AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound_to(service, username))
            return value.decode()
        except (InvalidTag, binascii.Error, ValueError) as error:
            raise self._damaged(f"the value of {service}/{username} was changed or sealed for another name") from error

    def _key(self, key_id: str) -> bytes:
        key = self._load_key()
        if key is None:
            raise SealedError("sealed_key_missing", f"{self._key_file}: missing, expected the key", _RESTORE)
        if _key_id(key) != key_id:
            raise SealedError(
                "sealed_key_wrong", f"{self._file}: sealed with key {key_id}, got key {_key_id(key)}", _RESTORE
            )
        return key

    def _load_key(self) -> bytes | None:
        try:
            if self._credential is not None:
                key, source = _read_credential(self._credential), self._credential
            else:
                key, source = read_private(self._key_file, _KEY_BYTES), self._key_file
        except FileNotFoundError:
            return None
        if len(key) != _KEY_BYTES:
            raise SealedError("sealed_key_wrong", f"{source}: {len(key)} bytes, expected {_KEY_BYTES}", _RESTORE)
        return key

    def _first_key(self) -> bytes:
        """The key that is there already, else a new one, on the disk before anything is sealed with it."""
        key = self._load_key()
        if key is not None:
            return key
        if self._credential is not None:
            hint = f"give the unit a credential {CREDENTIAL} of {_KEY_BYTES} random bytes"
            raise SealedError("sealed_key_missing", f"{self._credential}: missing, expected the key", hint)
        key = AESGCM.generate_key(bit_length=8 * _KEY_BYTES)
        with os.fdopen(open_private(self._key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        sync_dir(self._directory)
        return key

    def _damaged(self, why: str) -> SealedError:
        return SealedError("sealed_damaged", f"{self._file}: {why}", _RESTORE)


def _bound_to(service: str, username: str) -> bytes:
    """Associated data: a value that is moved to another name doesn't open. Lengths keep the two parts apart."""
    return json.dumps(["credgate-sealed-1", service, username]).encode()


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"credgate-sealed-key-id\0" + key).hexdigest()[:16]


def _is_document(document: object) -> bool:
    if not isinstance(document, dict) or document.keys() != {"v", "key", "values"} or document["v"] != 1:
        return False
    if not isinstance(document["key"], str) or not isinstance(document["values"], dict):
        return False
    return all(
        isinstance(held, dict) and all(isinstance(value, str) for value in held.values())
        for held in document["values"].values()
    )


def _read_credential(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        # systemd.exec(5): owned by root or by the unit's user, readable by nobody else
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o027:
            mode = f"{stat.S_IMODE(facts.st_mode):04o}"
            detail = f"{path}: owner uid {facts.st_uid} and mode {mode}, expected root or you and 0440 at most"
            raise SealedError("sealed_key_open", detail, "let systemd place it (LoadCredential=)")
        return os.read(fd, _KEY_BYTES + 1)
    finally:
        os.close(fd)
