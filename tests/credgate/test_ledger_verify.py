"""Whatever is done to a ledger afterwards, verify says so and says where; and what it can't see is pinned down too."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger

SEGMENT = "seg-000001.jsonl"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "ledger"
    with Ledger.open(directory) as ledger:
        ledger.append("run.start", run="r1", role="dev")
        intent = ledger.append("intent", run="r1", host="a.example", path="/x", query_names=["q"], ids={"i": "1"})
        ledger.append("outcome", run="r1", intent_seq=intent, status=200)
    return directory


def _lines(directory: Path) -> list[bytes]:
    return (directory / SEGMENT).read_bytes().splitlines(keepends=True)


def _write(directory: Path, lines: list[bytes]) -> None:
    (directory / SEGMENT).write_bytes(b"".join(lines))


def test_an_untouched_ledger_is_sound(directory: Path):
    report = verify(directory)
    assert (report.status, report.records, report.notes) == (Status.SOUND, 4, ())
    assert report.witness == "self-attested: no witness"


def test_every_flipped_byte_is_found_and_placed(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("credgate.ledger.verify.SETTLE", 0)
    path = directory / SEGMENT
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (0x01, 0x80) if at % 7 == 0 else (0x01,):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            report = verify(directory)
            assert report.status is not Status.SOUND, (at, bit)
            if report.status is Status.TAMPERED:
                assert report.seq == whole[:at].count(b"\n") + 1, (at, bit)
            else:
                assert (report.status, at) == (Status.TRUNCATED, len(whole) - 1)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_deleted_line(directory: Path, at: int):
    lines = _lines(directory)
    _write(directory, lines[:at] + lines[at + 1 :])
    report = verify(directory)
    assert (report.status, report.kind, report.seq) == (Status.TAMPERED, "seq_mismatch", at + 1)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_doubled_line(directory: Path, at: int):
    lines = _lines(directory)
    _write(directory, [*lines[: at + 1], *lines[at:]])
    report = verify(directory)
    assert (report.status, report.kind, report.seq) == (Status.TAMPERED, "seq_mismatch", at + 2)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_two_swapped_lines(directory: Path, at: int):
    lines = _lines(directory)
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    _write(directory, lines)
    report = verify(directory)
    assert (report.status, report.seq) == (Status.TAMPERED, at + 1)


def test_lines_of_another_ledger(directory: Path, tmp_path: Path):
    other = tmp_path / "other"
    with Ledger.open(other) as ledger:
        for _ in range(3):
            ledger.append("deny")
    mine, theirs = _lines(directory), _lines(other)
    _write(directory, mine[:2] + theirs[2:])
    report = verify(directory)
    assert (report.status, report.kind, report.seq) == (Status.TAMPERED, "prev_mismatch", 3)


def test_a_line_put_in(directory: Path):
    lines = _lines(directory)
    _write(directory, [lines[0], b'{"ev":"deny"}\n', *lines[1:]])
    assert verify(directory).status is Status.TAMPERED


@pytest.mark.parametrize("cut", [1, 5, 200])
def test_a_torn_tail_is_truncated_where_a_checkpoint_knows_it_and_else_incomplete(directory: Path, cut: int):
    path = directory / SEGMENT
    path.write_bytes(path.read_bytes()[:-cut])
    report = verify(directory)
    assert (report.status, report.kind, report.seq) == (Status.TRUNCATED, "checkpoint_ahead", 4)
    (directory / "seg-000001.notes").unlink()
    report = verify(directory)
    assert (report.status, report.kind, report.seq) == (Status.INCOMPLETE, "torn_tail", 4)


def test_a_huge_tail_without_a_newline(directory: Path):
    with (directory / SEGMENT).open("ab") as file:
        file.write(b"\0" * (1 << 20))
    assert verify(directory).status is Status.INCOMPLETE


def test_whole_lines_cut_off_the_end_show_by_the_checkpoint(directory: Path):
    _write(directory, _lines(directory)[:2])
    report = verify(directory)
    assert (report.status, report.kind, report.seq) == (Status.TRUNCATED, "checkpoint_ahead", 3)


def test_an_empty_ledger_is_truncated_and_without_a_checkpoint_incomplete(directory: Path):
    _write(directory, [])
    assert verify(directory).status is Status.TRUNCATED
    (directory / "seg-000001.notes").unlink()
    report = verify(directory)
    assert (report.status, report.kind) == (Status.INCOMPLETE, "empty")


def test_a_missing_segment(directory: Path):
    (directory / "seg-000002.jsonl").touch(mode=0o600)
    with Ledger.open(directory) as ledger:
        ledger.append("deny")
    assert verify(directory).status is Status.SOUND
    (directory / SEGMENT).rename(directory.parent / "seg-000001.jsonl")
    report = verify(directory)
    assert (report.status, report.kind, report.segment) == (Status.TAMPERED, "segment_missing", SEGMENT)


def test_a_torn_tail_in_the_middle_is_tampering(directory: Path):
    (directory / "seg-000002.jsonl").touch(mode=0o600)
    Ledger.open(directory).close()
    with (directory / SEGMENT).open("ab") as file:
        file.write(b"x")
    report = verify(directory)
    assert (report.status, report.kind) == (Status.TAMPERED, "torn_tail")


def test_torn_files_are_held_against_their_record(directory: Path):
    with (directory / SEGMENT).open("ab") as file:
        file.write(b"half a li")
    Ledger.open(directory).close()
    report = verify(directory)
    assert report.status is Status.SOUND
    assert report.notes == ("record 5: a crash left a torn line, kept in torn-1.bin",)
    (directory / "torn-1.bin").write_bytes(b"half a lie")
    report = verify(directory)
    assert (report.status, report.kind) == (Status.TAMPERED, "torn_file_changed")
    (directory / "torn-1.bin").rename(directory / "torn-2.bin")
    assert verify(directory).notes == (
        "torn-2.bin: no record names it",
        "torn-1.bin, named by record 5, isn't here",
    )


def test_what_cannot_be_read(directory: Path, tmp_path: Path):
    assert verify(tmp_path / "none").status is Status.UNREADABLE
    (tmp_path / "bare").mkdir()
    assert verify(tmp_path / "bare").status is Status.UNREADABLE
    (directory / SEGMENT).unlink()
    os.mkfifo(directory / SEGMENT)
    assert verify(directory).status is Status.UNREADABLE
    (directory / SEGMENT).unlink()
    (directory / SEGMENT).symlink_to("/dev/zero")
    assert verify(directory).status is Status.UNREADABLE


def test_a_live_ledger_can_be_verified_while_it_is_written(directory: Path):
    with Ledger.open(directory) as ledger:
        for _ in range(100):
            ledger.append("deny", path="/" + "p" * 1000)
            report = verify(directory)
            assert (report.status, report.records) == (Status.SOUND, ledger.seq)


def test_the_chain_can_be_checked_by_hand(directory: Path):
    """The commands of docs/ledger.md, which share no code with us."""
    text = Path(__file__).parents[2].joinpath("docs/ledger.md").read_text()
    block = re.search(r"```sh\n(sed .*?)```", text, re.DOTALL)
    assert block is not None
    for number in range(2, 5):
        done = subprocess.run(
            ["sh", "-euc", block[1]],
            cwd=directory,
            env={"N": str(number), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        digest, prev = done.stdout.splitlines()
        assert prev == f'"prev":"{digest.split()[0]}"'
