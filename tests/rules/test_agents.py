"""Profiles of agents: what the shipped ones hold, what a policy's own may, and how seeds are filled."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.agents import Agent, fill, needs_decoy, of_command
from rules.load import load_policy
from rules.load_agents import AgentError, read_agent
from rules.pack_rules import read_pack
from rules.policy import Policy
from rules.problems import PolicyError
from tests.rules.policies import PACKS

AGENTS = {p.stem: p.read_text() for p in (Path(__file__).parents[2] / "src/rules/packs/agents").glob("*.toml")}
SHIPPED = {name: read_agent(name, text) for name, text in AGENTS.items()}
KEY = """
[secret.k]
source = "keyring:credgate/k"
[endpoint.api]
host = "api.acme.example"
[[endpoint.api.allow]]
id = "all"
methods = ["POST"]
paths = ["/**"]
[binding.k]
secret = "k"
endpoint = "api"
rules = ["all"]
place = "header:x-api-key"
mode = "placeholder"
placeholder = { env = "ACME_API_KEY", shape = "acme-{32}" }
"""
OWN = """
[agent.acme]
commands = ["acme"]
env = { ACME_UPDATES = "off" }
[[agent.acme.seed]]
path = "~/.acme/key"
text = "{decoy}"
[[agent.acme.access]]
secret = "k"
endpoint = "api"
rules = "all"
place = "header:x-api-key"
env = "ACME_API_KEY"
shape = "acme-{32}"
"""
ROLE = '[role.dev]\nagent = "acme"\nbindings = ["k"]\n'


def load(text: str) -> Policy:
    return load_policy(f"version = 1\n{text}".encode(), packs=PACKS, base_dir="/", agents=AGENTS)


def faults(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load(text)
    return [f"{p.where}: {p.message}" for p in caught.value.problems]


LOGINS = [name for name, agent in SHIPPED.items() if agent.login is not None]


def test_all_of_them_are_there() -> None:
    keys = ["aider", "claude", "codex", "copilot", "gemini", "goose", "opencode"]
    assert sorted(SHIPPED) == sorted([*keys, "claude-login", "codex-login", "copilot-login", "gemini-login"])
    assert sorted(LOGINS) == ["claude-login", "codex-login", "gemini-login"]


@pytest.mark.parametrize("agent", SHIPPED.values(), ids=list(SHIPPED))
def test_what_a_shipped_one_names_is_there(agent: Agent) -> None:
    assert agent.commands and agent.accesses and agent.about
    for access in agent.accesses:
        assert read_pack(access.endpoint, PACKS[access.endpoint]).host
        assert read_pack(access.rules, PACKS[access.rules]).allow


@pytest.mark.parametrize("cwd", ["/home/a/work", '/home/a/"q" \\ \x7f\n ü 😀', "/home/a/\udcff"])
@pytest.mark.parametrize("agent", SHIPPED.values(), ids=list(SHIPPED))
def test_its_files_can_be_read_whatever_the_directory_is_called(agent: Agent, cwd: str) -> None:
    for seed in agent.seeds:
        text = fill(seed.text, decoy="sk-decoy", cwd=cwd, refresh="rt-decoy")
        assert "{refresh}" not in text and "{decoy" not in text
        text.encode()
        (json.loads if seed.path.endswith(".json") else tomllib.loads)(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_filled_name_reads_back_the_same_as_json_and_as_toml(cwd: str) -> None:
    assert json.loads(fill('{"{cwd}": 1}', decoy="d", cwd=cwd)) == {cwd: 1}
    assert tomllib.loads(fill('"{cwd}" = 1', decoy="d", cwd=cwd)) == {cwd: 1}


def test_a_name_is_not_read_for_holes() -> None:
    assert fill("{cwd} {decoy:3} {decoy}", decoy="abcdef", cwd="/{decoy}") == "/{decoy} def abcdef"


def test_the_end_of_the_decoy_is_what_claude_approves_by() -> None:
    seed = SHIPPED["claude"].seeds[0]
    state = json.loads(fill(seed.text, decoy="x" * 100 + "0123456789abcdefghij", cwd="/w"))
    assert state["customApiKeyResponses"]["approved"] == ["0123456789abcdefghij"]
    assert state["projects"]["/w"]["hasTrustDialogAccepted"] is True


def test_a_command_is_known_by_its_name_and_by_a_path() -> None:
    agents = tuple(SHIPPED.values())
    assert of_command("/opt/x/bin/claude", agents) is SHIPPED["claude"]
    assert of_command("claude-not", agents) is None


def test_a_policy_may_bring_its_own() -> None:
    agent = load(KEY + OWN + ROLE).roles["dev"].agent
    assert agent is not None and needs_decoy(agent)
    assert agent.env == (("ACME_UPDATES", "off"),)


def test_an_unknown_one_is_a_fault() -> None:
    assert faults('[role.dev]\nagent = "claud"\n') == ['role.dev.agent: no agent is called "claud"']


def test_a_role_without_the_decoy_that_a_file_needs_is_a_fault() -> None:
    (found,) = faults(KEY + OWN + '[role.dev]\nagent = "acme"\n')
    assert found.startswith("role.dev.agent: acme reads its key from ACME_API_KEY: got none")


def test_limits_that_it_dies_of_are_a_fault() -> None:
    own = OWN.replace("[[agent.acme.seed]]", "[agent.acme.limits]\nprocesses = 64\n[[agent.acme.seed]]")
    load(KEY + own + ROLE)
    found = faults(KEY + own + ROLE + "limits = { processes = 63 }\n")
    assert found == ["role.dev.limits: processes: got 63, and acme needs 64"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"~/.acme/key"', '"~/../key"', "expected a path below the home"),
        ('"~/.acme/key"', '"/etc/key"', "expected a path below the home"),
        ('"~/.acme/key"', '"~/"', "expected a path below the home"),
        ('text = "{decoy}"', 'text = ""', "got 0 characters"),
        ('text = "{decoy}"', 'text = "{decoy}"\n[[agent.acme.seed]]\npath = "~/.acme"\ntext = "x"', "below another"),
        ('{ ACME_UPDATES = "off" }', '{ LD_PRELOAD = "x" }', "programs run code"),
        ('{ ACME_UPDATES = "off" }', '{ ACME_TOKEN = "x" }', "looks like a credential"),
        ('{ ACME_UPDATES = "off" }', "{ ACME_UPDATES = 1 }", "expected text in one line"),
        ('shape = "acme-{32}"\n', 'shape = "acme"\n', "random characters"),
    ],
)
def test_what_an_own_one_may_not_say(old: str, new: str, fault: str) -> None:
    load(KEY + OWN + ROLE)
    assert OWN.count(old) == 1
    assert any(fault in found for found in faults(KEY + OWN.replace(old, new) + ROLE))


def test_a_broken_shipped_one_is_our_own_fault() -> None:
    with pytest.raises(AgentError, match="expected goose"):
        read_agent("goose", AGENTS["claude"])


def test_a_policy_of_the_work_tree_writes_nothing_into_the_home() -> None:
    from rules.tree_policy import check_tree_policy

    with pytest.raises(PolicyError) as caught:
        check_tree_policy(load(KEY + OWN + ROLE), "hint")
    assert "role.dev.agent" in [p.where for p in caught.value.problems]
