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
from credgate.ledger.scan import notes_of, read_header
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

    Raises LedgerError where a segment's end isn't signed yet, or begins without a frontier (an old ledger).
    """
    if keep < 1:
        raise LedgerError("bad_keep", f"keep is {keep}, expected at least 1", "", exit_status=2)
    known = segments(directory)
    gone, stays = known[:-keep], known[-keep:]
    if not gone:
        _sweep(directory, stays[0][0] if stays else 0)
        return 0
    header = read_header(next(segment_lines(stays[0][1]), b""))
    last = gone[-1][0]
    if header is None:
        detail = f"{stays[0][1].name} doesn't begin with what came before, and can't stand alone"
        raise LedgerError("ledger_not_prunable", f"{directory}: {detail}", "keep one more segment")
    try:
        notes, _, _ = notes_of(directory, last)
    except NoteError as error:
        raise LedgerError("ledger_damaged", f"{notes_name(last)}: {error}", "credgate log verify") from error
    if not notes or notes[-1].checkpoint.size != header.tree.size:
        detail = f"{directory}: the end of segment {last} isn't signed"
        raise LedgerError("ledger_not_prunable", detail, "keep one more segment")
    _keep_changes(directory, gone)
    root = base64.b64encode(header.root).decode()
    record({"segment": last, "tree_size": header.tree.size, "root": root, "count": len(gone)})
    for _, path in gone:  # the oldest first: what a crash leaves is a whole ledger from some segment on
        # packed first, as segments() prefers the other: a crash while it was packed left both
        path.with_name(path.name.removesuffix(PACKED) + PACKED).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    _sweep(directory, stays[0][0])
    sync_dir(directory)
    return len(gone)


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
