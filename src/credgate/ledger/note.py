"""Checkpoints as signed notes: the forms of C2SP's signed-note and tlog-checkpoint. Pure but for the signature check.

A notes file is notes one behind the other, each ended by an empty line:

    credgate/ledger/0123456789abcdef      the origin, which is the key's name too
    42                                    lines that the root stands for
    <base64>                              RFC 6962 root
    segment 1                             lines of our own: where, the last line, and "final" or "export"
    last <sha256>

    — credgate/ledger/0123456789abcdef <base64 of 4 bytes that name the key, and the signature>
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

_ED25519 = b"\x01"  # the signature type of signed-note
_SIGNATURE = re.compile(r"— ([^\s+]+) ([A-Za-z0-9+/]+=*)", re.ASCII)
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_MAX_NOTE = 4096
ORIGIN = "credgate/ledger/"


class NoteError(Exception):
    """What isn't a signed note of the form above; the only thing that the parsers raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is signed. `root` has 32 bytes; `extra` are the extension lines."""

    origin: str
    size: int
    root: bytes
    extra: tuple[str, ...] = ()

    def text(self) -> bytes:
        """The bytes that the signature is over."""
        head = (self.origin, str(self.size), base64.b64encode(self.root).decode(), *self.extra)
        return "".join(f"{line}\n" for line in head).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A checkpoint with its signatures: `(key id, signature)`, all under the origin's name."""

    checkpoint: Checkpoint
    signatures: tuple[tuple[bytes, bytes], ...]

    def data(self) -> bytes:
        """The note as it stands in a file, with the empty line that ends it."""
        lines = [
            f"— {self.checkpoint.origin} {base64.b64encode(key + signature).decode()}\n"
            for key, signature in self.signatures
        ]
        return self.checkpoint.text() + b"\n" + "".join(lines).encode() + b"\n"

    def signed_by(self, public: bytes) -> bool:
        """Whether the Ed25519 key (32 bytes) signed it."""
        wanted = key_id(self.checkpoint.origin, public)
        text = self.checkpoint.text()
        return any(key == wanted and check(public, signature, text) for key, signature in self.signatures)


def origin_of(first_line: bytes) -> str:
    """The name of the ledger that begins with this line: no other one has it."""
    return origin_by(hashlib.sha256(first_line).hexdigest())


def origin_by(sha256: str) -> str:
    """The same of that line's digest, hexadecimal."""
    return f"{ORIGIN}{sha256[:16]}"


def key_id(name: str, public: bytes) -> bytes:
    """The four bytes that name a key in a signature line."""
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]


def vkey(name: str, public: bytes) -> str:
    """The key as C2SP's tools take it."""
    return f"{name}+{key_id(name, public).hex()}+{base64.b64encode(_ED25519 + public).decode()}"


def check(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether it is the key's Ed25519 signature (RFC 8032)."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  `log show` starts without it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def parse_notes(data: bytes) -> tuple[list[Note], int]:
    """The notes of a file, and the offset behind the last whole one: what follows is torn. Raises NoteError."""
    parts = data.split(b"\n\n")
    # text, signatures, text, signatures, ..., and what follows the last empty line
    whole = (len(parts) - 1) // 2
    notes, end = [], 0
    for n in range(whole):
        text, signatures = parts[2 * n], parts[2 * n + 1]
        notes.append(_note(text, signatures))
        end += len(text) + len(signatures) + 4
    return notes, end


def parse_note(data: bytes) -> list[Note]:
    """The notes of a file that someone kept: the empty line at the end may be missing. Raises NoteError for none."""
    notes, end = parse_notes(data.strip(b"\r\n") + b"\n\n")
    if not notes or data[end:].strip():
        raise NoteError("not a signed note, expected a checkpoint as `credgate log checkpoint` prints it")
    return notes


def _note(text: bytes, signatures: bytes) -> Note:
    if len(text) > _MAX_NOTE or len(signatures) > _MAX_NOTE:
        raise NoteError(f"note has {len(text) + len(signatures)} bytes, at most {_MAX_NOTE}")
    try:
        lines = text.decode("utf-8", "strict").split("\n")
        signed = signatures.decode("utf-8", "strict").split("\n")
    except UnicodeDecodeError as error:
        raise NoteError("note is not UTF-8") from error
    if len(lines) < 3 or not all(line and line.isprintable() for line in lines):
        raise NoteError(f"note has {len(lines)} lines, expected origin, size and root, and no empty or unprintable one")
    if not _SIZE.fullmatch(lines[1]):
        raise NoteError("second line of a note is not a size")
    root = _base64(lines[2], "root", 32)
    checkpoint = Checkpoint(origin=lines[0], size=int(lines[1]), root=root, extra=tuple(lines[3:]))
    return Note(checkpoint=checkpoint, signatures=tuple(_signature(line, lines[0]) for line in signed))


def _signature(line: str, origin: str) -> tuple[bytes, bytes]:
    match = _SIGNATURE.fullmatch(line)
    if match is None:
        raise NoteError("not a signature line")
    if match[1] != origin:
        raise NoteError("signature is under another name than the note's origin")
    data = _base64(match[2], "signature", 68)
    return data[:4], data[4:]


def _base64(text: str, what: str, length: int) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError(f"{what} is not base64") from error
    # the last character has bits that count for nothing: one form alone is taken
    if base64.b64encode(data).decode() != text or len(data) != length:
        raise NoteError(f"{what} has {len(data)} bytes, expected {length} in canonical base64")
    return data
