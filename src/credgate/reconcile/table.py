"""CSV exports: a header line, then records, which may span lines."""

import csv
import io
from collections.abc import Buffer, Iterator

from credgate.reconcile.model import ReconcileError
from credgate.reconcile.reading import NOT_JSON, Opened

_CELL = 1024 * 1024  # csv's own bound is 128 KiB
NOT_CSV = NOT_JSON.replace("JSON", "CSV")


def csv_records(opened: Opened) -> Iterator[tuple[int, object]]:
    """The records by column name, with their numbers; one with more or fewer cells than the header is unreadable."""
    csv.field_size_limit(_CELL)
    stream = io.TextIOWrapper(io.BufferedReader(_Bytes(opened)), encoding="utf-8", errors="replace", newline="")
    reader = csv.reader(stream, strict=True)
    header = _next(reader, opened)
    if not header:
        return
    if len(set(header)) != len(header):
        raise ReconcileError("source_header", f"{opened.source.name}: two columns have one name", "", 2)
    while (cells := _next(reader, opened)) is not None:
        if not cells:
            continue
        opened.source.records += 1
        if len(cells) != len(header):
            opened.source.lost("cells and header differ in number")
            continue
        yield opened.source.records, dict(zip(header, cells, strict=True))


def _next(reader: Iterator[list[str]], opened: Opened) -> list[str] | None:
    while True:
        try:
            return next(reader, None)
        except csv.Error:
            opened.source.records += 1
            opened.source.lost(NOT_CSV)


class _Bytes(io.RawIOBase):
    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        data = self._opened.read(len(view))
        view[: len(data)] = data
        return len(data)
