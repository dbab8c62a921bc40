"""The benchmarks' own arithmetic: what counts as reached, and that the kernel's accounts are what they are read as."""

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.bench import kernel
from tests.bench.figures import Absent, Row, table


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
    lines = table([row([1], [2], bar=2.0), Absent(name="it", peer="gone")]).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert "short" not in lines[2] and "not measured" in lines[3]


def spent(code: str) -> float:
    """CPU that a process is said to take within 0.2 s."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", f"print(flush=True)\n{code}"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = kernel.cpu_of(process.pid)
        time.sleep(0.2)
        after = kernel.cpu_of(process.pid)
        process.kill()
    return after - before


def test_cpu_of_another_process() -> None:
    busy, idle = spent("while True: pass"), spent("import time; time.sleep(60)")
    assert idle < 0.02 < busy < 0.4


def test_cpu_of_its_other_threads_counts() -> None:
    code = (
        "import threading, time\ndef spin():\n while True: pass\nthreading.Thread(target=spin).start()\ntime.sleep(60)"
    )
    assert spent(code) > 0.02


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
