from rules.describe import describe, describe_role
from tests.rules.policies import WHOLE, load


def test_a_role_in_sentences() -> None:
    assert describe_role(load(WHOLE), "dev") == (
        "allow GET|HEAD|POST https://api.github.com:443/repos/acme/app/issues query {page, per_page} encoded_slash"
        " + secret github (header:authorization, placeholder, ttl 28800, max_uses 500, rate 60/60s)",
        "allow GET|HEAD|POST https://api.github.com:443/repos/acme/app/issues/* query {page, per_page} encoded_slash"
        " + secret github (header:authorization, placeholder, ttl 28800, max_uses 500, rate 60/60s)",
        "deny https://api.github.com:443 pack github-credential-minting",
        "deny PUT https://api.github.com:443/repos/*/*/issues/*/lock",
        "dial https://api.github.com:443 with address = 10.20.0.0/16, 10.9.9.9",
        "dial https://api.github.com:443 with dial_port = 8443",
        "dial https://api.github.com:443 with ca = /etc/x/internal-ca.pem",
        "allow GET|HEAD https://mirror.example.org:443/**",
        "work tree: write",
        "tools: ~/.cargo/bin",
        "tools: /opt/tools",
        "read: ~/.gitconfig",
        "env: TERM",
        "env: LANG",
        "children: dev",
        "limits: memory 2147483648, processes 64, open_files 1024, cpu 1800, file_size 1073741824",
        "budget: requests 5000",
        "budget: bytes_out 209715200",
        "on_alarm: kill",
        "deadline: 7200",
    )


def test_what_no_role_reaches_is_not_said() -> None:
    unreached = WHOLE.replace('endpoints = ["mirror"]\n', "")
    assert not any("mirror" in line for line in describe(load(unreached)))
    assert all(line.startswith("dev: ") for line in describe(load(WHOLE)))


WIDER = """
version = 1
[secret.s]
source = "env:S"
[proxy.corp]
host = "proxy.example.org"
port = 3128
tls = true
address = ["10.1.0.0/16"]
secret = "s"
user = "u"
[endpoint.llm]
host = "llm.example.org"
proxy = "corp"
spki = ["sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]
[[endpoint.llm.allow]]
id = "ask"
methods = ["POST"]
paths = ["/m"]
body = { type = "json", max = "1KiB", equals = { a = 1 }, in = { "b[*]" = ["x",true] }, absent = ["c"], keys = ["a"] }
[[endpoint.llm.allow]]
id = "query"
methods = ["POST"]
paths = ["/g"]
body = { type = "graphql", operations = ["query.viewer", "query.*"] }
[[endpoint.llm.allow]]
id = "ws"
methods = ["GET"]
paths = ["/ws"]
upgrade = true
[endpoint.db]
host = "db.example.org"
protocol = "tcp"
listen = 5432
[role.dev]
endpoints = ["llm", "db"]
publish = [3000]
"""


def test_bodies_upgrades_keys_proxies_and_opaque_ports_are_said() -> None:
    assert describe_role(load(WIDER), "dev")[:8] == (
        "allow POST https://llm.example.org:443/m body json {max 1024, a = 1, b[*] = 'x' | True, c = absent, keys a}",
        "allow POST https://llm.example.org:443/g body graphql {max 262144, operations query.*|query.viewer}",
        "allow GET|HEAD https://llm.example.org:443/ws upgrade",
        "dial https://llm.example.org:443 with spki = sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "dial https://llm.example.org:443 with proxy = corp (https://proxy.example.org:3128, address 10.1.0.0/16, "
        "secret s of u)",
        "pipe port 5432 to tcp://db.example.org:5432, opaque",
        "work tree: read",
        "publish: 3000",
    )


def test_how_an_endpoint_is_audited_is_said() -> None:
    changed = WIDER.replace('proxy = "corp"', 'proxy = "corp"\ncorrelate = ["x-request-id"]\nfingerprint = "sha256"', 1)
    assert set(describe(load(changed))) - set(describe(load(WIDER))) == {
        "dev: dial https://llm.example.org:443 with correlate = x-request-id",
        "dev: dial https://llm.example.org:443 with fingerprint = sha256",
    }
    off = WIDER.replace('proxy = "corp"', 'proxy = "corp"\ncorrelate = []', 1)
    assert "dev: dial https://llm.example.org:443 with correlate = nothing" in describe(load(off))


def test_a_switch_is_said_where_it_is_on() -> None:
    opened = WHOLE.replace("allow_debug = false", "allow_debug = true")
    assert set(describe(load(opened))) - set(describe(load(WHOLE))) == {"dev: allow_debug: true"}
