"""`credgate reconcile` as it is called: exit codes, what it says, and what it refuses."""

import json
from pathlib import Path

import pytest

from credgate import cli
from credgate.reconcile.fabricate import FORMATS, honest
from credgate.reconcile.lies import LIES
from credgate.reconcile.selftest import PACE, SMALL


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest world, and one of some lies each."""
    directory = tmp_path_factory.mktemp("worlds")
    for name in ("honest", "torn-line", "altered-status", "removed-record", "denied-yet-seen", "edited-line"):
        world = honest(SMALL, pace=PACE)
        for lie in LIES:
            if lie.name == name:
                lie.tell(world)
        world.write(directory / name)
    return directory


def arguments(world: Path, *more: str) -> list[str]:
    sources = [f"--source={name}={world / f'{name}.log'}" for name in FORMATS]
    return ["reconcile", "--ledger", str(world / "ledger"), "--mapping", str(world / "mapping.toml"), *sources, *more]


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("honest", 0),
        ("altered-status", 1),
        ("torn-line", 3),
        ("removed-record", 3),
        ("denied-yet-seen", 4),
        ("edited-line", 3),
    ],
)
def test_the_worst_class_is_the_exit_status(
    worlds: Path, name: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments(worlds / name)) == status
    out, err = capsys.readouterr()
    if name == "edited-line":
        assert "doesn't verify: tampered" in err
    else:
        assert f"(exit {status})" in out


def test_what_is_too_new_and_what_is_empty_is_said(
    worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an export pulled at once a request is missing: clean so far, and that it was not checked is in plain words."""
    (tmp_path / "nginx.log").write_text("")
    found = [argument.replace(str(worlds / "honest" / "nginx.log"), str(tmp_path / "nginx.log")) for argument in (
        arguments(worlds / "honest")
    )]  # fmt: skip
    late = tmp_path / "mapping.toml"
    late.write_text((worlds / "honest" / "mapping.toml").read_text().replace("delay_s = 0", "delay_s = 900000"))
    found[found.index("--mapping") + 1] = str(late)
    assert cli.main(found) == 0
    out = capsys.readouterr().out
    assert "too new: the target may log them for 900000 s; reconcile them later" in out
    assert "nothing in: nginx.log" in out


def test_an_unverified_ledger_is_said_on_the_first_line(
    worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--allow-unverified", "--report", str(tmp_path / "out"))
    assert cli.main(arguments(worlds / "edited-line", *more)) in (0, 1, 3)
    assert capsys.readouterr().out.startswith("UNVERIFIED ledger: tampered")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.partition("<body>")[2].startswith('<p class="alert">UNVERIFIED ledger: tampered')
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"]["verified"] is False


def test_json_on_stdout_is_one_document(worlds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(worlds / "removed-record", "--json")) == 3
    out, _ = capsys.readouterr()
    summary = json.loads(out)
    assert summary["verdict"]["exit"] == 3
    assert [item["class"] for item in summary["findings"]] == ["gateway-only"]


WRONG = [
    (["--pubkey", "k"], "--pubkey k"),
    (["--source", "nginx"], "expected FORMAT=PATH"),
    (["--source", "nonesuch=x"], "unknown"),
    (["--source", "nginx=/nonexistent/*.log"], "no file"),
    (["--source", "jsonl=/dev/null"], "mapping"),
    (["--mapping", "/nonexistent.toml"], "can't read"),
]


@pytest.mark.parametrize(("more", "said"), WRONG)
def test_usage(worlds: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(worlds / "honest", *more)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err or (said == "unknown" and "expected one of" in err)


def test_without_any_source(worlds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reconcile", "--ledger", str(worlds / "honest" / "ledger")]) == 2
    assert "expected FORMAT=PATH" in capsys.readouterr().err


def test_a_wrong_format_named(worlds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = worlds / "honest"
    given = ["reconcile", "--ledger", str(world / "ledger"), f"--source=squid={world / 'cloudtrail.log'}"]
    assert cli.main(given) == 2
    assert "could be read as squid" in capsys.readouterr().err


def test_no_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    assert cli.main(["reconcile", "--ledger", str(tmp_path), "--source", f"nginx={empty}"]) == 2
    assert "no ledger" in capsys.readouterr().err


MAPPINGS = [
    ("[source.x]\nformat = 'jsonl'\n", "where the time is"),
    ("[source.x]\nformat = 'jsonl'\nfields = { time = 't', colour = 'c' }\n", "unknown field 'colour'"),
    ("[source.x]\nformat = 'jsonl'\nfields = { time = 't' }\nzone = 'Mars/Base'\n", "zone"),
    ("[source.x]\nformat = 'nginx'\nfields = { time = 't' }\n", "jsonl and csv alone"),
    ("[source.x]\nformat = 'nginx'\nstamp = 'middle'\n", "'start' or 'end'"),
    ("[source.x]\nformat = 'nginx'\ndelay_s = -1\n", "whole number"),
    ("[source.x]\nformat = 'nginx'\nhosts = 'a'\n", "list of texts"),
    ("[source.x]\nformat = 'nginx'\nkey = ['colour']\n", "of service"),
    ("[source.x]\nformat = 'nginx'\nhost = ['a']\n", "unknown key 'host'"),
    ("[source.x]\nformat = 'nginx'\nabsent = [{ id = 'a', why = 'b', paths = ['('] }]\n", "regular expression"),
    ("[sauce.x]\n", "[source.NAME]"),
    ("not toml", "not TOML"),
]


@pytest.mark.parametrize(("text", "said"), MAPPINGS)
def test_a_wrong_mapping(
    worlds: Path, tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(text)
    world = worlds / "honest"
    given = [
        "reconcile",
        "--ledger",
        str(world / "ledger"),
        "--mapping",
        str(mapping),
        f"--source=x={world / 'nginx.log'}",
    ]
    assert cli.main(given) == 2
    assert said in capsys.readouterr().err


def test_csv_by_a_mapping(worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "calls.csv").write_text("Zeit,Pfad,Weg\n2026-06-01 10:00:00,/x,GET\n")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        "[source.calls]\nformat = 'csv'\nzone = 'Europe/Berlin'\nhosts = ['nobody.example']\n"
        "[source.calls.fields]\ntime = 'Zeit'\npath = 'Pfad'\nmethod = 'Weg'\n"
    )
    world = worlds / "honest"
    given = [
        "reconcile",
        "--ledger",
        str(world / "ledger"),
        "--mapping",
        str(mapping),
        "--source",
        f"calls={tmp_path / 'calls.csv'}",
    ]
    assert cli.main([*given, "--json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["target"]["time"] == "2026-06-01T08:00:00.000Z"


def test_a_terminal_gets_no_escapes_of_a_logs(worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_bytes(
        b'192.0.2.1 - - [01/Jun/2026:08:10:00 +0000] "GET /\\x1b[31m\x1b]52;c;x\x07 HTTP/1.1" 200 5 "-" "-"\n'
    )
    world = worlds / "honest"
    assert (
        cli.main(["reconcile", "--ledger", str(world / "ledger"), f"--source=nginx@nobody.example={tmp_path / 'log'}"])
        == 3
    )
    out, _ = capsys.readouterr()
    assert "\x1b" not in out and "\x07" not in out
    assert "\\x1b[31m" in out


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["reconcile", "--help"])
    assert ended.value.code == 0
    assert "--source cloudtrail=" in capsys.readouterr().out
