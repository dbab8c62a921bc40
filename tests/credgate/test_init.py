"""`credgate init AGENT`: a policy that loads, and the key asked for, kept already, or left for later."""

import getpass
import sys
from pathlib import Path

import pytest

from credgate.commands import init, secret
from credgate.policyfile import shipped_agents, shipped_packs
from rules.load import load_policy
from rules.load_agents import read_agent

NAMES = sorted(shipped_agents())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> list[str]:
    """Standard input is one, and who sits there gives this answer. Returns the prompts."""
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(getpass, "getpass", ask)
    return prompts


@pytest.mark.parametrize("name", NAMES)
def test_its_policy_loads_and_binds_the_key_of_the_profile(name: str) -> None:
    agent = read_agent(name, shipped_agents()[name])
    text = init._text(agent)
    assert max(map(len, text.splitlines())) <= 160
    policy = load_policy(text.encode(), packs=shipped_packs(), agents=shipped_agents(), base_dir="/")
    role = policy.roles["dev"]
    assert role.agent == agent and role.workdir == "write"
    first, *others = policy.bindings.values()
    assert first.placeholder is not None and first.placeholder.env == agent.accesses[0].env
    assert len(others) == (len(agent.accesses) - 1 if agent.together else agent.accesses[0].bearer)
    assert role.bindings == tuple(policy.bindings)
    assert all(binding.rules and policy.endpoints[binding.endpoint].deny for binding in (first, *others))


@pytest.mark.parametrize("name", ["claude", "opencode"])
def test_an_anthropic_key_is_bound_where_its_sdks_send_it_too(name: str) -> None:
    text = init._text(read_agent(name, shipped_agents()[name]))
    policy = load_policy(text.encode(), packs=shipped_packs(), agents=shipped_agents(), base_dir="/")
    key, bearer = policy.bindings["anthropic"], policy.bindings["anthropic-bearer"]
    assert (key.header, key.format) == ("x-api-key", "{secret}")
    assert (bearer.header, bearer.format) == ("authorization", "Bearer {secret}")
    assert (bearer.secret, bearer.placeholder, bearer.rules) == (key.secret, key.placeholder, key.rules)
    assert "anthropic-bearer" not in init._text(read_agent("codex", shipped_agents()["codex"]))


def test_the_key_is_asked_for_and_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = at_a_terminal(monkeypatch, "sk-ant-real-0123456789")
    assert init.main(["claude"]) == 0
    out = capsys.readouterr().out
    assert len(prompts) == 1 and "Claude Code" in prompts[0]
    assert "sk-ant-real" not in out and out.endswith("next: credgate run -- claude\n")
    assert (home / ".config/credgate/policy.toml").stat().st_mode & 0o777 == 0o600
    assert secret.main(["test", "anthropic"]) == 0


def test_one_that_is_kept_already_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_a_terminal(monkeypatch, "sk-ant-real-0123456789")
    assert init.main(["claude"]) == 0
    (Path.home() / ".config/credgate/policy.toml").unlink()
    prompts = at_a_terminal(monkeypatch, "")
    assert init.main(["opencode"]) == 0
    assert prompts == []
    assert "the key is kept already: anthropic in " in capsys.readouterr().out


def test_none_given_says_how_to_give_it_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_a_terminal(monkeypatch, "")
    assert init.main(["gemini"]) == 0
    assert capsys.readouterr().out.endswith("next: credgate secret set gemini\nthen: credgate run -- gemini\n")


def test_what_is_there_is_not_written_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / ".config/credgate/policy.toml"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text("version = 1\n")
    assert init.main(["claude"]) == 1
    assert path.read_text() == "version = 1\n"
    assert "it is there already" in capsys.readouterr().err


def test_a_tree_is_no_place_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(["claude", "--here"]) == 2
    assert "can't bind a secret" in capsys.readouterr().err


def test_print_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(["codex", "--print"]) == 0
    assert 'agent = "codex"' in capsys.readouterr().out
    assert list(home.iterdir()) == []


def test_custom_is_the_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(["custom", "--print"]) == 0
    assert capsys.readouterr().out == init.TEMPLATE


def test_an_unknown_agent_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(["claud"]) == 2
    assert capsys.readouterr().err.splitlines()[1] == 'hint: did you mean "claude"?'


def test_a_login_that_is_a_token_alone_is_asked_for_like_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = at_a_terminal(monkeypatch, "gho_real0123456789012345678901234567890123")
    assert init.main(["copilot", "--login"]) == 0
    assert len(prompts) == 1 and "kept as copilot-github" in prompts[0]
    assert capsys.readouterr().out.endswith("next: credgate run -- copilot\n")
