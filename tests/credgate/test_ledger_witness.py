"""Witnesses get origin, size and root, signed, and nothing else; one that fails is told and holds nothing up."""

import base64
import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from credgate.ledger import witness
from credgate.ledger.keys import parse_public
from credgate.ledger.note import Note, key_id, parse_note
from credgate.ledger.report import Kept, Status
from credgate.ledger.settings import (
    FileWitness,
    OtlpWitness,
    Settings,
    SyslogWitness,
    load_settings,
    parse_settings,
)
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger
from tests.credgate.ledger_rig import records

CANARY = "canary.example"


def write(directory: Path, *witnesses: FileWitness | SyslogWitness | OtlpWitness, until: Callable[[], bool]) -> None:
    """A ledger with one line, kept open until the witness has said or done what it is to do."""
    with Ledger.open(directory, settings=Settings(every_lines=1, every_seconds=0.05, witnesses=witnesses)) as ledger:
        ledger.append("deny", host=CANARY)
        end = time.monotonic() + 60
        while not until():
            assert time.monotonic() < end
            time.sleep(0.01)


def told(directory: Path) -> list[tuple[object, object]]:
    return [(line["witness"], line["reason"]) for line in records(directory) if "witness" in line]


def signed_root(directory: Path, origin: str, size: int, root: str, signature: str) -> bool:
    """Whether what a witness was told is a note by the ledger's key."""
    public = parse_public((directory / "pubkey.pem").read_text())
    text = f"{origin}\n{size}\n{root}\n\n— {origin} {signature}\n"
    note = parse_note(text.encode())[0]
    return note.signed_by(public) and base64.b64decode(signature)[:4] == key_id(origin, public)


# --- a file of another owner


@pytest.fixture
def others_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that looks as if somebody else owned it: which uid we are is what append_to is told."""
    path = tmp_path / "witness.txt"
    path.touch()
    monkeypatch.setattr(
        witness, "way_to", lambda settings: lambda note: witness.append_to(settings, note, os.geteuid() + 1)
    )
    monkeypatch.setattr("credgate.ledger.writer.way_to", witness.way_to)
    return path


def test_a_file_holds_notes_that_verify_takes(tmp_path: Path, others_file: Path):
    directory = tmp_path / "ledger"
    write(directory, FileWitness(path=others_file), until=lambda: bool(told(directory)))
    data = others_file.read_bytes()
    assert CANARY.encode() not in data
    notes = parse_note(data)
    assert all(note.checkpoint.extra == () for note in notes)
    assert notes[-1].checkpoint.size == 3  # the final one too
    assert told(directory) == [(f"file {others_file}", "witness_taking")]
    report = verify(directory, against=[Kept(who="w", notes=notes)])
    assert (report.status, report.witness) == (Status.SOUND, "w: agrees up to record 3")
    assert any(note.startswith(f"witness file {others_file} has taken checkpoints") for note in report.notes)


def test_an_own_file_is_no_witness(tmp_path: Path):
    directory, path = tmp_path / "ledger", tmp_path / "own.txt"
    path.touch()
    write(directory, FileWitness(path=path), until=lambda: bool(told(directory)))
    assert told(directory) == [(f"file {path}", "witness_failed")]
    assert path.read_bytes() == b""
    report = verify(directory)
    assert report.status is Status.SOUND  # the ledger is; its witness isn't, and that is said
    assert any("FAILED" in note and "expected another one" in note for note in report.notes)
    assert report.witness == "self-attested: no witness"


@pytest.mark.parametrize("made", ["nothing", "fifo", "link"])
def test_what_is_no_file_is_no_witness_and_none_is_made(tmp_path: Path, made: str, others_file: Path):
    directory, path = tmp_path / "ledger", tmp_path / "place"
    if made == "fifo":
        os.mkfifo(path)
    elif made == "link":
        path.symlink_to(others_file)
    write(directory, FileWitness(path=path), until=lambda: bool(told(directory)))
    assert told(directory)[0][1] == "witness_failed"
    assert path.exists() == (made != "nothing")


def test_a_witness_that_comes_back_is_told_so(tmp_path: Path, others_file: Path):
    directory = tmp_path / "ledger"
    others_file.unlink()
    settings = Settings(every_lines=1, every_seconds=0.02, witnesses=(FileWitness(path=others_file),))
    with Ledger.open(directory, settings=settings) as ledger:
        for n, want in enumerate(["witness_failed", "witness_taking"]):
            end = time.monotonic() + 60
            while len(told(directory)) <= n:
                ledger.append("deny")
                time.sleep(0.03)
                assert time.monotonic() < end
            assert told(directory)[n][1] == want
            others_file.touch()
    assert verify(directory).status is Status.SOUND


# --- syslog


@contextlib.contextmanager
def syslog(kind: str, tmp_path: Path) -> Iterator[tuple[SyslogWitness, list[bytes]]]:
    """A receiver on the loopback, or on a socket in the file system."""
    got: list[bytes] = []
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    sock.bind(str(tmp_path / "log") if kind == "unix" else ("127.0.0.1", 0))
    address = tmp_path / "log" if kind == "unix" else ("127.0.0.1", sock.getsockname()[1])
    sock.settimeout(0.1)
    stop = threading.Event()

    def serve() -> None:
        if kind == "tcp":
            sock.listen()
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                if kind == "tcp":
                    link, _ = sock.accept()
                    with link:
                        got.append(link.recv(65536))
                else:
                    got.append(sock.recv(65536))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield SyslogWitness(transport=kind, address=address), got
    finally:
        stop.set()
        thread.join(5)
        sock.close()


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_syslog_gets_a_message_of_rfc_5424(tmp_path: Path, kind: str):
    directory = tmp_path / "ledger"
    with syslog(kind, tmp_path) as (settings, got):
        write(directory, settings, until=lambda: bool(got) and bool(told(directory)))
    message = got[0]
    if kind == "tcp":
        length, message = message.split(b" ", 1)
        assert int(length) == len(message)
    match = re.fullmatch(
        rb"<109>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z - credgate - checkpoint "
        rb'\[checkpoint@32473 origin="(.*?)" size="1" root="(.*?)" sig="(.*?)"\]',
        message,
    )
    assert match is not None
    origin, root, signature = (part.decode() for part in match.groups())
    assert signed_root(directory, origin, 1, root, signature)
    assert told(directory)[0][1] == "witness_taking"


def test_a_syslog_that_is_not_there_fails_and_nothing_waits(tmp_path: Path):
    directory = tmp_path / "ledger"
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, not listening: refused
        settings = SyslogWitness(transport="tcp", address=("127.0.0.1", sock.getsockname()[1]))
        write(directory, settings, until=lambda: bool(told(directory)))
    assert told(directory)[0][1] == "witness_failed"
    assert any("connection refused" in note for note in verify(directory).notes)


# --- OTLP


@contextlib.contextmanager
def otlp(
    status: int, answer: bytes, wait: Callable[[], object] = lambda: None
) -> Iterator[tuple[OtlpWitness, list[Any]]]:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/logs"
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            wait()
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield OtlpWitness(url=f"http://127.0.0.1:{server.server_port}/v1/logs"), got
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


@pytest.mark.parametrize(
    ("status", "answer", "state"),
    [
        (200, b"{}", "witness_taking"),
        (200, b"", "witness_taking"),
        (202, b"thanks", "witness_taking"),
        (200, b'{"partialSuccess":{"rejectedLogRecords":"1"}}', "witness_failed"),
        (400, b"{}", "witness_failed"),
        (503, b"", "witness_failed"),
    ],
)
def test_otlp_gets_a_log_record(tmp_path: Path, status: int, answer: bytes, state: str):
    directory = tmp_path / "ledger"
    with otlp(status, answer) as (settings, got):
        write(directory, settings, until=lambda: bool(told(directory)))
    assert told(directory)[0][1] == state
    record = got[0]["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    values = {item["key"]: item["value"]["stringValue"] for item in record["attributes"]}
    assert values.keys() == {"credgate.origin", "credgate.size", "credgate.root", "credgate.sig"}
    assert signed_root(directory, *(values[f"credgate.{name}"] for name in ("origin", "size", "root", "sig")))
    assert CANARY not in json.dumps(got)


def test_a_witness_that_hangs_holds_up_no_line(tmp_path: Path):
    directory = tmp_path / "ledger"
    go_on = threading.Event()
    with otlp(200, b"{}", wait=lambda: go_on.wait(60)) as (settings, got):
        opened = Ledger.open(directory, settings=Settings(every_lines=1, every_seconds=0.01, witnesses=(settings,)))
        with opened as ledger:
            ledger.append("deny")
            while not got:
                time.sleep(0.01)
            for _ in range(50):
                ledger.append("deny")
                ledger.sync()
            assert not go_on.is_set() and len(got) == 1  # it hangs still
            go_on.set()
    # those in between were dropped for the newest
    sizes = [next(a["value"]["stringValue"] for a in _attributes(item) if a["key"] == "credgate.size") for item in got]
    assert len(sizes) < 10
    assert int(sizes[-1]) == len(records(directory))


def _attributes(item: Any) -> Any:
    return item["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["attributes"]


# --- the settings


def test_without_a_file_the_defaults_count(tmp_path: Path):
    assert load_settings(tmp_path / "ledger.toml") == Settings()


def test_all_settings():
    text = """
    [segments]
    max_bytes = 1000000
    keep = 12
    gzip = true
    [[witness]]
    kind = "file"
    path = "/var/log/w"
    [[witness]]
    kind = "syslog"
    transport = "tcp"
    address = "[::1]:601"
    [[witness]]
    kind = "syslog"
    transport = "unix"
    address = "/dev/log"
    [[witness]]
    kind = "otlp"
    url = "https://127.0.0.1:4318/v1/logs"
    """
    got = parse_settings(text)
    assert (got.max_bytes, got.keep, got.pack) == (1_000_000, 12, True)
    assert [witness.name_of(item) for item in got.witnesses] == [
        "file /var/log/w",
        "syslog tcp ::1:601",
        "syslog unix /dev/log",
        "otlp https://127.0.0.1:4318/v1/logs",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "x: unknown"),
        ("segments = 1", "expected a table"),
        ("[segments]\nmax = 1", "segments.max: unknown"),
        ("[segments]\nmax_bytes = 10", "segments.max_bytes: got 10"),
        ("[segments]\nkeep = -1\ngzip = 1", "segments.keep: got -1, expected a whole number from 0; segments.gzip"),
        ("[segments]\nkeep = true", "segments.keep"),
        ("[[witness]]\nkind = 'mail'", "witness 1: kind is 'mail'"),
        ("[[witness]]\nkind = 'file'", "witness 1: path is missing"),
        ("[[witness]]\nkind = 'file'\npath = 'w'", "expected an absolute one"),
        ("[[witness]]\nkind = 'file'\npath = 1", "path is no text"),
        ("[[witness]]\nkind = 'file'\npath = '/w'\nurl = 'x'", "witness 1: url: unknown"),
        ("[[witness]]\nkind = 'syslog'\ntransport = 'tls'\naddress = '127.0.0.1:1'", "transport is 'tls'"),
        ("[[witness]]\nkind = 'syslog'\ntransport = 'udp'\naddress = 'log.example:514'", "expected IP:PORT"),
        ("[[witness]]\nkind = 'syslog'\ntransport = 'udp'\naddress = '127.0.0.1'", "expected IP:PORT"),
        ("[[witness]]\nkind = 'otlp'\nurl = 'http://log.example/v1/logs'", "expected IP:PORT"),
        ("[[witness]]\nkind = 'otlp'\nurl = 'ftp://127.0.0.1:1/'", "expected http"),
        ("[[witness]]\nkind = 'otlp'\nurl = 'http://a@127.0.0.1:1/x'", "expected IP:PORT"),
        ("[[witness]]\nkind = 'file'\npath = '/w'\n" * 9, "9 witnesses, at most 8"),
        ("[", "at end of document"),
    ],
)
def test_each_fault_of_the_settings_is_named(text: str, words: str):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_settings(text)


def test_a_file_that_others_can_write_is_refused(tmp_path: Path):
    from credgate.ledger.record import LedgerError

    path = tmp_path / "ledger.toml"
    path.write_text("[segments]\nkeep = 3\n")
    path.chmod(0o644)
    assert load_settings(path).keep == 3
    path.chmod(0o666)
    with pytest.raises(LedgerError, match="others could write it"):
        load_settings(path)
    path.chmod(0o600)
    path.write_text("keep = 3")
    with pytest.raises(LedgerError, match="keep: unknown"):
        load_settings(path)


def test_a_note_for_a_witness_has_no_room_for_more():
    """What goes out is made of these four alone."""
    assert Note.__slots__ == ("checkpoint", "signatures")
