"""A large ledger is verified in another process, with the same outcome; without an outcome nothing is joined."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from credgate.ledger.chain import Head, link
from credgate.ledger.record import Stamp
from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.reconcile import checking as module
from credgate.reconcile import proof, spoil
from credgate.reconcile.checking import accepted, checking
from credgate.reconcile.fabricate import honest, signer, write_ledger
from credgate.reconcile.model import ReconcileError


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    write_ledger(tmp_path / "ledger", honest(30).ledger)
    return tmp_path / "ledger"


def test_both_ways_say_the_same_of_a_sound_ledger(ledger: Path) -> None:
    with checking(ledger, large=0) as checked:
        report = checked()
    assert report == verify(ledger)
    assert accepted(report, ledger, allow_unverified=False) is report
    assert (report.status, report.signed, report.trust[:17]) == (Status.SOUND, report.records, "the ledger itself")


@pytest.mark.parametrize("large", [0, 2**40])
def test_a_key_and_a_noted_checkpoint_are_held_against_it(ledger: Path, tmp_path: Path, large: int) -> None:
    noted = tmp_path / "noted.txt"
    noted.write_bytes((ledger / "seg-000001.notes").read_bytes())
    with checking(ledger, signer("ledger").public, [noted], large=large) as checked:
        report = checked()
    assert (report.status, report.trust) == (Status.SOUND, "the key given")
    assert report.witness == f"noted.txt: agrees up to record {report.records}"
    with checking(ledger, signer("another").public, [noted], large=large) as checked:
        report = checked()
    assert (report.status, report.kind) == (Status.TAMPERED, "wrong_key")


def test_a_ledger_that_nobody_signed_is_taken_on_demand_alone(ledger: Path) -> None:
    spoil.unsigned(ledger)
    report = verify(ledger)
    with pytest.raises(ReconcileError, match="nobody signed this"):
        accepted(report, ledger, allow_unverified=False)
    assert proof.words(accepted(report, ledger, allow_unverified=True)).startswith("UNSIGNED ledger: incomplete")


def test_who_copied_a_ledger_in_use_is_told_of_bundles(ledger: Path) -> None:
    """Its end is not signed yet, or has no final line: what the writer's stop by force looks like."""
    segment = ledger / "seg-000001.jsonl"
    last = segment.read_bytes().splitlines(keepends=True)[-1]
    head = Head(seq=json.loads(last)["seq"], sha256=hashlib.sha256(last).hexdigest())
    stamp = Stamp(ts="2026-06-01T09:00:00.000000Z", boot="b" * 36, mono_ns=1)
    with segment.open("ab") as file:
        file.write(link(head, "dns", {"host": "a.example"}, stamp)[0])
    with pytest.raises(ReconcileError) as refused:
        accepted(verify(ledger), ledger, allow_unverified=False)
    assert "credgate log export --bundle" in refused.value.hint


def test_both_ways_say_the_same_of_a_changed_one(ledger: Path) -> None:
    segment = ledger / "seg-000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b"r-selftest", b"r-selftesT", 1))
    with checking(ledger, large=0) as checked:
        report = checked()
    assert report == verify(ledger)
    assert report.status is Status.TAMPERED
    with pytest.raises(ReconcileError, match="doesn't verify") as refused:
        accepted(report, ledger, allow_unverified=False)
    assert refused.value.exit_status == 3
    assert accepted(report, ledger, allow_unverified=True) is report


@pytest.mark.parametrize("script", ["", "print('{}')", "print('[]')", "raise SystemExit(1)", "print('{\"exit\": 0}')"])
def test_a_verification_without_a_report_is_no_verification(script: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with process, pytest.raises(ReconcileError, match="no report"):
        module._report(process)


def test_a_verification_that_is_not_waited_for_is_ended(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    popen = subprocess.Popen

    def start(command: list[str], **more: Any) -> "subprocess.Popen[bytes]":
        started.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **more))
        return started[0]

    monkeypatch.setattr(module.subprocess, "Popen", start)
    with pytest.raises(ReconcileError, match="given up"), checking(ledger, large=0):
        raise ReconcileError("x", "given up")
    assert started[0].returncode == -9


def test_no_ledger_at_all(tmp_path: Path) -> None:
    with pytest.raises(ReconcileError, match="can't read"), checking(tmp_path / "none"):
        pass
    with checking(tmp_path) as checked, pytest.raises(ReconcileError, match="no ledger"):
        accepted(checked(), tmp_path, allow_unverified=False)
