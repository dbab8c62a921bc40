"""Old segments: packed by gzip, and removed as wholes without taking the proof of the rest away.

Of a removed segment its last checkpoint stays, which is the signed root over all that was; the segment behind it begins
with the frontier from which the tree goes on; key changes are kept aside. That something was removed stands in the
ledger, as `pruned`, before the first file goes.
"""

import base64
import gzip
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from credgate.ledger.files import PACKED, notes_files, notes_name, open_plain, segment_lines, segments
from credgate.ledger.keys import CHANGES
from credgate.ledger.note import NoteError
from credgate.ledger.record import LedgerError
from credgate.ledger.scan import Header, notes_of, read_header
from credgate.paths import open_private, sync_dir, write_private

type RecordPruned = Callable[[Mapping[str, object]], None]
_KEY_CHANGE = b'"ev":"key_change"'


def tidy(directory: Path, keep: int, pack: bool, record: RecordPruned) -> int:
    """Leave `keep` segments (0: all), packed but for the last; return how many went.

    Raises OSError, LedgerError, PlaceError.
    """
    gone = prune(directory, keep, record) if keep else 0
    if pack:
        for _, path in segments(directory)[:-1]:
            pack_segment(path)
    return gone


def pack_segment(path: Path) -> None:
    """Replace a closed segment by its packed form. A crash leaves one of them, or both."""
    if path.name.endswith(PACKED):
        return
    packed = path.with_name(path.name + PACKED)
    draft = path.with_name(f".{path.name}{PACKED}.new")
    draft.unlink(missing_ok=True)
    with (
        os.fdopen(open_plain(path), "rb") as source,
        os.fdopen(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as target,
    ):
        # no name and no time: the same lines give the same bytes
        with gzip.GzipFile("", "wb", 6, target, 0) as squeezed:
            shutil.copyfileobj(source, squeezed)
        target.flush()
        os.fsync(target.fileno())
    draft.replace(packed)
    sync_dir(packed.parent)
    path.unlink()


def prune(directory: Path, keep: int, record: RecordPruned) -> int:
    """Remove all segments but the last `keep` and return how many; `record` writes the line that says so.

    More stay where a segment's end isn't signed yet. Raises LedgerError where none can go: the ends aren't signed, or
    the segments behind begin without a frontier (an old ledger).
    """
    if keep < 1:
        raise LedgerError("bad_keep", f"keep is {keep}, expected at least 1", "", exit_status=2)
    known = segments(directory)
    if len(known) <= keep:
        _sweep(directory, known[0][0] if known else 0)
        return 0
    cut, header = _boundary(directory, known, len(known) - keep)
    gone, last = known[:cut], known[cut - 1][0]
    _keep_changes(directory, gone)
    root = base64.b64encode(header.root).decode()
    record({"segment": last, "tree_size": header.tree.size, "root": root, "count": len(gone)})
    for _, path in gone:  # the oldest first: what a crash leaves is a whole ledger from some segment on
        # packed first, as segments() prefers the other: a crash while it was packed left both
        path.with_name(path.name.removesuffix(PACKED) + PACKED).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    _sweep(directory, last + 1)
    sync_dir(directory)
    return len(gone)


def _boundary(directory: Path, known: list[tuple[int, Path]], most: int) -> tuple[int, Header]:
    """How many of the first segments can go, `most` at most, and what the one behind them begins with."""
    for cut in range(most, 0, -1):
        header = read_header(next(segment_lines(known[cut][1]), b""))
        number = known[cut][0] - 1
        try:
            notes, _, _ = notes_of(directory, number)
        except NoteError as error:
            raise LedgerError("ledger_damaged", f"{notes_name(number)}: {error}", "credgate log verify") from error
        if header is not None and notes and notes[-1].checkpoint.size == header.tree.size:
            return cut, header
    detail = f"{directory}: no segment begins with a frontier behind one whose end is signed"
    raise LedgerError("ledger_not_prunable", detail, "try again once another segment has ended")


def _keep_changes(directory: Path, gone: list[tuple[int, Path]]) -> None:
    found = [line for _, path in gone for line in segment_lines(path) if _KEY_CHANGE in line]
    if found:
        path = directory / CHANGES
        old = path.read_bytes() if path.exists() else b""
        write_private(path, old + b"".join(line for line in found if line not in old))


def _sweep(directory: Path, first: int) -> None:
    """Of segments that are gone, leave the last note alone. Ends what a crash cut short, too."""
    for number, path in notes_files(directory):
        if number >= first:
            return
        try:
            notes, _, size = notes_of(directory, number)
        except NoteError as error:
            raise LedgerError("ledger_damaged", f"{path.name}: {error}", "credgate log verify") from error
        if notes and len(notes[-1].data()) != size:
            write_private(path, notes[-1].data())
