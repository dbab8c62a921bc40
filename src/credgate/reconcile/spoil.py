"""What a liar does to a ledger that is written already, for the self-test: none of it may verify."""

import json
from dataclasses import replace
from pathlib import Path

from credgate.ledger import keys
from credgate.ledger.chain import Head, link
from credgate.ledger.files import notes_name, segment_name
from credgate.ledger.note import Checkpoint, parse_notes
from credgate.ledger.record import OWN_FIELDS, Stamp
from credgate.ledger.tree import Tree, leaf_hash
from credgate.reconcile.fabricate import sign, signer


def _lines(directory: Path) -> list[bytes]:
    return (directory / segment_name(1)).read_bytes().splitlines(keepends=True)


def _write(directory: Path, lines: list[bytes]) -> None:
    (directory / segment_name(1)).write_bytes(b"".join(lines))


def edited(directory: Path) -> None:
    """A line changed, without the hashes that would have to follow."""
    lines = _lines(directory)
    at = next(i for i, line in enumerate(lines) if b'"ev":"deny"' in line)
    _write(directory, [*lines[:at], lines[at].replace(b'"ev":"deny"', b'"ev":"mint"'), *lines[at + 1 :]])


def lost_line(directory: Path) -> None:
    """A line removed from the middle."""
    lines = _lines(directory)
    _write(directory, lines[:40] + lines[41:])


def forged_checkpoint(directory: Path) -> None:
    """The last lines cut off, and a checkpoint of what is left, by a key that isn't the ledger's."""
    kept = _lines(directory)[:-40]
    _write(directory, kept)
    public = (directory / keys.PUBLIC).read_bytes()
    sign(directory, replace(_checkpoint(directory), size=len(kept), root=_root(kept)), signer("forger"))
    (directory / keys.PUBLIC).write_bytes(public)


def stale_checkpoint(directory: Path) -> None:
    """A line replaced by another, all chained anew, and the old checkpoint kept."""
    lines = _lines(directory)
    _write(directory, _chained([*lines[:40], lines[41], *lines[41:]]))


def unsigned(directory: Path) -> None:
    """All signatures taken away: what is left is a chain that anybody could have made."""
    (directory / notes_name(1)).unlink()
    (directory / keys.PUBLIC).unlink()


def cut(directory: Path) -> None:
    """The end cut off, within a line."""
    path = directory / segment_name(1)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])


def _checkpoint(directory: Path) -> Checkpoint:
    notes, _ = parse_notes((directory / notes_name(1)).read_bytes())
    return notes[-1].checkpoint


def _root(lines: list[bytes]) -> bytes:
    tree = Tree()
    for line in lines:
        tree.push(leaf_hash(line))
    return tree.root()


def _chained(lines: list[bytes]) -> list[bytes]:
    head, out = Head(), []
    for line in lines:
        record = json.loads(line)
        stamp = Stamp(ts=record["ts"], boot=record["boot"], mono_ns=record["mono_ns"])
        fields = {name: value for name, value in record.items() if name not in OWN_FIELDS}
        text, head = link(head, record["ev"], fields, stamp)
        out.append(text)
    return out
