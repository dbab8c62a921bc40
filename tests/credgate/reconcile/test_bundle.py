"""An auditor's machine: a bundle and a public key in an empty directory, without a network."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from credgate import cli
from credgate.ledger import keys
from credgate.ledger.bundle import write_bundle
from credgate.reconcile import spoil
from credgate.reconcile.fabricate import FORMATS, honest, signer

_OFFLINE = ["unshare", "--user", "--map-root-user", "--net"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bundle was made: the ledger, the exports, the bundle, the key, a noted checkpoint."""
    home = tmp_path_factory.mktemp("made")
    honest(200, pace=20).write(home)
    write_bundle(home / "ledger", home / "audit.tar")
    (home / "key.pem").write_bytes(keys.public_pem(signer("ledger").public))
    (home / "noted.txt").write_bytes((home / "ledger" / "seg-000001.notes").read_bytes())
    return home


@pytest.fixture
def audit(made: Path, tmp_path: Path) -> Path:
    """The auditor's directory: copies, and nothing else."""
    for name in ("audit.tar", "key.pem", "noted.txt", "mapping.toml", *(f"{name}.log" for name in FORMATS)):
        shutil.copy(made / name, tmp_path)
    return tmp_path


def arguments(audit: Path, *more: str) -> list[str]:
    sources = [f"--source={name}={audit / f'{name}.log'}" for name in FORMATS]
    return [
        "reconcile",
        "--ledger",
        str(audit / "audit.tar"),
        "--mapping",
        str(audit / "mapping.toml"),
        *sources,
        *more,
    ]


@pytest.mark.needs("netns")
def test_bundle_and_key_alone_reconcile_offline(audit: Path) -> None:
    home = audit / "home"
    home.mkdir()
    more = ("--pubkey", "key.pem", "--report", "out", "--checkpoint", "noted.txt")
    program = [sys.executable, "-I", "-m", "credgate", *arguments(audit, *more)]
    closed = [*_OFFLINE, "sh", "-c", 'cut -sd: -f1 /proc/net/dev >&2; exec "$@"', "sh", *program]
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "TMPDIR": str(home)}
    done = subprocess.run(closed, cwd=audit, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert {line.strip() for line in done.stderr.splitlines() if "|" not in line} == {"lo"}
    first = done.stdout.splitlines()[0]
    assert first.startswith("verified ledger: signed by the key given; noted.txt: agrees up to record ")
    report = json.loads((audit / "out" / "report.json").read_text())
    assert (report["ledger"]["signature"], report["ledger"]["attested"]) == ("given-key", True)
    assert report["verdict"]["verified"] is True
    page = (audit / "out" / "report.html").read_text().partition("<body>")[2]
    assert page.startswith('<p class="proof">verified ledger: signed by the key given')
    assert list(home.iterdir()) == []  # nothing of the bundle stays behind


def test_without_a_key_or_a_checkpoint_the_first_line_says_so(audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(audit)) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "the key that the ledger itself names" in first and first.endswith("self-attested: no witness")


def test_a_bundle_and_its_ledger_say_the_same(made: Path, audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(audit, "--json")) == 0
    bundled = json.loads(capsys.readouterr().out)
    assert cli.main([word.replace("audit.tar", "ledger") for word in arguments(made, "--json")]) == 0
    assert json.loads(capsys.readouterr().out) == bundled


def test_another_key_than_the_ledgers_is_refused(audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = keys.fingerprint(signer("another").public)
    assert cli.main(arguments(audit, "--pubkey", other)) == 3
    assert "expected one of the ledger's" in capsys.readouterr().err
    assert cli.main(arguments(audit, "--pubkey", "no key")) == 2


def test_a_checkpoint_of_other_lines_is_refused(
    made: Path, audit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest(210, pace=20).write(tmp_path / "longer")
    noted = tmp_path / "longer" / "ledger" / "seg-000001.notes"
    assert cli.main(arguments(audit, "--checkpoint", str(noted))) == 3
    assert "checkpoint" in capsys.readouterr().err
    (tmp_path / "junk").write_text("no note")
    assert cli.main(arguments(audit, "--checkpoint", str(tmp_path / "junk"))) == 2  # not 4, which says deny-but-seen


def test_what_is_no_bundle_is_wrong_usage(audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (audit / "audit.tar").write_bytes(b"no tar at all" * 100)
    assert cli.main(arguments(audit)) == 2
    assert "not a bundle" in capsys.readouterr().err


def test_an_unsigned_ledger_is_said_on_the_first_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mapping.toml", *(f"{name}.log" for name in FORMATS)):
        shutil.copy(made / name, tmp_path)
    shutil.copytree(made / "ledger", tmp_path / "audit.tar")
    spoil.unsigned(tmp_path / "audit.tar")
    assert cli.main(arguments(tmp_path)) == 3
    assert "nobody signed this" in capsys.readouterr().err
    assert cli.main(arguments(tmp_path, "--allow-unverified", "--json")) == 0
    ledger = json.loads(capsys.readouterr().out)["ledger"]
    assert ledger["proof"].startswith("UNSIGNED ledger") and ledger["signature"] == "none"
