"""The benchmarks' own arithmetic: what counts as reached, and that the kernel's accounts are what they are read as."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tests.bench import kernel
from tests.bench.figures import Absent, Row, table
from tests.bench.world import Contestant


def row(ours: list[float], theirs: list[float], **kw: Any) -> Row:
    return Row(name="it", peer="peer", unit="ms", ours=ours, theirs=theirs, **kw)


def test_a_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    made = row([10, 20, 90], [10, 10, 30])
    assert (made.ratio, made.spread) == (2.0, (1.0, 3.0))


@pytest.mark.parametrize(("ours", "verdict"), [(10.0, "goal"), (15.0, "bar"), (20.0, "bar"), (21.0, "short")])
def test_a_cost_is_to_stay_below(ours: float, verdict: str) -> None:
    assert row([ours], [10], goal=1.0, bar=2.0).verdict == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(8.0, "goal"), (5.0, "bar"), (4.9, "short")])
def test_a_rate_is_to_stay_above(ours: float, verdict: str) -> None:
    assert row([ours], [10], goal=0.8, bar=0.5, at_least=True).verdict == verdict


@pytest.mark.parametrize(("theirs", "verdict"), [(80.0, "bar"), (79.0, "short")])
def test_a_peer_that_has_to_be_dearer(theirs: float, verdict: str) -> None:
    assert row([10], [theirs], bar=8.0, at_least=True, inverse=True).verdict == verdict


def test_without_a_bar_nothing_is_judged() -> None:
    assert row([99], [1]).verdict == "-"


def test_a_table_has_all_rows_and_even_columns() -> None:
    lines = table([row([1], [16500], bar=2.0), Absent(name="it", peer="gone")]).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert "| 16500 " in lines[2]
    assert "short" not in lines[2] and "not measured" in lines[3]


def spent(code: str, seconds: float) -> float:
    """CPU that a process is said to take, looked at until it is over 0.05 s or `seconds` are gone."""
    argv = [sys.executable, "-I", "-c", f"print(flush=True)\n{code}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before, until = kernel.cpu_of(process.pid), time.monotonic() + seconds
        while (took := kernel.cpu_of(process.pid) - before) <= 0.05 and time.monotonic() < until:
            time.sleep(0.02)
        process.kill()
    return took


def test_cpu_of_another_process() -> None:
    assert spent("while True: pass", 20) > 0.05


def test_cpu_of_its_other_threads_counts() -> None:
    spin = "import threading, time\ndef spin():\n while True: pass\nthreading.Thread(target=spin).start()\n"
    assert spent(spin + "time.sleep(60)", 20) > 0.05


def test_a_process_that_sleeps_takes_none() -> None:
    assert spent("import time; time.sleep(60)", 0.3) < 0.02


@dataclass(kw_only=True)
class Asked(Contestant):
    """One of its processes ends in the middle of the first command."""

    ending: list["subprocess.Popen[bytes]"]

    def ask(self, command: str) -> dict[str, float]:
        while self.ending:
            process = self.ending.pop()
            process.kill()
            process.wait()
        return {"asked": 1.0}


def test_a_process_that_ends_meanwhile_is_measured_without() -> None:
    argv = [sys.executable, "-I", "-c", "print(flush=True); import time; time.sleep(60)"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as one, subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
        for process in (one, other):
            assert process.stdout is not None
            process.stdout.readline()
        asked = Asked(name="x", client=cast("Any", None), pids=[one.pid, other.pid], ending=[one])
        assert asked.cpu_of("first")[0] >= 0
        assert list(asked.pids) == [other.pid]
        other.kill()


def test_a_tree_is_all_that_descends() -> None:
    with subprocess.Popen(["sh", "-c", "echo; sleep 60 & wait"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 10
        while len(found := kernel.tree(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in found:
            os.kill(pid, 9)
    assert len(found) == 2
