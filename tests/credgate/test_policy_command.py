import json
import stat
from pathlib import Path
from typing import Any

import pytest

from credgate.commands import init, policy
from credgate.explain import explain, wire_of
from credgate.policyfile import shipped_packs
from rules.load import load_policy
from rules.verdict import Allow
from tests.rules.policies import WHOLE, load

ISSUES = "https://api.github.com/repos/acme/app/issues"


class Cli:
    """Runs the commands in a directory of its own, with a home of its own and no ceiling of this machine."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.tree, self.home, self.ceiling, self._capsys = root / "tree", root / "home", root / "ceiling", capsys

    def run(self, *argv: str) -> int:
        self._capsys.readouterr()
        try:
            status = policy.main(argv, self.ceiling)
        except SystemExit as stop:  # argparse
            status = int(stop.code or 0)
        self.out, self.err = self._capsys.readouterr()
        return status

    def json(self, *argv: str) -> dict[str, Any]:
        self.status = self.run(*argv)
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    def write(self, text: str, name: str = "p.toml") -> str:
        path = self.tree / name
        path.write_text(text)
        path.chmod(0o600)
        return name


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capsys)
    made.tree.mkdir()
    made.home.mkdir()
    monkeypatch.chdir(made.tree)
    monkeypatch.setenv("HOME", str(made.home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CREDGATE_POLICY"):
        monkeypatch.delenv(name, raising=False)
    return made


# check


def test_check_of_a_sound_policy(cli: Cli) -> None:
    assert cli.run("check", cli.write(WHOLE)) == 0
    assert "1 roles, 2 endpoints, 1 bindings, 1 secrets, 1 tests" in cli.out
    assert cli.err == ""


def test_check_lists_every_fault_with_its_mend(cli: Cli) -> None:
    assert cli.run("check", cli.write("version = 2\nfoo = 1\n[role.r]\nworkdir = 'copied'\n")) == 1
    assert cli.err.splitlines() == [
        "error: foo: unknown key",
        "hint: one of: agent, binding, default_role, dns, endpoint, mint, proxy, role, secret, test, vault, version",
        "error: version: got 2, expected 1",
        'error: role.r.workdir: got "copied", expected "read" or "copy" or "write"',
        'hint: did you mean "copy"?',
        "3 faults",
    ]


def test_check_of_more_faults_than_are_told(cli: Cli) -> None:
    assert cli.run("check", cli.write("version = 1\n" + "".join(f"k{i} = 1\n" for i in range(300)))) == 1
    assert cli.err.splitlines()[-1] == "200 faults or more"


def test_check_as_json(cli: Cli) -> None:
    assert cli.json("check", "--json", cli.write("version = 2\n"))["problems"] == [
        {"where": "version", "message": "got 2, expected 1", "hint": ""}
    ]
    assert cli.status == 1
    assert cli.json("check", "--json", cli.write(WHOLE))["ok"] is True
    assert cli.status == 0


def test_check_warns_of_what_was_hardly_meant(cli: Cli) -> None:
    text = 'version = 1\n[secret.s]\nsource = "env:S"\n[endpoint.e]\nhost = "a.example.org"\n[role.r]\n'
    assert cli.run("check", cli.write(text)) == 0
    warned = [line for line in cli.err.splitlines() if line.startswith("warning")]
    assert [line.split(": ")[1] for line in warned] == ["secret.s", "endpoint.e", "endpoint.e"]


def test_check_escapes_what_a_terminal_would_obey(cli: Cli) -> None:
    assert cli.run("check", cli.write('version = 1\n"\\u001b]52;x" = 1\n')) == 1
    assert "\x1b" not in cli.err


@pytest.mark.parametrize("argv", [["check", "gone.toml"], ["check"], [], ["frobnicate"], ["explain", "GET"]])
def test_usage_is_2(cli: Cli, argv: list[str]) -> None:
    assert cli.run(*argv) == 2


@pytest.mark.parametrize("name", ["check", "explain", "test", "trust", "show", "diff"])
def test_every_help_has_an_example(cli: Cli, name: str) -> None:
    assert cli.run(name, "--help") == 0
    assert f"example:\n  credgate policy {name} " in cli.out


# explain


def test_explain_allow(cli: Cli) -> None:
    name = cli.write(WHOLE.replace('workdir = "write"', 'workdir = "read"'))
    header = "Authorization: Bearer {GITHUB_TOKEN}"
    assert cli.json("explain", "--json", "--policy", name, "--header", header, "GET", ISSUES) == {
        "verdict": "allow",
        "reason": None,
        "rule": "github-api.issues",
        "binding": "github",
        "inject": [
            {
                "place": "header:authorization",
                "secret": "github",
                "binding": "github",
                "mode": "placeholder",
                "injected": True,
            }
        ],
        "normalized": {
            "method": "GET",
            "scheme": "https",
            "host": "api.github.com",
            "port": 443,
            "path": "/repos/acme/app/issues",
        },
        "policy_sha256": load(name and (cli.tree / name).read_text()).sha256,
        "role": "dev",
        "policy": str(cli.tree / name),
    }
    assert cli.status == 0


def test_explain_says_where_a_placeholder_is_missing(cli: Cli) -> None:
    name = cli.write(WHOLE)
    assert cli.run("explain", "--policy", name, "GET", ISSUES) == 0
    assert "not here, its placeholder is missing" in cli.out


def test_explain_deny(cli: Cli) -> None:
    document = cli.json("explain", "--json", "--policy", cli.write(WHOLE), "POST", "https://api.github.com/user/keys")
    assert cli.status == 1
    assert (document["verdict"], document["reason"]) == ("deny", "deny_rule")
    assert document["rule"] == "github-api.github-credential-minting/user-keys"
    assert document["inject"] == []


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["GET", "https://evil.example/"], "host_unlisted"),
        (["GET", "https://api.github.com:8443/repos/acme/app/issues"], "port_unlisted"),
        (["GET", "http://api.github.com/repos/acme/app/issues"], "port_unlisted"),
        (["DELETE", ISSUES], "no_rule"),
        (["GET", "https://api.github.com/repos/acme/app/../app/issues"], "path_ambiguous"),
        (["GET", "https://api.github.com//repos"], "path_ambiguous"),
        (["GET", "https://api.github.com#@evil.example/"], "path_ambiguous"),
        (["GET", "https://api.github.com/a b"], "malformed"),
        (["GET", f"{ISSUES}?token=x"], "query_refused"),
        (["get", ISSUES], "method_invalid"),
        (["GET", "https://169.254.169.254/latest"], "metadata"),
        (["GET", "https://10.0.0.1/"], "address_literal"),
        (["GET", "https://0x7f.1/"], "host_invalid"),
        (["GET", "https://user@api.github.com/"], "host_invalid"),
        (["--header", "Host: evil.example", "GET", ISSUES], "identity_mismatch"),
        (["--header", "X-HTTP-Method-Override: DELETE", "GET", ISSUES], "method_invalid"),
        (["--header", "X-Note: {GITHUB_TOKEN}", "GET", ISSUES], "placeholder_misplaced"),
        (["--header", "Authorization: Bearer own", "GET", ISSUES], "foreign_credential"),
        (["--header", "Upgrade: websocket", "GET", ISSUES], "upgrade_refused"),
    ],
)
def test_explain_gives_the_reason(cli: Cli, argv: list[str], reason: str) -> None:
    document = cli.json("explain", "--json", "--policy", cli.write(WHOLE), *argv)
    assert (document["verdict"], document["reason"], cli.status) == ("deny", reason, 1)


@pytest.mark.parametrize("url", ["api.github.com/x", "ftp://api.github.com/", "", "https:/x"])
def test_what_is_no_url_is_usage(cli: Cli, url: str) -> None:
    assert cli.run("explain", "--policy", cli.write(WHOLE), "GET", url) == 2
    assert "expected https://HOST/PATH" in cli.err


def test_explain_with_a_broken_policy_is_not_a_verdict(cli: Cli) -> None:
    assert cli.run("explain", "--policy", cli.write("version = 2\n"), "GET", ISSUES) == 2
    assert cli.run("explain", "--policy", cli.write(WHOLE), "--role", "nobody", "GET", ISSUES) == 2
    assert cli.run("explain", "--policy", cli.write(WHOLE), "--header", "nocolon", "GET", ISSUES) == 2


def test_explain_looks_at_an_untrusted_policy_and_says_so(cli: Cli) -> None:
    text = WHOLE.replace('workdir = "write"', 'workdir = "read"')
    assert cli.run("explain", "--policy", cli.write(text), "GET", ISSUES) == 0
    assert cli.err == ""
    assert cli.run("explain", "--policy", cli.write(WHOLE), "GET", ISSUES) == 0
    assert "not trusted; a run refuses it" in cli.err


def test_the_wire_is_not_normalised() -> None:
    wire = wire_of("GET", "HTTPS://API.GitHub.com:0443/a/%2e%2e?b#c")
    assert (wire.connect_host, wire.connect_port, wire.target) == (b"API.GitHub.com", 443, b"/a/%2e%2e?b#c")
    assert wire.headers == ((b"Host", b"API.GitHub.com:0443"),)
    assert wire_of("GET", "http://a.example?x").target == b"/?x"


def test_samples_of_equal_shapes_differ() -> None:
    second = (
        '[binding.two]\nsecret = "github"\nendpoint = "github-api"\nrules = ["issues"]\nplace = "header:x-api-key"\n'
    )
    second += 'mode = "placeholder"\nplaceholder = { env = "OTHER_TOKEN", shape = "ghp_{36}" }\n'
    text = WHOLE.replace("[role.dev]", second + "[role.dev]").replace(
        'bindings = ["github"]', 'bindings = ["github", "two"]'
    )
    headers = ["Authorization: Bearer {GITHUB_TOKEN}", "X-Api-Key: {OTHER_TOKEN}"]
    both = explain(load(text), "dev", "GET", ISSUES, headers)
    assert isinstance(both.verdict, Allow)
    assert both.injected == {"github", "two"}


# test


CASE = '[[test]]\nmethod = "GET"\nurl = "https://evil.example/"\nverdict = "{}"\nreason = "{}"\n'


def test_cases_that_come_out_as_written(cli: Cli) -> None:
    assert cli.run("test", cli.write(WHOLE + CASE.format("deny", "host_unlisted"))) == 0
    assert "2 of 2 cases as expected" in cli.out


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (CASE.format("allow", "host_unlisted"), "verdict: got deny, expected allow"),
        (CASE.format("deny", "no_rule"), "reason: got host_unlisted, expected no_rule"),
    ],
)
def test_a_case_that_does_not_is_a_finding(cli: Cli, case: str, why: str) -> None:
    assert cli.run("test", cli.write(WHOLE + case)) == 1
    assert why in cli.out
    assert cli.json("test", "--json", cli.write(WHOLE + case))["ok"] is False


def test_no_cases_are_a_finding(cli: Cli) -> None:
    assert cli.run("test", cli.write("version = 1\n[role.r]\n")) == 1
    assert "no [[test]]" in cli.err


# trust


def _harmless(method: str = "GET") -> str:
    rule = f'[[endpoint.e.allow]]\nid = "r"\nmethods = ["{method}"]\npaths = ["/**"]\n'
    return f'version = 1\n[endpoint.e]\nhost = "a.example.org"\n{rule}[role.r]\nendpoints = ["e"]\n'


def test_trust_then_change_then_diff(cli: Cli) -> None:
    name = cli.write(_harmless(), "credgate.toml")
    look = ("explain", "GET", "https://a.example.org/")
    cli.run(*look)
    assert "not trusted" in cli.err
    assert cli.run("trust", name) == 0
    cli.run(*look)
    assert cli.err == ""
    cli.write(_harmless("POST"), name)
    cli.run(*look)
    assert "has changed since it was trusted" in cli.err
    assert cli.run("trust", "--diff", name) == 0
    assert '+methods = ["POST"]' in cli.out.splitlines()
    cli.run(*look)
    assert "has changed" in cli.err  # to look at the diff is not to accept it


def test_what_could_not_count_is_not_trusted(cli: Cli) -> None:
    assert cli.run("trust", cli.write(WHOLE)) == 1
    assert "can't define a secret" in cli.err
    assert cli.run("trust", cli.write("version = 2\n")) == 1
    assert not (cli.home / ".local/state/credgate/trusted.json").exists()


# show and diff


def test_show_says_what_counts_and_from_where(cli: Cli) -> None:
    name = cli.write(WHOLE)
    assert cli.run("show", "--policy", name) == 0
    assert f"policy   {cli.tree / name} (--policy), sha256 {load(WHOLE).sha256}" in cli.out
    assert "deny https://api.github.com:443 pack github-credential-minting" in cli.out
    assert "allow GET|HEAD https://mirror.example.org:443/**" in cli.out
    assert cli.json("show", "--json", "--policy", name)["role"] == "dev"


def test_diff_says_what_comes_and_what_goes(cli: Cli) -> None:
    old, new = cli.write(_harmless(), "a.toml"), cli.write(_harmless("POST"), "b.toml")
    assert cli.run("diff", old, old) == 0
    assert cli.out == ""
    assert cli.run("diff", old, new) == 1
    assert cli.out.splitlines() == [
        "- r: allow GET|HEAD https://a.example.org:443/**",
        "+ r: allow POST https://a.example.org:443/**",
    ]


# init


def test_init_writes_a_policy_that_loads_and_never_overwrites(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    path = cli.home / ".config/credgate/policy.toml"
    assert init.main([]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cli.run("check") == 0
    path.write_text("version = 1\n")
    assert init.main([]) == 1
    assert "it is there already" in capsys.readouterr().err
    assert path.read_text() == "version = 1\n"


def test_init_here_and_print(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(["--print"]) == 0
    assert capsys.readouterr().out == init.TEMPLATE
    assert list(cli.tree.iterdir()) == []
    assert init.main(["--here"]) == 0
    assert (cli.tree / "credgate.toml").read_text() == init.TEMPLATE
    assert cli.run("trust", "credgate.toml") == 0


def test_init_does_not_write_through_a_link(cli: Cli) -> None:
    (cli.tree / "credgate.toml").symlink_to(cli.tree / "elsewhere")
    assert init.main(["--here"]) == 1
    assert not (cli.tree / "elsewhere").exists()


def test_the_commented_parts_of_the_template_load_when_uncommented() -> None:
    lines = [line[2:] if line.startswith("# ") and _is_toml(line[2:]) else line for line in init.TEMPLATE.splitlines()]
    text = "\n".join(lines).replace("bindings = []                   # ", "bindings = ")
    loaded = load_policy(text.encode(), packs=shipped_packs(), base_dir="/")
    assert set(loaded.bindings) == {"github"}
    assert loaded.tests


def _is_toml(line: str) -> bool:
    return line.startswith("[") or " = " in line


# bodies


BODIED = """\
version = 1
default_role = "dev"
[endpoint.llm]
host = "llm.example.org"
[[endpoint.llm.allow]]
id = "ask"
methods = ["POST"]
paths = ["/m"]
body = { type = "json", equals = { model = "small" } }
[role.dev]
endpoints = ["llm"]
[[test]]
method = "POST"
url = "https://llm.example.org/m"
body = '''
{"model": "small"}
'''
verdict = "allow"
rule = "llm.ask"
[[test]]
method = "POST"
url = "https://llm.example.org/m"
body = '{"model": "large"}'
verdict = "deny"
reason = "body_refused"
"""


def test_cases_with_bodies(cli: Cli) -> None:
    assert cli.run("test", cli.write(BODIED)) == 0, cli.out
    assert cli.run("test", cli.write(BODIED.replace('"large"', '"small"'))) == 1


def test_explain_says_that_a_body_counts_and_judges_one(cli: Cli) -> None:
    asked = ("--policy", cli.write(BODIED), "POST", "https://llm.example.org/m")
    assert cli.run("explain", *asked) == 0
    assert "at most 262144 bytes, and has to fit: --body FILE" in cli.out
    assert cli.json("explain", "--json", *asked)["body_max"] == 262144
    for model, status in (("small", 0), ("large", 1)):
        (cli.tree / "body.json").write_text(f'{{"model": "{model}"}}')
        assert cli.run("explain", "--body", "body.json", *asked) == status
        assert ("body_refused" in cli.out) is bool(status)
    assert cli.run("explain", "--body", "none.json", *asked) == 2
    assert "none.json" in cli.err
