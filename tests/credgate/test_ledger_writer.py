"""The writer: what is on the disk after each way in which writing can go wrong."""

import asyncio
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from credgate.ledger.files import RESERVE
from credgate.ledger.record import LedgerError, Stamp
from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger, SystemCalls
from credgate.paths import PlaceError
from tests.credgate.ledger_rig import no_kernel

SEGMENT = "seg-000001.jsonl"


def records(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / SEGMENT).read_bytes().splitlines()]


def crash(ledger: Ledger) -> None:
    """Let go of an open ledger without `final`, as a kill would."""
    ledger._release()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger"


def test_lines_are_chained_and_stamped(directory: Path):
    clock = iter([Stamp(ts=f"2026-01-01T00:00:0{n}.000000Z", boot="b", mono_ns=n) for n in range(3)])
    with Ledger.open(directory, clock=lambda: next(clock)) as ledger:
        assert [ledger.append("deny", host="a"), ledger.append("deny", host="b")] == [1, 2]
        assert ledger.seq == 2
    got = records(directory)
    assert [(r["seq"], r["ev"], r["mono_ns"]) for r in got] == [(1, "deny", 0), (2, "deny", 1), (3, "final", 2)]
    lines = (directory / SEGMENT).read_bytes().splitlines(keepends=True)
    assert got[1]["prev"] == hashlib.sha256(lines[0]).hexdigest()


def test_a_line_is_in_the_file_when_append_returns(directory: Path):
    with Ledger.open(directory) as ledger:
        ledger.append("intent", run="r1", secret="github")
        assert records(directory)[-1]["secret"] == "github"


def test_everything_is_private(directory: Path):
    with Ledger.open(directory) as ledger:
        ledger.append("deny")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in directory.iterdir()} == {0o600}


def test_reopened_chain_goes_on(directory: Path):
    for _ in range(3):
        with Ledger.open(directory) as ledger:
            ledger.append("deny")
    report = verify(directory)
    assert (report.status, report.records, report.notes) == (Status.SOUND, 6, ())


def test_a_mistake_of_the_caller_writes_nothing_and_closes_nothing(directory: Path):
    with Ledger.open(directory) as ledger:
        with pytest.raises(TypeError):
            ledger.append("deny", hots="x")
        assert ledger.seq == 0
        assert ledger.append("deny", host="x") == 1


def test_a_new_segment_links_to_the_last_line_of_the_one_before(directory: Path):
    with Ledger.open(directory) as ledger:
        ledger.append("deny")
    (directory / "seg-000002.jsonl").touch(mode=0o600)
    with Ledger.open(directory) as ledger:
        assert ledger.append("deny") == 4  # behind the header
    first = (directory / SEGMENT).read_bytes().splitlines(keepends=True)
    second = json.loads((directory / "seg-000002.jsonl").read_bytes().splitlines()[0])
    assert second["prev"] == hashlib.sha256(first[-1]).hexdigest()
    assert verify(directory).status is Status.SOUND


# --- crashes


class NoSync(SystemCalls):
    """For hundreds of ledgers in a row, where what counts is the files' content."""

    fdatasync = staticmethod(lambda fd: None)
    later = staticmethod(no_kernel)


def test_torn_tail_at_every_cut_of_the_last_line(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("credgate.ledger.verify.SETTLE", 0)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    with Ledger.open(directory) as ledger:
        ledger.append("deny", host="a")
    path = directory / SEGMENT
    whole = path.read_bytes()
    start = whole.rfind(b"\n", 0, -1) + 1
    reserve = (directory / RESERVE).read_bytes()
    for cut in range(start + 1, len(whole)):
        for file in directory.iterdir():
            file.unlink()
        path.touch(mode=0o600)
        path.write_bytes(whole[:cut])
        (directory / RESERVE).touch(mode=0o600)
        (directory / RESERVE).write_bytes(reserve)
        assert verify(directory).status is Status.INCOMPLETE
        with Ledger.open(directory, calls=NoSync) as ledger:
            ledger.append("deny", host="b")
        torn = whole[start:cut]
        assert (directory / "torn-1.bin").read_bytes() == torn
        _, recovered, after, _ = records(directory)
        assert recovered["ev"] == "recovered"
        assert (recovered["length"], recovered["sha256"]) == (len(torn), hashlib.sha256(torn).hexdigest())
        assert (after["seq"], after["host"]) == (3, "b")
        assert path.read_bytes().startswith(whole[:start])
        assert verify(directory).status is Status.SOUND


@pytest.mark.parametrize("garbage", [b"\0" * 100_000, b"{}\n", b"\xff\xfe\n", b"\n"])
def test_a_last_line_that_is_none_is_moved_away(directory: Path, garbage: bytes):
    with Ledger.open(directory) as ledger:
        ledger.append("deny")
    with (directory / SEGMENT).open("ab") as file:
        file.write(garbage)
    with Ledger.open(directory):
        pass
    assert (directory / "torn-1.bin").read_bytes() == garbage
    assert records(directory)[2]["ev"] == "recovered"
    assert verify(directory).status is Status.SOUND


def test_two_bad_last_lines_are_no_crash_and_nothing_is_moved(directory: Path):
    with Ledger.open(directory) as ledger:
        ledger.append("deny")
    with (directory / SEGMENT).open("ab") as file:
        file.write(b"{}\n{}")
    before = (directory / SEGMENT).read_bytes()
    with pytest.raises(LedgerError) as caught:
        Ledger.open(directory)
    assert caught.value.code == "ledger_damaged"
    assert (directory / SEGMENT).read_bytes() == before
    assert list(directory.glob("torn-*")) == []


def test_a_writer_that_never_closed_is_recorded(directory: Path):
    ledger = Ledger.open(directory)
    ledger.append("deny")
    crash(ledger)
    with Ledger.open(directory):
        pass
    assert [r["ev"] for r in records(directory)] == ["deny", "recovered", "final"]
    assert records(directory)[1]["length"] == 0


_HAMMER = """
import sys
from pathlib import Path
from credgate.ledger.writer import Ledger
ledger = Ledger.open(Path(sys.argv[1]))
for n in range(100000):
    seq = ledger.append("deny", host="h" * (n % 300), path="/" + "p" * (n % 2000))
    if n % 7 == 0:
        ledger.sync()
    print(seq, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.05, 0.11])
def test_kill_9_in_the_middle_loses_no_line_that_was_reported(directory: Path, delay: float):
    child = subprocess.Popen([sys.executable, "-I", "-c", _HAMMER, str(directory)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    reported = child.stdout.read().splitlines()
    child.wait(10)
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    with Ledger.open(directory) as ledger:
        # a last number may be cut by the pipe; each whole one was written before it was printed
        whole = [int(line) for line in reported[:-1]] or [1]
        assert ledger.seq > whole[-1]
    assert verify(directory).status is Status.SOUND


# --- one writer


def test_a_second_writer_is_refused_and_the_first_goes_on(directory: Path):
    with Ledger.open(directory) as first:
        with pytest.raises(LedgerError) as caught:
            Ledger.open(directory)
        assert caught.value.code == "ledger_locked"
        first.append("deny")
    with Ledger.open(directory) as second:
        second.append("deny")


def test_a_second_writer_in_another_process_is_refused(directory: Path):
    code = "import sys, pathlib, credgate.ledger.writer as w\nw.Ledger.open(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-I", "-c", code, str(directory)]
    with Ledger.open(directory):
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "ledger_locked" in refused.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_threads_share_one_chain(directory: Path):
    with Ledger.open(directory) as ledger:
        workers = [
            threading.Thread(target=lambda: [ledger.append("deny", host="x") for _ in range(50)]) for _ in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    report = verify(directory)
    assert (report.status, report.records) == (Status.SOUND, 201)


# --- errors: after the first one nothing passes


def failing(call: str, error: int, after: int = 0) -> tuple[type[SystemCalls], list[int]]:
    """System calls of which `call` fails once `after` of them have passed, and from then on works again."""
    seen: list[int] = []
    real = getattr(SystemCalls, call)

    def fail(*args: object) -> object:
        seen.append(1)
        if len(seen) == after + 1:
            raise OSError(error, os.strerror(error))
        return real(*args)

    return type("Failing", (SystemCalls,), {call: staticmethod(fail), "later": staticmethod(no_kernel)}), seen


def refuses_for_ever(ledger: Ledger) -> None:
    for action in (
        lambda: ledger.append("deny"),
        ledger.sync,
        lambda: asyncio.run(ledger.durable(1)),
        lambda: ledger.append("deny"),
    ):
        with pytest.raises(LedgerError) as caught:
            action()
        assert caught.value.code == "ledger_unavailable"


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_write_error_closes_it_for_good(directory: Path, error: int):
    calls, _ = failing("write", error, after=1)
    ledger = Ledger.open(directory, calls=calls)
    ledger.append("deny", host="a")
    with pytest.raises(LedgerError):
        ledger.append("deny", host="b")
    refuses_for_ever(ledger)
    assert ledger.broken is not None
    ledger.close()
    assert [r.get("host") for r in records(directory)][:1] == ["a"]
    assert "b" not in [r.get("host") for r in records(directory)]
    assert (verify(directory).status, verify(directory).kind) == (Status.INCOMPLETE, "no_checkpoint")
    Ledger.open(directory).close()
    assert verify(directory).status is Status.SOUND


def test_a_write_without_memory_closes_it_too(directory: Path):
    """Its lines are chained and taken already: those behind them would follow what is not there."""

    def write(fd: int, data: bytes) -> int:
        if b'"big"' in data:
            raise MemoryError
        return os.write(fd, data)

    ledger = Ledger.open(directory, calls=type("Full", (SystemCalls,), {"write": staticmethod(write)}))
    ledger.append("deny", host="a")
    with pytest.raises(LedgerError):
        ledger.append("deny", host="big")
    refuses_for_ever(ledger)
    ledger.close()
    Ledger.open(directory).close()
    assert verify(directory).status is Status.SOUND


def test_a_short_write_is_cut_back(directory: Path):
    def short(fd: int, data: bytes) -> int:
        return os.write(fd, data[: len(data) // 2]) if b'"cut"' in data else os.write(fd, data)

    calls = type("Short", (SystemCalls,), {"write": staticmethod(short)})
    ledger = Ledger.open(directory, calls=calls)
    ledger.append("deny", host="a")
    with pytest.raises(LedgerError):
        ledger.append("deny", host="cut")
    refuses_for_ever(ledger)
    ledger.close()
    assert [r["ev"] for r in records(directory)] == ["deny", "alarm"]
    assert (verify(directory).status, verify(directory).kind) == (Status.INCOMPLETE, "no_checkpoint")


def test_a_short_write_that_cannot_be_cut_back_closes_it_too(directory: Path):
    def short(fd: int, data: bytes) -> int:
        return os.write(fd, data[:20])

    def no_truncate(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    calls = type("Short", (SystemCalls,), {"write": staticmethod(short), "ftruncate": staticmethod(no_truncate)})
    ledger = Ledger.open(directory, calls=calls)
    with pytest.raises(LedgerError):
        ledger.append("deny")
    refuses_for_ever(ledger)
    ledger.close()
    assert verify(directory).status is Status.INCOMPLETE
    with Ledger.open(directory):
        pass
    assert verify(directory).status is Status.SOUND


def test_an_fsync_error_is_never_tried_again(directory: Path):
    calls, seen = failing("fdatasync", errno.EIO, after=0)
    ledger = Ledger.open(directory, calls=calls)  # nothing written yet, so nothing to sync
    seq = ledger.append("intent")
    with pytest.raises(LedgerError):
        asyncio.run(ledger.durable(seq))
    tried = len(seen)
    refuses_for_ever(ledger)
    assert len(seen) == tried == 1
    ledger.close()


def test_an_fsync_error_reaches_every_caller_that_waits(directory: Path):
    calls, _ = failing("fdatasync", errno.EIO)
    ledger = Ledger.open(directory, calls=calls)

    async def wait() -> list[object]:
        seqs = [ledger.append("intent") for _ in range(5)]
        return list(await asyncio.gather(*(ledger.durable(seq) for seq in seqs), return_exceptions=True))

    got = asyncio.run(wait())
    assert [type(item) for item in got] == [LedgerError] * 5
    ledger.close()


# --- durable


def counting() -> tuple[type[SystemCalls], list[int]]:
    seen: list[int] = []

    def slow(fd: int) -> None:
        seen.append(1)
        time.sleep(0.02)
        os.fdatasync(fd)

    return type("Counting", (SystemCalls,), {"fdatasync": staticmethod(slow), "later": staticmethod(no_kernel)}), seen


def test_callers_at_the_same_time_share_a_sync(directory: Path):
    calls, seen = counting()

    async def burst(ledger: Ledger) -> None:
        seqs = [ledger.append("intent") for _ in range(50)]
        await asyncio.gather(*(ledger.durable(seq) for seq in seqs))
        done = len(seen)
        await ledger.durable(seqs[0])
        assert len(seen) == done

    with Ledger.open(directory, calls=calls) as ledger:
        asyncio.run(burst(ledger))
        assert len(seen) == 1


def test_a_line_written_during_a_sync_gets_one_of_its_own(directory: Path):
    calls, seen = counting()

    async def overlap(ledger: Ledger) -> None:
        first = asyncio.ensure_future(ledger.durable(ledger.append("intent")))
        async with asyncio.timeout(60):
            while not seen:  # a thread's start may take its time
                await asyncio.sleep(0.001)
        await ledger.durable(ledger.append("intent"))
        await first

    with Ledger.open(directory, calls=calls) as ledger:
        asyncio.run(overlap(ledger))
        assert len(seen) == 2


def test_a_cancelled_caller_takes_the_sync_from_nobody(directory: Path):
    calls, _ = counting()

    async def cancel_one(ledger: Ledger) -> None:
        seq = ledger.append("intent")
        first = asyncio.ensure_future(ledger.durable(seq))
        second = asyncio.ensure_future(ledger.durable(seq))
        await asyncio.sleep(0.005)
        first.cancel()
        await second
        assert first.cancelled()

    with Ledger.open(directory, calls=calls) as ledger:
        asyncio.run(cancel_one(ledger))


def test_a_line_that_was_never_written_is_not_durable(directory: Path):
    with Ledger.open(directory) as ledger, pytest.raises(ValueError, match="never written"):
        asyncio.run(ledger.durable(1))


def test_closed_is_closed(directory: Path):
    ledger = Ledger.open(directory)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError) as caught:
        ledger.append("deny")
    assert caught.value.code == "ledger_closed"


# --- the real thing: a disk that is full


_FULL = """
import ctypes, json, os, sys
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.geteuid(), os.getegid()
if uid:
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
else:
    os.unshare(os.CLONE_NEWNS)
mount = sys.argv[1].encode()
def check(result):
    if result: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
check(libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None))  # MS_REC | MS_PRIVATE
check(libc.mount(b"tmpfs", mount, b"tmpfs", 0, f"size=256k,mode=0700,uid={uid},gid={gid}".encode()))

from credgate.ledger.record import LedgerError
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger
directory = Path(sys.argv[1]) / "ledger"
out = {}
ledger = Ledger.open(directory)
count = 0
try:
    while count < 10000:
        ledger.append("deny", path="/" + "p" * 1000)
        count += 1
except LedgerError as error:
    out["error"] = [error.code, error.detail]
refused = 0
for _ in range(5):
    try:
        ledger.append("deny")
    except LedgerError:
        refused += 1
ledger.close()
report = verify(directory)
last = json.loads((directory / "seg-000001.jsonl").read_bytes().splitlines()[-1])
out |= {"count": count, "refused": refused, "status": int(report.status), "records": report.records, "last": last}
with open(directory.parent / "fill", "wb", 0) as fill:
    try:
        while True: fill.write(b"x" * 4096)
    except OSError: pass
try:
    Ledger.open(directory)
except LedgerError as error:
    out["reopen"] = [error.code, error.detail]
(directory.parent / "fill").unlink()
check(libc.mount(b"tmpfs", mount, b"tmpfs", 1 << 5, b"size=1m"))  # MS_REMOUNT: somebody made room
with Ledger.open(directory) as ledger:
    out["again"] = ledger.append("deny")
out["mended"] = int(verify(directory).status)
print(json.dumps(out))
"""


@pytest.mark.needs("userns")
def test_a_full_disk(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-I", "-c", _FULL, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["error"][0] == "ledger_unavailable"
    assert "no space left" in out["error"][1]
    assert out["refused"] == 5
    # nothing is lost: each line that was reported, and the alarm that the reserve made room for
    assert out["records"] == out["count"] + 1
    assert out["last"]["ev"] == "alarm"
    assert out["last"]["reason"] == "ledger_unavailable"
    assert out["status"] == 3  # no checkpoint had room any more
    assert out["reopen"][0] == "ledger_unavailable"
    assert out["again"] == out["records"] + 2  # behind the record that says there was no final one
    assert out["mended"] == 0


# --- the place


def test_a_directory_that_others_can_write_is_refused(directory: Path):
    directory.mkdir(parents=True, mode=0o700)
    directory.chmod(0o777)
    with pytest.raises(PlaceError) as caught:
        Ledger.open(directory)
    assert caught.value.code == "wrong_mode"
    assert "0777, expected 0700" in caught.value.detail
    directory.chmod(0o700)
    Ledger.open(directory).close()


def test_a_segment_that_others_can_read_is_refused(directory: Path):
    Ledger.open(directory).close()
    (directory / SEGMENT).chmod(0o644)
    with pytest.raises(PlaceError) as caught:
        Ledger.open(directory)
    assert caught.value.code == "wrong_mode"
    # the lock was let go
    (directory / SEGMENT).chmod(0o600)
    Ledger.open(directory).close()


def test_a_segment_that_is_a_link_is_refused(directory: Path, tmp_path: Path):
    Ledger.open(directory).close()
    target = tmp_path / "elsewhere"
    (directory / SEGMENT).rename(target)
    (directory / SEGMENT).symlink_to(target)
    with pytest.raises(PlaceError):
        Ledger.open(directory)


def test_a_place_that_nobody_can_write():
    # procfs takes no directory, from root either
    with pytest.raises(PlaceError) as caught:
        Ledger.open(Path("/proc/self/ledger"))
    assert caught.value.code == "place_unusable"
