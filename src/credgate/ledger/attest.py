"""Who signed a ledger: its keys, its checkpoints, and those that somebody else kept. Part of verify.py."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from credgate.ledger import keys
from credgate.ledger.chain import Head, LineFault, parse_line
from credgate.ledger.files import PACKED, PackError, lines, notes_name, packed_lines, read_file, segment_name, segments
from credgate.ledger.note import Note, NoteError, check, parse_notes
from credgate.ledger.report import SELF_ATTESTED, Kept, Status
from credgate.ledger.scan import decode_hash, read_header
from credgate.ledger.tree import Tree
from credgate.ledger.walk import SETTLE, Stop, Walk, open_file


def nothing_promised(walk: Walk, others: Sequence[Note]) -> None:
    """Hold the end against checkpoints of more lines than there are. Raises Stop."""
    ahead = [*walk.notes, *others]
    if not ahead:
        return
    size = max(note.checkpoint.size for note in ahead)
    detail = f"a checkpoint says that there were {size} lines, there are {walk.head.seq}"
    if not any(note.signed_by(key) for note in ahead for key in walk.chain):
        raise Stop(Status.TAMPERED, "checkpoint_forged", f"{detail}; the ledger's key didn't sign it")
    raise Stop(Status.TRUNCATED, "checkpoint_ahead", detail)


def first_key(directory: Path, signed: bool) -> bytes | None:
    """The ledger's first key as it names it itself; it must, where it is `signed`. Raises Stop, OSError."""
    try:
        data = read_file(directory / keys.PUBLIC)
        key = keys.parse_public(data.decode("ascii", "strict"))
        if data != keys.public_pem(key):
            raise ValueError("not in the form that the writer gave it")
        return key
    except FileNotFoundError:
        if signed:
            raise Stop(Status.TAMPERED, "pubkey_missing", f"{keys.PUBLIC} is missing", keys.PUBLIC, seq=1) from None
        return None
    except ValueError as error:
        raise Stop(Status.TAMPERED, "pubkey_damaged", f"{keys.PUBLIC}: {error}", keys.PUBLIC, seq=1) from error


def change_key(path: Path, record: Mapping[str, object], walk: Walk) -> None:
    """Go over to a new key, if both sign that. A change that was made known twice counts once."""
    old, new = str(record.get("old_pubkey")), str(record.get("pubkey"))
    text = keys.change_text(str(record.get("origin")), old, new)
    try:
        before, after = decode_hash(old), decode_hash(new)
        signed = check(before, keys.decode_signature(record.get("sig_old")), text)
        signed = signed and check(after, keys.decode_signature(record.get("sig_new")), text)
    except ValueError:
        signed = False
    if not signed or before != walk.key or (walk.origin and record.get("origin") != walk.origin):
        raise Stop(Status.TAMPERED, "key_change_unsigned", "a change of key isn't signed by both keys", path.name)
    walk.key = after
    walk.chain.append(after)


def read_notes(path: Path, walk: Walk) -> list[Note]:
    """The checkpoints of a segment; that the last one is torn is noted for the end. Raises Stop, OSError."""
    try:
        data = read_file(path)
        found, end = parse_notes(data)
        if end < len(data) and walk.live:
            time.sleep(SETTLE)
            found, end = parse_notes(data := read_file(path))
    except NoteError as error:
        raise Stop(Status.TAMPERED, "checkpoint_damaged", f"{path.name}: {error}", path.name, seq=1) from error
    if end < len(data):
        walk.torn[path.name] = (0, f"{len(data) - end} bytes of a checkpoint without an end")
    return found


def check_notes(path: Path, walk: Walk) -> None:
    """Hold the checkpoints that are of exactly these lines against the tree."""
    if walk.head.seq in walk.wanted:
        walk.wanted[walk.head.seq] = walk.tree.root()
    while walk.notes and walk.notes[0].checkpoint.size <= walk.head.seq:
        note = walk.notes.pop(0)
        if note.checkpoint.size != walk.head.seq:
            detail = f"checkpoint of {note.checkpoint.size} lines out of its order"
            raise Stop(Status.TAMPERED, "checkpoint_order", detail, path.name)
        _check_note(note, walk, path.name)


def _check_note(note: Note, walk: Walk, where: str) -> None:
    if note.checkpoint.origin != walk.origin:
        raise Stop(Status.TAMPERED, "checkpoint_foreign", "a checkpoint of another ledger", where, seq=walk.head.seq)
    if walk.key is None or not note.signed_by(walk.key):
        detail = f"the checkpoint of {note.checkpoint.size} lines isn't signed by the ledger's key"
        raise Stop(Status.TAMPERED, "checkpoint_forged", detail, where, seq=walk.head.seq)
    if note.checkpoint.root != walk.tree.root():
        detail = f"the first {note.checkpoint.size} lines aren't those that were signed"
        raise Stop(Status.TAMPERED, "root_mismatch", detail, where, seq=walk.head.seq)
    walk.last, walk.met = note, walk.met + 1


def begin_behind_removed(directory: Path, walk: Walk, first: tuple[int, Path], kept: Sequence[Note]) -> None:
    """Start where segments were removed: from the header of the first that is there, held against the signed end."""
    number, path = first
    line = next(_some_lines(path), b"")
    header = read_header(line)
    if header is None or not kept or kept[-1].checkpoint.size != header.tree.size:
        detail = f"{segment_name(number - 1)} is missing, and nothing signed says what was in it"
        raise Stop(Status.TAMPERED, "segment_missing", detail, segment_name(number - 1), seq=1)
    walk.head = Head(seq=header.tree.size, sha256=str(parse_line(line)["prev"]))
    walk.tree, walk.origin = Tree(header.tree.size, header.tree.nodes), header.origin
    walk.first = header.tree.size + 1
    for change in _kept_changes(directory):
        if header.key == walk.key:
            break
        change_key(directory / keys.CHANGES, change, walk)
    _check_note(kept[-1], walk, notes_name(number - 1))


def _some_lines(path: Path) -> Iterator[bytes]:
    fd = open_file(path)
    try:
        yield from packed_lines(fd) if path.name.endswith(PACKED) else lines(fd)
    except PackError as error:
        raise Stop(Status.TAMPERED, "pack_damaged", str(error), path.name) from error
    finally:
        os.close(fd)


def _kept_changes(directory: Path) -> Iterator[Mapping[str, object]]:
    path = directory / keys.CHANGES
    if not path.exists():
        return
    for line in _some_lines(path):
        try:
            yield parse_line(line)
        except LineFault as fault:
            raise Stop(Status.TAMPERED, fault.fault, f"{path.name}: {fault.detail}", path.name, seq=1) from fault


def check_key(walk: Walk, pubkey: bytes | None) -> str:
    """Why the ledger's key is the right one. A key given, or lying beside the ledger, must be one of the ledger's."""
    if not all(any(note.signed_by(key) for key in walk.chain) for note in walk.old_notes):
        detail = "a checkpoint of removed records isn't signed by the ledger's key"
        raise Stop(Status.TAMPERED, "checkpoint_forged", detail, seq=1)
    if pubkey is not None:
        if pubkey not in walk.chain:
            detail = f"the key given is {keys.fingerprint(pubkey)}, expected one of the ledger's"
            raise Stop(Status.TAMPERED, "wrong_key", detail, keys.PUBLIC, seq=1)
        return "the key given"
    if walk.key is None:
        return ""
    own = keys.public_beside(walk.directory)
    if own is None:
        return "the ledger itself names it: compare it with one that you know, or give --pubkey"
    if own != walk.key:
        detail = f"the key beside the ledger is {keys.fingerprint(own)}, expected {keys.fingerprint(walk.key)}"
        raise Stop(Status.TAMPERED, "wrong_key", detail, keys.PUBLIC, seq=1)
    return "the install's own key"


def check_kept(walk: Walk, against: Sequence[Kept]) -> str:
    """Hold checkpoints that were kept elsewhere against the tree, and say who attests what."""
    said = []
    for kept in against:
        if kept.others and not any(note.checkpoint.origin == walk.origin for note in kept.notes):
            said.append(f"{kept.who}: knows no checkpoint of this ledger")
            continue
        sizes = [
            _check_kept_note(walk, note, kept.who)
            for note in kept.notes
            if not kept.others or note.checkpoint.origin == walk.origin
        ]
        if sizes:
            said.append(f"{kept.who}: agrees up to record {max(sizes)}")
    if not any("agrees" in words for words in said):
        said.insert(0, SELF_ATTESTED)
    return "; ".join(said)


def _check_kept_note(walk: Walk, note: Note, who: str) -> int:
    size = note.checkpoint.size
    if note.checkpoint.origin != walk.origin:
        raise Stop(Status.TAMPERED, "checkpoint_foreign", f"{who}: a checkpoint of another ledger", seq=1)
    if not any(note.signed_by(key) for key in walk.chain):
        raise Stop(Status.TAMPERED, "wrong_key", f"{who}: a checkpoint isn't signed by this ledger's key", seq=1)
    if size > walk.head.seq:
        detail = f"{who}: a checkpoint says that there were {size} lines, there are {walk.head.seq}"
        raise Stop(Status.TRUNCATED, "checkpoint_ahead", detail)
    if size < walk.first - 1:
        detail = f"{who}: a checkpoint of {size} lines, of which the ledger holds none any more"
        raise Stop(Status.INCOMPLETE, "checkpoint_pruned", detail, seq=walk.first)
    ours = walk.wanted[size] or b""
    if size == walk.first - 1 and not ours:  # the end of what was removed: the signed root is all there is of it
        ours = _removed_root(walk)
    if ours != note.checkpoint.root:
        raise Stop(Status.TAMPERED, "root_mismatch", f"{who}: the first {size} lines were others", seq=size)
    return size


def _removed_root(walk: Walk) -> bytes:
    """The root over the lines that were removed, as the first segment that is there begins with it."""
    header = read_header(next(_some_lines(segments(walk.directory)[0][1]), b""))
    return header.root if header else b""
