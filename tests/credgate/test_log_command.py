"""`credgate log` as it is called: tables for people, JSON for programs, and the exit codes of the contract."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from credgate.commands.log import main
from credgate.ledger.read import Damaged, Filter, follow_records, read_records
from credgate.ledger.writer import Ledger

SEGMENT = "seg-000001.jsonl"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    directory = tmp_path / "ledger"
    with Ledger.open(directory) as ledger:
        ledger.append("run.start", run="r1", role="dev", program="/usr/bin/agent")
        request = {"method": "GET", "scheme": "https", "host": "api.example", "port": 443, "path": "/a"}
        intent = ledger.append("intent", run="r1", verdict="allow", rule="api.all", secret="github", **request)
        ledger.append("outcome", run="r1", intent_seq=intent, status=200)
        ledger.append("deny", run="r2", verdict="deny", reason="host_unlisted", host="evil\x1b]0;x\x07", port=443)
    return directory


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(list(argv))
    out = capsys.readouterr()
    return status, out.out, out.err


def test_show_is_a_table_that_says_who_asked_for_what(ledger: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = run(capsys, "show", "--ledger", str(ledger))
    assert status == 0
    head, *rows = out.splitlines()
    assert head.split() == ["SEQ", "TIME", "(UTC)", "RUN", "EVENT", "VERDICT", "WHAT"]
    assert len(rows) == 5
    assert re.search(
        r"2 .* r1 .* intent .* allow .* GET https://api.example:443/a \[rule api.all\] \[secret github", rows[1]
    )
    assert re.search(r"deny .* -> host_unlisted$", rows[3])


def test_no_control_character_reaches_the_terminal(ledger: Path, capsys: pytest.CaptureFixture[str]):
    # a ledger of another make may hold them raw
    lines = (ledger / SEGMENT).read_text().replace("\\\\x1b]0;x\\\\x07", "\\u001b]0;x\\u0007\\u202e")
    (ledger / SEGMENT).write_text(lines)
    for argv in (["show"], ["show", "--json"], ["verify"], ["verify", "--json"]):
        _, out, err = run(capsys, *argv, "--ledger", str(ledger))
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out + err)


@pytest.mark.parametrize(
    ("flags", "seqs"),
    [
        ([], [1, 2, 3, 4, 5]),
        (["--run", "r1"], [1, 2, 3]),
        (["--host", "api.example"], [2]),
        (["--verdict", "deny"], [4]),
        (["--run", "r1", "--verdict", "deny"], []),
        (["--since", "1h"], [1, 2, 3, 4, 5]),
        (["--since", "2001-01-01T00:00:00Z"], [1, 2, 3, 4, 5]),
        (["--since", "2901-01-01T00:00:00+02:00"], []),
    ],
)
def test_filters(ledger: Path, capsys: pytest.CaptureFixture[str], flags: list[str], seqs: list[int]):
    status, out, _ = run(capsys, "show", "--json", "--ledger", str(ledger), *flags)
    assert status == 0
    assert [record["seq"] for record in json.loads(out)["records"]] == seqs


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--since", "yesterday"], "expected"),
        (["--since", "2025-01-01T00:00:00"], "expected"),
        (["--verdict", "no"], "choose from"),
    ],
)
def test_a_wrong_filter_is_a_usage_error(ledger: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str):
    with pytest.raises(SystemExit) as caught:
        main(["show", "--ledger", str(ledger), *flags])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_verify_exit_codes(ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = (ledger / SEGMENT).read_bytes()
    status, out, _ = run(capsys, "verify", "--ledger", str(ledger))
    assert status == 0
    assert "self-attested: no witness" in out
    (ledger / SEGMENT).write_bytes(whole.replace(b'"status":200', b'"status":201'))
    status, out, _ = run(capsys, "verify", "--ledger", str(ledger))
    assert status == 1
    assert f"record 3 in {SEGMENT} (hash_mismatch)" in out
    status, out, _ = run(capsys, "verify", "--json", "--ledger", str(ledger))
    document = json.loads(out)
    assert (status, document["state"], document["exit"], document["seq"]) == (1, "tampered", 1, 3)
    (ledger / SEGMENT).write_bytes(whole[:-4])
    assert run(capsys, "verify", "--ledger", str(ledger))[0] == 2
    (ledger / "seg-000001.notes").unlink()
    assert run(capsys, "verify", "--ledger", str(ledger))[0] == 3
    assert run(capsys, "verify", "--ledger", str(tmp_path / "none"))[0] == 4


def test_show_names_damaged_lines_and_goes_on(ledger: Path, capsys: pytest.CaptureFixture[str]):
    lines = (ledger / SEGMENT).read_bytes().splitlines(keepends=True)
    lines[1] = b'{"seq":2}\n'
    (ledger / SEGMENT).write_bytes(b"".join(lines))
    status, out, err = run(capsys, "show", "--ledger", str(ledger))
    assert status == 1
    assert "damaged line in seg-000001.jsonl" in out
    assert "final" in out
    assert "hint: credgate log verify" in err
    status, out, _ = run(capsys, "show", "--json", "--ledger", str(ledger))
    assert (status, [record["seq"] for record in json.loads(out)["records"]]) == (1, [1, 3, 4, 5])


def test_a_missing_ledger_has_a_hint(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for argv in (["show"], ["tail"]):
        status, _, err = run(capsys, *argv)
        assert status == 4
        assert str(tmp_path / ".local/state/credgate/ledger") in err
        assert "hint: " in err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "credgate log verify --ledger" in capsys.readouterr().out


def test_follow_gives_each_new_record_once_across_segments(ledger: Path):
    got: list[object] = []
    stop = threading.Event()

    def read() -> None:
        for record in follow_records(ledger, last=2, go_on=lambda: not stop.is_set()):
            assert isinstance(record, dict)
            got.append(record["seq"])

    reader = threading.Thread(target=read)
    reader.start()
    with Ledger.open(ledger) as writer:
        writer.append("deny")
        time.sleep(0.3)
        writer.append("deny")
    (ledger / "seg-000002.jsonl").touch(mode=0o600)
    with Ledger.open(ledger) as writer:
        writer.append("deny")
    end = time.monotonic() + 60
    while len(got) < 8 and time.monotonic() < end:
        time.sleep(0.05)
    stop.set()
    reader.join(60)
    assert got == [4, 5, 6, 7, 8, 9, 10, 11]


def test_tail_follows_until_interrupted(ledger: Path):
    command = [sys.executable, "-I", "-m", "credgate", "log", "tail", "-n", "2", "--json", "--ledger", str(ledger)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert [json.loads(child.stdout.readline())["seq"] for _ in range(2)] == [4, 5]
    with Ledger.open(ledger) as writer:
        writer.append("alarm", reason="test")
    assert json.loads(child.stdout.readline())["ev"] == "alarm"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path):
    directory = tmp_path / "big"
    with Ledger.open(directory) as ledger:
        for _ in range(2000):
            ledger.append("deny", host="a.example", scheme="https", port=443, path="/" + "p" * 200)
    child = subprocess.Popen(
        [sys.executable, "-I", "-m", "credgate", "log", "show", "--ledger", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    os.read(child.stdout.fileno(), 100)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(60) == 0


def tail(ledger: Path, *flags: str, **more: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-I", "-m", "credgate", "log", "tail", *flags, "--ledger", str(ledger)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **more)


def test_tail_ends_when_its_reader_is_gone_though_nothing_comes(ledger: Path):
    child = tail(ledger, "-n", "1", stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    assert b"SEQ" in child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(60) == 0


def test_tail_begins_with_the_newest_segments_and_reads_no_more_than_it_needs(ledger: Path):
    for number in range(2, 6):
        (ledger / f"seg-{number:06d}.jsonl").touch(mode=0o600)
        with Ledger.open(ledger) as writer:
            writer.append("deny", host=f"h{number}.example")
    seqs = [record["seq"] for record in read_records(ledger) if not isinstance(record, Damaged)]
    for last in (0, 1, 3, 7, 100):
        tail = list(follow_records(ledger, last=last, go_on=lambda: False))
        assert [r["seq"] for r in tail if not isinstance(r, Damaged)] == seqs[len(seqs) - min(last, len(seqs)) :]
    wanted = list(follow_records(ledger, Filter(host="h2.example"), last=1, go_on=lambda: False))
    assert len(wanted) == 1
    (ledger / SEGMENT).write_bytes(b"damaged\n")  # the first segment: who reads it says so
    assert not any(isinstance(r, Damaged) for r in follow_records(ledger, last=5, go_on=lambda: False))
    assert any(isinstance(r, Damaged) for r in follow_records(ledger, last=100, go_on=lambda: False))


def test_tail_filters_and_survives_a_torn_line(ledger: Path):
    child = tail(ledger, "-n", "0", "--verdict", "deny", "--host", "a.example", "--json", stdout=subprocess.PIPE)
    assert child.stdout is not None
    with Ledger.open(ledger) as writer:
        for _ in range(600):  # until it has begun
            writer.append("deny", verdict="deny", host="a.example", path="/begun")
            if select.select([child.stdout], [], [], 0.1)[0]:
                break
    path = ledger / SEGMENT
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"boot":"torn')  # a writer that died in the middle
    time.sleep(0.5)
    os.truncate(path, whole)
    with Ledger.open(ledger) as writer:
        writer.append("deny", verdict="deny", host="b.example")
        writer.append("intent", verdict="allow", host="a.example")
        writer.append("deny", verdict="deny", host="a.example", path="/it")
    while (said := json.loads(child.stdout.readline())["path"]) == "/begun":
        pass
    assert said == "/it"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == b""
    assert child.returncode == 0


COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colour_only_where_a_terminal_has_it(ledger: Path, env: dict[str, str], coloured: bool):
    for command in ("tail", "show"):
        master, slave = pty.openpty()
        argv = [sys.executable, "-I", "-m", "credgate", "log", command, "--ledger", str(ledger)]
        with subprocess.Popen(argv, stdout=slave, env={"PATH": os.environ["PATH"], **env}) as child:
            os.close(slave)
            seen = b""
            while b"final" not in seen:
                seen += os.read(master, 4096)
            if command == "tail":
                child.send_signal(signal.SIGINT)
            child.wait(60)
        os.close(master)
        assert bool(COLOUR.search(seen)) == coloured
        assert b"host_unlisted" in seen
        assert not re.search(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]", COLOUR.sub(b"", seen))


def test_no_colour_where_no_terminal_is(ledger: Path):
    child = tail(ledger, stdout=subprocess.PIPE, env={"TERM": "xterm"})
    assert child.stdout is not None
    seen = b"".join(child.stdout.readline() for _ in range(6))
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert b"final" in seen
    assert b"\x1b" not in seen
