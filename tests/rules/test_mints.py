"""[mint.NAME]: what loads, what each fault says, and that only the user's own policy may have one."""

import pytest

from rules.ceiling import narrow
from rules.describe import describe
from rules.lint import warnings
from rules.mints import ClientAuth, GcpJwt, GcpServiceAccount, GithubApp, OAuthRefresh, TokenForm
from rules.policy import Placeholder
from rules.problems import PolicyError
from rules.sources import SourceKind
from rules.tree_policy import check_tree_policy
from tests.rules.policies import load, problems

BASE = """\
version = 1
[secret.k]
source = "keyring:credgate/k"
[secret.e]
source = "env:K"
[endpoint.idp]
host = "idp.example"
[endpoint.plain]
host = "plain.example"
tls = false
[endpoint.wild]
host = "*.wild.example"
[endpoint.api]
host = "api.example"
[[endpoint.api.allow]]
id = "r"
methods = ["GET"]
paths = ["/a"]
[secret.t]
source = "mint:m"
[binding.b]
secret = "t"
endpoint = "api"
rules = ["r"]
place = "header:authorization"
[role.r]
bindings = ["b"]
[mint.m]
"""
OAUTH = BASE + 'type = "oauth2-refresh"\nsecret = "k"\nendpoint = "idp"\npath = "/t"\n'
GITHUB = BASE + 'type = "github-app"\nsecret = "k"\nendpoint = "idp"\napp = "Iv1"\ninstallation = 7\n'
NARROW = GITHUB + 'permissions = { issues = "write", contents = "read" }\n'
GOOGLE = BASE + 'type = "gcp-service-account"\nsecret = "k"\nendpoint = "idp"\n'
JWT = BASE + 'type = "gcp-jwt"\nsecret = "k"\naudience = "https://pubsub.googleapis.com/"\n'


def test_each_type_becomes_a_value() -> None:
    assert load(OAUTH).mints["m"] == OAuthRefresh(name="m", secret="k", endpoint="idp", path="/t")
    assert load(NARROW + 'repositories = ["app"]\napi = "/api/v3"\n').mints["m"] == GithubApp(
        name="m",
        secret="k",
        endpoint="idp",
        app="Iv1",
        installation=7,
        permissions=(("contents", "read"), ("issues", "write")),
        repositories=("app",),
        api="/api/v3",
    )
    assert load(GOOGLE + 'scopes = ["a"]\n').mints["m"] == GcpServiceAccount(
        name="m", secret="k", endpoint="idp", scopes=("a",)
    )
    assert load(JWT).mints["m"] == GcpJwt(name="m", secret="k", audience="https://pubsub.googleapis.com/")
    assert load(JWT).secrets["t"].kind is SourceKind.MINT


def test_a_client_of_oauth() -> None:
    more = 'client_id = "c"\nclient_secret = "e"\nauth = "basic"\nform = "json"\nscopes = ["a", "b"]\nrotates = false\n'
    mint = load(OAUTH + more + 'placeholder = { env = "R_TOKEN", shape = "rt_{40}" }\n').mints["m"]
    assert isinstance(mint, OAuthRefresh)
    assert (mint.client_id, mint.client_secret, mint.auth) == ("c", "e", ClientAuth.BASIC)
    assert (mint.form, mint.scopes, mint.rotates) == (TokenForm.JSON, ("a", "b"), False)
    assert mint.placeholder == Placeholder(env="R_TOKEN", shape="rt_{40}")


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        (BASE + 'type = "github"\nsecret = "k"\nendpoint = "idp"\npath = "/t"\n', "type", 'did you mean "github-app"?'),
        (BASE + 'secret = "k"\nendpoint = "idp"\npath = "/t"\n', "type", "missing"),
        (OAUTH + 'app = "x"\n', "app", 'does not go with type "oauth2-refresh"'),
        (OAUTH + 'sceret = "x"\n', "sceret", 'did you mean "secret"?'),
        (OAUTH.replace('"k"\nendpoint', '"kk"\nendpoint'), "secret", 'did you mean "k"?'),
        (OAUTH.replace('"k"\nendpoint', '"e"\nendpoint'), "secret", 'write source = "keyring:credgate/e"'),
        (OAUTH.replace('"k"\nendpoint', '"t"\nendpoint'), "secret", "is minted itself"),
        (OAUTH.replace('"idp"\npath', '"ipd"\npath'), "endpoint", 'did you mean "idp"?'),
        (OAUTH.replace('"idp"\npath', '"plain"\npath'), "endpoint", "speaks no TLS"),
        (OAUTH.replace('"idp"\npath', '"wild"\npath'), "endpoint", "one exact host"),
        (OAUTH.replace('"/t"', '"t"'), "path", 'as in "/oauth/token"'),
        (OAUTH.replace('"/t"', '"/a/../t"'), "path", "plain path"),
        (OAUTH + 'client_secret = "e"\n', "client_secret", "add: client_id"),
        (OAUTH + 'client_id = "c"\nclient_secret = "nobody"\n', "client_secret", "no secret is called"),
        (OAUTH + 'client_id = "c"\nauth = "basic"\n', "auth", 'write auth = "post"'),
        (OAUTH + 'scopes = ["a b"]\n', "scopes", "one entry for each"),
        (OAUTH + 'placeholder = { env = "R_TOKEN", shape = "short" }\n', "placeholder.shape", "random characters"),
        (OAUTH + 'placeholder = { env = "PATH", shape = "rt_{40}" }\n', "placeholder.env", "PATH"),
        (GITHUB, "permissions", "would have all that the app has"),
        (GITHUB + "permissions = {}\n", "permissions", "at least one"),
        (GITHUB + 'permissions = { issues = "rw" }\n', "permissions", '"read", "write", "admin"'),
        (NARROW + 'repositories = ["acme/app"]\n', "repositories", "without its owner"),
        (NARROW.replace("installation = 7\n", ""), "installation", "missing"),
        (NARROW.replace('"Iv1"', '"a b"'), "app", "client id"),
        (GOOGLE, "scopes", "missing"),
        (JWT.replace(".com/", ".com"), "audience", "last slash"),
        (JWT + 'endpoint = "idp"\n', "endpoint", 'does not go with type "gcp-jwt"'),
    ],
)
def test_faults(text: str, where: str, part: str) -> None:
    found = problems(text)
    assert list(found) == [f"mint.m.{where}"]
    assert part in str(found[f"mint.m.{where}"])


@pytest.mark.parametrize(
    ("old", "new", "where", "part"),
    [
        ('"mint:m"', '"mint:n"', "secret.t.source", "no mint is called"),
        ('"mint:m"', '"mint:a/b"', "secret.t.source", 'write "mint:NAME"'),
        ('"header:authorization"', '"sigv4"', "binding.b.secret", "is minted, which the place sigv4 can't be"),
        ('"header:authorization"', '"certificate"', "binding.b.secret", "is minted"),
    ],
)
def test_where_a_minted_secret_can_not_be(old: str, new: str, where: str, part: str) -> None:
    found = problems(OAUTH.replace(old, new))
    assert part in str(found[where])


def test_a_policy_of_the_work_tree_mints_nothing() -> None:
    with pytest.raises(PolicyError) as caught:
        check_tree_policy(load(JWT), "not here")
    assert "mint.m" in {problem.where for problem in caught.value.problems}


def test_the_ceiling_holds_the_whole_call() -> None:
    assert narrow(load(NARROW), load(NARROW)).mints
    for wider in (
        NARROW.replace('contents = "read"', 'contents = "write"'),
        NARROW.replace("installation = 7", "installation = 8"),
        NARROW.replace('host = "idp.example"', 'host = "evil.example"'),
        NARROW.replace("keyring:credgate/k", "keyring:credgate/other"),
    ):
        assert wider != NARROW
        with pytest.raises(PolicyError) as caught:
            narrow(load(wider), load(NARROW))
        assert [problem.where for problem in caught.value.problems] == ["binding.b.secret"]


def test_a_wider_mint_shows_in_a_diff() -> None:
    wider = NARROW.replace('contents = "read"', 'contents = "write"')
    assert set(describe(load(wider))) - set(describe(load(NARROW))) == {
        "r: mint secret t: GithubApp (secret k, endpoint idp, app Iv1, installation 7, "
        "permissions contents:write|issues:write)"
    }


def test_what_nobody_mints_from_is_a_warning() -> None:
    said = {
        problem.where
        for problem in warnings(
            load(OAUTH + '[mint.n]\ntype = "gcp-jwt"\nsecret = "k"\n' + 'audience = "https://a.example/"\n')
        )
    }
    assert "mint.n" in said
    assert not {"mint.m", "secret.k", "endpoint.idp"} & said
