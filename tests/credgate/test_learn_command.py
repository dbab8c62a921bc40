"""`credgate policy learn`: prints what a run's refusals would have needed, and writes only what it was told to."""

import io
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from credgate.explain import explain
from credgate.ledger.writer import Ledger
from rules.verdict import Allow, Deny
from tests.credgate.test_policy_command import Cli
from tests.rules.policies import load

RUN = "r0123456789ab"
POLICY = """\
version = 1
# what is reached
[endpoint.api]
host = "api.example.com"
[[endpoint.api.allow]]
id = "list"
methods = ["GET"]
paths = ["/v1/items"]

[role.dev]
endpoints = ["api"]  # mine
[role.other]
"""
LEDGER = ".local/state/credgate/ledger"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capsys)
    made.tree.mkdir()
    made.home.mkdir(mode=0o700)
    monkeypatch.chdir(made.tree)
    monkeypatch.setenv("HOME", str(made.home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CREDGATE_POLICY"):
        monkeypatch.delenv(name, raising=False)
    with Ledger.open(made.home / LEDGER) as ledger:
        ledger.append("run.start", run=RUN, role="dev", program="/opt/x\ny/agent", policy_sha256="0" * 64)
        for number in range(3):
            refuse(ledger, "no_rule", path=f"/v1/items/{number}", query_names=("expand",))
        refuse(ledger, "no_rule", path="/v1/items/9", count=40)
        refuse(ledger, "host_unlisted", host="new.example.org", path="/feed", method="POST")
        refuse(ledger, "metadata", host="metadata.google.internal", scheme="http", port=80)
        refuse(ledger, "path_ambiguous", path="/v1/**", host="api.example.com")
        refuse(ledger, "no_rule", path="/v1/\x1b]0;x\x07")
        ledger.append("dns", run=RUN, reason="dns.deny", host="looked.example", qtype="A")
    return made


def refuse(ledger: Ledger, reason: str, **more: object) -> None:
    fields = {"scheme": "https", "host": "api.example.com", "port": 443, "method": "GET", "path": "/"} | more
    ledger.append("deny", run=RUN, role="dev", verdict="deny", reason=reason, **fields)


def allowed(text: str, url: str, method: str = "GET") -> bool:
    verdict = explain(load(text), "dev", method, url).verdict
    return isinstance(verdict, Allow)


def test_it_prints_a_piece_of_a_policy_and_writes_nothing(cli: Cli) -> None:
    name = cli.write(POLICY)
    assert cli.run("learn", RUN, "--policy", name) == 0
    assert (cli.tree / name).read_text() == POLICY
    assert cli.err == ""
    parsed = tomllib.loads(cli.out)
    assert parsed["endpoint"]["api"]["allow"][0]["paths"] == ["/v1/items/*"]
    assert parsed["endpoint"]["new-example-org"]["host"] == "new.example.org"
    assert "role" not in parsed
    for line in (
        "# 1. asked for 43 times (no_rule), ",
        "#    GET https://api.example.com/v1/items/0?expand",
        '# and in [role.dev]: endpoints = [..., "new-example-org"]',
        "# once GET http://metadata.google.internal/: metadata: metadata names and addresses stay closed",
        "# the policy is not the one of the run any more",
        "program /opt/x\\x0ay/agent",  # as the ledger has it
        "bodies are not in the ledger",
    ):
        assert line in cli.out, line
    assert "\x1b" not in cli.out
    assert "[binding" not in cli.out


def test_json(cli: Cli) -> None:
    found = cli.json("learn", RUN, "--policy", cli.write(POLICY), "--json")
    assert (cli.status, found["refused"], found["written"]) == (0, 47, None)
    proposals = found["proposals"]
    assert isinstance(proposals, list)
    assert [(p["number"], p["endpoint"], p["new"], p["count"]) for p in proposals] == [
        (1, "api", False, 43), (2, "new-example-org", True, 1)
    ]  # fmt: skip
    assert tomllib.loads(proposals[1]["toml"])["endpoint"]["new-example-org"]["allow"][0]["methods"] == ["POST"]
    assert len(found["not_proposed"]) == 3


def test_write_appends_what_loads_and_the_refused_passes(cli: Cli) -> None:
    path = cli.tree / cli.write(POLICY)
    assert not allowed(POLICY, "https://api.example.com/v1/items/7?expand=1")  # control
    assert cli.run("learn", RUN, "--write", str(path)) == 0
    text = path.read_text()
    assert 'endpoints = ["api", "new-example-org"]  # mine' in text
    assert "# what is reached" in text
    assert f"written: {path}, 2 rules" in cli.err
    assert "credgate gateway reload" in cli.err
    assert cli.out == ""
    for url, method in (
        ("https://api.example.com/v1/items/7?expand=1", "GET"),
        ("https://new.example.org/feed", "POST"),
    ):
        assert allowed(text, url, method)
    for url, method in (
        ("https://api.example.com/v1/items/7?other=1", "GET"), ("https://api.example.com/v1/items/7", "POST"),
        ("https://api.example.com/v1/items/7/8", "GET"), ("https://new.example.org/feed", "GET"),
        ("https://new.example.org/", "POST"), ("https://other.example.org/feed", "POST"),
    ):  # fmt: skip
        assert not allowed(text, url, method)
    assert cli.json("learn", RUN, "--policy", str(path), "--json")["proposals"] == []


def test_only_some(cli: Cli) -> None:
    path = cli.tree / cli.write(POLICY)
    assert cli.run("learn", RUN, "--write", str(path), "--only", "1") == 0
    assert "new-example-org" not in path.read_text()
    for wrong in ("0", "3", "x", "1,,2", "-1"):
        assert cli.run("learn", RUN, "--write", str(path), f"--only={wrong}") == 2


def test_ask_takes_what_was_said_yes_to(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cli.tree / cli.write(POLICY)
    assert cli.run("learn", RUN, "--policy", str(path), "--ask") == 2  # no terminal
    assert path.read_text() == POLICY
    answers = io.StringIO("n\nyes\n")
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", answers)
    monkeypatch.setattr("credgate.commands.learn.at_a_terminal", lambda: True)
    assert cli.run("learn", RUN, "--policy", str(path), "--ask") == 0
    assert "take rule 2? [y/N/q]" in cli.err
    assert "new-example-org" in path.read_text()
    assert "learned-1" in path.read_text()
    assert "/v1/items/*" not in path.read_text()


def test_a_no_to_all_writes_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cli.tree / cli.write(POLICY)
    monkeypatch.setattr(sys, "stdin", io.StringIO("q\n"))
    monkeypatch.setattr("credgate.commands.learn.at_a_terminal", lambda: True)
    assert cli.run("learn", RUN, "--policy", str(path), "--ask") == 0
    assert path.read_text() == POLICY
    assert "nothing was written" in cli.err


def test_a_trusted_policy_is_told_that_it_is_not_any_more(cli: Cli) -> None:
    path = cli.tree / cli.write(POLICY, "credgate.toml")
    assert cli.run("trust", str(path)) == 0
    assert cli.run("learn", RUN, "--write", str(path)) == 0
    assert f"credgate policy trust {path}" in cli.err
    assert "lies in the work tree" not in cli.err
    assert cli.run("explain", "--role", "dev", "GET", "https://api.example.com/v1/items") == 0
    assert "a run refuses it" in cli.err  # the control: it is so


@pytest.mark.needs("root")  # whose file a ceiling is
def test_a_ceiling_that_forbids_it_is_said_and_nothing_is_written(cli: Cli) -> None:
    path = cli.tree / cli.write(POLICY)
    cli.ceiling.write_text(POLICY)
    assert cli.run("learn", RUN, "--policy", str(path)) == 0
    assert "note: as they are they can't be written" in cli.err
    assert cli.run("learn", RUN, "--write", str(path)) == 1
    assert path.read_text() == POLICY


def test_a_policy_that_can_not_be_appended_to(cli: Cli) -> None:
    text = POLICY.replace("[[endpoint.api.allow]]\nid", "[[endpoint.api.deny]]\npaths = ['/x']\nid").replace(
        'methods = ["GET"]\npaths = ["/v1/items"]\n', "[endpoint.api.x]\n"
    )
    inline = 'version = 1\nendpoint = { api = { host = "api.example.com" } }\n[role.dev]\nendpoints = ["api"]\n'
    path = cli.tree / cli.write(inline)
    assert text != POLICY
    assert cli.run("learn", RUN, "--write", str(path), "--only", "1") == 1
    assert "can't be appended" in cli.err
    assert path.read_text() == inline


@pytest.mark.parametrize(
    ("argv", "said"), [(["rnone"], "no run rnone"), ([RUN, "--role", "nope"], "no role is called")]
)
def test_what_is_not_there(cli: Cli, argv: list[str], said: str) -> None:
    assert cli.run("learn", *argv, "--policy", cli.write(POLICY)) == 2
    assert said in cli.err


def test_a_run_whose_start_is_in_a_removed_segment_needs_its_role_said(cli: Cli) -> None:
    first = cli.home / LEDGER / "seg-000001.jsonl"
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join(line for line in lines if b'"run.start"' not in line))
    policy = cli.write(POLICY)
    assert cli.run("learn", RUN, "--policy", policy) == 2
    assert "hint: say it: --role NAME" in cli.err
    assert len(cli.json("learn", RUN, "--policy", policy, "--role", "dev", "--json")["proposals"]) == 2


def test_another_role(cli: Cli) -> None:
    found = cli.json("learn", RUN, "--role", "other", "--policy", cli.write(POLICY), "--json")
    assert found["role"] == "other"
    assert all(p["new"] for p in found["proposals"])


def test_names_that_were_only_looked_up_are_told_where_nothing_else_could_come(cli: Cli) -> None:
    cli.run("learn", RUN, "--policy", cli.write(POLICY))
    assert "looked.example" not in cli.out
    cli.run("learn", RUN, "--policy", cli.write(POLICY + '[dns]\nunlisted = "nxdomain"\n'))
    assert "# once looked.example" in cli.out


def test_explain_names_the_nearest_rule(cli: Cli) -> None:
    name = cli.write(POLICY)
    assert cli.run("explain", "--policy", name, "--role", "dev", "POST", "https://api.example.com/v1/items") == 1
    assert "nearest  api.list: its methods are GET, HEAD" in cli.out
    document = cli.json(
        "explain", "--json", "--policy", name, "--role", "dev", "GET", "https://api.example.com/v1/item"
    )
    assert document["nearest"] == {"rule": "api.list", "why": "its path is /v1/items"}
    assert isinstance(explain(load(POLICY), "dev", "GET", "https://api.example.com/v1/item").verdict, Deny)


def test_ask_at_a_real_terminal(cli: Cli) -> None:
    path = cli.tree / cli.write(POLICY)
    argv = [sys.executable, "-I", "-m", "credgate", "policy", "learn", RUN, "--policy", str(path), "--ask"]
    master, slave = pty.openpty()
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave) as child:
        os.close(slave)
        os.write(master, b"y\nn\n")
        seen = b""
        while True:
            try:
                seen += os.read(master, 4096)
            except OSError:  # EIO: it has ended
                break
    os.close(master)
    assert child.returncode == 0, seen
    assert b"take rule 1? [y/N/q]" in seen
    assert "learned-1" in path.read_text()
    assert "new-example-org" not in path.read_text()
