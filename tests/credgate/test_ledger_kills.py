"""kill -9 of a writer at each of its system calls, in the middle of batches too: no line that somebody relied on is
lost, none is there twice, none is out of its order.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger

MOST = 200


def said(process: "subprocess.Popen[str]") -> tuple[dict[str, set[int]], str]:
    """What a child reported, and how it ended."""
    found: dict[str, set[int]] = {"written": set(), "durable": set()}
    assert process.stdout is not None
    for line in process.stdout:
        word, _, seq = line.strip().partition(" ")
        if not seq:
            return found, word
        found[word].add(int(seq))
    raise AssertionError("it died")


def whole(directory: Path) -> list[dict[str, object]]:
    """The lines that are there with their end."""
    texts = [path.read_bytes().rpartition(b"\n")[0] for path in sorted(directory.glob("seg-*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def in_order(lines: list[dict[str, object]]) -> list[int]:
    """Their numbers; each outcome is behind its intent, and the only one."""
    opened: set[object] = set()
    for line in lines:
        if line["ev"] == "intent":
            opened.add(line["seq"])
        elif line["ev"] == "outcome":
            opened.remove(line["intent_seq"])  # KeyError: none, or a second one
    seqs = [line["seq"] for line in lines]
    assert seqs == list(range(1, len(seqs) + 1))
    return [int(str(seq)) for seq in seqs]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("how", "sync"), [("before", "kernel"), ("half", "kernel"), ("after", "kernel"), ("after", "thread")]
)
def test_kill_9_at_each_system_call(how: str, sync: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-I", str(Path(__file__).with_name("ledger_child.py")), str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        for step in range(1, MOST):
            name = f"{how}-{step}"
            process.stdin.write(f"{name} {step} {how} {sync}\n")
            process.stdin.flush()
            reported, end = said(process)
            assert end in ("ended", "survived")
            directory = tmp_path / name
            killed = verify(directory)
            assert killed.status is Status.SOUND if end == "survived" else killed.status is not Status.TAMPERED
            left = whole(directory)
            assert reported["written"] | reported["durable"] <= set(in_order(left)), step
            Ledger.open(directory).close()
            mended = verify(directory)
            assert (mended.status, mended.signed) == (Status.SOUND, mended.records), (step, mended)
            assert whole(directory)[: len(left)] == left
            if end == "survived":
                break
        process.stdin.close()
    assert end == "survived" and 10 < step < MOST
    assert len(reported["durable"]) == 9 and len(reported["written"]) == 12
