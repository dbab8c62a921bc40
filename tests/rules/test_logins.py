"""Logins by subscription: what is taken from an agent's own file, and what a profile of one may say."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.load import load_policy
from rules.logins import Login, LoginError, taken
from rules.policy import Policy
from rules.problems import PolicyError
from tests.rules.policies import PACKS
from tests.rules.test_agents import AGENTS, SHIPPED

CLAUDE = SHIPPED["claude-login"].login
CODEX = SHIPPED["codex-login"].login
assert CLAUDE is not None and CODEX is not None
OWN = "9d1c250a-e61b-44d9-88ed-5944d1962f5e"


def claude(**more: object) -> dict[str, object]:
    return {"claudeAiOauth": {"accessToken": "at", "refreshToken": "rt", "expiresAt": 1, **more}}


@pytest.mark.parametrize(
    ("login", "document", "values"),
    [
        (CLAUDE, claude(), {"claude-refresh": "rt"}),
        (CLAUDE, claude(clientId=OWN), {"claude-refresh": "rt"}),
        (
            CODEX,
            {"auth_mode": "chatgpt", "tokens": {"refresh_token": "rt", "account_id": "a"}},
            {"codex-refresh": "rt", "codex-account": "a"},
        ),
        (
            CODEX,
            {"tokens": {"refresh_token": "rt", "account_id": "a", "id_token": {"x": 1}}, "new": []},
            {"codex-refresh": "rt", "codex-account": "a"},
        ),
    ],
)
def test_what_the_vault_gets(login: Login, document: object, values: dict[str, str]) -> None:
    assert taken(login, document) == values


@pytest.mark.parametrize(
    ("login", "document", "said"),
    [
        (CLAUDE, {}, "expected text at claudeAiOauth.refreshToken, got nothing"),
        (CLAUDE, [], "got nothing"),
        (CLAUDE, "hunter2", "got nothing"),
        (CLAUDE, {"claudeAiOauth": "hunter2"}, "got nothing"),
        (CLAUDE, claude(refreshToken=None), "got null"),
        (CLAUDE, claude(refreshToken=""), "got an empty one"),
        (CLAUDE, claude(refreshToken={"enc": "hunter2"}), "got dict"),
        (CLAUDE, claude(clientId="hunter2"), f"at claudeAiOauth.clientId there is another text than '{OWN}'"),
        (CODEX, {"auth_mode": "apikey", "OPENAI_API_KEY": "hunter2"}, "another text than 'chatgpt'"),
        (CODEX, {"tokens": {"refresh_token": "hunter2"}}, "expected text at tokens.account_id"),
    ],
)
def test_another_schema_is_told_by_what_was_expected_and_never_by_what_is_there(
    login: Login, document: object, said: str
) -> None:
    with pytest.raises(LoginError) as caught:
        taken(login, document)
    assert said in caught.value.detail
    assert "hunter2" not in str(caught.value)
    assert login.takes[0][1] in caught.value.hint


KEYS = ("claudeAiOauth", "refreshToken", "clientId", "x")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just("s3cr3t-value") | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_whatever_the_file_holds_it_is_taken_whole_or_told_without_a_value(document: object) -> None:
    said, values = "", {"claude-refresh": "s3cr3t-value"}
    try:
        values = taken(CLAUDE, document)
    except LoginError as error:
        said = str(error)
    assert "s3cr3t" not in said
    assert values == {"claude-refresh": "s3cr3t-value"}
    assert said or json.dumps(document).count("s3cr3t-value") >= 1


KEPT = """
[secret.acme-refresh]
source = "keyring:credgate/acme-refresh"
[mint.acme]
type = "oauth2-refresh"
secret = "acme-refresh"
endpoint = "login"
path = "/token"
placeholder = { env = "ACME_REFRESH_TOKEN", shape = "rt-{32}" }
[secret.acme]
source = "mint:acme"
[endpoint.login]
host = "login.acme.example"
[endpoint.api]
host = "api.acme.example"
[[endpoint.api.allow]]
id = "all"
methods = ["POST"]
paths = ["/**"]
[endpoint.other]
host = "other.acme.example"
[[endpoint.other.allow]]
id = "all"
methods = ["POST"]
paths = ["/**"]
[binding.one]
secret = "acme"
endpoint = "api"
rules = ["all"]
place = "header:authorization"
mode = "placeholder"
placeholder = { env = "ACME_TOKEN", shape = "at-{32}" }
[binding.two]
secret = "acme"
endpoint = "other"
rules = ["all"]
place = "header:authorization"
mode = "placeholder"
placeholder = { env = "ACME_TOKEN", shape = "at-{32}" }
[agent.acme]
[[agent.acme.seed]]
path = "~/.acme/login.json"
text = '{"a": "{decoy}", "r": "{refresh}"}'
[[agent.acme.access]]
secret = "acme"
endpoint = "api"
rules = "all"
place = "header:authorization"
env = "ACME_TOKEN"
shape = "at-{32}"
[agent.acme.login]
file = "~/.acme/login.json"
take = { acme-refresh = "r" }
endpoint = "login"
path = "/token"
env = "ACME_REFRESH_TOKEN"
shape = "rt-{32}"
[role.dev]
agent = "acme"
bindings = ["one", "two"]
"""


def load(text: str) -> Policy:
    return load_policy(f"version = 1\n{text}".encode(), packs=PACKS, base_dir="/", agents=AGENTS)


def faults(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load(text)
    return [f"{p.where}: {p.message}" for p in caught.value.problems]


def test_a_policy_may_bring_a_login_of_its_own() -> None:
    agent = load(KEPT).roles["dev"].agent
    assert agent is not None and agent.login is not None
    assert agent.login.takes == (("acme-refresh", "r"),)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('env = "ACME_REFRESH_TOKEN", shape', 'env = "OTHER_TOKEN", shape', "no mint of its key has the placeholder"),
        ('source = "mint:acme"', 'source = "keyring:credgate/acme"', "no mint of its key has the placeholder"),
        ('bindings = ["one", "two"]', "bindings = []", "got none, expected one binding"),
        ('"at-{32}" }\n[binding.two]', '"ax-{32}" }\n[binding.two]', "put their placeholder into one variable"),
        ('"~/.acme/login.json"\ntake', '"/etc/passwd"\ntake', "expected a file below the home"),
        ('"~/.acme/login.json"\ntake', '"~/../login.json"\ntake', "expected a file below the home"),
        ('take = { acme-refresh = "r" }\n', "", "missing, expected where the refresh token stands"),
        ('take = { acme-refresh = "r" }', 'take = { acme-refresh = "r..x" }', "expected a dotted place"),
        ('take = { acme-refresh = "r" }', 'take = { "a.b" = "r" }', "is no name of a secret"),
        ('shape = "rt-{32}"\n[role', 'shape = "rt"\n[role', "random characters"),
        ('path = "/token"\nenv', 'path = "/token"\nform = "xml"\nenv', "expected"),
        ('path = "/token"\nenv', 'path = "/token"\nclient_pattern = "("\nenv', "got"),
        ('path = "/token"\nenv', 'path = "/token"\nclient_pattern = "a"\nenv', "got 0 groups"),
    ],
)  # fmt: skip
def test_what_it_may_not_say(old: str, new: str, fault: str) -> None:
    assert KEPT.count(old) == 1
    assert any(fault in found for found in faults(KEPT.replace(old, new)))


def test_an_alarm_for_the_accounts_own_name_is_switched_off_by_its_bindings_alone() -> None:
    from credgate.gateway.cleaning import is_alarming

    loud = load(KEPT)
    half = load(KEPT.replace("[binding.two]", "[binding.two]\nresponse = { alarm = false }"))
    quiet = load(re.sub(r"(\[binding\..*\])", r"\1\nresponse = { alarm = false }", KEPT))
    assert [is_alarming(policy, "acme") for policy in (loud, half, quiet)] == [True, True, False]
    assert is_alarming(quiet, "acme-refresh")
