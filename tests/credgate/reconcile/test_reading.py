"""Exports as files: packed, cut, wrapped, in other encodings; what is lost is counted."""

import gzip
import json
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.reconcile import reading
from credgate.reconcile.model import ReconcileError
from credgate.reconcile.reading import BOMB, MAX_RECORD, Opened, Source, expand, json_values
from credgate.reconcile.table import csv_records
from tests.credgate.reconcile.rig import Case

RECORDS = [{"n": n, "text": "x" * n} for n in range(5)]


def read(path: Path) -> tuple[list[object], Source]:
    with Opened(path) as opened:
        values = [value for _, value in json_values(opened)]
    return values, opened.source


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(json.dumps(r) for r in RECORDS),
        "\r\n".join(json.dumps(r) for r in RECORDS) + "\r\n\r\n",
        json.dumps(RECORDS),
        json.dumps(RECORDS, indent=3),
        json.dumps({"Records": RECORDS}),
        json.dumps({"has_more": False, "data": RECORDS, "next": None}, indent=1),
        json.dumps({"entries": RECORDS[:2]}) + "\n" + json.dumps({"entries": RECORDS[2:]}),
        json.dumps(RECORDS[:3], indent=1) + "\n" + json.dumps(RECORDS[3:], indent=1),
        "\n".join(json.dumps(r, indent=1) for r in RECORDS),
    ],
)
@pytest.mark.parametrize("packing", ["plain", "gzip", "two-gzips", "bom", "utf-16"])
def test_all_shapes_give_the_same(tmp_path: Path, text: str, packing: str) -> None:
    raw = text.encode()
    half = len(raw) // 2
    path = tmp_path / "export"
    path.write_bytes(
        {
            "plain": raw,
            "gzip": gzip.compress(raw),
            "two-gzips": gzip.compress(raw[:half]) + gzip.compress(raw[half:]),
            "bom": b"\xef\xbb\xbf" + raw,
            "utf-16": text.encode("utf-16"),
        }[packing]
    )
    values, source = read(path)
    assert values == RECORDS
    assert (source.records, dict(source.unreadable)) == (5, {})
    assert source.size == path.stat().st_size


def test_torn_lines_are_counted_and_passed(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_text('{"a": 1}\n{"a": 2, "b"\n{"a": 3}\n{"a": 4')
    values, source = read(path)
    assert values == [{"a": 1}, {"a": 3}]
    assert (source.records, source.unreadable["not JSON"]) == (4, 2)


def test_a_torn_first_line_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_text('{"a": 1, "b\n{"a": 2}\n{"a": 3}\n')
    values, source = read(path)
    assert values == [{"a": 2}, {"a": 3}]
    assert sum(source.unreadable.values()) == 1


@pytest.mark.parametrize(("cut", "left"), [(0.5, 2), (0.95, 4)])
def test_a_cut_list_gives_what_came_before(tmp_path: Path, cut: float, left: int) -> None:
    text = json.dumps(RECORDS)
    path = tmp_path / "export"
    path.write_text(text[: int(len(text) * cut)])
    values, source = read(path)
    assert len(values) >= left
    assert dict(source.unreadable) == {"file ends within a record": 1}


def test_a_cut_gzip_says_so(tmp_path: Path) -> None:
    path = tmp_path / "export.gz"
    packed = gzip.compress(b"\n".join(b'{"n": %d, "x": "%d"}' % (n, n * 7919) for n in range(20_000)))
    path.write_bytes(packed[: len(packed) // 2])
    values, source = read(path)
    assert values
    assert source.unreadable["compression or encoding broken"] == 1


@pytest.mark.parametrize(
    "content", [b"", b"\n\n  \n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0), b"[]", b'{"Records": []}', b"{}"]
)
def test_empty_files_hold_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "export"
    path.write_bytes(content)
    values, source = read(path)
    assert values in ([], [{}])
    assert not source.unreadable


def test_an_endless_line_is_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "export"
    with path.open("wb") as file:
        file.write(b'{"a": 1}\n{"a": "')
        for _ in range(12):
            file.write(b"y" * (1024 * 1024))
        file.write(b'"}\n{"a": 3}\n')
    values, source = read(path)
    assert values == [{"a": 1}, {"a": 3}]
    assert dict(source.unreadable) == {"record too long": 1}


@pytest.mark.parametrize("shape", ["lines", "list", "wrapped"])
def test_a_long_export_is_never_in_memory(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "export"
    record = json.dumps({"text": "z" * 1000})
    between, around = ("\n", ("", "")) if shape == "lines" else (",", ("[", "]"))
    around = ('{"Records": [', "]}") if shape == "wrapped" else around
    with path.open("w") as file:
        file.write(around[0] + between.join([record] * 30_000) + around[1])
    tracemalloc.start()
    try:
        with Opened(path) as opened:
            count = sum(1 for _ in json_values(opened))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 30_000
    assert peak < path.stat().st_size // 3
    assert peak < MAX_RECORD + 4 * 1024 * 1024


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "export"
    path.write_bytes(content)
    values, source = read(path)
    assert (
        source.records
        == len(values) + sum(source.unreadable.values()) - source.unreadable["compression or encoding broken"]
    )


def test_nesting_without_end_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_text('{"a": 1}\n' + "[" * 100_000 + '\n{"a": 2}\n')
    values, source = read(path)
    assert values == [{"a": 1}, {"a": 2}]
    assert source.unreadable["not JSON"] == 1


@pytest.mark.parametrize("unit", [b"\n", b" ", b"\r\n", b" \n"])
@pytest.mark.parametrize("before", [b"", b'{"a": 1}\n', b"[1"])
def test_space_without_end_is_taken_at_once(before: bytes, unit: bytes, tmp_path: Path) -> None:
    """A gigabyte of it packs into a megabyte: a step for each byte took 0.1 us, and 300 MB of them half a minute."""
    path = tmp_path / "export"
    path.write_bytes(before + unit * (2 << 20))
    steps = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        values, source = read(path)
        with Opened(path) as opened:
            held = list(opened.lines())
    finally:
        sys.setprofile(None)
    assert steps < 2000
    assert values == ([1] if before == b"[1" else [{"a": 1}] if before else [])
    assert held == ([before.strip()] if before else [])
    assert set(source.unreadable) == ({"file ends within a record"} if before == b"[1" else set())


def bomb(count: int) -> bytes:
    return gzip.compress(b'{"a": 1}\n' * count)


def test_what_unpacks_without_end_is_not_read_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "export"
    path.write_bytes(bomb(100_000))
    assert path.stat().st_size * 200 < 900_000
    values, source = read(path)
    assert len(values) == 100_000, "as much as this any file may hold"
    assert not source.unreadable
    monkeypatch.setattr(reading, "_FREE", 0)
    values, source = read(path)
    assert 0 < len(values) < 100_000
    assert source.unreadable[BOMB] == 1
    assert source.size == path.stat().st_size


@pytest.mark.parametrize("good", [0, 5000])
def test_a_file_of_another_kind_is_not_read_to_its_end(
    good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where next to nothing can be read: nine records in ten of many. A file with some damage is read to its end."""
    monkeypatch.setattr(reading, "MOST_LOST", 1000)
    path = tmp_path / "export"
    path.write_bytes(b'{"a": 1}\n' * good + b"[]\n" * 3000)
    case = Case(directory=tmp_path)
    case.call(10, path="/a")
    case.mapping("[source.own]\nformat = 'jsonl'\nhosts = ['a.example']\n[source.own.fields]\ntime = 'a'\n")
    (tmp_path / "export").write_bytes(b'{"a": "2026-06-01T08:00:10Z"}\n' * good + b'{"a": 1}\n' * 3000)
    if good:
        (part,) = case.run("own=export").result.parts
        assert dict(part.files[0].unreadable) == {"time out of range": 3000}
    else:
        with pytest.raises(ReconcileError, match="none of 1000 records could be read"):
            case.run("own=export")


def test_files_come_sorted_and_once(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).touch()
    found = expand([str(tmp_path / "*.json"), str(tmp_path / "a.json")])
    assert [path.name for path in found] == ["a.json", "b.json"]
    assert [path.name for path in expand([str(tmp_path)])] == ["a.json", "b.json", "c.txt"]
    with pytest.raises(ReconcileError):
        expand([str(tmp_path / "*.gz")])


def rows(path: Path) -> tuple[list[object], Source]:
    with Opened(path) as opened:
        values = [value for _, value in csv_records(opened)]
    return values, opened.source


def test_csv_with_lines_within_cells(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfwhen,what\r\n1,"a\nb, ""c"""\r\n2,d\r\n3\r\n')
    values, source = rows(path)
    assert values == [{"when": "1", "what": 'a\nb, "c"'}, {"when": "2", "what": "d"}]
    assert dict(source.unreadable) == {"cells and header differ in number": 1}


def test_csv_with_a_broken_quote(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'when,what\n1,"a" b\n2,c\n')
    values, source = rows(path)
    assert values == [{"when": "2", "what": "c"}]
    assert dict(source.unreadable) == {"not CSV": 1}
