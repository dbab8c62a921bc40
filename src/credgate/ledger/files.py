"""The files of a ledger: segments in their order, and the tail of one. No lock, no write.

`seg-N.jsonl` holds lines; a closed one may be packed as `seg-N.jsonl.gz`. `seg-N.notes` holds its checkpoints.
"""

import errno
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from credgate.ledger.record import MAX_LINE

RESERVE = "reserve.bin"
PACKED = ".gz"
_SEGMENT = re.compile(r"seg-(\d{6})\.jsonl", re.ASCII)
_PACKED = re.compile(r"seg-(\d{6})\.jsonl\.gz", re.ASCII)
_NOTES = re.compile(r"seg-(\d{6})\.notes", re.ASCII)
_TORN = re.compile(r"torn-(\d+)\.bin", re.ASCII)
_PENDING = re.compile(r"torn-(\d+)\.new", re.ASCII)
_CHUNK = 64 * 1024
MAX_FILE = 256 << 20  # bytes of a key, or of a segment's checkpoints: one a second of a day takes a tenth of it
MAX_TAIL = 1 << 30  # bytes without a newline; a file may say that it has more than any disk


def segment_name(number: int) -> str:
    """Name of segment `number`, counted from 1."""
    return f"seg-{number:06d}.jsonl"


def notes_name(number: int) -> str:
    """Name of the file with the checkpoints of segment `number`."""
    return f"seg-{number:06d}.notes"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """The segments by number, packed or not. Gaps are the verifier's business. OSError comes through."""
    # a crash while one is packed leaves both, and the packed one may be younger than what we saw of the other
    return sorted((dict(_numbered(directory, _PACKED)) | dict(_numbered(directory, _SEGMENT))).items())


def notes_files(directory: Path) -> list[tuple[int, Path]]:
    """The files with checkpoints, by number of their segment."""
    return _numbered(directory, _NOTES)


def torn_files(directory: Path) -> list[tuple[int, Path]]:
    """The files that torn tails were moved to, by number."""
    return _numbered(directory, _TORN)


def pending_files(directory: Path) -> list[tuple[int, Path]]:
    """Torn tails whose record may not be written yet, by number: a crash came in between."""
    return _numbered(directory, _PENDING)


def _numbered(directory: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    found = ((pattern.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


class NotRegularError(OSError):
    """A FIFO, a device or the like where a file of the ledger belongs."""


class PackError(Exception):
    """A packed segment that can't be unpacked."""


def open_plain(path: Path) -> int:
    """Open a file of a ledger for reading, without waiting and without following a link. OSError comes through."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(None, "not a regular file", str(path))
    return fd


def read_file(path: Path) -> bytes:
    """A small file of a ledger, whole. OSError comes through, also for one that is not small."""
    with os.fdopen(open_plain(path), "rb") as file:
        # by what it says first: a hole is read as zeros, and a terabyte of them takes nothing on a disk
        if os.fstat(file.fileno()).st_size <= MAX_FILE and len(data := file.read(MAX_FILE + 1)) <= MAX_FILE:
            return data
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def segment_lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    """The lines of a segment from an offset of its unpacked form; as lines(). Raises OSError, PackError."""
    try:
        fd = open_plain(path)
    except FileNotFoundError:
        if path.name.endswith(PACKED):
            raise
        path = path.with_name(path.name + PACKED)  # it was packed between the listing and now
        fd = open_plain(path)
    try:
        yield from packed_lines(fd, offset) if path.name.endswith(PACKED) else lines(fd, offset)
    finally:
        os.close(fd)


def packed_lines(fd: int, offset: int = 0) -> Iterator[bytes]:
    """As lines(), of an open packed segment. Raises PackError."""
    try:
        with os.fdopen(os.dup(fd), "rb") as raw, gzip.open(raw, "rb") as file:
            raw.seek(0)
            file.seek(offset)
            while line := file.readline(MAX_LINE + 1):
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PackError(f"can't be unpacked: {error}") from error


def lines(fd: int, offset: int = 0) -> Iterator[bytes]:
    """The lines of an open segment, newlines included; the last one may lack its own, or be cut at the bound."""
    rest = b""
    while chunk := os.pread(fd, _CHUNK, offset):
        offset += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(rest) > MAX_LINE:  # no line of ours: don't collect gigabytes of it
            break
    if rest:
        yield rest


def whole_length(fd: int) -> int:
    """Offset behind the last newline of an open segment: what follows is a torn tail. Raises OSError for a longer one
    than a crash can leave.
    """
    size = end = os.fstat(fd).st_size
    while end > 0:
        if size - end > MAX_TAIL:
            raise OSError(errno.EFBIG, f"more than {MAX_TAIL >> 30} GiB without a newline at its end")
        start = max(0, end - _CHUNK)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def last_line(fd: int, end: int) -> bytes:
    """The line that ends at offset `end` (behind its newline); b"" for none, cut in front when it is too long."""
    start = max(0, end - MAX_LINE - 1)
    chunk = os.pread(fd, end - start, start)
    return chunk[chunk.rfind(b"\n", 0, len(chunk) - 1) + 1 :] if chunk else b""
