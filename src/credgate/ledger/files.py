"""The files of a ledger: segments in their order, and the tail of one. No lock, no write."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from credgate.ledger.record import MAX_LINE

RESERVE = "reserve.bin"
_SEGMENT = re.compile(r"seg-(\d{6})\.jsonl", re.ASCII)
_TORN = re.compile(r"torn-(\d+)\.bin", re.ASCII)
_PENDING = re.compile(r"torn-(\d+)\.new", re.ASCII)
_CHUNK = 64 * 1024


def segment_name(number: int) -> str:
    """Name of segment `number`, counted from 1."""
    return f"seg-{number:06d}.jsonl"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """The segments by number. Gaps are the verifier's business. OSError comes through."""
    return _numbered(directory, _SEGMENT)


def torn_files(directory: Path) -> list[tuple[int, Path]]:
    """The files that torn tails were moved to, by number."""
    return _numbered(directory, _TORN)


def pending_files(directory: Path) -> list[tuple[int, Path]]:
    """Torn tails whose record may not be written yet, by number: a crash came in between."""
    return _numbered(directory, _PENDING)


def _numbered(directory: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    found = ((pattern.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


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
    """Offset behind the last newline of an open segment: what follows is a torn tail."""
    end = os.fstat(fd).st_size
    while end > 0:
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
