"""A ledger as one file for an auditor's machine: a tar of segments, checkpoints and public key, the same each time.

Of a ledger that goes on, what was there when it was exported; a checkpoint with the extension line "export", signed for
it, says that it was cut there on purpose. The private key never goes in.
"""

import errno
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from credgate.ledger import keys
from credgate.ledger.checkpoints import EXPORT
from credgate.ledger.files import (
    MAX_TAIL,
    PACKED,
    notes_files,
    notes_name,
    open_plain,
    read_file,
    segment_lines,
    segments,
    torn_files,
)
from credgate.ledger.note import Checkpoint, Note, parse_notes
from credgate.ledger.record import LedgerError
from credgate.ledger.report import Report, Status
from credgate.ledger.verify import verify

_MEMBER_BYTES = 8**11 - 1  # as many as USTAR can say
_PREFIX = "credgate-ledger/"
_MEMBER = re.compile(
    r"credgate-ledger/(seg-\d{6}\.jsonl(\.gz)?|seg-\d{6}\.notes|torn-\d{1,9}\.bin|pubkey\.pem|keychanges\.jsonl)",
    re.ASCII,
)


def write_bundle(directory: Path, target: Path) -> Report:
    """Write the bundle and return what verification said of the ledger. Raises LedgerError, OSError.

    A ledger that isn't sound is not bundled: exit_status is that of `log verify`. The target is replaced as a whole.
    """
    report = verify(directory)
    if report.status is not Status.SOUND:
        why = f"ledger {directory} is {report.status.name.lower()}: {report.detail}"
        raise LedgerError(
            "ledger_unsound", why, "see `credgate log verify`; copy the directory itself", int(report.status)
        )
    draft = target.with_name(f".{target.name}.new")
    try:
        with (
            os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            _fill(tar, directory, report)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return report


def _fill(tar: tarfile.TarFile, directory: Path, report: Report) -> None:
    for name in (keys.CHANGES, keys.PUBLIC):
        if (directory / name).exists():
            _add(tar, name, read_file(directory / name))
    count, last = report.first - 1, 0
    for number, path in segments(directory):
        if count >= report.records:  # begun since the ledger was verified
            break
        count, length = _until(path, count, report.records)
        _add_head(tar, path, length)
        last = number
    extra = export_note(directory, report, last)
    for number, path in notes_files(directory):
        if number <= last:
            notes, _ = parse_notes(read_file(path))
            there = [note for note in notes if note.checkpoint.size <= report.records]
            _add(tar, path.name, b"".join(note.data() for note in (*there, *(extra if number == last else ()))))
    if extra and not (directory / notes_name(last)).exists():
        _add(tar, notes_name(last), extra[0].data())
    for _, path in torn_files(directory):
        _add_head(tar, path, 0, most=MAX_TAIL)


def _until(path: Path, count: int, limit: int) -> tuple[int, int]:
    """Count lines on to `limit`; return the count and the bytes that they take (0: a packed segment, taken whole)."""
    length = 0
    for line in segment_lines(path):
        if count >= limit:
            break
        count, length = count + 1, length + len(line)
    return count, 0 if path.name.endswith(PACKED) else length


def export_note(directory: Path, report: Report, segment: int) -> Sequence[Note]:
    """The checkpoint that says "cut here on purpose", where the ledger goes on behind it and the key is at hand."""
    if not report.live:
        return ()
    key = keys.load(keys.beside(directory))
    if key is None:
        detail = f"{keys.beside(directory)} holds no key, and a ledger that goes on must be signed where it is cut"
        raise LedgerError("no_key", detail, "export it as the user whose ledger it is, or stop the gateway first")
    extra = (f"segment {segment}", f"last {report.last_sha256}", EXPORT)
    checkpoint = Checkpoint(origin=report.origin, size=report.records, root=report.root, extra=extra)
    return (key.note(checkpoint),)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_member(name, len(data)), io.BytesIO(data))


def _add_head(tar: tarfile.TarFile, path: Path, length: int, most: int = _MEMBER_BYTES) -> None:
    with os.fdopen(open_plain(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if (length or size) > most:
            raise OSError(errno.EFBIG, f"{path.name} has {length or size} bytes, at most {most}")
        tar.addfile(_member(path.name, length or size), file)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(_PREFIX + name)
    member.size, member.mode, member.mtime = size, 0o600, 0
    return member


@contextmanager
def opened(place: Path) -> Iterator[Path]:
    """The directory of a ledger that is given as one, or as a bundle (unpacked for as long as this is open).

    Raises LedgerError (exit_status 4) for what is neither.
    """
    if not place.is_file():
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="credgate-bundle-") as root:
        directory = Path(root) / "ledger"
        directory.mkdir(mode=0o700)
        try:
            _unpack(place, directory)
        # RecursionError: a header of tarfile's that says what the next one is called, again and again
        except (tarfile.TarError, EOFError, ValueError, OSError, RecursionError) as error:
            hint = "it is made by `credgate log export --bundle FILE`"
            raise LedgerError("bad_bundle", f"{place}: not a bundle: {error}", hint, exit_status=4) from error
        yield directory


def _unpack(place: Path, directory: Path) -> None:
    """Take the files that a bundle may hold, and nothing else: names are matched, no path or link is followed."""
    with place.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            match = _MEMBER.fullmatch(member.name)
            # a sparse one would take more room than the bundle has bytes, without end
            source = tar.extractfile(member) if match and member.isreg() and not member.issparse() else None
            if match is None or source is None:
                raise ValueError(f"holds {member.name[:80]!r}")
            with (directory / match[1]).open("xb") as target:
                shutil.copyfileobj(source, target)
