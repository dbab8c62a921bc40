"""Every pack refuses its target's minting requests inside a rule that allows everything, and nothing near them."""

import tomllib

import pytest

from rules.decide import decide
from rules.pack_rules import PackError, pack_rules
from rules.parse import METHODS, parse_request
from rules.reasons import Reason
from rules.request import Request, Via, Wire
from rules.verdict import Allow, Deny
from tests.rules.policies import PACKS, load

OPEN = """\
version = 1
[endpoint.e]
host = "target.example.org"
[[endpoint.e.allow]]
id = "everything"
methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
paths = ["/**"]
encoded_slash = true
{deny}
[role.r]
endpoints = ["e"]
"""

MINTING = [
    ("github", "POST /user/keys"),
    ("github", "POST /USER/keys"),
    ("github", "POST /user/keys/"),
    ("github", "POST /api/v3/user/keys"),
    ("github", "POST /repos/acme/app/keys"),
    ("github", "POST /app/installations/7/access_tokens"),
    ("github", "POST /repos/acme/app/actions/runners/registration-token"),
    ("github", "POST /orgs/acme/actions/runners/generate-jitconfig"),
    ("github", "POST /app-manifests/code/conversions"),
    ("github", "PATCH /applications/id/token"),
    ("github", "PUT /repos/acme/app/collaborators/mallory"),
    ("github", "POST /repos/acme/app/hooks"),
    ("gitlab", "POST /api/v4/users/42/personal_access_tokens"),
    ("gitlab", "POST /api/v4/user/personal_access_tokens.json"),
    ("gitlab", "POST /api/v4/personal_access_tokens/self/rotate"),
    ("gitlab", "POST /api/v4/projects/acme%2Fapp/access_tokens"),
    ("gitlab", "POST /api/v4/projects/7/deploy_tokens"),
    ("gitlab", "POST /api/v4/groups/7/deploy_tokens"),
    ("gitlab", "POST /api/v4/projects/7/triggers"),
    ("gitlab", "POST /api/v4/projects/7/deploy_keys"),
    ("gitlab", "POST /api/v4/user/runners"),
    ("gitlab", "POST /oauth/token"),
    ("npm", "POST /-/npm/v1/tokens"),
    ("npm", "PUT /-/user/org.couchdb.user:mallory"),
    ("npm", "POST /-/v1/login"),
    ("npm", "POST /repository/npm-proxy/-/npm/v1/tokens"),
    ("npm", "POST /-/npm/v1/oidc/token/exchange/package/app"),
    ("npm", "PUT /-/package/app/collaborators"),
    ("openai", "POST /v1/organization/admin_api_keys"),
    ("openai", "POST /v1/organization/projects/p/service_accounts"),
    ("openai", "POST /v1/organization/projects/p/service_accounts/s/api_keys"),
    ("openai", "POST /v1/realtime/client_secrets"),
    ("openai", "POST /oauth/token"),
    ("anthropic", "POST /v1/organizations/api_keys/apikey_1"),
    ("anthropic", "POST /v1/organizations/invites"),
    ("anthropic", "POST /v1/organizations/service_accounts"),
    ("anthropic", "POST /v1/organizations/federation_rules"),
    ("anthropic", "POST /v1/oauth/token"),
]
NEIGHBOURS = [
    ("github", "GET /user/keys"),
    ("github", "POST /repos/acme/app/issues"),
    ("github", "POST /repos/acme/app/pulls"),
    ("github", "POST /repos/acme/keys/issues"),
    ("github", "POST /graphql"),
    ("github", "POST /acme/app.git/git-upload-pack"),
    ("gitlab", "GET /api/v4/user/personal_access_tokens"),
    ("gitlab", "POST /api/v4/projects/7/issues"),
    ("gitlab", "POST /api/v4/projects/acme%2Fapp/merge_requests"),
    ("npm", "GET /left-pad"),
    ("npm", "PUT /left-pad"),
    ("npm", "POST /-/npm/v1/security/audits/quick"),
    ("npm", "POST /-/npm/v1/security/advisories/bulk"),
    ("openai", "POST /v1/responses"),
    ("openai", "POST /v1/chat/completions"),
    ("openai", "GET /v1/organization/projects"),
    ("anthropic", "POST /v1/messages"),
    ("anthropic", "POST /v1/messages/count_tokens"),
    ("anthropic", "GET /v1/organizations/api_keys"),
]


def _judge(pack: str, line: str) -> Allow | Deny:
    deny = f'[[endpoint.e.deny]]\npack = "{pack}-credential-minting"' if pack else ""
    method, _, path = line.partition(" ")
    wire = Wire(
        via=Via.CONNECT,
        http_version="HTTP/1.1",
        method=method.encode(),
        target=path.encode(),
        headers=((b"Host", b"target.example.org"),),
        tls=True,
        connect_host=b"target.example.org",
        connect_port=443,
        sni="target.example.org",
    )
    request = parse_request(wire)
    assert isinstance(request, Request)
    return decide(load(OPEN.format(deny=deny)), "r", request)


@pytest.mark.parametrize(("pack", "line"), MINTING)
def test_minting_is_refused_even_where_everything_is_allowed(pack: str, line: str) -> None:
    assert isinstance(_judge("", line), Allow)  # without the pack it passes
    verdict = _judge(pack, line)
    assert isinstance(verdict, Deny)
    assert verdict.reason is Reason.DENY_RULE
    assert verdict.rule.startswith(f"e.{pack}-credential-minting/")


@pytest.mark.parametrize(("pack", "line"), NEIGHBOURS)
def test_what_stands_beside_passes(pack: str, line: str) -> None:
    assert isinstance(_judge(pack, line), Allow)


def test_every_pack_is_tried_above() -> None:
    assert {f"{pack}-credential-minting" for pack, _ in MINTING} == set(PACKS)
    assert {f"{pack}-credential-minting" for pack, _ in NEIGHBOURS} == set(PACKS)


@pytest.mark.parametrize("name", sorted(PACKS))
def test_a_pack_loads_says_its_sources_and_names_known_methods(name: str) -> None:
    rules = pack_rules(name, PACKS[name])
    assert all(rule.pack == name and rule.methods and rule.methods <= METHODS for rule in rules)
    entries = tomllib.loads(PACKS[name])["deny"]
    assert all(len(entry["source"]) > 20 for entry in entries)
    assert len({entry["id"] for entry in entries}) == len(entries)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "missing"),
        ("pack = ", "pack x"),
        ('pack = "y"\n[[deny]]\nid = "a"\nmethods = ["GET"]\npaths = ["/"]\nsource = "s"\n', "expected x"),
        ('pack = "x"\n', "pack x"),
        ('pack = "x"\n[[deny]]\nid = "a"\nmethods = ["GET"]\npaths = ["/"]\n', "source"),
        ('pack = "x"\n[[deny]]\nid = "a"\nmethods = ["GET"]\npaths = ["a"]\nsource = "s"\n', "slash"),
        ('pack = "x"\n[[deny]]\nid = "a"\nmethods = ["GET"]\npaths = []\nsource = "s"\n', "empty list"),
        ('pack = "x"\nhost = "h"\n', "unknown key"),
    ],
)
def test_a_broken_pack_is_our_own_fault(text: str, part: str) -> None:
    with pytest.raises(PackError, match=part):
        pack_rules("x", text)
