"""`credgate secret` as it is called: what is printed, what is stored, and that the value is in none of it."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import keyring.backend
import pytest

from credgate.commands.secret import main
from credgate.minting.journal import Journal
from credgate.paths import Places
from credgate.secretindex import read_index
from credgate.vault import Vault
from rules.sources import SecretRule, SourceKind

VALUE = "canary-c07d"
POLICY = """
version = 1
[secret.gh]
source = "keyring:credgate/github"
[secret.ci]
source = "env:CI_TOKEN"
[endpoint.api]
host = "api.github.com"
[[endpoint.api.allow]]
id = "issues"
methods = ["GET", "POST"]
paths = ["/repos/acme/app/issues"]
[[endpoint.api.allow]]
id = "other"
methods = ["GET"]
paths = ["/other"]
[binding.github]
secret = "gh"
endpoint = "api"
rules = ["issues"]
place = "header:authorization"
[role.dev]
bindings = ["github"]
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "CREDENTIALS_DIRECTORY", "CREDGATE_POLICY", "CI_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)
    return Places.from_env({"HOME": str(tmp_path)})


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch):
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    path.chmod(0o600)
    return str(path)


def stored(places: Places, name: str = "github") -> str:
    rule = SecretRule(name=name, kind=SourceKind.KEYRING, ref=f"credgate/{name}")
    return Vault(places, {}).read(rule, {}).reveal()


def test_set_takes_stdin_and_strips_one_newline(places: Places, stdin, capsys: pytest.CaptureFixture[str]):
    stdin(f"{VALUE}\n".encode())
    assert main(["set", "github"]) == 0
    assert stored(places) == VALUE
    out = capsys.readouterr()
    assert VALUE not in out.out + out.err
    assert 'source = "keyring:credgate/github"' in out.out
    assert "no desktop keyring" in out.out


def test_set_names_a_value_that_is_too_short_to_be_searched_for(
    places: Places, stdin, capsys: pytest.CaptureFixture[str]
):
    for value, noted in ((b"1234567", True), (b"12345678", False)):
        stdin(value)
        assert main(["set", "pin"]) == 0
        assert ("note: pin has fewer than 8 characters" in capsys.readouterr().err) is noted


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"canary-c07d\n\n", "LF"),
        (b"canary-c07d\r\n", "CR"),
        (b"canary\0-c07d", "NUL"),
        (b"canary-c07d\xff", "not UTF-8"),
        (b"canary-c07d" * 7000, "at most 65536"),
    ],
)
def test_set_refuses_a_value_that_cannot_be_injected(
    places: Places, stdin, capsys: pytest.CaptureFixture[str], data: bytes, why: str
):
    stdin(data)
    assert main(["set", "github"]) == 1
    out = capsys.readouterr()
    assert out.err.startswith("error: ")
    assert why in out.err
    assert "canary" not in out.out + out.err
    assert not places.state.exists()


@pytest.mark.parametrize(
    "argv", [["set", "github", VALUE], ["set", "github", f"--{VALUE}"], ["set", "gh", f"-{VALUE}"]]
)
def test_a_value_on_argv_is_refused_and_not_repeated(
    places: Places, stdin, capsys: pytest.CaptureFixture[str], argv: list[str]
):
    stdin(b"other")
    assert main(argv) == 2
    out = capsys.readouterr()
    assert VALUE not in out.out + out.err
    assert "hint: a value never goes on the command line" in out.err
    assert not places.state.exists()


@pytest.mark.parametrize("name", ["a/b", "", ".x", "-x", "a b", "a\n", "é", "x" * 65])
def test_a_name_that_could_be_misread_is_refused(places: Places, stdin, capsys: pytest.CaptureFixture[str], name: str):
    stdin(VALUE.encode())
    assert main(["set", "--", name]) == 2
    assert "\n\n" not in capsys.readouterr().err
    assert not places.state.exists()


def test_list_rm_and_what_json_holds(places: Places, stdin, policy: str, capsys: pytest.CaptureFixture[str]):
    for name in ("github", "spare"):
        stdin(VALUE.encode())
        assert main(["set", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out).keys() == {"name", "backend", "fingerprint"}
    assert main(["list", "--json", "--policy", policy]) == 0
    out = capsys.readouterr().out
    assert VALUE not in out
    document = json.loads(out)
    one, two = document["secrets"]
    assert one.keys() == {"name", "backend", "fingerprint", "set_at", "age_seconds", "bound"}
    assert (one["bound"], two["bound"]) == (["github -> api"], [])
    assert one["fingerprint"] == two["fingerprint"]
    assert len(one["fingerprint"]) == 12
    assert main(["list", "--policy", policy]) == 0
    table = capsys.readouterr().out
    assert "github -> api" in table
    assert "nowhere" in table
    assert main(["rm", "spare"]) == 0
    assert main(["rm", "spare"]) == 1
    assert [e["name"] for e in _listed(capsys)] == ["github"]


def _listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    secrets = json.loads(capsys.readouterr().out)["secrets"]
    assert isinstance(secrets, list)
    return secrets


def test_a_fingerprint_tells_values_apart_and_differs_between_installations(places: Places, stdin, tmp_path: Path):
    prints = []
    for value in (VALUE, VALUE + "x"):
        stdin(value.encode())
        main(["set", "github"])
        index = read_index(places)
        assert index is not None
        prints.append(index.entries["github"].fingerprint)
    os.environ["HOME"] = str(tmp_path / "other")
    stdin(VALUE.encode())
    main(["set", "github"])
    other = read_index(Places.from_env({"HOME": str(tmp_path / "other")}))
    assert other is not None
    assert len({*prints, other.entries["github"].fingerprint}) == 3


def test_test_says_where_it_would_go(places: Places, stdin, policy: str, capsys: pytest.CaptureFixture[str]):
    assert main(["test", "github", "--policy", policy]) == 1  # bound, and not set
    assert "nothing at keyring:credgate/github" in capsys.readouterr().out
    stdin(VALUE.encode())
    main(["set", "github"])
    capsys.readouterr()
    assert main(["test", "github", "--policy", policy, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (target,) = document["targets"]
    assert document["available"] is True
    assert (target["host"], target["port"], target["place"]) == ("api.github.com", 443, "header:authorization")
    assert [rule["id"] for rule in target["rules"]] == ["issues"]
    assert target["roles"] == ["dev"]
    assert main(["test", "github", "--policy", policy]) == 0
    text = capsys.readouterr().out
    assert "api.github.com:443" in text
    assert "/repos/acme/app/issues" in text
    assert VALUE not in text


def test_test_of_one_that_is_bound_nowhere(places: Places, policy: str, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI_TOKEN", VALUE)
    assert main(["test", "ci", "--policy", policy]) == 1
    out = capsys.readouterr().out
    assert "the value is there" in out
    assert "go nowhere" in out


def test_test_without_a_policy_says_so(places: Places, capsys: pytest.CaptureFixture[str]):
    assert main(["test", "github"]) == 2
    assert "hint: add --policy FILE" in capsys.readouterr().err


def test_a_broken_policy_stops_test_and_not_list(places: Places, stdin, capsys, tmp_path: Path):
    own = places.config / "policy.toml"
    own.parent.mkdir(parents=True)
    own.write_text("version = 9\n")
    own.chmod(0o600)
    stdin(VALUE.encode())
    main(["set", "github"])
    assert main(["list"]) == 0
    out = capsys.readouterr()
    assert "note: policy" in out.err
    assert "? (no policy)" in out.out
    assert main(["test", "github", "--policy", str(own)]) == 1
    assert capsys.readouterr().err.startswith("error: policy")


def test_a_forced_backend_is_named_as_not_followed(places: Places, stdin, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    stdin(VALUE.encode())
    assert main(["set", "github"]) == 0
    assert "note: PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring is not followed" in capsys.readouterr().err
    assert stored(places) == VALUE


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_an_index_that_is_open_to_others_is_refused(places: Places, stdin, capsys, mode: int):
    stdin(VALUE.encode())
    main(["set", "github"])
    places.secrets.chmod(mode)
    for argv in (["list"], ["rm", "github"], ["test", "github"]):
        assert main(argv) != 0
    assert f"mode is {mode:04o}, expected 0600" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"salt":"zz","secrets":[]}', b'{"salt":"00","secrets":[{}]}'])
def test_a_damaged_index_is_an_error_and_stays(places: Places, stdin, capsys, content: bytes):
    stdin(VALUE.encode())
    main(["set", "github"])
    places.secrets.write_bytes(content)
    assert main(["list"]) == 1
    stdin(VALUE.encode())
    assert main(["set", "github"]) == 1
    assert "not an index" in capsys.readouterr().err
    assert places.secrets.read_bytes() == content


def test_a_prompt_on_a_terminal_does_not_echo(tmp_path: Path):
    """A real terminal: what the user types isn't on the screen, and is what was stored."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-I", "-m", "credgate", "secret", "set", "github"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"HOME": str(tmp_path)},
        start_new_session=True,
    )
    os.close(theirs)
    screen = _read_until(ours, b"not shown")
    os.write(ours, VALUE.encode() + b"\n")
    screen += _read_until(ours, b"in the policy")
    assert child.wait(20) == 0
    os.close(ours)
    assert VALUE.encode() not in screen
    assert stored(Places.from_env({"HOME": str(tmp_path)})) == VALUE


def _read_until(fd: int, text: bytes) -> bytes:
    data, end = b"", time.monotonic() + 90
    while text not in data and time.monotonic() < end:
        if select.select([fd], [], [], 0.5)[0]:
            data += os.read(fd, 4096)
    assert text in data
    return data


MINTED = """
[secret.refresh]
source = "keyring:credgate/refresh"
[endpoint.login]
host = "login.example"
[mint.llm]
type = "oauth2-refresh"
secret = "refresh"
endpoint = "login"
path = "/token"
[secret.llm]
source = "mint:llm"
[endpoint.llm]
host = "llm.example"
[[endpoint.llm.allow]]
id = "chat"
methods = ["POST"]
paths = ["/chat"]
[binding.llm]
secret = "llm"
endpoint = "llm"
rules = ["chat"]
place = "header:authorization"
[role.agent]
bindings = ["llm"]
"""


def test_a_secret_of_a_mint_goes_where_the_mint_calls(places: Places, stdin, capsys, tmp_path: Path):
    """And a refresh token whose use had no known end is named, until it is set again."""
    file = tmp_path / "minted.toml"
    file.write_text(f"{POLICY}{MINTED}")
    file.chmod(0o600)
    stdin(VALUE.encode())
    main(["set", "refresh"])
    capsys.readouterr()
    for name, where in (("refresh", "login.example:443 as mint"), ("llm", "llm.example:443 as header:authorization")):
        assert main(["test", name, "--policy", "minted.toml"]) == 0
        out = capsys.readouterr().out
        assert where in out
        assert VALUE not in out
    main(["list", "--policy", "minted.toml"])
    assert "mint.llm -> login" in capsys.readouterr().out
    Journal(places=places, ref="credgate/refresh").begin(VALUE)
    assert main(["test", "refresh", "--policy", "minted.toml"]) == 1
    assert "whether the provider replaced it is not known" in capsys.readouterr().out
    stdin(VALUE.encode())
    main(["set", "refresh"])
    assert main(["test", "refresh", "--policy", "minted.toml"]) == 0
