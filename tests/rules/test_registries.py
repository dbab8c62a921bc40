"""host_from: what a client's registries make of an endpoint, and which urls are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.decide import decide
from rules.load import load_policy
from rules.policy import Policy
from rules.problems import PolicyError
from rules.registries import EXTRA, Client, Registry, RegistryError, clients_of, parse_registry
from rules.verdict import Allow, Deny
from tests.rules.policies import PACKS
from tests.rules.tunnelled import tunnelled

TEXT = """\
version = 1
[endpoint.npm]
host_from = "npm"
[[endpoint.npm.allow]]
pack = "npm-install"
[role.r]
endpoints = ["npm"]
"""
MIRROR = Registry(scheme="https", host="mirror.acme.example", port=8443, path="/artifactory/npm")
OWN = Registry(scheme="https", host="npm.acme.example", port=443, path="", scope="@acme")


def load(text: str = TEXT, *registries: Registry) -> Policy:
    found = {Client.NPM: registries or (MIRROR,)}
    return load_policy(text.encode(), packs=PACKS, base_dir="/", registries=found)


def judge(policy: Policy, line: str, host: str, port: int = 443) -> Allow | Deny:
    return decide(policy, "r", tunnelled(line, host, port=port))


def test_paths_start_behind_the_path_of_the_registry() -> None:
    policy = load()
    for line in ("GET /artifactory/npm/left-pad", "GET /artifactory/npm/@acme%2fgreeting"):
        assert isinstance(judge(policy, line, MIRROR.host, 8443), Allow)
    for line in ("GET /left-pad", "GET /artifactory/left-pad/x/y/z", "PUT /artifactory/npm/left-pad"):
        assert isinstance(judge(policy, line, MIRROR.host, 8443), Deny)
    assert isinstance(judge(policy, "GET /artifactory/npm/left-pad", MIRROR.host, 443), Deny)


def test_minting_below_the_path_is_refused_too() -> None:
    text = TEXT + '[[endpoint.npm.allow]]\nid = "all"\nmethods = ["POST"]\npaths = ["/**"]\n'
    verdict = judge(load(text), "POST /artifactory/npm/-/npm/v1/tokens", MIRROR.host, 8443)
    assert isinstance(verdict, Deny)
    assert verdict.rule == "npm.npm-credential-minting/tokens"


def test_each_scope_s_registry_is_an_endpoint_of_the_role() -> None:
    policy = load(TEXT, MIRROR, OWN)
    assert list(policy.endpoints) == ["npm", "npm~2"]
    assert [e.name for e in policy.endpoints_of("r")] == ["npm", "npm~2"]
    verdict = judge(policy, "GET /@acme%2fgreeting", OWN.host)
    assert isinstance(verdict, Allow)
    assert verdict.rule == "npm~2.npm-install/packages"
    assert policy.registries() == (
        "npm https://mirror.acme.example:8443/artifactory/npm",
        "npm @acme https://npm.acme.example:443",
    )


BOUND = (
    TEXT
    + """\
[secret.s]
source = "env:S"
[binding.b]
secret = "s"
endpoint = "npm"
rules = ["npm-install"]
place = "header:authorization"
"""
)


def test_a_secret_goes_to_one_registry() -> None:
    assert load(BOUND).bindings["b"].rules == {f"npm-install/{r}" for r in ("packages", "audit", "facts")}
    with pytest.raises(PolicyError, match="several hosts"):
        load(BOUND, MIRROR, OWN)


def test_a_registry_over_http_carries_no_secret() -> None:
    with pytest.raises(PolicyError, match="tls = false"):
        load(BOUND, Registry(scheme="http", host="npm.acme.example", port=80, path=""))


def test_a_dial_port_stays() -> None:
    text = TEXT.replace('host_from = "npm"', 'host_from = "npm"\ndial_port = 9000\naddress = ["127.0.0.1/32"]')
    endpoint = load(text).endpoints["npm"]
    assert (endpoint.port, endpoint.dial_port, str(endpoint.networks[0])) == (8443, 9000, "127.0.0.1/32")


def test_which_clients_a_file_asks_for() -> None:
    assert clients_of(TEXT.encode()) == (Client.NPM,)
    assert clients_of((TEXT + '[endpoint.p]\nhost_from = "pip-files"\n').encode()) == (Client.NPM, Client.PIP_FILES)
    for odd in (
        b"",
        b"\xff",
        b"endpoint = 1",
        b"[endpoint]\nx = 1",
        b"[endpoint.x]\nhost_from = 1",
        b"a = " + b"[" * 5000,
        b"a = " + b"9" * 5000,
    ):
        assert clients_of(odd) == ()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://r.acme.example", "https://r.acme.example:443"),
        ("https://r.acme.example/npm/", "https://r.acme.example:443/npm"),
        ("http://R.acme.example:8080/a/b", "http://r.acme.example:8080/a/b"),
        ("https://user:pass@r.acme.example/simple", "https://r.acme.example:443/simple"),
    ],
)
def test_urls_of_registries(url: str, text: str) -> None:
    registry = parse_registry(url)
    assert str(registry) == text
    assert parse_registry(registry.url, EXTRA) == Registry(
        scheme=registry.scheme, host=registry.host, port=registry.port, path=registry.path, scope=EXTRA
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "file:///srv/simple",
        "ftp://r.acme.example/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "https:///simple",
        "https://r.acme.example:99999/",
        "https://r.acme.example/a/../b",
        "https://user:hunter2@",
    ],
)
def test_what_is_no_registry(url: str) -> None:
    with pytest.raises(RegistryError) as fault:
        parse_registry(url)
    assert "hunter2" not in str(fault.value)


@given(st.text(max_size=40) | st.text(max_size=40).map("https://u:hunter2@".__add__))
def test_any_text_is_a_registry_or_an_error_without_its_password(url: str) -> None:
    try:
        registry = parse_registry(url)
    except RegistryError as fault:
        said, inside = str(fault), url.rpartition("@")[2]
    else:
        said, inside = str(registry), ""
        assert parse_registry(registry.url) == registry
    assert "hunter2" in inside or "hunter2" not in said
