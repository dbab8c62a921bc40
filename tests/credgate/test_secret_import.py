"""`credgate secret import`: an agent's login goes into the vault whole, or a message says why and nothing changes."""

import json
import os
from pathlib import Path

import pytest

from credgate.commands import init, secret
from credgate.paths import Places
from credgate.roleneeds import decoys_of
from credgate.secretindex import read_index
from credgate.vault import Vault
from rules.load import load_policy
from rules.sources import SecretRule, SourceKind
from tests.rules.policies import PACKS
from tests.rules.test_agents import AGENTS
from tests.rules.test_logins import KEPT

TOKEN = "sk-ant-ort01-the-real-refresh-token"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def signed_in(home: Path, text: str | None = None) -> Path:
    path = home / ".claude/.credentials.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"claudeAiOauth": {"refreshToken": TOKEN}}) if text is None else text)
    return path


def held(home: Path, name: str) -> str:
    rule = SecretRule(name=name, kind=SourceKind.KEYRING, ref=f"credgate/{name}")
    return Vault(Places.from_env({"HOME": str(home)}), {}).read(rule, {}).reveal()


def names(home: Path) -> list[str]:
    index = read_index(Places.from_env({"HOME": str(home)}))
    return sorted(index.entries) if index is not None else []


def test_it_is_kept_and_the_next_steps_are_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = signed_in(home)
    assert secret.main(["import", "claude"]) == 0
    out, err = capsys.readouterr()
    assert held(home, "claude-refresh") == TOKEN
    assert TOKEN not in out + err
    assert out.endswith("next: credgate init claude --login\nthen: credgate run -- claude\n")
    assert path.exists() and f"note: {path} still holds this login" in err


def test_moved_it_has_one_owner(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = signed_in(home)
    assert secret.main(["import", "claude", "--move", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["agent"], said["kept"], said["moved"]) == ("claude-login", ["claude-refresh"], True)
    assert not path.exists()
    assert held(home, "claude-refresh") == TOKEN


def test_another_place_is_named(home: Path) -> None:
    moved = signed_in(home).rename(home / "elsewhere.json")
    assert secret.main(["import", "claude"]) == 1
    assert secret.main(["import", "claude", "--file", str(moved)]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file or directory"),
        ("", "expected a JSON object"),
        ("{" + TOKEN, "expected a JSON object"),
        (json.dumps({"claudeAiOauth": {"refresh": TOKEN}}), "expected text at claudeAiOauth.refreshToken, got nothing"),
        (" " * ((1 << 20) + 1), "more than 1048576 bytes"),
        ("[" * 100_000, "expected a JSON object"),
    ],
)
def test_what_is_not_understood_changes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    path = signed_in(home, text or "")
    if text is None:
        path.unlink()
    assert secret.main(["import", "claude", "--move"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {path}: ") and said in err and "\nhint: " in err
    assert TOKEN not in err
    assert names(home) == [] and path.exists() == (text is not None)


def test_a_pipe_is_no_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(home / "pipe")
    assert secret.main(["import", "claude", "--file", str(home / "pipe")]) == 1
    assert "no regular file" in capsys.readouterr().err


def test_an_agent_without_a_login_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert secret.main(["import", "aider"]) == 2
    assert "hint: one of: claude, codex, gemini" in capsys.readouterr().err


def test_the_clients_secret_is_taken_from_the_program_where_there_is_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / ".gemini/oauth_creds.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"refresh_token": "1//0-real"}))
    assert secret.main(["import", "gemini"]) == 0
    err = capsys.readouterr().err
    assert "credgate secret set gemini-client" in err and "signed out" not in err  # Google's stay
    assert names(home) == ["gemini-refresh"]
    program = home / "lib/bundle"
    program.mkdir(parents=True)
    (home / "bin").mkdir()
    known = "681255809395-oo8ft2oprdrnp9e3aqf6av3hmdib135j.apps.googleusercontent.com"
    mark = "GOC" + "SPX-"
    (program / "other.js").write_text(f'OAUTH_CLIENT_SECRET = "{mark}{"b" * 28}"')
    (program / "part.js").write_text(f'ID = "{known}";\nOAUTH_CLIENT_SECRET = "{mark}{"a" * 28}";')
    (program / "gemini.js").write_text("#!/usr/bin/env node\n")
    (program / "gemini.js").chmod(0o755)
    (home / "bin/gemini").symlink_to(program / "gemini.js")
    assert secret.main(["import", "gemini"]) == 0
    assert held(home, "gemini-client") == f"{mark}{'a' * 28}"


def test_init_says_what_comes_next(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed_in(home)
    assert init.main(["claude"]) == 0
    assert "for that: credgate init claude --login" in capsys.readouterr().out
    (home / ".config/credgate/policy.toml").unlink()
    assert init.main(["claude", "--login"]) == 0
    assert capsys.readouterr().out.endswith("next: credgate secret import claude\nthen: credgate run -- claude\n")
    (home / ".config/credgate/policy.toml").unlink()
    assert secret.main(["import", "claude"]) == 0
    assert init.main(["claude-login"]) == 0
    assert capsys.readouterr().out.endswith("kept already: claude-refresh\nnext: credgate run -- claude\n")


def test_bindings_of_one_token_have_one_decoy_and_each_run_its_own() -> None:
    policy = load_policy(f"version = 1\n{KEPT}".encode(), packs=PACKS, base_dir="/", agents=AGENTS)
    one, other = decoys_of(policy, "dev"), decoys_of(policy, "dev")
    assert one["one"] == one["two"] != other["one"]
    assert one["mint.acme"] not in (one["one"], other["mint.acme"])
