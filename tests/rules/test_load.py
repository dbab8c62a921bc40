import hashlib
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.load import MAX_BYTES, load_policy
from rules.policy import Budget, Foreign, Limits, Mode, OnAlarm, Placeholder, PlaceKind, Rate, Unlisted, Workdir
from rules.problems import PolicyError
from rules.sources import SecretRule, SourceKind
from rules.tables import MAX_PROBLEMS
from tests.rules.policies import PACKS, WHOLE, changed, load, problems

MINIMAL = "version = 1\n"
HOST = '[endpoint.e]\nhost = "a.example.org"\n'
ALLOW = '[[endpoint.e.allow]]\nid = "r"\nmethods = ["GET"]\npaths = ["/a"]\n'
SECRET = '[secret.s]\nsource = "env:S"\n'
BOUND = f'{SECRET}{HOST}{ALLOW}[binding.b]\nsecret = "s"\nendpoint = "e"\nrules = ["r"]\n'
BINDING = BOUND + 'place = "header:authorization"\n'
TOKEN = '[secret.t]\nsource = "env:T"\n'
ROLE = "[role.r]\n"
PROXY = '[proxy.corp]\nhost = "proxy.corp.example"\nport = 3128\n'
TCP = 'protocol = "tcp"\nlisten = 5432\n'
POST = ALLOW.replace("GET", "POST")


def judged(body: str) -> str:
    return BOUND.replace(ALLOW, f"{POST}body = {{ {body} }}\n")


def test_the_whole_file_becomes_values() -> None:
    policy = load(WHOLE)
    assert policy.sha256 == hashlib.sha256(WHOLE.encode()).hexdigest()
    assert policy.default_role == "dev"
    assert policy.unlisted is Unlisted.NXDOMAIN
    assert policy.secrets["github"] == SecretRule(name="github", kind=SourceKind.KEYRING, ref="credgate/github")
    endpoint = policy.endpoints["github-api"]
    assert (endpoint.host.text, endpoint.port, endpoint.dial_port, endpoint.tls) == ("api.github.com", 443, 8443, True)
    assert endpoint.networks == (IPv4Network("10.20.0.0/16"),)
    assert endpoint.pins == (IPv4Address("10.9.9.9"),)
    assert endpoint.ca == "/etc/x/internal-ca.pem"
    allow = endpoint.allow[0]
    assert (allow.id, allow.methods) == ("issues", {"GET", "HEAD", "POST"})
    assert [p.text for p in allow.paths] == ["/repos/acme/app/issues", "/repos/acme/app/issues/*"]
    assert allow.query == {"page", "per_page"}
    assert allow.encoded_slash
    assert (endpoint.deny[0].id, endpoint.deny[0].methods, endpoint.deny[0].pack) == ("locks", {"PUT"}, "")
    assert endpoint.deny[1].pack == "github-credential-minting"


def test_the_whole_file_becomes_values_of_bindings_and_roles() -> None:
    policy = load(WHOLE)
    binding = policy.bindings["github"]
    assert (binding.place, binding.header, binding.format) == (PlaceKind.HEADER, "authorization", "Bearer {secret}")
    assert (binding.mode, binding.foreign, binding.drop_set_cookie) == (Mode.PLACEHOLDER, Foreign.DENY, False)
    assert binding.placeholder == Placeholder(env="GITHUB_TOKEN", shape="ghp_{36}")
    assert (binding.ttl, binding.max_uses, binding.rates) == (8 * 3600, 500, (Rate(count=60, seconds=60),))
    role = policy.roles["dev"]
    assert (role.budget, role.on_alarm) == (Budget(requests=5000, bytes_out=200 << 20), OnAlarm.KILL)
    assert (role.workdir, role.deadline, role.env) == (Workdir.WRITE, 7200, ("TERM", "LANG"))
    assert role.limits == Limits(memory=2 << 30, processes=64, open_files=1024, cpu=1800, file_size=1 << 30)
    assert policy.tests[0].rule == "github-api.issues"


def test_an_empty_policy_has_the_documented_defaults() -> None:
    policy = load(MINIMAL + HOST + ROLE)
    endpoint, role = policy.endpoints["e"], policy.roles["r"]
    assert (endpoint.port, endpoint.dial_port, endpoint.alpn) == (443, 443, ("http/1.1",))
    assert endpoint.foreign is Foreign.STRIP
    assert policy.unlisted is Unlisted.GATEWAY
    assert (role.workdir, role.deadline, role.limits) == (Workdir.READ, None, Limits())
    assert (role.budget, role.on_alarm) == (Budget(), OnAlarm.NOTIFY)


def test_plain_http_has_port_80() -> None:
    assert load(MINIMAL + HOST + "tls = false\n").endpoints["e"].port == 80


@pytest.mark.parametrize(
    ("place", "expected"),
    [("header:authorization", "Bearer {secret}"), ("header:x-api-key", "{secret}")],
)
def test_the_default_format_depends_on_the_header(place: str, expected: str) -> None:
    assert load(MINIMAL + BOUND + f'place = "{place}"\n').bindings["b"].format == expected


def test_a_ca_path_starts_at_the_policy_file() -> None:
    assert load(MINIMAL + HOST + 'ca = "../ca.pem"\n', "/srv/policies").endpoints["e"].ca == "/srv/ca.pem"
    with pytest.raises(ValueError, match="absolute"):
        load(MINIMAL, "srv")


# where of the one fault expected, a part of its message or hint, and the text
FAULTS: dict[str, tuple[str, str, str]] = {
    "no version": ("version", "version = 1", ""),
    "version 2": ("version", "got 2, expected 1", "version = 2\n"),
    "version true": ("version", "got a boolean", "version = true\n"),
    "unknown key": ("defualt_role", 'did you mean "default_role"?', MINIMAL + 'defualt_role = "r"\n' + ROLE),
    "unknown endpoint key": ("endpoint.e.hosts", 'did you mean "host"?', MINIMAL + HOST + 'hosts = "x"\n'),
    "unknown rule key": ("endpoint.e.allow[0].path", '"paths"', MINIMAL + HOST + ALLOW + 'path = "/"\n'),
    "unknown query key": (
        "endpoint.e.allow[0].query.alow",
        '"allow"',
        MINIMAL + HOST + ALLOW + "query.alow = []\nquery.allow = []\n",
    ),
    "dns word": ("dns.unlisted", 'did you mean "nxdomain"?', MINIMAL + '[dns]\nunlisted = "nxdomian"\n'),
    "default_role": ("default_role", 'did you mean "r"?', MINIMAL + 'default_role = "rr"\n' + ROLE),
    "name with a dot": ('secret."a.b"', "letters, digits", MINIMAL + '[secret."a.b"]\nsource = "env:A"\n'),
    "not a table": ("role.dev", "write [role.dev]", MINIMAL + "[role]\ndev = 1\n"),
    "not an array of tables": ("test", "got a table", MINIMAL + "[test]\n"),
    "no host": ("endpoint.e.host", "missing", MINIMAL + "[endpoint.e]\n"),
    "host is an address": ("endpoint.e.host", 'address = ["10.0.0.1"]', MINIMAL + '[endpoint.e]\nhost = "10.0.0.1"\n'),
    "host is an IPv6 address": ("endpoint.e.host", "is an address", MINIMAL + '[endpoint.e]\nhost = "[2001:db8::1]"\n'),
    "host is a number": ("endpoint.e.host", "is an address", MINIMAL + '[endpoint.e]\nhost = "127.1"\n'),
    "host with port": ("endpoint.e.host", "port = 8443", MINIMAL + '[endpoint.e]\nhost = "a.example.org:8443"\n'),
    "host of everything": ("endpoint.e.host", "means every host", MINIMAL + '[endpoint.e]\nhost = "*"\n'),
    "port as text": ("endpoint.e.port", "expected an integer", MINIMAL + HOST + 'port = "443"\n'),
    "port 0": ("endpoint.e.port", "expected 1 to 65535", MINIMAL + HOST + "port = 0\n"),
    "port 53": ("endpoint.e.port", "resolver", MINIMAL + HOST + "port = 53\n"),
    "host_from beside host": ("endpoint.e.host", "beside host_from", MINIMAL + HOST + 'host_from = "npm"\n'),
    "host_from of nobody": ("endpoint.e.host_from", '"npm" or "pip"', MINIMAL + '[endpoint.e]\nhost_from = "yarn"\n'),
    "host_from of none": ("endpoint.e.host_from", "names no registry", MINIMAL + '[endpoint.e]\nhost_from = "npm"\n'),
    "spki": ("endpoint.e.spki[0]", "32 bytes in base64", MINIMAL + HOST + 'spki = ["sha256/x"]\n'),
    "spki of another digest": ("endpoint.e.spki[0]", "sha256/", MINIMAL + HOST + f'spki = ["sha1/{"A" * 43}="]\n'),
    "spki beside no tls": (
        "endpoint.e.spki",
        "tls = false",
        MINIMAL + HOST + f'tls = false\nspki = ["sha256/{"A" * 43}="]\n',
    ),
    "route": ("endpoint.e.route.default", "no endpoint is called", MINIMAL + HOST + 'route = { default = "a" }\n'),
    "proxy": ("endpoint.e.proxy", "add: [proxy.corp]", MINIMAL + HOST + 'proxy = "corp"\n'),
    "proxy near": ("endpoint.e.proxy", 'did you mean "corp"?', MINIMAL + PROXY + HOST + 'proxy = "crop"\n'),
    "proxy without tls": ("endpoint.e.proxy", "unverified", MINIMAL + PROXY + HOST + 'proxy = "corp"\ntls = false\n'),
    "proxy and address": (
        "endpoint.e.address",
        "write it in [proxy.corp]",
        MINIMAL + PROXY + HOST + 'proxy = "corp"\naddress = ["10.0.0.1"]\n',
    ),
    "proxy without port": ("proxy.corp.port", "add: port", MINIMAL + '[proxy.corp]\nhost = "p.example.org"\n'),
    "proxy of a pattern": ("proxy.corp.host", "one host", MINIMAL + '[proxy.corp]\nhost = "*.a.org"\nport = 1\n'),
    "proxy as an address": ("proxy.corp.host", "address", MINIMAL + '[proxy.corp]\nhost = "10.0.0.1"\nport = 1\n'),
    "proxy key": ("proxy.corp.hots", 'did you mean "host"?', MINIMAL + PROXY + 'hots = "x"\n'),
    "proxy secret": ("proxy.corp.secret", "no secret", MINIMAL + PROXY + 'secret = "s"\nuser = "u"\n'),
    "proxy user alone": ("proxy.corp.secret", "write both", MINIMAL + PROXY + 'user = "u"\n'),
    "proxy user with colon": (
        "proxy.corp.user",
        "colon",
        MINIMAL + SECRET + PROXY + 'secret = "s"\nuser = "u:v"\n',
    ),
    "proxy ca without tls": ("proxy.corp.ca", "tls = false", MINIMAL + PROXY + 'ca = "x.pem"\n'),
    "proxy metadata": ("proxy.corp.address[0]", "nothing opens", MINIMAL + PROXY + 'address = ["169.254.169.254"]\n'),
    "tcp": ("endpoint.e.listen", "add: listen = N", MINIMAL + HOST + 'protocol = "tcp"\n'),
    "protocol": ("endpoint.e.protocol", 'expected "http" or "tcp"', MINIMAL + HOST + 'protocol = "udp"\n'),
    "listen": ("endpoint.e.listen", 'protocol = "tcp"', MINIMAL + HOST + "listen = 5432\n"),
    "listen on 443": ("endpoint.e.listen", "another port", MINIMAL + HOST + TCP.replace("5432", "443")),
    "tcp on a pattern": (
        "endpoint.e.host",
        "the one that is dialled",
        MINIMAL + '[endpoint.e]\nhost = "*.example.org"\n' + TCP,
    ),
    "tcp with ca": ("endpoint.e.ca", "nothing is read", MINIMAL + HOST + TCP + 'ca = "x.pem"\n'),
    "tcp with a rule": ("endpoint.e.allow", "nothing is read", MINIMAL + HOST + TCP + ALLOW),
    "a secret on tcp": (
        "binding.b.endpoint",
        "opaque",
        MINIMAL
        + SECRET
        + HOST
        + TCP
        + '[binding.b]\nsecret = "s"\nendpoint = "e"\nrules = ["r"]\nplace = "header:authorization"\n',
    ),
    "one listen for two": (
        "role.r",
        "give it another listen",
        MINIMAL + HOST + TCP + HOST.replace("endpoint.e", "endpoint.f") + TCP + '[role.r]\nendpoints = ["e", "f"]\n',
    ),
    "listen where http is": (
        "role.r",
        "port 5432",
        MINIMAL + HOST + TCP + '[endpoint.f]\nhost = "f.example.org"\nport = 5432\n[role.r]\nendpoints = ["e", "f"]\n',
    ),
    "alpn": ("endpoint.e.alpn", "expected", MINIMAL + HOST + 'alpn = ["h3"]\n'),
    "no alpn": ("endpoint.e.alpn", "at least one", MINIMAL + HOST + "alpn = []\n"),
    "alpn without tls": ("endpoint.e.alpn", "tls = false", MINIMAL + HOST + 'tls = false\nalpn = ["h2"]\n'),
    "ca below home": ("endpoint.e.ca", "whole path", MINIMAL + HOST + 'ca = "~/ca.pem"\n'),
    "ca without tls": ("endpoint.e.ca", "tls = false", MINIMAL + HOST + 'tls = false\nca = "ca.pem"\n'),
    "foreign": ("endpoint.e.foreign", 'did you mean "strip"?', MINIMAL + HOST + 'foreign = "stirp"\n'),
    "no address": ("endpoint.e.address", "at least one", MINIMAL + HOST + "address = []\n"),
    "metadata": ("endpoint.e.address[0]", "metadata", MINIMAL + HOST + 'address = ["169.254.169.254"]\n'),
    "metadata in public space": (
        "endpoint.e.address[0]",
        "nothing opens",
        MINIMAL + HOST + 'address = ["168.63.129.16"]\n',
    ),
    "metadata prefix": (
        "endpoint.e.address[0]",
        "nothing opens",
        MINIMAL + HOST + 'address = ["169.254.169.254/32"]\n',
    ),
    "metadata embedded": ("endpoint.e.address[0]", "metadata", MINIMAL + HOST + 'address = ["::ffff:a9fe:a9fe"]\n'),
    "mapped": ("endpoint.e.address[0]", 'write "10.0.0.1"', MINIMAL + HOST + 'address = ["::ffff:a00:1"]\n'),
    "metadata IPv6": ("endpoint.e.address[0]", "nothing opens", MINIMAL + HOST + 'address = ["fd00:ec2::254"]\n'),
    "multicast prefix": ("endpoint.e.address[0]", "nothing opens", MINIMAL + HOST + 'address = ["224.0.0.0/8"]\n'),
    "whole internet": ("endpoint.e.address[0]", "/8", MINIMAL + HOST + 'address = ["0.0.0.0/0"]\n'),
    "host bits": ("endpoint.e.address[0]", 'write "10.20.0.0/16"', MINIMAL + HOST + 'address = ["10.20.0.1/16"]\n'),
    "octal": ("endpoint.e.address[0]", "not an address", MINIMAL + HOST + 'address = ["010.1.1.1"]\n'),
    "long IPv6": ("endpoint.e.address[0]", 'write "fd00::1"', MINIMAL + HOST + 'address = ["fd00:0:0::1"]\n'),
    "methods lower case": (
        "endpoint.e.allow[0].methods[0]",
        'write "GET"',
        MINIMAL + HOST + ALLOW.replace("GET", "get"),
    ),
    "method unknown": ("endpoint.e.allow[0].methods[0]", "", MINIMAL + HOST + ALLOW.replace("GET", "CONNECT")),
    "method twice": (
        "endpoint.e.allow[0].methods[1]",
        "twice",
        MINIMAL + HOST + ALLOW.replace('"GET"', '"GET", "GET"'),
    ),
    "no methods": ("endpoint.e.allow[0].methods", "missing", MINIMAL + HOST + ALLOW.replace('methods = ["GET"]\n', "")),
    "no paths": ("endpoint.e.allow[0].paths", "empty list", MINIMAL + HOST + ALLOW.replace('["/a"]', "[]")),
    "relative path": ("endpoint.e.allow[0].paths[0]", 'write "/a"', MINIMAL + HOST + ALLOW.replace("/a", "a")),
    "path with dots": ("endpoint.e.allow[0].paths[0]", "dot segment", MINIMAL + HOST + ALLOW.replace("/a", "/a/../b")),
    "path with query": ("endpoint.e.allow[0].paths[0]", "query", MINIMAL + HOST + ALLOW.replace("/a", "/a?b=c")),
    "part of a segment": (
        "endpoint.e.allow[0].paths[0]",
        '"*" for a whole',
        MINIMAL + HOST + ALLOW.replace("/a", "/a*"),
    ),
    "no id": ("endpoint.e.allow[0].id", "missing", MINIMAL + HOST + ALLOW.replace('id = "r"\n', "")),
    "bad id": ("endpoint.e.allow[0].id", "letters", MINIMAL + HOST + ALLOW.replace('"r"', '"r.s"')),
    "id twice": ("endpoint.e.allow[1].id", "two rules", MINIMAL + HOST + ALLOW + ALLOW),
    "id of a deny rule": (
        "endpoint.e.deny[0].id",
        "two rules",
        MINIMAL + HOST + ALLOW + '[[endpoint.e.deny]]\nid = "r"\npaths = ["/b"]\n',
    ),
    "deny without paths": ("endpoint.e.deny[0].paths", "missing", MINIMAL + HOST + '[[endpoint.e.deny]]\nid = "d"\n'),
    "body on GET": (
        "endpoint.e.allow[0].body",
        "which has no body",
        MINIMAL + HOST + ALLOW + 'body = { type = "json" }\n',
    ),
    "body without type": ("endpoint.e.allow[0].body.type", "missing", MINIMAL + HOST + POST + "body = {}\n"),
    "body of a type": (
        "endpoint.e.allow[0].body.type",
        '"graphql"',
        MINIMAL + HOST + POST + 'body = { type = "xml" }\n',
    ),
    "body key": (
        "endpoint.e.allow[0].body.equal",
        'did you mean "equals"?',
        MINIMAL + HOST + POST + 'body = { type = "json", equal = {} }\n',
    ),
    "body max": (
        "endpoint.e.allow[0].body.max",
        'write "1KiB"',
        MINIMAL + HOST + POST + 'body = { type = "json", max = "1KB" }\n',
    ),
    "body max too high": (
        "endpoint.e.allow[0].body.max",
        "held in memory",
        MINIMAL + HOST + POST + 'body = { type = "json", max = "1GiB" }\n',
    ),
    "body path": (
        'endpoint.e.allow[0].body.equals."a..b"',
        "keys with dots",
        MINIMAL + HOST + POST + 'body = { type = "json", equals = { "a..b" = 1 } }\n',
    ),
    "body path unquoted": (
        'endpoint.e.allow[0].body.equals."a"',
        "is quoted",
        MINIMAL + HOST + POST + 'body = { type = "json", equals = { a.b = 1 } }\n',
    ),
    "body value": (
        'endpoint.e.allow[0].body.equals."a"',
        "a string, an integer or a boolean",
        MINIMAL + HOST + POST + 'body = { type = "json", equals = { a = 1.5 } }\n',
    ),
    "body in": (
        'endpoint.e.allow[0].body.in."a"',
        "an array of the values",
        MINIMAL + HOST + POST + 'body = { type = "json", in = { a = "x" } }\n',
    ),
    "body absent": (
        "endpoint.e.allow[0].body.absent[0]",
        "keys with dots",
        MINIMAL + HOST + POST + 'body = { type = "json", absent = ["a b"] }\n',
    ),
    "json with operations": (
        "endpoint.e.allow[0].body.operations",
        "not of type json",
        MINIMAL + HOST + POST + 'body = { type = "json", operations = ["query.a"] }\n',
    ),
    "graphql without operations": (
        "endpoint.e.allow[0].body.operations",
        "missing",
        MINIMAL + HOST + POST + 'body = { type = "graphql" }\n',
    ),
    "graphql with equals": (
        "endpoint.e.allow[0].body.equals",
        "not of type graphql",
        MINIMAL + HOST + POST + 'body = { type = "graphql", operations = ["query.a"], equals = { a = 1 } }\n',
    ),
    "operation": (
        "endpoint.e.allow[0].body.operations[0]",
        "query.FIELD",
        MINIMAL + HOST + POST + 'body = { type = "graphql", operations = ["viewer"] }\n',
    ),
    "upgrade without GET": ("endpoint.e.allow[0].upgrade", 'add "GET"', MINIMAL + HOST + POST + "upgrade = true\n"),
    "query name": (
        "endpoint.e.allow[0].query.allow[0]",
        "plain name",
        MINIMAL + HOST + ALLOW + 'query = { allow = ["a=b"] }\n',
    ),
    "pack": (
        "endpoint.e.deny[0].pack",
        '"npm-credential-minting"',
        MINIMAL + HOST + '[[endpoint.e.deny]]\npack = "npm-credential-mint"\n',
    ),
    "pack and paths": (
        "endpoint.e.deny[0].paths",
        "beside pack",
        MINIMAL + HOST + '[[endpoint.e.deny]]\npack = "npm-credential-minting"\npaths = ["/a"]\n',
    ),
    "command": ("secret.s.source", "whole/path", MINIMAL + '[secret.s]\nsource = "command:gh auth token"\n'),
    "vault": ("secret.s.source", "NAME/PATH#FIELD", MINIMAL + '[secret.s]\nsource = "vault:kv/x"\n'),
    "vault without a server": ("secret.s.source", "add: [vault.kv]", MINIMAL + '[secret.s]\nsource = "vault:kv/x#y"\n'),
    "vault up": ("secret.s.source", "NAME/PATH#FIELD", MINIMAL + '[secret.s]\nsource = "vault:kv/../x#y"\n'),
    "args of a file": ("secret.s.args", "no command", MINIMAL + '[secret.s]\nsource = "file:/x"\nargs = ["y"]\n'),
    "keep of a file": ("secret.s.keep", "each time", MINIMAL + '[secret.s]\nsource = "file:/x"\nkeep = "1m"\n'),
    "a long timeout": ("secret.s.timeout", "60 s", MINIMAL + '[secret.s]\nsource = "command:/x"\ntimeout = "2m"\n'),
    "output": ("secret.s.output", '"text" or "json"', MINIMAL + '[secret.s]\nsource = "command:/x"\noutput = "x"\n'),
    "vault without an endpoint": ("vault.v.endpoint", "missing", MINIMAL + TOKEN + '[vault.v]\ntoken = "t"\n'),
    "vault without a token": ("vault.v.token", "one of token", MINIMAL + HOST + '[vault.v]\nendpoint = "e"\n'),
    "vault's token": ("vault.v.token", "no secret is", MINIMAL + HOST + '[vault.v]\nendpoint = "e"\ntoken = "t"\n'),
    "no source": ("secret.s.source", "missing", MINIMAL + "[secret.s]\n"),
    "unknown source": ("secret.s.source", 'did you mean "keyring"?', MINIMAL + '[secret.s]\nsource = "keyrign:a/b"\n'),
    "value as source": ("secret.s.source", "KIND:WHERE", MINIMAL + '[secret.s]\nsource = "ghp_x"\n'),
    "keyring": ("secret.s.source", "SERVICE/NAME", MINIMAL + '[secret.s]\nsource = "keyring:github"\n'),
    "env": ("secret.s.source", "env:NAME", MINIMAL + '[secret.s]\nsource = "env:A B"\n'),
    "file": ("secret.s.source", "file:/whole/path", MINIMAL + '[secret.s]\nsource = "file:token"\n'),
    "secret with a value": ("secret.s.value", "unknown key", MINIMAL + '[secret.s]\nsource = "env:S"\nvalue = "x"\n'),
    "no place": ("binding.b.place", "missing", MINIMAL + BOUND),
    "place without a name": ("binding.b.place", "plain name", MINIMAL + BOUND + 'place = "query:"\n'),
    "place of a pattern": ("binding.b.place", "one field", MINIMAL + BOUND + 'place = "json:a[*].b"\n'),
    "place that may be missing": ("binding.b.place", "one field", MINIMAL + BOUND + 'place = "json:a?"\n'),
    "place of no body": ("binding.b.place", "no body", MINIMAL + BOUND + 'place = "json:token"\n'),
    "place of no form": ("binding.b.place", 'type = "form"', MINIMAL + BOUND + 'place = "form:token"\n'),
    "place of no segment": ("binding.b.place", "no segment is {token}", MINIMAL + BOUND + 'place = "path:token"\n'),
    "basic with a name": ("binding.b.place", "expected", MINIMAL + BOUND + 'place = "basic:x"\n'),
    "query that the rule does not list": (
        "binding.b.place",
        "does not let api_key stand in the query",
        MINIMAL
        + BOUND.replace('paths = ["/a"]\n', 'paths = ["/a"]\nquery = { allow = ["page"] }\n')
        + 'place = "query:api_key"\n',
    ),
    "segment in two places": (
        "binding.b.place",
        "in different places",
        MINIMAL + BOUND.replace('["/a"]', '["/{t}/x", "/x/{t}"]') + 'place = "path:t"\n',
    ),
    "segment of one path alone": (
        "binding.b.place",
        'the path "/a"',
        MINIMAL + BOUND.replace('["/a"]', '["/{t}/x", "/a"]') + 'place = "path:t"\n',
    ),
    "segment with braces": ("binding.b.place", "plain name", MINIMAL + BOUND + 'place = "path:{t}"\n'),
    "segment of a deny rule": (
        "endpoint.e.deny[0].paths[0]",
        "no binding fills",
        MINIMAL + HOST + '[[endpoint.e.deny]]\nid = "d"\npaths = ["/{t}"]\n',
    ),
    "segment twice": (
        "endpoint.e.allow[0].paths[0]",
        "names two segments alike",
        MINIMAL + HOST + ALLOW.replace('"/a"', '"/{t}/{t}"'),
    ),
    "field that a test names": (
        "binding.b.place",
        "tests auth.key, which",
        MINIMAL + judged('type = "json", equals = { "auth" = "x" }') + 'place = "json:auth.key"\n',
    ),
    "field that keys leave out": (
        "binding.b.place",
        "does not list auth in keys",
        MINIMAL + judged('type = "json", keys = ["model"]') + 'place = "json:auth.key"\n',
    ),
    "field of a graphql document": (
        "binding.b.place",
        "json:variables.token",
        MINIMAL + judged('type = "graphql", operations = ["query.a"]') + 'place = "json:query"\n',
    ),
    "field of a form in json": ("binding.b.place", "no body", MINIMAL + judged('type = "json"') + 'place = "form:a"\n'),
    "form field with a test": (
        "binding.b.place",
        "tests a, which",
        MINIMAL + judged('type = "form", absent = ["a"]') + 'place = "form:a"\n',
    ),
    "form with a path": (
        'endpoint.e.allow[0].body.equals."a.b"',
        "no fields of their own",
        MINIMAL + HOST + POST + 'body = { type = "form", equals = { "a.b" = "x" } }\n',
    ),
    "form with a number": (
        'endpoint.e.allow[0].body.equals."a"',
        "no string",
        MINIMAL + HOST + POST + 'body = { type = "form", equals = { a = 1 } }\n',
    ),
    "unknown place": ("binding.b.place", 'did you mean "header"?', MINIMAL + BOUND + 'place = "headr:x"\n'),
    "place host": ("binding.b.place", "carries no secret", MINIMAL + BOUND + 'place = "header:host"\n'),
    "place content-length": (
        "binding.b.place",
        "carries no secret",
        MINIMAL + BOUND + 'place = "header:content-length"\n',
    ),
    "place connection": ("binding.b.place", "carries no secret", MINIMAL + BOUND + 'place = "header:connection"\n'),
    "place transfer-encoding": (
        "binding.b.place",
        "carries no secret",
        MINIMAL + BOUND + 'place = "header:transfer-encoding"\n',
    ),
    "place proxy-authorization": (
        "binding.b.place",
        "carries no secret",
        MINIMAL + BOUND + 'place = "header:proxy-authorization"\n',
    ),
    "place user-agent": ("binding.b.place", "carries no secret", MINIMAL + BOUND + 'place = "header:user-agent"\n'),
    "place request id": ("binding.b.place", "carries no secret", MINIMAL + BOUND + 'place = "header:x-request-id"\n'),
    "place cookie": ("binding.b.place", "cookie:NAME", MINIMAL + BOUND + 'place = "header:cookie"\n'),
    "place upper case": ("binding.b.place", '"header:x-api-key"', MINIMAL + BOUND + 'place = "header:X-Api-Key"\n'),
    "place no header": ("binding.b.place", "name of a header", MINIMAL + BOUND + 'place = "header:a b"\n'),
    "place underscore": ("binding.b.place", "name of a header", MINIMAL + BOUND + 'place = "header:x_api_key"\n'),
    "basic without format": ("binding.b.format", "missing", MINIMAL + BOUND + 'place = "basic"\n'),
    "basic without user": (
        "binding.b.format",
        "x-access-token:{secret}",
        MINIMAL + BOUND + 'place = "basic"\nformat = "{secret}"\n',
    ),
    "format without secret": ("binding.b.format", "exactly once", MINIMAL + BINDING + 'format = "Bearer x"\n'),
    "format with two": ("binding.b.format", "exactly once", MINIMAL + BINDING + 'format = "{secret}{secret}"\n'),
    "format with braces": ("binding.b.format", "no other braces", MINIMAL + BINDING + 'format = "{token} {secret}"\n'),
    "format with a line end": ("binding.b.format", "control", MINIMAL + BINDING + 'format = "a\\r\\nb: {secret}"\n'),
    "format with a space": ("binding.b.format", "space at either end", MINIMAL + BINDING + 'format = "{secret} "\n'),
    "format not ASCII": ("binding.b.format", "ASCII", MINIMAL + BINDING + 'format = "Bär {secret}"\n'),
    "placeholder mode without": ("binding.b.placeholder", "missing", MINIMAL + BINDING + 'mode = "placeholder"\n'),
    "placeholder without mode": (
        "binding.b.placeholder",
        'mode is "overwrite"',
        MINIMAL + BINDING + 'placeholder = { env = "T", shape = "x{36}" }\n',
    ),
    "weak shape": (
        "binding.b.placeholder.shape",
        "7 random",
        MINIMAL + BINDING + 'mode = "placeholder"\nplaceholder = { env = "T", shape = "ghp_{7}" }\n',
    ),
    "shape with a quote": (
        "binding.b.placeholder.shape",
        "shape",
        MINIMAL + BINDING + 'mode = "placeholder"\nplaceholder = { env = "T", shape = "a\'{36}" }\n',
    ),
    "placeholder in PATH": (
        "binding.b.placeholder.env",
        "credgate sets it",
        MINIMAL + BINDING + 'mode = "placeholder"\nplaceholder = { env = "PATH", shape = "x{36}" }\n',
    ),
    "placeholder in LD_PRELOAD": (
        "binding.b.placeholder.env",
        "run code",
        MINIMAL + BINDING + 'mode = "placeholder"\nplaceholder = { env = "LD_PRELOAD", shape = "x{36}" }\n',
    ),
    "unknown mode": ("binding.b.mode", "expected", MINIMAL + BINDING + 'mode = "blind"\n'),
    "binding foreign allow": (
        "binding.b.foreign",
        'expected "strip" or "deny"',
        MINIMAL + BINDING + 'foreign = "allow"\n',
    ),
    "endpoint foreign allow": (
        "endpoint.e.foreign",
        "injects there",
        MINIMAL + BINDING.replace(HOST, HOST + 'foreign = "allow"\n'),
    ),
    "scrub": ("binding.b.response.scrub", "true or false", MINIMAL + BINDING + "response = { scrub = 1 }\n"),
    "set_cookie": (
        "binding.b.response.set_cookie",
        '"drop" or "keep"',
        MINIMAL + BINDING + 'response = { set_cookie = "strip" }\n',
    ),
    "ttl": ("binding.b.ttl", "units", MINIMAL + BINDING + 'ttl = "8 h"\n'),
    "max_uses": ("binding.b.max_uses", "expected 1 to", MINIMAL + BINDING + "max_uses = 0\n"),
    "rate": ("binding.b.rate", '"60/m"', MINIMAL + BINDING + 'rate = "60 per minute"\n'),
    "rate of none": ("binding.b.rate", '"60/m"', MINIMAL + BINDING + 'rate = "0/m"\n'),
    "no rules": ("binding.b.rules", "empty list", MINIMAL + BINDING.replace('rules = ["r"]', "rules = []")),
    "unknown rule": ("binding.b.rules", "no allow rule", MINIMAL + BINDING.replace('rules = ["r"]', 'rules = ["q"]')),
    "unknown secret": (
        "binding.b.secret",
        'did you mean "s"?',
        MINIMAL + BINDING.replace('secret = "s"', 'secret = "ss"'),
    ),
    "unknown endpoint": (
        "binding.b.endpoint",
        "no endpoint is called",
        MINIMAL + BINDING.replace('endpoint = "e"', 'endpoint = "f"'),
    ),
    "secret on plain http": (
        "binding.b.endpoint",
        "tls = false",
        MINIMAL + BINDING.replace(HOST, HOST + "tls = false\n"),
    ),
    "secret on a wildcard": (
        "binding.b.endpoint",
        "one exact host",
        MINIMAL + BINDING.replace("a.example.org", "*.example.org"),
    ),
    "secret on a deep wildcard": (
        "binding.b.endpoint",
        "one exact host",
        MINIMAL + BINDING.replace("a.example.org", "**.example.org"),
    ),
    "role binding": ("role.r.bindings[0]", "no binding is called", MINIMAL + ROLE + 'bindings = ["b"]\n'),
    "role endpoint": ("role.r.endpoints[0]", 'did you mean "e"?', MINIMAL + HOST + ROLE + 'endpoints = ["ee"]\n'),
    "workdir": ("role.r.workdir", 'did you mean "write"?', MINIMAL + ROLE + 'workdir = "wrtie"\n'),
    "state": ("role.r.state[0]", "a path below the home", MINIMAL + ROLE + 'state = ["/etc/x"]\n'),
    "state of state": ("role.r.state[1]", "lies below another", MINIMAL + ROLE + 'state = ["~/.x", "~/.x/y"]\n'),
    "state of no agent": ("role.r.agent_state", "with no agent", MINIMAL + ROLE + 'agent_state = "copy"\n'),
    "readonly": ("role.r.readonly[0]", "whole path", MINIMAL + ROLE + 'readonly = ["/x"]\n'),
    "hide": ("role.r.hide[0]", "whole tree", MINIMAL + ROLE + 'hide = ["**"]\n'),
    "show": ("role.r.show[0]", "one file", MINIMAL + ROLE + 'show = ["*.x"]\n'),
    "publish": ("role.r.publish[0]", "1024 to 65535", MINIMAL + ROLE + "publish = [80]\n"),
    "publish twice": ("role.r.publish[1]", "twice", MINIMAL + ROLE + "publish = [3000, 3000]\n"),
    "publish as text": ("role.r.publish[0]", "an integer", MINIMAL + ROLE + 'publish = ["3000"]\n'),
    "publish too many": ("role.r.publish", "at most 16", MINIMAL + ROLE + f"publish = {list(range(3000, 3017))}\n"),
    "children": ("role.r.children[0]", 'no role is called "x"', MINIMAL + ROLE + 'children = ["x"]\n'),
    "children text": ("role.r.children", "expected an array", MINIMAL + ROLE + 'children = "r"\n'),
    "budget": ("role.r.budget.requests", "expected 1 to", MINIMAL + ROLE + "budget = { requests = 0 }\n"),
    "budget's bytes": ("role.r.budget.bytes_out", "MiB", MINIMAL + ROLE + 'budget = { bytes_out = "1MB" }\n'),
    "budget's key": ("role.r.budget.seconds", "unknown", MINIMAL + ROLE + "budget = { seconds = 5 }\n"),
    "approve": ("role.r.approve", "not yet", MINIMAL + ROLE + '[[role.r.approve]]\nrule = "x"\n'),
    "allow_debug": ("role.r.allow_debug", "expected true or false", MINIMAL + ROLE + 'allow_debug = "yes"\n'),
    "allow_userns": ("role.r.allow_userns", "expected true or false", MINIMAL + ROLE + "allow_userns = 1\n"),
    "on_alarm": ("role.r.on_alarm", '"notify"', MINIMAL + ROLE + 'on_alarm = "mail"\n'),
    "relative tool": ("role.r.tools[0]", "whole path", MINIMAL + ROLE + 'tools = ["bin"]\n'),
    "tool with dots": ("role.r.tools[0]", "whole path", MINIMAL + ROLE + 'tools = ["/opt/../etc"]\n'),
    "read everything": ("role.r.read[0]", "bind everything", MINIMAL + ROLE + 'read = ["/"]\n'),
    "read the home": ("role.r.read[0]", "bind everything", MINIMAL + ROLE + 'read = ["~/"]\n'),
    "env token": ("role.r.env[0]", "looks like a credential", MINIMAL + ROLE + 'env = ["GITHUB_TOKEN"]\n'),
    "env value": (
        "role.r.env[0]",
        "a value that looks like a credential",
        MINIMAL + ROLE + 'env = ["X=ghp_0123456789012345678901234567890123456"]\n',
    ),
    "env with a value": ("role.r.env[0]", 'write "LANG"', MINIMAL + ROLE + 'env = ["LANG=C"]\n'),
    "env preload": ("role.r.env[0]", "run code", MINIMAL + ROLE + 'env = ["LD_PRELOAD"]\n'),
    "deadline": ("role.r.deadline", 'write "2h"', MINIMAL + ROLE + 'deadline = "2 hours"\n'),
    "deadline number": ("role.r.deadline", "expected a string", MINIMAL + ROLE + "deadline = 7200\n"),
    "memory": ("role.r.limits.memory", 'write "4GiB"', MINIMAL + ROLE + 'limits = { memory = "4GB" }\n'),
    "little memory": ("role.r.limits.memory", "at least", MINIMAL + ROLE + 'limits = { memory = "1MiB" }\n'),
    "processes": ("role.r.limits.processes", "expected 2", MINIMAL + ROLE + "limits = { processes = 0 }\n"),
    "limit": ("role.r.limits.memroy", '"memory"', MINIMAL + ROLE + 'limits = { memroy = "4GiB" }\n'),
    "test verdict": (
        "test[0].verdict",
        '"allow" or "deny"',
        MINIMAL + ROLE + '[[test]]\nrole = "r"\nurl = "https://a/"\nverdict = "ok"\n',
    ),
    "test approve": (
        "test[0].verdict",
        "not yet",
        MINIMAL + ROLE + '[[test]]\nrole = "r"\nurl = "https://a/"\nverdict = "approve"\n',
    ),
    "test url": (
        "test[0].url",
        "https://HOST",
        MINIMAL + ROLE + '[[test]]\nrole = "r"\nurl = "a/b"\nverdict = "deny"\n',
    ),
    "test role": ("test[0].role", "missing", MINIMAL + ROLE + '[[test]]\nurl = "https://a/"\nverdict = "deny"\n'),
    "test unknown role": (
        "test[0].role",
        'did you mean "r"?',
        MINIMAL + ROLE + '[[test]]\nrole = "rr"\nurl = "https://a/"\nverdict = "deny"\n',
    ),
    "test reason": (
        "test[0].reason",
        'did you mean "no_rule"?',
        MINIMAL + ROLE + '[[test]]\nrole = "r"\nurl = "https://a/"\nverdict = "deny"\nreason = "norule"\n',
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_its_place_and_its_mend(name: str) -> None:
    where, part, text = FAULTS[name]
    found = problems(text)
    assert list(found) == [where]
    assert part in f"{found[where].message} {found[where].hint}"


def test_a_rule_of_another_endpoint_is_named() -> None:
    other = '[endpoint.f]\nhost = "f.example.org"\n[[endpoint.f.allow]]\nid = "q"\nmethods = ["GET"]\npaths = ["/"]\n'
    found = problems(MINIMAL + other + BINDING.replace('rules = ["r"]', 'rules = ["q"]'))
    assert "rule of another endpoint (f)" in found["binding.b.rules"].message
    assert "r" in found["binding.b.rules"].hint


TWO = BINDING + BINDING[BINDING.index("[binding.b]") :].replace("binding.b", "binding.c")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("query:api_key", "query:API-KEY"),
        ("json:auth", "json:auth.key"),
        ("form:a", "form:a"),
        ("path:t", "path:t"),
        ("cookie:sid", "cookie:sid"),
    ],
)
def test_two_bindings_for_one_place_that_is_no_header_are_refused_too(one: str, other: str) -> None:
    kind = "form" if one.startswith("form") else "json"
    rule = POST.replace('"/a"', '"/{t}"') + f'body = {{ type = "{kind}" }}\n'
    second = f'[binding.c]\nsecret = "s"\nendpoint = "e"\nrules = ["r"]\nplace = "{other}"\n'
    both = MINIMAL + BOUND.replace(ALLOW, rule) + f'place = "{one}"\n' + second
    assert problems(both) == {}
    assert "write one place" in problems(both + ROLE + 'bindings = ["b", "c"]\n')["role.r.bindings"].message


def test_two_bindings_for_one_place_and_rule_are_refused_in_one_role() -> None:
    role = ROLE + 'bindings = ["b", "c"]\n'
    assert "one place (header:authorization)" in problems(MINIMAL + TWO + role)["role.r.bindings"].message


def test_two_bindings_for_one_place_may_be_in_two_roles_or_for_two_places() -> None:
    assert problems(MINIMAL + TWO + '[role.r]\nbindings = ["b"]\n[role.s]\nbindings = ["c"]\n') == {}
    apart = TWO[: TWO.rindex("header:authorization")] + 'header:x-api-key"\n'
    assert problems(MINIMAL + apart + ROLE + 'bindings = ["b", "c"]\n') == {}


def test_basic_and_the_authorization_header_are_one_place() -> None:
    basic = TWO[: TWO.rindex("header:authorization")] + 'basic"\nformat = "u:{secret}"\n'
    assert list(problems(MINIMAL + basic + ROLE + 'bindings = ["b", "c"]\n')) == ["role.r.bindings"]


def test_a_variable_is_not_passed_and_a_placeholder_at_once() -> None:
    text = changed('env = "GITHUB_TOKEN"', 'env = "LANG"')
    assert list(problems(text)) == ["role.dev.env"]
    assert problems(text.replace('["TERM", "LANG"]', '["TERM"]')) == {}


def test_two_placeholders_of_a_role_have_two_variables() -> None:
    twin = '[binding.two]\nsecret = "github"\nendpoint = "github-api"\nrules = ["issues"]\nplace = "header:x-api-key"\n'
    twin += 'mode = "placeholder"\nplaceholder = { env = "GITHUB_TOKEN", shape = "x{36}" }\n'
    text = changed("[role.dev]\n", twin + "[role.dev]\n").replace(
        'bindings = ["github"]', 'bindings = ["github", "two"]'
    )
    assert "one variable" in problems(text)["role.dev.bindings"].message
    assert problems(text.replace('env = "GITHUB_TOKEN", shape = "x', 'env = "OTHER_TOKEN", shape = "x')) == {}


def test_one_target_has_one_way_of_being_dialled() -> None:
    twin = '[endpoint.f]\nhost = "a.example.org"\n'
    role = ROLE + 'endpoints = ["e", "f"]\n'
    assert problems(MINIMAL + HOST + twin + role) == {}
    assert "different dial_port" in problems(MINIMAL + HOST + twin + "dial_port = 1\n" + role)["role.r"].message


def test_all_faults_come_at_once() -> None:
    text = (
        "version = 3\n[endpoint.e]\nhost = 'x:1'\nport = 0\n[role.r]\nworkdir = 'copied'\nbindings = ['b']\nfoo = 1\n"
    )
    assert set(problems(text)) == {
        "version",
        "endpoint.e.host",
        "endpoint.e.port",
        "role.r.workdir",
        "role.r.bindings[0]",
        "role.r.foo",
    }


def test_a_fault_in_the_endpoint_does_not_hide_one_in_its_binding() -> None:
    found = problems(MINIMAL + BINDING.replace("a.example.org", "a..org").replace('rules = ["r"]', 'rules = ["q"]'))
    assert set(found) == {"endpoint.e.host", "binding.b.rules"}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"version = ", "not TOML"),
        (b"version = 1\nversion = 1\n", "not TOML"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"#" * (MAX_BYTES + 1), "at most"),
        (b"a = " + b"[" * 5000, "TOML"),
        (b"a = " + b"9" * 5000, "TOML"),
        (b"x = 1\n" + b"a." * 9 + b"b = 1\n", "line 2: a key of more than 8 parts"),
        (b"a." * 100_000 + b"b = 1\n", "more than 8 parts"),
        (b"x = { a = 1, " + b"a." * 100_000 + b"b = 1 }\n", "more than 8 parts"),
        (b"x = {" + b"a." * 100_000 + b"b = 1 }\n", "more than 8 parts"),
        (b" [[ 'a' . \"b\". " + b"a." * 7 + b"b ]]\n", "more than 8 parts"),
    ],
)
def test_what_is_not_toml_is_one_problem(data: bytes, part: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(data, packs=PACKS, base_dir="/")
    assert len(caught.value.problems) == 1
    assert part in caught.value.problems[0].message


def test_faults_are_bounded() -> None:
    assert len(problems("".join(f"k{i} = 1\n" for i in range(5000)))) == MAX_PROBLEMS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["10.20.0.0/16", "10.9.9.9"]', '["10.9.9.9"]'),
        ('["10.20.0.0/16", "10.9.9.9"]', '["169.254.0.0/16"]'),
        ('["10.20.0.0/16", "10.9.9.9"]', '["198.18.0.0/15"]'),
        ('["10.20.0.0/16", "10.9.9.9"]', '["fd12:3456::/32"]'),
        ('alpn = ["http/1.1"]', 'alpn = ["h2", "http/1.1"]'),
        ('source = "keyring:credgate/github"', 'source = "file:/run/secrets/github"'),
        ('source = "keyring:credgate/github"', 'source = "file:~/.config/github/token"'),
        ('source = "keyring:credgate/github"', 'source = "env:GITHUB_TOKEN"'),
        ('deadline = "2h"', 'deadline = "90m"'),
        (
            'place = "header:authorization"\nformat = "Bearer {secret}"',
            'place = "basic"\nformat = "x-access-token:{secret}"',
        ),
        ('methods = ["PUT"]\n', ""),
    ],
)
def test_neighbours_of_the_faults_load(old: str, new: str) -> None:
    load(changed(old, new))


def _faults(data: bytes) -> int:
    """How many faults; any other exception than PolicyError comes through and fails the test."""
    try:
        load_policy(data, packs=PACKS, base_dir="/")
    except PolicyError as fault:
        return len(fault.problems)
    return 0


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_without_a_version_never_load(data: bytes) -> None:
    assert _faults(data) > 0 or b"version" in data


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 40), st.text(max_size=6))
def test_a_damaged_policy_loads_or_has_faults_but_never_breaks_the_loader(start: int, length: int, put: str) -> None:
    text = WHOLE[:start] + put + WHOLE[start + length :]
    assert _faults(text.encode("utf-8", "surrogatepass")) >= 0
