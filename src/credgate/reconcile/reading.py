"""Bytes of an export to lines and JSON values, a piece at a time: 5 GB must not need 5 GB.

Damage is counted and stepped over where the next record can be found again, and said where it can't.
"""

import codecs
import glob
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Buffer, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from credgate.reconcile.model import ReconcileError, clean

MAX_RECORD = 8 * 1024 * 1024  # CloudTrail's own bound of an event is 256 KB; no format comes near
_CHUNK = 1024 * 1024
_NO_SPACE = re.compile(r"[^ \t\r\n]")
# Lines of nothing but space, together: a gigabyte of them packs into a megabyte, and one by one they take minutes.
_BLANK = re.compile(rb"\n[\r\n \t]*\n")
MOST_LOST = 1_000_000  # records of a file that can't be read, if they are nine in ten of all
_FREE, _TIMES = (
    64 << 20,
    200,
)  # bytes that a packed file may unpack to, and how many times its size beside; logs: 10 to 50
# Lists that hold the records, where an export is one document: AWS, Slack, OpenAI/Anthropic/Stripe, Cloudflare, Azure,
# Google (BigQuery's rows are lines).
WRAPPERS = ("Records", "records", "entries", "data", "result", "value", "events", "Events")
CUT_OFF = "file ends within a record"
NOT_JSON = "not JSON"
TOO_LONG = "record too long"
BOMB = "unpacks to far more than a log does: the rest was not read"
THE_REST = "all the rest: nothing of it was read"


class HopelessError(Exception):
    """Next to nothing of a file can be read. Its source is whole all the same."""


@dataclass(slots=True, kw_only=True)
class Source:
    """One file: what was read of it. `unreadable` counts by reason; `records` all that came out, readable or not."""

    name: str
    sha256: str = ""
    size: int = 0
    records: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    _lost: int = 0

    def lost(self, why: str) -> None:
        """Count one that couldn't be read. Raises HopelessError where more of it is not worth reading."""
        self.unreadable[why] += 1
        self._lost += 1
        if self._lost >= MOST_LOST and self._lost * 10 >= self.records * 9:
            self.unreadable[THE_REST] += 1
            raise HopelessError


def expand(patterns: list[str]) -> list[Path]:
    """The files that paths and globs name, sorted, each once. Raises ReconcileError for one that names nothing."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        plain = Path(pattern)
        matches = [pattern] if plain.is_file() else glob.glob(pattern, recursive=True)  # noqa: PTH207  absolute ones too
        files = [Path(name) for name in matches if Path(name).is_file()]
        if plain.is_dir():
            files = [path for path in plain.rglob("*") if path.is_file()]
        if not files:
            raise ReconcileError("source_missing", f"no file {pattern!r}", "a path, a directory or a glob", 2)
        found |= dict.fromkeys(sorted(files))
    return sorted(found, key=lambda path: (path.name, str(path)))


class _Hashed(io.RawIOBase):
    """The file's bytes, hashed as they pass."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        count = self._file.readinto(buffer)
        if count:
            self.digest.update(memoryview(buffer)[:count])
            self.size += count
        return count or 0


type _Stream = io.BufferedReader[Any]


class Opened:
    """An open export: plain or gzip, UTF-8 or UTF-16 with a mark. A context manager; at its end `source` is whole."""

    def __init__(self, path: Path) -> None:
        self.source = Source(name=clean(path.name))
        try:
            self._file = io.FileIO(path)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ReconcileError("source_unreadable", f"can't read {path}: {why}", "", 2) from error
        self._raw = _Hashed(self._file)
        self._buffered = io.BufferedReader(self._raw, _CHUNK)
        self._stream = self._decoded()

    def _decoded(self) -> "_Stream":
        stream: _Stream = self._buffered
        if stream.peek(2)[:2] == b"\x1f\x8b":
            stream = io.BufferedReader(_Unpacked(stream, lambda: self._raw.size), _CHUNK)
        try:
            mark = stream.peek(3)[:3]
        except (OSError, EOFError, zlib.error):
            return stream  # said when it is read
        if mark == codecs.BOM_UTF8:
            stream.read(3)
        elif mark[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # what PowerShell writes by default
            return io.BufferedReader(_Recoded(stream), _CHUNK)
        return stream

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            while self._buffered.read(_CHUNK):  # the digest is of the whole file
                pass
            self.source.sha256, self.source.size = self._raw.digest.hexdigest(), self._raw.size
        finally:
            self._file.close()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; b"" at the end, also where the file's compression is broken, which is counted."""
        try:
            return self._stream.read1(size)
        except (OSError, EOFError, zlib.error, UnicodeError) as error:
            bomb = isinstance(error, _BombError)
            self.source.lost(BOMB if bomb else "compression or encoding broken")
            self._stream = io.BufferedReader(io.BytesIO())
            return b""

    def lines(self, first: bytes = b"") -> Iterator[bytes]:
        """The lines without their ends, behind the bytes `first` that were read already. Empty ones are left out."""
        rest = first
        while chunk := self.read(_CHUNK):
            *whole, rest = _BLANK.sub(b"\n", rest + chunk).split(b"\n")
            yield from (line for line in map(_trimmed, whole) if line)
            if len(rest) > MAX_RECORD:
                rest = self._past_line()
        if rest := _trimmed(rest):
            yield from (line for line in map(_trimmed, rest.split(b"\n")) if line)

    def _past_line(self) -> bytes:
        self.source.records += 1
        self.source.lost(TOO_LONG)
        while chunk := self.read(_CHUNK):
            _, found, rest = chunk.partition(b"\n")
            if found:
                return rest
        return b""


def _trimmed(line: bytes) -> bytes:
    return line.rstrip(b"\r\n \t")


class _BombError(OSError):
    pass


class _Unpacked(io.RawIOBase):
    """A gzip stream a little at a time: what comes before a break isn't lost with it."""

    def __init__(self, stream: _Stream, packed: Callable[[], int]) -> None:
        """`packed`: bytes that were read of it."""
        self._gzip, self._packed, self._out = gzip.GzipFile(fileobj=stream), packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        data = self._gzip.read1(min(len(view), 64 * 1024))
        self._out += len(data)
        if self._out > _FREE + self._packed() * _TIMES:
            raise _BombError
        view[: len(data)] = data
        return len(data)


class _Recoded(io.RawIOBase):
    def __init__(self, stream: _Stream) -> None:
        self._reader = codecs.getreader("utf-16")(stream)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        data = self._reader.read(len(view) // 4).encode("utf-8", "replace")
        view[: len(data)] = data
        return len(data)


def json_values(opened: Opened) -> Iterator[tuple[int, object]]:
    """The records of a JSON export with their numbers: lines, a list, or a document that wraps a list.

    What can't be read is counted in `opened.source` and has a number too.
    """
    source = opened.source
    head = b""
    while b"\n" not in head.strip() and len(head) < _CHUNK and (more := opened.read(_CHUNK)):
        head += more
    walk = _documents(opened, head) if _is_document(head) else _json_lines(opened, head)
    for value in walk:
        for item in _unwrapped(value):
            source.records += 1
            yield source.records, item


def _is_document(head: bytes) -> bool:
    """Whether this is not one value a line: a list, or a document that spans lines or is longer than any line."""
    text = head.lstrip()
    if text[:1] == b"[":
        return True
    lines = [line for line in text[: 64 * 1024].split(b"\n")[:6] if line.strip()]
    if len(text) >= 64 * 1024 and len(lines) == 1:
        return b"\n" not in text
    return not any(_is_json(line) for line in lines)


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


_DECODE = msgspec.json.Decoder().decode


def _loads(line: bytes) -> object:
    """The value of a line. What msgspec doesn't take (NaN, a lone surrogate, UTF-16) json may; the time is a third."""
    try:
        return _DECODE(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return json.loads(line)


def _json_lines(opened: Opened, head: bytes) -> Iterator[object]:
    for line in opened.lines(head):
        try:
            yield _loads(line)
        except (ValueError, RecursionError):
            opened.source.records += 1
            opened.source.lost(NOT_JSON)


def _unwrapped(value: object) -> Iterator[object]:
    """The items of a wrapper's list; anything else is a record itself."""
    # a wrapper has little beside its list; a record that happens to have such a field has more
    if isinstance(value, dict) and len(value) <= 8 and _RECORD_KEYS.isdisjoint(value):
        for name in WRAPPERS:
            inner = value.get(name)
            if isinstance(inner, list):
                yield from inner
                return
    yield value


_RECORD_KEYS = {"eventID", "insertId", "uuid", "date_create", "starting_at", "start_time", "action", "eventTime"}


def _documents(opened: Opened, head: bytes) -> Iterator[object]:
    scanner = _Scanner(opened, head)
    try:
        while (char := scanner.peek()) and char in "[{":
            yield from scanner.items() if char == "[" else scanner.members()
        if char:
            raise _Broken(NOT_JSON)
    except _Broken as broken:  # where the next record begins can't be known any more
        opened.source.records += 1
        opened.source.lost(str(broken))


class _Broken(Exception):
    pass


class _Scanner:
    """Values of a JSON text that is read a piece at a time."""

    def __init__(self, opened: Opened, head: bytes) -> None:
        self._opened = opened
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._json = json.JSONDecoder()
        self._buffer = self._decoder.decode(head)
        self._at = 0
        self._ended = False

    def _fill(self) -> bool:
        if self._ended:
            return False
        if len(self._buffer) - self._at > MAX_RECORD:
            raise _Broken(TOO_LONG)
        chunk = self._opened.read(_CHUNK)
        self._ended = not chunk
        self._buffer = self._buffer[self._at :] + self._decoder.decode(chunk, final=not chunk)
        self._at = 0
        return True

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            found = _NO_SPACE.search(self._buffer, self._at)
            if found is not None:
                self._at = found.start()
                return found[0]
            self._at = len(self._buffer)
            if not self._fill():
                return ""

    def _take(self, wanted: str) -> str:
        char = self.peek()
        if not char or char not in wanted:
            raise _Broken(NOT_JSON if char else CUT_OFF)
        self._at += 1
        return char

    def _value(self) -> object:
        while True:
            self.peek()
            try:
                value, end = self._json.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError):
                if self._fill():
                    continue
                raise _Broken(CUT_OFF if self._ended else NOT_JSON) from None
            if end < len(self._buffer) or not self._fill():  # a number may go on in the next piece
                self._at = end
                return value

    def items(self) -> Iterator[object]:
        """The values of a list."""
        self._take("[")
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            if self._take(",]") == "]":
                return

    def members(self) -> Iterator[object]:
        """The items of the lists that a wrapping object holds; where it holds none, the object itself."""
        self._take("{")
        rest: dict[str, object] = {}
        wrapped = False
        if self.peek() == "}":
            self._at += 1
            return
        while True:
            name = self._value()
            self._take(":")
            if name in WRAPPERS and self.peek() == "[" and not _RECORD_KEYS & rest.keys():
                wrapped = True
                yield from self.items()
            else:
                rest[str(name)] = self._value()
            if self._take(",}") == "}":
                break
        if not wrapped:
            yield rest
