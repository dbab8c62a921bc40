"""Exports as they come: the same findings whatever an editor, a zone or a broken copy has made of the file."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from credgate.reconcile.model import ReconcileError
from tests.credgate.reconcile.rig import Case, Said, web

GOOD = [web(10, "/a", size=1), web(20, "/b", size=2), web(30, "/c", size=3)]


def shifted(line: str) -> str:
    """The same moment by a clock of two hours further east."""
    return line.replace(":08:00:", ":10:00:").replace(" +0000]", " +0200]")


def said_of(tmp_path: Path, data: bytes) -> Said:
    case = Case(directory=tmp_path)
    for at, path, size in ((10, "/a", 1), (20, "/b", 2), (30, "/c", 3)):
        case.call(at, path=path, resp_bytes=size)
    (tmp_path / "log").write_bytes(data)
    return case.run("nginx=log")


TEXT = "".join(f"{line}\n" for line in GOOD)
HARMLESS: dict[str, Callable[[], bytes]] = {
    "as it is": lambda: TEXT.encode(),
    "no newline at the end": lambda: TEXT.rstrip("\n").encode(),
    "CRLF": lambda: TEXT.replace("\n", "\r\n").encode(),
    "BOM": lambda: TEXT.encode("utf-8-sig"),
    "BOM and CRLF": lambda: TEXT.replace("\n", "\r\n").encode("utf-8-sig"),
    "UTF-16": lambda: TEXT.encode("utf-16"),
    "gzip": lambda: gzip.compress(TEXT.encode()),
    "empty lines": lambda: TEXT.replace("\n", "\n\n\n").encode(),
    "another order": lambda: "".join(f"{line}\n" for line in reversed(GOOD)).encode(),
    "another zone": lambda: "".join(f"{shifted(line)}\n" for line in GOOD).encode(),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_nothing(tmp_path: Path, name: str) -> None:
    said = said_of(tmp_path, HARMLESS[name]())
    assert said.requests == ["matched"] * 3
    assert said.result.severity == 0
    assert said.findings == []


def test_the_other_zone_was_one() -> None:
    assert shifted(GOOD[0]) != GOOD[0] and "+0200" in shifted(GOOD[0])


HARMFUL: dict[str, tuple[bytes, list[str], list[str]]] = {
    "a torn line": (
        TEXT.replace(GOOD[1], GOOD[1][:40]).encode(),
        ["matched", "gateway-only", "matched"],
        ["unreadable"],
    ),
    "a torn end": (TEXT[:-50].encode(), ["matched", "matched", "gateway-only"], ["unreadable"]),
    "a gzip cut off": (gzip.compress(TEXT.encode())[:-9], ["matched"] * 3, ["unreadable"]),
    # a line of these has no id by which it could be known as the same: it is one more
    "an event twice": ((TEXT + GOOD[0] + "\n").encode(), ["matched-group", "matched", "matched"], []),
    "an empty file": (b"", ["gateway-only"] * 3, []),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_what_is_lost_is_said(tmp_path: Path, name: str) -> None:
    data, requests, about = HARMFUL[name]
    said = said_of(tmp_path, data)
    assert said.requests == requests
    assert [str(item.class_) for item in said.result.findings] == about
    assert said.result.severity > 0


def test_a_wrong_format_is_named(tmp_path: Path) -> None:
    case = Case(directory=tmp_path)
    case.call(10, path="/a")
    case.export("log", *GOOD)
    with pytest.raises(ReconcileError, match="none of 3 records could be read as squid"):
        case.run("squid=log")
    with pytest.raises(ReconcileError, match="could be read as cloudtrail: 1 times 'not JSON'"):
        case.run("cloudtrail=log")


def test_an_hour_that_the_clock_has_twice_is_not_guessed(tmp_path: Path) -> None:
    case = Case(directory=tmp_path)
    case.call(10, path="/a")
    times = ["2026-06-01 10:00:10", "2026-10-25 02:30:00", "2026-03-29 02:30:00"]
    case.export("log", *(json.dumps({"t": t, "m": "GET", "p": "/a", "s": 200}) for t in times))
    case.mapping(
        "[source.local]\nformat = 'jsonl'\nhosts = ['a.example']\nzone = 'Europe/Berlin'\n"
        "[source.local.fields]\ntime = 't'\nmethod = 'm'\npath = 'p'\nstatus = 's'\n"
    )
    said = case.run("local=log")
    assert said.requests == ["matched"]
    (part,) = said.result.parts
    assert part.files[0].unreadable == {"time ambiguous or skipped: daylight saving": 2}


def test_ids_that_are_missing_leave_the_window(tmp_path: Path) -> None:
    case = Case(directory=tmp_path)
    case.call(10, path="/a", ids={"x-request-id": "feedfacefeedface"})
    case.call(20, path="/b")
    case.export("log", web(10, "/a", more=' "feedfacefeedface"'), web(20, "/b", more=' "-"'))
    assert case.run("nginx=log").requests == ["matched", "matched"]


OWN = (
    "[source.own]\nformat = 'jsonl'\nhosts = ['a.example']\n[source.own.fields]\ntime = 't'\npath = 'p'\n"
    "method = 'm'\nstatus = 's'\nid = 'id'\nservice = 'sv'\nduration_ms = 'd'\n"
)


@pytest.mark.parametrize(
    ("more", "unreadable"),
    [
        ({"id": "\ud800"}, 0),
        ({"sv": "\ud800"}, 0),
        ({"id": "\\N"}, 0),
        ({"id": "a\n1,2,3\x1b[2J"}, 0),
        ({"d": 10**18 - 1}, 1),
    ],
)
def test_one_record_is_not_the_end_of_a_report(more: dict[str, object], unreadable: int, tmp_path: Path) -> None:
    """A text that UTF-8 can't hold, or a duration of a million years, ended it with a traceback."""
    case = Case(directory=tmp_path)
    case.call(10, path="/a")
    good = {"t": "2026-06-01T08:00:10Z", "m": "GET", "p": "/a", "s": 200, "id": "x-1"}
    case.export("log", json.dumps(good), json.dumps({**good, "p": "/b", "id": "x-2", **more}))
    case.mapping(OWN)
    said = case.run("own=log")
    assert said.requests == ["matched"]
    assert said.records == ["matched", "target-only"][: 2 - unreadable]
    (part,) = said.result.parts
    assert sum(part.files[0].unreadable.values()) == unreadable


@pytest.mark.parametrize("name", ["envoy", "squid"])
def test_a_duration_of_no_request_is_unreadable(name: str, tmp_path: Path) -> None:
    lines = {
        "envoy": '[2026-06-01T08:00:10.000Z] "GET /a HTTP/2" 200 - 0 0 %d 1 "-" "-" "-" "a.example" "-"',
        "squid": "1780300810.000 %d 192.0.2.1 TCP_MISS/200 5 GET http://a.example/a - DIRECT/192.0.2.7 text/plain",
    }
    case = Case(directory=tmp_path)
    case.call(10, path="/a")
    case.export("log", lines[name] % 5, lines[name] % (10**18 - 1))
    said = case.run(f"{name}=log")
    assert said.requests == ["matched"]
    (part,) = said.result.parts
    assert part.files[0].records == 2
