"""Exports: JSON lines, CSV without formulas, OCSF, bundles; and the commands that print and take checkpoints."""

import csv
import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from credgate.commands.log import main
from credgate.ledger.bundle import opened, write_bundle
from credgate.ledger.export import csv_lines, ocsf
from credgate.ledger.keys import beside, public_pem
from credgate.ledger.record import FIELDS, OWN_FIELDS, LedgerError
from credgate.ledger.report import Status
from credgate.ledger.settings import Settings
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger
from tests.credgate.ledger_rig import SMALL, by_shell, make, records


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "ledger"
    with Ledger.open(directory, settings=SMALL) as ledger:
        request = {"method": "GET", "scheme": "https", "host": "api.example", "port": 443, "path": "/a"}
        intent = ledger.append("intent", run="r1", verdict="allow", rule="api.all", pin="192.0.2.1", **request)
        ledger.append("outcome", run="r1", intent_seq=intent, status=200, resp_bytes=7, ms=3, ids={"x": "1"}, **request)
        ledger.append(
            "deny", run="r2", verdict="deny", reason="host_unlisted", host="=cmd|' /C calc'!A0", path='+1\n,"x'
        )
        ledger.append("dns", run="r2", host="a.example", qtype="A", count=2, query_names=["-a", "b"])
        ledger.append("alarm", run="r2", detail="@x")
        ledger.append("tunnel", run="r2", host="db.example", port=5432, verdict="allow")
    return directory


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(list(argv))
    out = capsys.readouterr()
    return status, out.out, out.err


def test_jsonl_is_what_the_ledger_holds(directory: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    status, out, _ = run(capsys, "export", "--ledger", str(directory))
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == records(directory)
    target = tmp_path / "out.jsonl"
    assert run(capsys, "export", "--ledger", str(directory), "--run", "r1", "-o", str(target)) == (0, "", "")
    assert len(target.read_text().splitlines()) == 2
    assert target.stat().st_mode & 0o777 == 0o600


def test_csv_holds_every_field_and_no_formula(directory: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = run(capsys, "export", "--ledger", str(directory), "--format", "csv")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out, newline="")))
    assert set(rows[0]) == FIELDS.keys() | OWN_FIELDS
    assert [row["seq"] for row in rows] == [str(record["seq"]) for record in records(directory)]
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"))]
    assert "'=cmd|' /C calc'!A0" in cells
    assert '["-a","b"]' in cells


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_each_beginning_of_a_formula_is_defused(start: str):
    row = next(csv.reader(list(csv_lines(iter([{"seq": 1, "host": f"{start}1"}])))[1:]))
    assert f"'{start}1" in row


def test_ocsf_has_class_activity_and_verdict(directory: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = run(capsys, "export", "--ledger", str(directory), "--format", "ocsf")
    assert status == 0
    events = {}
    for line in out.splitlines():
        event = json.loads(line)
        assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
        assert event["category_uid"] == event["class_uid"] // 1000
        assert event["time"] > 1_700_000_000_000
        events.setdefault(event["metadata"]["event_code"], event)
    assert (events["intent"]["class_uid"], events["intent"]["activity_id"]) == (4002, 3)
    assert events["intent"]["action_id"] == 1
    assert events["intent"]["dst_endpoint"] == {"hostname": "api.example", "port": 443, "ip": "192.0.2.1"}
    assert events["intent"]["http_request"]["url"]["path"] == "/a"
    assert events["outcome"]["http_response"] == {"code": 200, "length": 7}
    assert (events["outcome"]["status_id"], events["outcome"]["duration"]) == (1, 3)
    assert (events["deny"]["class_uid"], events["deny"]["action_id"], events["deny"]["severity_id"]) == (4001, 2, 3)
    assert events["dns"]["query"] == {"hostname": "a.example", "type": "A"}
    assert (events["alarm"]["class_uid"], events["alarm"]["severity_id"]) == (0, 4)
    assert events["tunnel"]["class_uid"] == 4001
    assert events["outcome"]["unmapped"]["ids"] == {"x": "1"}


def test_ocsf_loses_nothing():
    """Each value of a record is somewhere in its event."""
    record = {name: f"value-of-{name}" for name in FIELDS.keys() | OWN_FIELDS} | {"ts": "2026-01-01T00:00:00.000000Z"}
    for ev in ("intent", "outcome", "deny", "dns", "tunnel", "alarm"):
        text = json.dumps(ocsf({**record, "ev": ev, "verdict": "allow"}))
        missing = [name for name in record if f"value-of-{name}" not in text]
        assert sorted(missing) == ["ev", "ts", "verdict"]
    forged = ocsf({**record, "ev": "deny", "ts": "value-of-ts"})
    assert (forged["time"], "value-of-ts" in json.dumps(forged)) == (0, True)


def test_damaged_lines_are_counted_and_left_out(directory: Path, capsys: pytest.CaptureFixture[str]):
    path = directory / "seg-000001.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    status, out, err = run(capsys, "export", "--ledger", str(directory))
    assert (status, len(out.splitlines())) == (1, len(records(directory)) - 1)
    assert "1 damaged lines left out" in err
    key = str(directory / "pubkey.pem")
    assert run(capsys, "export", "--ledger", str(directory), "--pubkey", key)[:2] == (1, "")


# --- bundles


def test_a_bundle_is_the_same_each_time_and_verifies_elsewhere(directory: Path, tmp_path: Path, capsys):
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    assert run(capsys, "export", "--ledger", str(directory), "--bundle", str(one))[0] == 0
    os.utime(directory / "seg-000001.jsonl", (1, 1))
    write_bundle(directory, two)
    assert one.read_bytes() == two.read_bytes()
    assert b"PRIVATE" not in one.read_bytes()
    key = tmp_path / "away" / "key.pem"
    key.parent.mkdir()
    shutil.copy(directory / "pubkey.pem", key)
    shutil.move(one, key.parent / "ledger.tar")
    shutil.rmtree(directory)
    shutil.rmtree(beside(directory))
    place = str(key.parent / "ledger.tar")
    assert run(capsys, "verify", "--ledger", place, "--pubkey", str(key))[0] == 0
    assert len(json.loads(run(capsys, "show", "--json", "--ledger", place)[1])["records"]) > 6
    assert run(capsys, "export", "--format", "csv", "--ledger", place)[0] == 0
    key.write_bytes(public_pem(bytes(32)))
    assert run(capsys, "verify", "--ledger", place, "--pubkey", str(key))[0] == 1


def test_a_bundle_of_a_ledger_that_goes_on_is_cut_and_signed_there(tmp_path: Path):
    directory, target = tmp_path / "ledger", tmp_path / "ledger.tar"
    make(directory, 5)
    with Ledger.open(directory, settings=Settings(every_seconds=60)) as ledger:
        ledger.append("deny", host="later")
        report = write_bundle(directory, target)
        assert report.live
        count = ledger.seq
        ledger.append("deny", host="after")
    with opened(target) as place:
        got = verify(place)
        assert (got.status, got.records, got.signed) == (Status.SOUND, count, count)
        assert any("cut here" in note for note in got.notes)
        assert by_shell(place) == 0
        # whoever cuts it shorter has no such signature
        last = sorted(place.glob("seg-*.jsonl"))[-1]
        last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))
        assert verify(place).status is Status.TRUNCATED
    shutil.rmtree(beside(directory))
    with Ledger.open(tmp_path / "other") as other:
        other.append("deny")
        shutil.rmtree(beside(tmp_path / "other"))
        with pytest.raises(LedgerError, match="no_key"):
            write_bundle(tmp_path / "other", target)


def test_an_unsound_ledger_is_not_bundled(directory: Path, tmp_path: Path, capsys):
    path = directory / "seg-000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"port":443', b'"port":444'))
    target = tmp_path / "ledger.tar"
    status, _, err = run(capsys, "export", "--ledger", str(directory), "--bundle", str(target))
    assert (status, target.exists()) == (1, False)
    assert "tampered" in err


def _tar(path: Path, *members: tuple[str, bytes, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, kind, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), "/etc/passwd"
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    "member",
    [
        ("../seg-000001.jsonl", tarfile.REGTYPE, b"x"),
        ("/etc/seg-000001.jsonl", tarfile.REGTYPE, b"x"),
        ("credgate-ledger/../x", tarfile.REGTYPE, b"x"),
        ("credgate-ledger/other", tarfile.REGTYPE, b"x"),
        ("credgate-ledger/seg-000001.jsonl", tarfile.SYMTYPE, b""),
        ("credgate-ledger/seg-000001.jsonl", tarfile.LNKTYPE, b""),
        ("credgate-ledger/seg-000001.jsonl", tarfile.FIFOTYPE, b""),
        ("credgate-ledger/", tarfile.DIRTYPE, b""),
    ],
)
def test_a_bundle_with_anything_else_in_it_is_unreadable(tmp_path: Path, capsys, member: tuple[str, bytes, bytes]):
    path = tmp_path / "evil.tar"
    good = ("credgate-ledger/torn-1.bin", tarfile.REGTYPE, b"x")
    _tar(path, good)
    assert run(capsys, "verify", "--ledger", str(path))[0] == 4  # unpacks, and holds no ledger
    _tar(path, good, member)
    status, _, err = run(capsys, "verify", "--ledger", str(path))
    assert (status, "not a bundle" in err) == (4, True)


@pytest.mark.parametrize("data", [b"", b"x" * 1000, b"\x1f\x8b" + b"\0" * 600])
def test_what_is_no_bundle(tmp_path: Path, capsys, data: bytes):
    path = tmp_path / "bad.tar"
    path.write_bytes(data)
    assert run(capsys, "verify", "--ledger", str(path))[0] == 4


# --- checkpoint, --checkpoint, --since, rotate-key, prune


def test_a_noted_checkpoint_and_what_it_proves_later(directory: Path, tmp_path: Path, capsys):
    status, note, _ = run(capsys, "checkpoint", "--ledger", str(directory))
    assert status == 0
    noted = tmp_path / "noted.txt"
    noted.write_text(note)
    size = int(note.splitlines()[1])
    make(directory, 9)
    status, out, _ = run(capsys, "verify", "--json", "--ledger", str(directory), "--since", str(noted))
    document = json.loads(out)
    assert (status, document["consistency"]["from"], document["consistency"]["to"]) == (0, size, document["records"])
    assert document["witness"] == f"{noted}: agrees up to record {size}"
    status, out, _ = run(capsys, "verify", "--ledger", str(directory), "--since", str(noted))
    assert f"goes on from record {size}; proof to {document['records']}: " in out
    whole = directory / "cut"
    for path in sorted(directory.glob("seg-*"))[2:]:  # cut to less than was noted, checkpoints too
        path.rename(whole.with_name(path.name + ".gone"))
    assert run(capsys, "verify", "--ledger", str(directory))[0] == 3
    for flag in ("--since", "--checkpoint"):
        assert run(capsys, "verify", "--ledger", str(directory), flag, str(noted))[0] == 2


def test_checkpoint_in_json_and_of_an_unsound_ledger(directory: Path, capsys):
    status, out, _ = run(capsys, "checkpoint", "--json", "--ledger", str(directory))
    document = json.loads(out)
    assert status == 0
    assert document["note"].splitlines()[0] == document["origin"] == document["vkey"].split("+")[0]
    # where the key is not, the youngest of the ledger's own
    shutil.rmtree(beside(directory))
    status, out, _ = run(capsys, "checkpoint", "--ledger", str(directory))
    assert (status, out.splitlines()[-2][:1]) == (0, "—")
    (directory / "seg-000001.notes").write_bytes(b"x\n\ny\n\n")
    assert run(capsys, "checkpoint", "--ledger", str(directory))[0] == 1


@pytest.mark.parametrize("data", [b"", b"x", b"\xff\n\n"])
def test_what_is_no_note(directory: Path, tmp_path: Path, capsys, data: bytes):
    path = tmp_path / "note"
    path.write_bytes(data)
    for place in (path, tmp_path / "none"):
        status, _, err = run(capsys, "verify", "--ledger", str(directory), "--checkpoint", str(place))
        assert (status, "hint: " in err) == (4, True)


def test_a_wrong_pubkey_argument_is_a_usage_error(directory: Path, capsys):
    status, _, err = run(capsys, "verify", "--ledger", str(directory), "--pubkey", "nonsense")
    assert (status, "hint: " in err) == (2, True)


def test_verify_says_whose_key_and_how_much_is_signed(directory: Path, capsys):
    status, out, _ = run(capsys, "verify", "--ledger", str(directory))
    assert status == 0
    count = len(records(directory))
    assert f"signed     {count} records" in out
    assert "(the install's own key)" in out
    assert "self-attested: no witness" in out
    document = json.loads(run(capsys, "verify", "--json", "--ledger", str(directory))[1])
    assert document["signed_records"] == document["records"] == count
    last = sorted(directory.glob("seg-*.jsonl"))[-1].read_bytes().splitlines(keepends=True)[-1]
    assert document["last_sha256"] == hashlib.sha256(last).hexdigest()


def test_rotate_and_prune_as_commands(directory: Path, tmp_path: Path, capsys):
    old = tmp_path / "old.pem"
    shutil.copy(directory / "pubkey.pem", old)
    status, out, _ = run(capsys, "rotate-key", "--json", "--ledger", str(directory))
    new = json.loads(out)["pubkey"]
    assert status == 0
    for key in (str(old), new):
        assert run(capsys, "verify", "--ledger", str(directory), "--pubkey", key)[0] == 0
    status, out, _ = run(capsys, "prune", "--keep", "1", "--gzip", "--json", "--ledger", str(directory))
    assert (status, json.loads(out)["removed"] > 0) == (0, True)
    status, out, _ = run(capsys, "verify", "--ledger", str(directory), "--pubkey", str(old))
    assert (status, "were removed" in out) == (0, True)
    assert run(capsys, "prune", "--keep", "0", "--ledger", str(directory))[0] == 0  # 0 keeps all, as in the settings
    for command in (["rotate-key"], ["prune", "--keep", "1"]):
        assert run(capsys, *command, "--ledger", str(tmp_path / "none"))[0] == 4
        assert not (tmp_path / "none").exists()
    with Ledger.open(directory):
        status, _, err = run(capsys, "rotate-key", "--ledger", str(directory))
        assert (status, "has a writer already" in err) == (1, True)


def test_witness_files_of_the_settings_are_held_against_ones_own_ledger(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / ".local/state/credgate/ledger"
    make(directory, 3)
    kept, gone = tmp_path / "kept.txt", tmp_path / "gone.txt"
    kept.write_text(run(capsys, "checkpoint")[1])
    config = tmp_path / ".config/credgate"
    config.mkdir(parents=True)
    table = "".join(f'[[witness]]\nkind = "file"\npath = "{path}"\n' for path in (kept, gone))
    (config / "ledger.toml").write_text(table)
    (config / "ledger.toml").chmod(0o600)
    status, out, _ = run(capsys, "verify")
    assert status == 0
    assert f"file {kept}: agrees up to record {len(records(directory))}" in out
    assert f"witness file {gone}: no such file" in out
    for path in directory.glob("*"):
        path.unlink()
    directory.rmdir()
    shutil.rmtree(beside(directory))
    make(directory, 3)
    status, out, _ = run(capsys, "verify")
    assert f"file {kept}: knows no checkpoint of this ledger" in out
    assert "self-attested" in out
