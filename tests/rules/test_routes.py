"""An endpoint with several targets: the role says which one, and its rules and secrets alone count there."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from rules.ceiling import narrow
from rules.decide import decide
from rules.describe import describe_role
from rules.intersect import child_policy
from rules.lint import warnings
from rules.policy import Policy
from rules.problems import PolicyError
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Allow, Deny
from tests.rules.policies import load, problems
from tests.rules.tunnelled import tunnelled

TEXT = """\
version = 1
[secret.cloud]
source = "env:CLOUD"
[secret.local]
source = "env:LOCAL"
[endpoint.llm]
host = "api.openai.com"
route = { default = "cloud", sensitive = "local" }
[[endpoint.llm.allow]]
id = "chat"
methods = ["POST"]
paths = ["/v1/**"]
[[endpoint.llm.deny]]
id = "files"
methods = ["POST"]
paths = ["/v1/files"]
[endpoint.cloud]
host = "api.openai.com"
[[endpoint.cloud.allow]]
id = "chat"
methods = ["POST"]
paths = ["/v1/chat/completions", "/v1/responses"]
[endpoint.local]
host = "llm.internal.example"
port = 8443
address = ["10.1.0.0/16"]
[[endpoint.local.allow]]
id = "chat"
methods = ["POST"]
paths = ["/v1/chat/completions", "/v1/files"]
[binding.cloud]
secret = "cloud"
endpoint = "cloud"
rules = ["chat"]
place = "header:authorization"
[binding.local]
secret = "local"
endpoint = "local"
rules = ["chat"]
place = "header:x-api-key"
[role.dev]
endpoints = ["llm"]
bindings = ["cloud", "local"]
[role.data]
endpoints = ["llm"]
bindings = ["cloud", "local"]
route = "sensitive"
children = ["data", "dev"]
"""


def ask(
    path: str = "/v1/chat/completions",
    host: str = "api.openai.com",
    port: int = 443,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Request:
    fields = tuple((k.encode(), v.encode()) for k, v in headers.items())
    return tunnelled(f"POST {path}", host, *fields, port=port)


def allowed(policy: Policy, role: str, request: Request) -> Allow:
    verdict = decide(policy, role, request)
    assert isinstance(verdict, Allow), verdict
    return verdict


def test_the_role_says_where_a_request_goes() -> None:
    policy = load(TEXT)
    dev, data = (allowed(policy, role, ask()) for role in ("dev", "data"))
    assert (dev.endpoint.name, dev.rule, dev.route) == ("cloud", "llm.chat", "default: cloud.chat")
    assert [b.name for b in dev.bindings] == ["cloud"]
    assert (data.endpoint.name, data.rule, data.route) == ("local", "llm.chat", "sensitive: local.chat")
    assert [b.name for b in data.bindings] == ["local"]
    assert data.sent is not None
    assert (data.sent.host, data.sent.port, data.sent.scheme) == ("llm.internal.example", 8443, "https")
    assert data.sent.target == "/v1/chat/completions"


@pytest.mark.parametrize("header", ["X-Route", "X-Forwarded-Host", "OpenAI-Organization", "Route"])
def test_nothing_of_a_request_chooses(header: str) -> None:
    for word in ("default", "cloud", "api.openai.com"):
        assert allowed(load(TEXT), "data", ask(headers={header: word})).endpoint.name == "local"


def test_both_have_to_allow() -> None:
    policy = load(TEXT)
    assert isinstance(decide(policy, "data", ask("/v1/responses")), Deny)  # the target has no rule for it
    assert allowed(policy, "dev", ask("/v1/responses")).route == "default: cloud.chat"
    assert isinstance(decide(policy, "dev", ask("/v2/chat")), Deny)  # neither has the endpoint itself
    files = decide(policy, "data", ask("/v1/files"))
    assert isinstance(files, Deny)
    assert files.rule == "llm.files"  # though the target would take it


def test_a_target_is_reached_by_the_route_alone() -> None:
    """Also where the role has its binding; listed by name it is."""
    policy = load(TEXT)
    verdict = decide(policy, "data", ask(host="llm.internal.example", port=8443))
    assert isinstance(verdict, Deny)
    assert verdict.reason is Reason.HOST_UNLISTED
    listed = 'endpoints = ["llm", "local"]\nbindings = ["local"]\nroute'
    named = load(TEXT.replace('endpoints = ["llm"]\nbindings = ["cloud", "local"]\nroute', listed))
    direct = allowed(named, "data", ask(host="llm.internal.example", port=8443))
    assert (direct.rule, direct.route) == ("local.chat", "")


def test_a_child_with_another_way_than_its_parent_is_refused() -> None:
    policy = load(TEXT)
    same = child_policy(policy, "data", "data")
    assert allowed(same, "data", ask()).route == "sensitive: local.chat"
    other = child_policy(policy, "data", "dev")
    assert isinstance(decide(other, "dev", ask()), Deny)


WAY = "endpoint.llm.route"
FAULTS = {
    "a word that the endpoint lacks": (
        '"sensitive"\nchildren',
        '"sensitiv"\nchildren',
        "role.data.route",
        '"sensitive"?',
    ),
    "no default": ('{ default = "cloud", sensitive', "{ sensitive", "role.dev.route", "has no route"),
    "an endpoint that is none": ('default = "cloud"', 'default = "clod"', f"{WAY}.default", 'mean "cloud"'),
    "itself": ('default = "cloud"', 'default = "llm"', f"{WAY}.default", "no single target"),
    "an empty route": ('{ default = "cloud", sensitive = "local" }', "{}", WAY, "leads nowhere"),
    "a target that is no text": ('default = "cloud"', "default = 1", f"{WAY}.default", "name of an endpoint"),
    "an address beside it": ("route = {", 'address = ["10.1.1.1"]\nroute = {', "endpoint.llm.address", "beside route"),
    "foreign beside it": ("route = {", 'foreign = "allow"\nroute = {', "endpoint.llm.foreign", "beside route"),
    "a secret on it": ('endpoint = "cloud"', 'endpoint = "llm"', "binding.cloud.endpoint", "one target's"),
    "a target of any host": ('"llm.internal', '"*.internal', f"{WAY}.sensitive", "one host"),
    "another protocol": ("route = {", 'alpn = ["h2"]\nroute = {', f"{WAY}.default", "same alpn"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_a_route(name: str) -> None:
    old, new, where, part = FAULTS[name]
    found = problems(TEXT.replace(old, new, 1))
    assert part in str(found[where])


def test_a_role_s_word_needs_an_endpoint_that_has_it() -> None:
    text = TEXT.replace('endpoints = ["llm"]\nbindings = ["cloud", "local"]\nroute', "route")
    assert "no endpoint of this role" in str(problems(text)["role.data.route"])


def test_the_ceiling_has_to_reach_the_targets_too() -> None:
    policy = load(TEXT)
    narrow(policy, policy)
    without = TEXT.replace("10.1.0.0/16", "10.2.0.0/16")
    with pytest.raises(PolicyError, match=r"endpoint\.local\.address"):
        narrow(policy, load(without))
    unbound = TEXT.replace('["cloud", "local"]', '["cloud"]')
    flat = load(unbound.replace('sensitive = "local"', 'sensitive = "cloud"'))
    with pytest.raises(PolicyError, match="reaches no endpoint that covers llm"):
        narrow(load(unbound), flat)


def test_show_and_check_know_the_targets() -> None:
    policy = load(TEXT)
    lines = describe_role(policy, "data")
    assert "route https://api.openai.com:443 by sensitive: to local" in lines
    assert any("+ secret local" in line and "llm.internal.example:8443/v1/chat" in line for line in lines)
    assert not any("secret cloud" in line for line in lines)
    assert [w for w in warnings(policy) if w.where.startswith("endpoint")] == []
