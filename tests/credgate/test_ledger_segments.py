"""Segments: when they end, what the next begins with; checkpoints: when they come; keys, packing and removal."""

import asyncio
import base64
import errno
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from credgate.ledger import keys
from credgate.ledger.note import parse_notes
from credgate.ledger.read import read_records
from credgate.ledger.record import LedgerError, Stamp
from credgate.ledger.report import Kept, Status
from credgate.ledger.retain import pack_segment, prune, tidy
from credgate.ledger.settings import Settings
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger, SystemCalls
from credgate.paths import PlaceError
from tests.credgate.ledger_rig import SMALL, by_shell, make, no_kernel, records


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def names(directory: Path, pattern: str = "seg-*.jsonl*") -> list[str]:
    return sorted(path.name for path in directory.glob(pattern))


def noted(directory: Path) -> list[int]:
    """Sizes of all checkpoints, in order."""
    paths = sorted(directory.glob("*.notes"))
    return [note.checkpoint.size for path in paths for note in parse_notes(path.read_bytes())[0]]


# --- segments


def test_a_segment_begins_with_all_that_came_before(directory: Path):
    make(directory, 12)
    assert len(names(directory)) > 3
    lines = records(directory)
    headers = [line for line in lines if line["ev"] == "checkpoint"]
    assert [header["segment"] for header in headers] == list(range(2, len(names(directory)) + 1))
    for header in headers:
        size = header["tree_size"]
        assert isinstance(size, int)
        assert header["seq"] == size + 1
        assert size in noted(directory)  # the segment's end is signed
        frontier = header["frontier"]
        assert isinstance(frontier, list)
        assert len(frontier) == size.bit_count()
    assert (verify(directory).status, by_shell(directory)) == (Status.SOUND, 0)


def test_a_day_ends_a_segment_and_a_clock_that_goes_back_does_not(directory: Path):
    days = iter([1, 1, 2, 1, 2, 3, 3])
    clock = lambda: Stamp(ts=f"2026-01-0{next(days)}T00:00:00.000000Z", boot="b", mono_ns=1)  # noqa: E731 - one line
    with Ledger.open(directory, clock=clock) as ledger:
        for _ in range(6):
            ledger.append("deny")
    per_segment = [len(path.read_bytes().splitlines()) for path in sorted(directory.glob("seg-*.jsonl"))]
    assert per_segment == [2, 4, 3]  # the second and third with a header
    assert verify(directory).status is Status.SOUND


def test_a_new_segment_is_on_the_disk_before_a_line_of_its_own(directory: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        if threading.current_thread() is threading.main_thread():  # the signer has files of its own
            seen.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        real_fsync(fd)

    def write(fd: int, data: bytes) -> int:
        seen.append(f"write {Path(os.readlink(f'/proc/self/fd/{fd}')).name} {json.loads(data)['ev']}")
        return os.write(fd, data)

    calls = type("Seen", (SystemCalls,), {"write": staticmethod(write)})
    with Ledger.open(directory, calls=calls, settings=SMALL) as ledger:
        for _ in range(4):
            ledger.append("deny")
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            ledger.append("deny")
    ours = [step for step in seen if "jsonl" in step or step == "fsync ledger"]
    assert ours[:4] == [
        "write seg-000002.jsonl checkpoint",
        "fsync seg-000002.jsonl",
        "fsync ledger",
        "write seg-000002.jsonl deny",
    ]


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_an_error_where_a_segment_ends_closes_the_ledger_and_the_next_writer_goes_on(directory: Path, call: str):
    armed: list[int] = []

    def fail(*args: object) -> object:
        if armed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return getattr(os, call)(*args)

    calls = type("Failing", (SystemCalls,), {call: staticmethod(fail), "later": staticmethod(no_kernel)})
    ledger = Ledger.open(directory, calls=calls, settings=Settings(max_bytes=900, every_seconds=60))
    for _ in range(4):
        ledger.append("deny")
    armed.append(1)
    for _ in range(2):
        with pytest.raises(LedgerError, match="ledger_unavailable"):
            ledger.append("deny")
    armed.clear()
    ledger.close()
    make(directory, 1)
    assert (verify(directory).status, by_shell(directory)) == (Status.SOUND, 0)


@pytest.mark.parametrize("left", [b"", b'{"boot":"half a li'])
def test_a_crash_before_the_header_was_there(directory: Path, left: bytes):
    make(directory, 2)
    (directory / "seg-000002.jsonl").touch(mode=0o600)
    (directory / "seg-000002.jsonl").write_bytes(left)
    make(directory, 1)
    second = [json.loads(line) for line in (directory / "seg-000002.jsonl").read_bytes().splitlines()]
    assert [line["ev"] for line in second][:2] == ["checkpoint", "recovered" if left else "deny"]
    assert (verify(directory).status, by_shell(directory)) == (Status.SOUND, 0)


def test_a_ledger_of_the_time_before_checkpoints_is_signed_as_a_whole(directory: Path):
    """Made by hand as the code before made it: lines alone."""
    make(directory, 5, settings=Settings())
    for path in (directory / "pubkey.pem", directory / "seg-000001.notes"):
        path.unlink()
    shutil.rmtree(keys.beside(directory))
    report = verify(directory)
    assert (report.status, report.kind, report.records) == (Status.INCOMPLETE, "no_checkpoint", 6)
    make(directory, 1, settings=Settings())
    report = verify(directory)
    assert (report.status, report.records, report.signed) == (Status.SOUND, 8, 8)
    assert by_shell(directory) == 0


# --- checkpoints


def test_checkpoints_come_by_count_and_by_time_and_not_without_lines(directory: Path):
    with Ledger.open(directory, settings=Settings(every_lines=10, every_seconds=0.15)) as ledger:
        for _ in range(10):
            ledger.append("deny")
        _until(lambda: 10 in noted(directory))
        ledger.append("deny")
        _until(lambda: 11 in noted(directory))
        before = noted(directory)
        time.sleep(0.4)
        assert noted(directory) == before
        report = verify(directory)
        assert (report.status, report.live, report.signed) == (Status.SOUND, True, 11)
    assert noted(directory)[-1] == 12
    last = parse_notes((directory / "seg-000001.notes").read_bytes())[0][-1]
    assert last.checkpoint.extra[-1] == "final"


def _until(true: object) -> None:
    assert callable(true)
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_checkpoint_is_of_lines_that_are_on_the_disk(directory: Path):
    """The sync comes first; where it fails, nothing is signed and nothing passes."""
    calls = type("Failing", (SystemCalls,), {"fdatasync": staticmethod(_eio), "later": staticmethod(no_kernel)})
    ledger = Ledger.open(directory, calls=calls, settings=Settings(every_lines=2, every_seconds=0.05))
    ledger.append("deny")
    _until(lambda: ledger.broken is not None)
    with pytest.raises(LedgerError):
        ledger.append("deny")
    ledger.close()
    assert noted(directory) == []


def _eio(fd: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_checkpoint_that_cannot_be_written_closes_the_ledger(directory: Path):
    ledger = Ledger.open(directory, settings=Settings(every_seconds=0.05))
    (directory / "seg-000001.notes").mkdir()
    ledger.append("deny")
    _until(lambda: ledger.broken is not None)
    with pytest.raises(LedgerError) as caught:
        ledger.append("deny")
    assert "can't sign" in caught.value.detail
    ledger.close()


def test_an_intent_waits_for_no_checkpoint(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """With a signer that hangs, lines are written and synced as ever; without that they would be none the wiser."""
    hangs, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(keys.Key, "sign", lambda self, text: (hangs.set(), go_on.wait(100), bytes(64))[-1])
    with Ledger.open(directory, settings=Settings(every_lines=1, every_seconds=0.01)) as ledger:
        ledger.append("deny")
        assert hangs.wait(60)
        try:
            for _ in range(20):
                asyncio.run(asyncio.wait_for(ledger.durable(ledger.append("intent")), 60))
        finally:
            go_on.set()


def test_a_torn_checkpoint_is_incomplete_and_the_next_writer_cuts_it_off(directory: Path):
    make(directory, 2)
    path = directory / "seg-000001.notes"
    whole = path.read_bytes()
    path.write_bytes(whole + b"credgate/ledger/")
    assert (verify(directory).status, verify(directory).kind) == (Status.INCOMPLETE, "torn_checkpoint")
    make(directory, 1)
    assert path.read_bytes().startswith(whole)
    assert verify(directory).status is Status.SOUND
    assert any(line["ev"] == "recovered" and "torn checkpoint" in str(line["detail"]) for line in records(directory))


# --- keys


def test_the_key_is_private_and_lies_outside_the_ledger(directory: Path):
    make(directory)
    place = keys.beside(directory)
    assert place.parent == directory.parent
    assert place.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in place.iterdir()] == [0o600]
    assert not any(b"PRIVATE" in path.read_bytes() for path in directory.iterdir())
    key = next(place.iterdir())
    key.chmod(0o644)
    with pytest.raises(PlaceError):
        Ledger.open(directory)
    key.chmod(0o600)
    key.write_bytes(b"x")
    with pytest.raises(LedgerError, match="ledger_key_damaged"):
        Ledger.open(directory)


def test_a_change_of_key_is_signed_by_both_and_either_is_known(directory: Path):
    make(directory, 2)
    old = keys.parse_public((directory / "pubkey.pem").read_text())
    early = parse_notes((directory / "seg-000001.notes").read_bytes())[0][-1]
    with Ledger.open(directory, settings=SMALL) as ledger:
        new = ledger.change_key()
        ledger.append("deny")
    make(directory, 2)
    for key in (None, old, new):
        report = verify(directory, pubkey=key, against=[Kept(who="noted", notes=[early])])
        assert (report.status, report.pubkey) == (Status.SOUND, base64.b64encode(new).decode())
    assert verify(directory, pubkey=bytes(32)).kind == "wrong_key"
    assert names(keys.beside(directory), "*") == ["ed25519.pem"]


@pytest.mark.parametrize("field", ["sig_old", "sig_new", "pubkey", "old_pubkey", "origin"])
def test_a_forged_change_of_key(directory: Path, field: str):
    from tests.credgate.ledger_rig import rechain

    make(directory, 2, settings=Settings())
    with Ledger.open(directory) as ledger:
        ledger.change_key()
    lines = records(directory)
    for line in lines:
        if line["ev"] == "key_change":
            value = str(line[field])
            line[field] = ("B" if value[0] != "B" else "C") + value[1:]
    (directory / "seg-000001.jsonl").write_bytes(rechain(lines))
    report = verify(directory)
    assert (report.status, report.kind) == (Status.TAMPERED, "key_change_unsigned")


@pytest.mark.parametrize("recorded", [False, True])
def test_a_crash_while_the_key_changes(directory: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool):
    make(directory, 2)
    ledger = Ledger.open(directory)

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(keys, "use_next", crash)
        if not recorded:
            patch.setattr(Ledger, "_put", crash)
        with pytest.raises(Crash):
            ledger.change_key()
    ledger._release()
    assert len(names(keys.beside(directory), "*")) == 2
    make(directory, 1)
    assert names(keys.beside(directory), "*") == ["ed25519.pem"]
    assert verify(directory).status is Status.SOUND
    assert len([line for line in records(directory) if line["ev"] == "key_change"]) == int(recorded)


# --- packing and removal


def test_packed_segments_are_read_and_verified_as_before(directory: Path):
    make(directory, 12)
    before = [dict(record) for record in read_records(directory) if isinstance(record, dict)]
    last = names(directory)[-1]
    tidy(directory, 0, True, lambda fields: None)
    packed = names(directory)
    assert packed[-1] == last
    assert all(name.endswith(".gz") for name in packed[:-1])
    assert [dict(record) for record in read_records(directory) if isinstance(record, dict)] == before
    assert (verify(directory).status, by_shell(directory)) == (Status.SOUND, 0)
    path = directory / packed[0]
    whole = path.read_bytes()
    assert gzip.compress(gzip.decompress(whole), 6, mtime=0)[10:] == whole[10:]
    same = 0
    for at in range(10, len(whole)):  # the header before holds nothing of ours
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        path.write_bytes(changed)
        if verify(directory).status is not Status.TAMPERED:
            assert gzip.decompress(changed) == gzip.decompress(whole), at  # bits of the packing that count for nothing
            same += 1
    assert same < 3
    path.write_bytes(whole[:-20])
    assert verify(directory).kind == "pack_damaged"


def test_a_crash_while_a_segment_is_packed_leaves_one_that_counts(directory: Path):
    make(directory, 5)
    first = directory / "seg-000001.jsonl"
    kept = first.read_bytes()
    pack_segment(first)
    first.touch(mode=0o600)
    first.write_bytes(kept)
    assert verify(directory).status is Status.SOUND
    (directory / ".seg-000001.jsonl.gz.new").write_bytes(b"half")
    tidy(directory, 0, True, lambda fields: None)
    assert not first.exists()
    assert verify(directory).status is Status.SOUND
    make(directory, 5)
    assert verify(directory).status is Status.SOUND


def test_removed_segments_are_told_and_the_rest_stays_provable(directory: Path):
    make(directory, 12)
    early = parse_notes((directory / "seg-000001.notes").read_bytes())[0]
    late = parse_notes((directory / names(directory, "*.notes")[-1]).read_bytes())[0][-1]
    with Ledger.open(directory, settings=Settings()) as ledger:
        gone = prune(directory, 2, ledger.record_pruned)
    assert gone == len(names(directory, "*.notes")) - 2
    assert len(names(directory)) == 2
    report = verify(directory)
    assert (report.status, report.first > 1) == (Status.SOUND, True)
    assert any("were removed" in note for note in report.notes)
    assert [size for size in noted(directory) if size < report.first]  # roots of what is gone
    end = Kept(who="noted", notes=[late])
    assert verify(directory, against=[end]).status is Status.SOUND
    old = verify(directory, against=[Kept(who="noted", notes=early)])
    assert (old.status, old.kind) == (Status.INCOMPLETE, "checkpoint_pruned")
    make(directory, 5)
    assert verify(directory).status is Status.SOUND
    assert next(iter(read_records(directory)))["seq"] == report.first  # type: ignore[index]


def test_a_segment_removed_by_hand_is_tampering(directory: Path):
    make(directory, 12)
    (directory / "seg-000001.jsonl").unlink()
    report = verify(directory)
    assert (report.status, report.kind, report.seq) == (Status.TAMPERED, "segment_missing", 1)
    with Ledger.open(directory, settings=Settings()) as ledger:  # it goes on, and the gap stays told
        ledger.append("deny")
    assert verify(directory).kind == "segment_missing"


def test_more_removed_than_was_told_is_tampering(directory: Path):
    make(directory, 12)
    with Ledger.open(directory, settings=Settings()) as ledger:
        prune(directory, 3, ledger.record_pruned)
    assert verify(directory).status is Status.SOUND
    (directory / names(directory)[0]).unlink()
    assert verify(directory).kind == "segment_missing"


def test_changed_checkpoints_of_what_was_removed_are_found(directory: Path):
    make(directory, 12)
    with Ledger.open(directory, settings=Settings()) as ledger:
        prune(directory, 1, ledger.record_pruned)
    for path in sorted(directory.glob("*.notes"))[:-1]:
        whole = path.read_bytes()
        for at in range(0, len(whole) - 1, 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert verify(directory).status is not Status.SOUND, (path, at)
        path.write_bytes(whole)
    assert verify(directory).status is Status.SOUND


def test_a_change_of_key_outlives_its_segment(directory: Path):
    make(directory, 2)
    old = keys.parse_public((directory / "pubkey.pem").read_text())
    with Ledger.open(directory, settings=SMALL) as ledger:
        ledger.change_key()
    make(directory, 12)
    with Ledger.open(directory, settings=Settings()) as ledger:
        prune(directory, 1, ledger.record_pruned)
    assert not any(line["ev"] == "key_change" for line in records(directory))
    assert verify(directory, pubkey=old).status is Status.SOUND
    path = directory / "keychanges.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"sig_old":"', b'"sig_old":"A'))
    assert verify(directory).status is Status.TAMPERED
    path.unlink()
    assert verify(directory).status is Status.TAMPERED


def test_settings_remove_and_pack_while_the_ledger_is_written(directory: Path):
    with Ledger.open(directory, settings=Settings(max_bytes=4000, keep=3, pack=True)) as ledger:
        for _ in range(200):
            ledger.append("deny")
        # what begins or ends a segment meanwhile takes one at most
        _until(lambda: len(names(directory)) <= 4)
    assert names(directory)[0].endswith(".gz")
    report = verify(directory)
    assert (report.status, report.detail) == (Status.SOUND, "")
    assert report.first > 100


@pytest.mark.parametrize("keep", [0, -1])
def test_nothing_is_kept_of_nothing(directory: Path, keep: int):
    make(directory)
    with pytest.raises(LedgerError, match="expected at least 1"):
        prune(directory, keep, lambda fields: None)


# --- kill -9


# Imports once and forks for each line "MAX_BYTES KEEP": "pid N", then each number that was written, at the end "ended".
_HAMMER = """
import os, sys
from pathlib import Path
from credgate.ledger.settings import Settings
from credgate.ledger.writer import Ledger

def hammer(max_bytes, keep):
    print("pid", os.getpid(), flush=True)
    settings = Settings(max_bytes=max_bytes, every_lines=4, every_seconds=0.01, keep=keep, pack=True)
    ledger = Ledger.open(Path(sys.argv[1]), settings=settings)
    for n in range(100000):
        seq = ledger.append("deny", host="h" * (n % 300), path="/" + "p" * (n % 2000))
        if n % 7 == 0:
            ledger.sync()
        print(seq, flush=True)

for line in sys.stdin:
    child = os.fork()
    if not child:
        hammer(*map(int, line.split()))
        os._exit(1)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""
KILLS = int(os.environ.get("CREDGATE_LEDGER_KILLS", "40"))


def kill_once(zygote: subprocess.Popen[str], chance: random.Random) -> int:
    """Kill a writer somewhere; return the last number that it reported."""
    assert zygote.stdin is not None and zygote.stdout is not None
    zygote.stdin.write(f"{chance.choice([900, 20000])} {chance.choice([0, 3])}\n")
    zygote.stdin.flush()
    word, pid = zygote.stdout.readline().split()
    assert word == "pid"
    last = zygote.stdout.readline()
    time.sleep(chance.random() * 0.06)
    os.kill(int(pid), signal.SIGKILL)
    for line in zygote.stdout:  # each was one write(2) to a pipe, so none is cut
        if line.startswith("ended"):
            assert line.split()[1] == str(-signal.SIGKILL)
            break
        last = line
    return int(last)


@pytest.fixture
def zygote(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-I", "-c", _HAMMER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def test_kill_9_anywhere_leaves_a_ledger_that_is_sound_after_repair(directory: Path, zygote: subprocess.Popen[str]):
    """One ledger, killed again and again: no reported line is lost, and each repair is signed."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    for n in range(KILLS):
        last = kill_once(zygote, chance)
        killed = verify(directory)
        assert killed.status in (Status.SOUND, Status.INCOMPLETE), (seed, n, killed)
        with Ledger.open(directory, settings=Settings(keep=3, pack=True)) as ledger:
            assert ledger.seq > last, (seed, n)
        report = verify(directory)
        assert report.status is Status.SOUND, (seed, n, report)
        assert report.signed == report.records
