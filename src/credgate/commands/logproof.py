"""The part of `credgate log` that proves, exports and keeps: verify, checkpoint, export, rotate-key, prune."""

import argparse
import base64
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from credgate.ledger import keys
from credgate.ledger.bundle import write_bundle
from credgate.ledger.export import FORMATS
from credgate.ledger.files import segment_name, segments
from credgate.ledger.kept import head_of, kept
from credgate.ledger.note import Checkpoint, Note, NoteError, parse_note, vkey
from credgate.ledger.read import Damaged, Filter, Record, read_records
from credgate.ledger.record import LedgerError
from credgate.ledger.report import Kept, Report, Status, as_json
from credgate.ledger.retain import tidy
from credgate.ledger.scan import last_note
from credgate.ledger.settings import FILE, FileWitness, load_settings
from credgate.ledger.tree import consistency_proof, consistent, root_of
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger
from credgate.paths import Places
from credgate.text import escape


def run(directory: Path, options: argparse.Namespace, want: Filter) -> int:
    """Run the subcommand and return the exit status. Raises CredgateError."""
    match options.command:
        case "verify":
            return _verify(directory, options)
        case "checkpoint":
            return _checkpoint(directory, options)
        case "export":
            return _bundle(directory, options) if options.bundle else _export(directory, options, want)
        case "rotate-key":
            return _rotate(directory, options)
        case _:
            return _prune(directory, options)


# --- verify


def _verify(directory: Path, options: argparse.Namespace) -> int:
    pubkey = keys.read_public(options.pubkey) if options.pubkey else None
    noted = [kept(path) for path in options.checkpoint]
    since = kept(options.since) if options.since else None
    leaves: list[bytes] | None = [] if since else None
    witnesses, unread = _witnesses(directory, options)
    report = verify(directory, pubkey=pubkey, against=[*noted, *([since] if since else []), *witnesses], leaves=leaves)
    proof = _proof(report, since.notes[-1], leaves) if since and leaves else None
    if options.json:
        document = {**as_json(report), "notes": [*report.notes, *unread], "consistency": proof}
        _say(json.dumps(document, indent=2))
    else:
        _print_report(directory, report, unread, proof)
    return int(report.status)


def _witnesses(directory: Path, options: argparse.Namespace) -> tuple[list[Kept], list[str]]:
    """What the witnesses that are files hold, for one's own ledger; and which of them can't be read."""
    if options.ledger is not None:
        return [], []
    found, unread = [], []
    for witness in load_settings(Places.from_env(os.environ).config / FILE).witnesses:
        if not isinstance(witness, FileWitness):
            continue
        try:
            notes = parse_note(head_of(witness.path))
            found.append(Kept(who=f"file {witness.path}", notes=notes, others=True))
        except OSError as error:
            unread.append(f"witness file {witness.path}: {(error.strerror or str(error)).lower()}")
        except NoteError as error:
            unread.append(f"witness file {witness.path}: {error}")
    return found, unread


def _proof(report: Report, old: Note, leaves: list[bytes]) -> Mapping[str, object] | None:
    """RFC 6962 proof that the signed tree goes on from the noted one; None where it doesn't, or lines were removed."""
    size = old.checkpoint.size
    if report.status is not Status.SOUND or report.first > 1 or not 0 < size <= len(leaves):
        return None
    end = report.signed if report.signed >= size else len(leaves)
    tree = leaves[:end]
    root, proof = root_of(tree), consistency_proof(tree, size)
    if not consistent(size, old.checkpoint.root, end, root, proof):
        raise LedgerError("no_proof", f"no proof leads from {size} to {end} lines", "report this", exit_status=1)
    return {
        "from": size,
        "to": end,
        "old_root": _b64(old.checkpoint.root),
        "new_root": _b64(root),
        "proof": [_b64(node) for node in proof],
    }


def _print_report(directory: Path, report: Report, unread: list[str], proof: Mapping[str, object] | None) -> None:
    words = {
        Status.SOUND: "sound: no line was changed, removed from the middle, doubled or moved",
        Status.TAMPERED: "TAMPERED",
        Status.TRUNCATED: "TRUNCATED",
        Status.INCOMPLETE: "INCOMPLETE",
        Status.UNREADABLE: "UNREADABLE",
    }
    rows = [("ledger", str(directory)), ("state", words[report.status]), ("records", f"{report.records} sound")]
    if report.seq is not None:
        where = f" in {report.segment}" if report.segment else ""
        rows.append(("first bad", f"record {report.seq}{where} ({report.kind})"))
    rows += [("why", report.detail)] if report.detail else []
    rows += [("last line", f"sha256 {report.last_sha256}")] if report.last_sha256 else []
    rows += (
        [("tree", f"root {_b64(report.root)} over {report.records} lines of {report.origin}")] if report.origin else []
    )
    rows.append(("signed", f"{report.signed} records, by {report.checkpoints} checkpoints"))
    rows += [("key", f"{report.pubkey} ({report.trust or 'not checked'})")] if report.pubkey else []
    if proof:
        rows.append(("since", f"goes on from record {proof['from']}; proof to {proof['to']}: {_nodes(proof)}"))
    alone = report.witness.startswith("self-attested")
    rows.append(("witness", f"{report.witness}{' (the key holder could have written it anew)' if alone else ''}"))
    rows += [("note", note) for note in (*report.notes, *unread)]
    for name, value in rows:
        _say(f"{name:10} {escape(value)}")


def _nodes(proof: Mapping[str, object]) -> str:
    nodes = proof["proof"]
    return " ".join(str(node) for node in nodes) if isinstance(nodes, list) and nodes else "the same tree"


# --- checkpoint


def _checkpoint(directory: Path, options: argparse.Namespace) -> int:
    """Sign the ledger as it is, or, where the key isn't, print the youngest checkpoint of its own."""
    report = verify(directory, pubkey=keys.read_public(options.pubkey) if options.pubkey else None)
    if report.status is not Status.SOUND:
        detail = f"ledger {directory} is {report.status.name.lower()}: {report.detail}"
        raise LedgerError("ledger_unsound", detail, "see `credgate log verify`", int(report.status))
    key = keys.load(keys.beside(directory))
    if key is not None and keys.fingerprint(key.public) == report.pubkey:
        extra = (f"last {report.last_sha256}",)
        note = key.note(Checkpoint(origin=report.origin, size=report.records, root=report.root, extra=extra))
    else:
        youngest = last_note(directory)
        if youngest is None:
            raise LedgerError("no_checkpoint", f"ledger {directory} has no checkpoint yet", "try again in a second")
        note = youngest
    if options.json:
        checkpoint = note.checkpoint
        public = base64.b64decode(report.pubkey)
        shown = {"note": note.data().decode(), "size": checkpoint.size, "root": _b64(checkpoint.root)}
        _say(
            json.dumps({**shown, "origin": report.origin, "pubkey": report.pubkey, "vkey": vkey(report.origin, public)})
        )
    else:
        sys.stdout.write(note.data().decode())
    return 0


# --- export


def _bundle(directory: Path, options: argparse.Namespace) -> int:
    if options.pubkey:
        _must_be_signed(directory, options.pubkey)
    try:
        report = write_bundle(directory, options.bundle)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise LedgerError("cannot_write", f"can't write {options.bundle}: {why}", "choose another place") from error
    if options.json:
        _say(json.dumps({"bundle": str(options.bundle), "records": report.records, "pubkey": report.pubkey}))
    else:
        _say(f"{escape(str(options.bundle))}: {report.records} records; key {report.pubkey}")
    return 0


def _must_be_signed(directory: Path, pubkey: str) -> None:
    report = verify(directory, pubkey=keys.read_public(pubkey))
    if report.status is not Status.SOUND:
        detail = f"ledger {directory} is {report.status.name.lower()}: {report.detail}"
        raise LedgerError("ledger_unsound", detail, "see `credgate log verify`", int(report.status))


def _export(directory: Path, options: argparse.Namespace, want: Filter) -> int:
    if options.pubkey:
        _must_be_signed(directory, options.pubkey)
    damaged: list[Damaged] = []
    lines = FORMATS[options.format](_records(directory, want, damaged))
    if options.output is None:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
    else:
        try:
            # 0600: it says what the ledger says; CSV brings its own line ends
            fd = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
                file.writelines(lines)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise LedgerError("cannot_write", f"can't write {options.output}: {why}", "choose another place") from error
    if damaged:
        sys.stderr.write(f"error: {len(damaged)} damaged lines left out\nhint: credgate log verify\n")
    return 1 if damaged else 0


def _records(directory: Path, want: Filter, damaged: list[Damaged]) -> Iterator[Record]:
    for item in read_records(directory, want):
        if isinstance(item, Damaged):
            damaged.append(item)
        else:
            yield item


# --- keeping


def _open(directory: Path) -> Ledger:
    """The ledger, for keeping it; none is made here."""
    if not directory.is_dir() or not segments(directory):
        detail = f"no ledger in {directory}: expected {segment_name(1)}"
        raise LedgerError("ledger_unreadable", detail, "it is made by the first `credgate run`", exit_status=4)
    return Ledger.open(directory)


def _rotate(directory: Path, options: argparse.Namespace) -> int:
    with _open(directory) as ledger:
        public = ledger.change_key()
    if options.json:
        _say(json.dumps({"pubkey": keys.fingerprint(public), "pem": keys.public_pem(public).decode()}))
    else:
        _say(f"the ledger is signed by {keys.fingerprint(public)} from here on; give auditors the new key")
    return 0


def _prune(directory: Path, options: argparse.Namespace) -> int:
    with _open(directory) as ledger:
        try:
            gone = tidy(directory, options.keep, options.gzip, ledger.record_pruned)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise LedgerError("cannot_prune", f"{directory}: {why}", "see `credgate log verify`") from error
    if options.json:
        _say(json.dumps({"removed": gone}))
    else:
        _say(f"{gone} segments removed")
    return 0


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
