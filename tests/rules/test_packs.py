"""Every pack refuses its target's minting requests inside a rule that allows everything, and nothing near them; what
it allows is what it says, and nothing of that is what a deny pack of its target refuses.
"""

import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from rules.decide import decide
from rules.pack_rules import Pack, PackError, denies_of, read_pack
from rules.parse import METHODS
from rules.paths import PathPattern
from rules.policy import AllowRule, DenyRule
from rules.reasons import Reason
from rules.verdict import Allow, Deny
from tests.rules.policies import PACKS, load, problems
from tests.rules.tunnelled import tunnelled

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
    ("github", "PUT /repos/acme/app/actions/secrets/DEPLOY"),
    ("github", "PUT /repos/acme/app/import"),
    ("github", "POST /repos/acme/app/transfer"),
    ("gitlab", "POST /api/v4/projects/7/remote_mirrors"),
    ("gitlab", "PUT /api/v4/projects/acme%2Fapp/mirror/pull"),
    ("gitlab", "POST /api/v4/projects/7/hooks"),
    ("pypi", "POST /_/oidc/mint-token"),
    ("pypi", "POST /_/oidc/github/mint-token"),
    ("pypi", "POST /mirror/pypi/_/oidc/mint-token"),
    ("aws", "POST /v1/authorization-token"),
    ("aws", "GET /federation/credentials"),
    ("gcp", "POST /v1/projects/-/serviceAccounts/a@p.iam.gserviceaccount.com:generateAccessToken"),
    ("gcp", "POST /v1/projects/p/serviceAccounts/a%40p.iam.gserviceaccount.com%3AsignJwt"),
    ("gcp", "POST /v1/projects/p/serviceAccounts/a@p.iam.gserviceaccount.com/keys"),
    ("gcp", "GET /v1/projects/p/secrets/s/versions/latest:access"),
    ("gcp", "POST /v1/projects/p:setIamPolicy"),
    ("gcp", "POST /storage/v1/projects/p/hmacKeys"),
    ("gcp", "POST /batch/storage/v1"),
    ("google-ai", "POST /v1alpha/auth_tokens"),
    ("google-ai", "POST /v1beta/models/gemini:batchGenerateContent"),
    ("stripe", "POST /v1/ephemeral_keys"),
    ("stripe", "POST /v1/webhook_endpoints"),
    ("stripe", "POST /v1/accounts/acct_1/login_links"),
    ("stripe", "GET /v1/apps/secrets/find"),
    ("slack", "POST /api/oauth.v2.access"),
    ("slack", "GET /api/tooling.tokens.rotate"),
    ("slack", "POST /api/apps.manifest.create"),
    ("slack", "POST /api/apps.connections.open"),
    ("slack", "POST /api/files.sharedPublicURL"),
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
    ("pypi", "GET /simple/flask/"),
    ("pypi", "POST /legacy/"),
    ("aws", "PUT /bucket/object"),
    ("aws", "POST /"),
    ("gcp", "POST /v1/projects/p/topics/t:publish"),
    ("gcp", "GET /storage/v1/b/bucket/o/object"),
    ("google-ai", "POST /v1beta/models/gemini:generateContent"),
    ("stripe", "POST /v1/customers"),
    ("slack", "POST /api/chat.postMessage"),
]


def _judge(pack: str, line: str) -> Allow | Deny:
    return _judged(f"{pack}-credential-minting" if pack else "", line)


def _judged(pack: str, line: str, host: str = "target.example.org", allow: str = "") -> Allow | Deny:
    deny = f'[[endpoint.e.deny]]\npack = "{pack}"' if pack else ""
    policy = load(OPEN.format(deny=deny + allow).replace("target.example.org", host))
    return decide(policy, "r", tunnelled(line, host))


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


CLOSING = sorted(name for name, text in PACKS.items() if read_pack(name, text).deny)
OPENING = sorted(name for name, text in PACKS.items() if read_pack(name, text).allow)
HOSTS = sorted(name for name, text in PACKS.items() if read_pack(name, text).host)


def test_every_minting_pack_is_tried_above() -> None:
    minting = {name for name in PACKS if name.endswith("-credential-minting")}
    assert {f"{pack}-credential-minting" for pack, _ in MINTING} == minting
    assert {f"{pack}-credential-minting" for pack, _ in NEIGHBOURS} == minting


def test_every_vendor_of_the_list_has_its_packs() -> None:
    vendors = ("github", "gitlab", "npm", "pypi", "aws", "gcp", "openai", "anthropic", "google-ai", "stripe", "slack")
    for vendor in vendors:
        assert f"{vendor}-credential-minting" in CLOSING
        assert any(name.startswith(f"{vendor}-") for name in OPENING)


def _instance(pattern: PathPattern) -> str:
    return "/" + "/".join({"*": "x", "**": "x/y"}.get(s, s.replace("*:", "x:")) for s in pattern.segments)


def _requests(rule: DenyRule) -> Iterator[tuple[str, str]]:
    """Every request that a rule lists: host, and method with path."""
    hosts = [".".join(labels).replace("*", "eu-west-1") for labels in rule.hosts] or ["target.example.org"]
    for host, method, path in product(hosts, sorted(rule.methods or ()), rule.paths):
        yield host, f"{method} {_instance(path)}"


@pytest.mark.parametrize("name", CLOSING)
def test_each_listed_request_is_refused_where_everything_is_allowed(name: str) -> None:
    listed = [each for rule in read_pack(name, PACKS[name]).deny for each in _requests(rule)]
    assert listed
    for host, line in listed:
        assert isinstance(_judged("", line, host), Allow), line  # control: without the pack it passes
        verdict = _judged(name, line, host)
        assert isinstance(verdict, Deny), (host, line)
        assert verdict.reason is Reason.DENY_RULE
        assert verdict.rule.startswith(f"e.{name}/")


def test_a_rule_of_hosts_leaves_others_alone() -> None:
    for host in ("s3.eu-west-1.amazonaws.com", "sts.example.org", "a.sts.eu-west-1.amazonaws.com"):
        assert isinstance(_judged("aws-credential-minting", "POST /", host), Allow)
    for host in ("sts.amazonaws.com", "sts.eu-west-1.amazonaws.com", "secretsmanager.us-east-1.amazonaws.com"):
        assert isinstance(_judged("aws-credential-minting", "POST /", host), Deny)


GRAPHQL = """
[[endpoint.e.allow]]
id = "graphql"
methods = ["POST"]
paths = ["/graphql"]
body = { type = "graphql", operations = ["query.viewer"] }
"""
JSON = GRAPHQL.replace('"graphql", operations = ["query.viewer"]', '"json"')


def test_graphql_passes_by_a_rule_that_judges_its_body_alone() -> None:
    """The rule for everything would let it pass unread, were the path not closed."""
    assert isinstance(_judged("github-graphql", "POST /graphql"), Deny)
    assert isinstance(_judged("github-graphql", "POST /graphql", allow=JSON), Deny)
    opened = _judged("github-graphql", "POST /graphql", allow=GRAPHQL)
    assert isinstance(opened, Allow)
    assert (opened.rule, opened.body_max > 0) == ("e.graphql", True)
    unread = _judged("", "POST /graphql", allow=GRAPHQL)
    assert isinstance(unread, Allow)
    assert (unread.rule, unread.body_max) == ("e.everything", 0)


def _allowed(rule: AllowRule) -> Iterator[str]:
    for method, path in product(sorted(rule.methods - {"HEAD"}), rule.paths):
        yield f"{method} {_instance(path)}"


@pytest.mark.parametrize("name", OPENING)
def test_an_opening_pack_brings_its_denies_and_allows_what_it_says(name: str) -> None:
    policy = load(
        f'version = 1\n[endpoint.e]\nhost = "target.example.org"\n[[endpoint.e.allow]]\npack = "{name}"\n'
        '[role.r]\nendpoints = ["e"]\n'
    )
    endpoint = policy.endpoints["e"]
    assert set(endpoint.deny) == set(denies_of(name, PACKS))
    assert endpoint.deny
    for rule in endpoint.allow:
        for line in _allowed(rule):
            verdict = decide(policy, "r", tunnelled(line, "target.example.org"))
            assert isinstance(verdict, Allow), line
            assert verdict.rule.partition("/")[0] == f"e.{name}"


@pytest.mark.parametrize("name", HOSTS)
def test_a_pack_of_a_host_brings_host_and_denies(name: str) -> None:
    pack = read_pack(name, PACKS[name])
    endpoint = load(f'version = 1\n[endpoint.e]\npack = "{name}"\n').endpoints["e"]
    assert endpoint.host.text == pack.host
    assert set(endpoint.deny) == set(denies_of(name, PACKS)) != set()
    own = load(f'version = 1\n[endpoint.e]\npack = "{name}"\nhost = "own.example.org"\n').endpoints["e"]
    assert own.host.text == "own.example.org"


def test_a_binding_names_a_pack_or_one_of_its_rules() -> None:
    text = """\
version = 1
[secret.s]
source = "env:S"
[endpoint.e]
pack = "github-api"
[[endpoint.e.allow]]
pack = "github-read"
[[endpoint.e.allow]]
pack = "github-issues"
rules = ["write", "comment"]
[binding.b]
secret = "s"
endpoint = "e"
rules = [{rules}]
place = "header:authorization"
[role.r]
bindings = ["b"]
"""
    whole = load(text.format(rules='"github-read", "github-issues/comment"'))
    ids = {"github-read/repos", "github-read/user", "github-read/search", "github-issues/comment"}
    assert whole.bindings["b"].rules == ids
    assert {rule.id for rule in whole.endpoints["e"].allow} == ids | {"github-issues/write"}
    bound = decide(whole, "r", tunnelled("GET /repos/acme/app", "api.github.com"))
    assert isinstance(bound, Allow)
    assert [b.name for b in bound.bindings] == ["b"]
    unbound = decide(whole, "r", tunnelled("POST /repos/acme/app/issues", "api.github.com"))
    assert isinstance(unbound, Allow)
    assert unbound.bindings == ()
    assert "binding.b.rules" in problems(text.format(rules='"github-issues/label"'))


@pytest.mark.parametrize(
    ("allow", "where", "part"),
    [
        ('pack = "github-reed"', "pack", 'did you mean "github-read"'),
        ('pack = "github-credential-minting"', "pack", "allows nothing"),
        ('pack = "github-read"\nid = "x"', "id", "beside pack"),
        ('pack = "github-read"\nrules = ["repo"]', "rules[0]", 'did you mean "repos"'),
        ('rules = ["repos"]', "pack", "missing"),
    ],
)
def test_faults_of_a_pack_s_use(allow: str, where: str, part: str) -> None:
    text = f'version = 1\n[endpoint.e]\nhost = "a.example.org"\n[[endpoint.e.allow]]\n{allow}\n'
    found = problems(text)
    assert part in str(found[f"endpoint.e.allow[0].{where}"])


def test_a_deny_that_denies_nothing_is_a_fault() -> None:
    found = problems('version = 1\n[endpoint.e]\nhost = "a.example.org"\n[[endpoint.e.deny]]\npack = "slack-nothing"\n')
    assert "endpoint.e.deny[0].pack" in found


@pytest.mark.parametrize("name", sorted(PACKS))
def test_a_pack_loads_and_says_its_sources(name: str) -> None:
    pack = read_pack(name, PACKS[name])
    assert len(pack.about) > 10
    assert all(other in PACKS for other in pack.along)
    assert all(len(source) > 20 for source in pack.sources)
    raw = tomllib.loads(PACKS[name])
    ids = [entry["id"] for entry in (*raw.get("deny", ()), *raw.get("allow", ()))]
    assert len(set(ids)) == len(ids)
    for rule in pack.deny:
        assert rule.pack == name
        assert rule.methods
        assert rule.methods <= METHODS


def test_no_pack_names_the_host_of_a_package_registry() -> None:
    for name in PACKS:
        if name.startswith(("npm-", "pypi-")):
            assert read_pack(name, PACKS[name]).host == ""
            assert "host" not in tomllib.loads(PACKS[name])


def _row(pack: Pack) -> str:
    rules = ", ".join(f"`{rule.id.partition('/')[2]}`" for rule in pack.allow)
    closes = f"{len(pack.deny)} rules" if pack.deny else ", ".join(f"`{name}`" for name in pack.along)
    return f"| `{pack.name}` | {pack.about} | {f'`{pack.host}`' if pack.host else ''} | {rules} | {closes} |"


def test_the_page_of_packs_holds_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/packs.md").read_text()
    rows = [_row(read_pack(name, PACKS[name])) for name in sorted(PACKS)]
    assert re.findall(r"^\| `.*\|$", page.split("## All packs", 1)[1].split("\n## ", 1)[0], re.MULTILINE) == rows


GOOD = 'id = "a"\nmethods = ["GET"]\npaths = ["/"]\nsource = "s"\n'


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "missing"),
        ("pack = ", "pack x"),
        ('pack = "y"\nabout = "z"\n[[deny]]\n' + GOOD, "expected x"),
        ('pack = "x"\nabout = "z"\n', "pack x"),
        ('pack = "x"\n[[deny]]\n' + GOOD, "about"),
        ('pack = "x"\nabout = "z"\n[[deny]]\n' + GOOD.replace('source = "s"\n', ""), "source"),
        ('pack = "x"\nabout = "z"\n[[deny]]\n' + GOOD.replace('"/"', '"a"'), "slash"),
        ('pack = "x"\nabout = "z"\n[[deny]]\n' + GOOD.replace('["/"]', "[]"), "empty list"),
        ('pack = "x"\nabout = "z"\n[[deny]]\n' + GOOD + 'hosts = ["10.0.0.1"]\n', "pack x"),
        ('pack = "x"\nabout = "z"\n[[allow]]\n' + GOOD.replace("GET", "get"), "upper case"),
        ('pack = "x"\nports = "h"\n', "unknown key"),
    ],
)
def test_a_broken_pack_is_our_own_fault(text: str, part: str) -> None:
    with pytest.raises(PackError, match=part):
        read_pack("x", text)


def test_a_pack_with_another_that_is_not_there_is_our_own_fault() -> None:
    with pytest.raises(PackError, match="no pack is called y"):
        denies_of("x", {"x": 'pack = "x"\nabout = "z"\nwith = ["y"]\n[[deny]]\n' + GOOD})
