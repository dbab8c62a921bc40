"""The install's Ed25519 key, which signs checkpoints: 0600, in a directory of its own that no jail and no copy of the
ledger holds; and the key's public half in the forms that others hand us.

A change of key is a `key_change` line with both keys' signatures over change_text: who trusts one may go to the other.
"""

import base64
import binascii
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from credgate.errors import CredgateError
from credgate.ledger.note import Checkpoint, Note, key_id
from credgate.ledger.record import LedgerError
from credgate.paths import private_dir, read_private, sync_dir, write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLIC = "pubkey.pem"  # in the ledger's directory: the first key
CHANGES = "keychanges.jsonl"  # in the ledger's directory: `key_change` lines of removed segments
_PRIVATE = "ed25519.pem"
_NEXT = "ed25519-next.pem"
_MAX_PEM = 4096
_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")  # SubjectPublicKeyInfo of Ed25519 (RFC 8410)
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+?)\s+-----END PUBLIC KEY-----\s*", re.ASCII)
_VKEY = re.compile(r"[^\s+]+\+[0-9a-f]{8}\+([A-Za-z0-9+/=]+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Key:
    """A key that signs. `public`: 32 bytes."""

    private: "Ed25519PrivateKey"
    public: bytes

    def sign(self, text: bytes) -> bytes:
        """The signature over `text`, 64 bytes."""
        return self.private.sign(text)

    def note(self, checkpoint: Checkpoint) -> Note:
        """The checkpoint, signed."""
        name = key_id(checkpoint.origin, self.public)
        return Note(checkpoint=checkpoint, signatures=((name, self.sign(checkpoint.text())),))


def beside(ledger: Path) -> Path:
    """Where the key of the ledger in a directory lies: beside it, never in it."""
    return ledger.with_name(f"{ledger.name}-key")


def fingerprint(public: bytes) -> str:
    """The key for people: its 32 bytes in base64, short enough to be read aloud."""
    return base64.b64encode(public).decode()


def load(directory: Path) -> Key | None:
    """The install's key, or None where there is none. Raises PlaceError, LedgerError for a damaged one."""
    try:
        return _from_pem(directory / _PRIVATE)
    except FileNotFoundError:
        return None


def make_next(directory: Path) -> Key:
    """A new key that waits beside the old one until use_next."""
    return _make(directory / _NEXT)


def use_next(directory: Path) -> None:
    """Let the waiting key replace the old one, which is gone then. OSError comes through."""
    (directory / _NEXT).rename(directory / _PRIVATE)
    sync_dir(directory)


def settle_next(directory: Path, current: bytes) -> None:
    """End a change that a crash cut short: the waiting key is `current` in the ledger already, or it never was."""
    try:
        waiting = _from_pem(directory / _NEXT)
    except FileNotFoundError:
        return
    if waiting.public == current:
        use_next(directory)
    else:
        (directory / _NEXT).unlink()


def _make(path: Path) -> Key:
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415  only signers need it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    write_private(path, pem)
    return Key(private=private, public=private.public_key().public_bytes_raw())


def _from_pem(path: Path) -> Key:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    data = read_private(path, _MAX_PEM)
    try:
        private = load_pem_private_key(data, None)
    except ValueError as error:
        raise _bad_key(path) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise _bad_key(path)
    return Key(private=private, public=private.public_key().public_bytes_raw())


def _bad_key(path: Path) -> LedgerError:
    hint = "restore it from a backup; without it, move the ledger and this directory away to begin anew"
    return LedgerError("ledger_key_damaged", f"{path}: not an Ed25519 private key in PEM", hint)


def public_pem(public: bytes) -> bytes:
    """SubjectPublicKeyInfo in PEM, as openssl reads it."""
    return b"-----BEGIN PUBLIC KEY-----\n" + base64.b64encode(_DER_PREFIX + public) + b"\n-----END PUBLIC KEY-----\n"


def parse_public(text: str) -> bytes:
    """The 32 bytes of a public key given as PEM, as C2SP vkey or as base64. Raises ValueError."""
    pem, name = _PEM.fullmatch(text), _VKEY.fullmatch(text)
    if pem:
        der = _decode("".join(pem[1].split()))
        key, right = der[len(_DER_PREFIX) :], der.startswith(_DER_PREFIX)
    elif name:
        data = _decode(name[1])
        key, right = data[1:], data.startswith(b"\x01")
    else:
        key, right = _decode(text.strip()), True
    if len(key) != 32 or not right:
        raise ValueError("not an Ed25519 public key: expected PEM, a C2SP vkey or base64 of 32 bytes")
    return key


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not an Ed25519 public key: expected PEM, a C2SP vkey or base64 of 32 bytes") from error


def decode_signature(text: object) -> bytes:
    """The signature in a record. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError("no signature")
    return base64.b64decode(text, validate=True)  # binascii.Error is a ValueError


def public_beside(ledger: Path) -> bytes | None:
    """The public half of the key beside a ledger, None where none is, or none that we may read."""
    try:
        key = load(beside(ledger))
    except (CredgateError, OSError):
        return None
    return key.public if key else None


def read_public(given: str) -> bytes:
    """A public key from a file, or from the argument itself. Raises LedgerError (usage)."""
    path = Path(given)
    try:
        text = path.read_bytes()[: _MAX_PEM + 1].decode("ascii", "strict") if _is_file(path) else given
        return parse_public(text)
    except (OSError, ValueError) as error:
        hint = "give pubkey.pem, a vkey as `credgate log checkpoint` shows it, or the key in base64"
        why = error if _is_file(path) else f"no such file, and {error}"
        raise LedgerError("bad_pubkey", f"--pubkey {given}: {why}", hint, exit_status=2) from error


def _is_file(path: Path) -> bool:
    return len(os.fsencode(path)) < 4096 and path.is_file()


def change_text(origin: str, old: str, new: str) -> bytes:
    """What both keys sign when `old` gives way to `new` (both in base64)."""
    return f"credgate ledger key change\n{origin}\n{old}\n{new}\n".encode()


def change_fields(origin: str, old: Key, new: Key) -> dict[str, object]:
    """The fields of the line `key_change`."""
    old_text, new_text = (base64.b64encode(key.public).decode() for key in (old, new))
    text = change_text(origin, old_text, new_text)
    signed = [base64.b64encode(key.sign(text)).decode() for key in (old, new)]
    return {"origin": origin, "old_pubkey": old_text, "pubkey": new_text, "sig_old": signed[0], "sig_new": signed[1]}


def for_ledger(ledger: Path, current: bytes | None) -> Key:
    """The key that goes on signing a ledger; `current`: the public half that is in force there, None before the first.

    The caller holds the ledger's lock. Raises LedgerError when the key in force isn't ours any more; PlaceError.
    """
    directory = beside(ledger)
    private_dir(directory)
    if current is not None:
        settle_next(directory, current)
    key = load(directory)
    if current is None:
        key = key or _make(directory / _PRIVATE)
        write_private(ledger / PUBLIC, public_pem(key.public))
    elif key is None or key.public != current:
        have = "none there" if key is None else f"the one there is {fingerprint(key.public)}"
        detail = f"{directory}: the key of this ledger is {fingerprint(current)}, {have}"
        hint = "restore it from a backup; without it, move the ledger and this directory away to begin anew"
        raise LedgerError("ledger_key_lost", detail, hint)
    return key
