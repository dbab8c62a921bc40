"""What pid 1 sums: texts of /proc, and the kernel's own numbers of processes that hold memory in every way."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jail import usage

MEBI = 1 << 20
STATUS = b"Name:\tRssAnon:\\n\nThreads:\t3\nRssAnon:\t    2048 kB\nRssFile:\t  99999 kB\nRssShmem:\t     512 kB\n"


def test_status_is_anonymous_and_shared_memory_without_files() -> None:
    assert usage.parse_status(STATUS) == (2 * MEBI, MEBI // 2, 3)
    assert usage.parse_status(b"") == (0, 0, 0)  # it ended between the listing and the look


def test_times_are_the_process_and_those_it_waited_for() -> None:
    fields = " ".join(str(number) for number in range(3, 50))
    assert usage.parse_times(f"12 (a) b (c) {fields}".encode()) == (14 + 15 + 16 + 17) / usage.TICKS
    assert usage.parse_times(b"") == 0


def test_shares_are_of_anonymous_and_shared_memory() -> None:
    text = b"00400000-7fff ---p [rollup]\nRss: 900 kB\nPss_Anon: 300 kB\nPss_File: 400 kB\nPss_Shmem: 100 kB\n"
    assert usage.parse_rollup(text) == 400 << 10
    assert usage.parse_rollup(b"") is None  # not readable: the caller counts what it maps in whole


@given(st.binary(max_size=200))
def test_a_name_can_not_spoil_the_sum(name: bytes) -> None:
    # The kernel escapes newlines and backslashes in Name; brackets and spaces stay in stat.
    safe = name.replace(b"\n", b"?")
    assert usage.parse_times(b"1 (" + safe + b") S " + b" ".join([b"1"] * 40)) == 4 / usage.TICKS


def holding(code: str) -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import mmap, os, time\n{code}\nprint('up', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return child


def grown(look: Callable[[], int], code: str) -> int:
    """By how many MiB a look finds more while such a process lives."""
    before = look()
    child = holding(code)
    try:
        return (look() - before) // MEBI
    finally:
        child.kill()
        child.communicate()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this test's own children: the host's other processes come and go."""

    def children() -> list[str]:
        return (b"".join(usage._read(str(os.getpid()), f"task/{os.getpid()}/children").split(b"\n"))).decode().split()

    monkeypatch.setattr(usage, "_pids", children)


MAP = "m = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20))"
FILE = "f = os.memfd_create('x'); os.write(f, bytes(64 << 20))"
TWICE = (
    MAP
    + """
def both():
    here = os.getpid()
    if os.fork() == 0:
        while os.getppid() == here: time.sleep(0.05)
        os._exit(0)
both()
both()
time.sleep(0.2)
"""
)


def test_mapped_memory_is_seen_by_both_looks(alone: None) -> None:
    assert 60 <= grown(lambda: usage.look([]).memory, MAP) <= 90
    assert 60 <= grown(lambda: usage.precise([]), MAP) <= 90


def test_a_memory_file_that_nobody_maps_is_seen_by_the_second_look_alone(alone: None) -> None:
    assert grown(lambda: usage.look([]).memory, FILE) < 30
    assert 60 <= grown(lambda: usage.precise([]), FILE) <= 90


def test_a_file_in_a_tmpfs_is_seen() -> None:
    here = os.statvfs("/dev/shm")
    assert usage.in_tmpfs(["/dev/shm"]) <= here.f_blocks * here.f_frsize
    before = usage.in_tmpfs(["/dev/shm"])
    path = f"/dev/shm/credgate-test-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            file.write(bytes(32 * MEBI))
        assert usage.in_tmpfs(["/dev/shm"]) - before >= 31 * MEBI
    finally:
        os.unlink(path)


def test_cpu_time_of_children_that_ended_stays_in_the_sum(alone: None) -> None:
    before = usage.look([]).cpu
    burn = "import time; e = time.process_time() + 0.4\nwhile time.process_time() < e: pass"
    subprocess.run([sys.executable, "-I", "-S", "-c", burn], check=True)
    assert usage.look([]).cpu - before >= 0.35


def test_tasks_count_threads(alone: None) -> None:
    code = "import threading\nfor _ in range(4): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    before = usage.look([]).tasks
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", f"import time\n{code}\ntime.sleep(60)"])
    try:
        deadline = time.monotonic() + 60
        while usage.look([]).tasks - before < 5:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()


def test_pages_that_several_map_count_once_for_each_where_a_look_is_cheap_and_once_where_it_matters() -> None:
    def of(pids: list[str], look: Callable[[], int]) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(usage, "_pids", lambda: pids)
            return look() // MEBI

    child = holding(TWICE)
    try:
        below = usage._read(str(child.pid), f"task/{child.pid}/children").decode().split()
        assert len(below) == 2
        one = of([str(child.pid)], lambda: usage.look([]).memory)
        assert of([str(child.pid), *below], lambda: usage.look([]).memory) >= one
        assert of([str(child.pid), *below], lambda: usage.precise([])) < one + 20
    finally:
        child.kill()
        child.communicate()
