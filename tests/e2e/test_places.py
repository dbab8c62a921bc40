"""A client in a real jail with decoys in its environment: the target checks each place, its own log is the witness."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e.place import Live, module_site
from tests.e2e.site import Site
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

PLACES = {  # place, format, shape
    "scheme": ("header:x-odd", "Token token={secret}", "ghp_{30}{crc32}"),
    "basic": ("basic", "agent:{secret}", "glpat-{20:base64url}"),
    "query": ("query:api_key", "{secret}", "AIza{35:base64url}"),
    "cookie": ("cookie:session", "{secret}", "jwt"),
    "path": ("path:token", "bot{secret}", "{10:digits}:AA{33:base64url}"),
    "json": ("json:auth.token", "{secret}", "sk-ant-api03-{93:base64url}AA"),
    "form": ("form:client_secret", "{secret}", "xoxb-{12:digits}-{12:digits}-{24}"),
}
HEAD = """
version = 1
[secret.api]
source = "keyring:credgate/api"
[endpoint.api]
host = "api.acme.example"
dial_port = {port}
address = ["127.0.0.1"]
ca = "ca.pem"
[[endpoint.api.allow]]
id = "free"
methods = ["GET", "POST"]
paths = ["/echo", "/echo/*"]
"""
RULE = """
[[endpoint.api.allow]]
id = "{name}"
methods = ["POST"]
paths = ["/place/{path}"]
{body}
[binding.{name}]
secret = "api"
endpoint = "api"
rules = ["{name}"]
place = "{place}"
format = "{format}"
mode = "placeholder"
placeholder = {{ env = "D_{env}", shape = "{shape}" }}
"""
# Asks for each place with the decoys of its environment, or with those it is told, and prints the statuses.
CLIENT = """
import base64, json, os, sys, time, urllib.error, urllib.request
told = json.load(open(sys.argv[2]))
d = {name: told.get(name) or os.environ['D_' + name.upper()] for name in sys.argv[1].split()}
def ask(path, body=b'x', **headers):
    fields = {name.replace('_', '-'): value for name, value in headers.items()}
    request = urllib.request.Request('https://api.acme.example' + path, body, fields)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return json.loads(error.read())['error']['code'] if error.code == 403 else error.code
FORM = dict(content_type='application/x-www-form-urlencoded')
JSON = dict(content_type='application/json')
def basic(user): return 'Basic ' + base64.b64encode(f'agent:{user}'.encode()).decode()
def each(d):
    return {
        'scheme': ask('/place/scheme', x_odd='Token token=' + d['scheme'], authorization='Bearer mine'),
        'basic': ask('/place/basic', authorization=basic(d['basic'])),
        'query': ask('/place/query?page=1&api_key=' + d['query'] + '&token=mine'),
        'cookie': ask('/place/cookie', cookie='theme=dark; session=' + d['cookie']),
        'path': ask('/place/path/bot' + d['path'] + '/getMe'),
        'json': ask('/place/json', json.dumps({'auth': {'token': d['json'], 'n': 1}}).encode(), **JSON),
        'form': ask('/place/form', ('a=1&client_secret=' + d['form']).encode(), **FORM),
    }
turned = dict(zip(d, [*list(d.values())[1:], next(iter(d.values()))]))
out = {
    'placed': each(d),
    'turned': each(turned),
    'elsewhere': {
        'scheme': ask('/echo', authorization='Bearer ' + d['scheme']),
        'basic': ask('/echo', authorization=basic(d['basic'])),
        'query': ask('/echo?api_key=' + d['query']),
        'cookie': ask('/echo', cookie='session=' + d['cookie']),
        'path': ask('/echo/bot' + d['path']),
    },
    'quoted': ask('/echo', json.dumps({'said': d}).encode(), **JSON),
    'environ': dict(os.environ),
}
print(json.dumps(out), flush=True)
if told.get('wait'):
    time.sleep(60)
"""


def policy(port: int) -> str:
    text = HEAD.format(port=port)
    for name, (where, form, shape) in PLACES.items():
        body = f'body = {{ type = "{name}" }}' if name in ("json", "form") else ""
        path = "path/{token}/getMe" if name == "path" else name
        text += RULE.format(name=name, place=where, format=form, shape=shape, path=path, body=body, env=name.upper())
    return f"{text}[role.dev]\nbindings = {json.dumps(list(PLACES))}\n"


@pytest.fixture
def site(place: Site, https_target: Target) -> Iterator[Site]:
    place.secret("api", https_target.token)
    place.policy(policy(https_target.port), https_target.ca)
    return place


def command(site: Site, **told: object) -> list[str]:
    """What it is told lies in a file: a run with what looks like a credential among its arguments is refused."""
    name = f"told-{len(told)}.json"
    site.write(f"work/{name}", json.dumps(told))
    return [site.python(), "-I", "-c", CLIENT, " ".join(PLACES), name]


def test_each_place_in_a_jail_and_no_other_one(site: Site, https_target: Target) -> None:
    with Live(site, *command(site, wait=True)) as mine:
        said = json.loads(mine.line())
        assert said["placed"] == dict.fromkeys(PLACES, 200)
        assert said["turned"] == dict.fromkeys(PLACES, "placeholder_misplaced")
        assert set(said["elsewhere"].values()) == {"placeholder_misplaced"}
        assert said["quoted"] == 200
        assert https_target.token not in json.dumps(said)
        seen = [(s.path.partition("?")[0].split("/")[2], s.status) for s in https_target.seen() if "/place/" in s.path]
        assert seen == [(name, 200) for name in PLACES]
        decoys = {name: said["environ"][f"D_{name.upper()}"] for name in PLACES}
        other = json.loads(site.run(*command(site, **decoys)).stdout)
        assert other["placed"] == dict.fromkeys(PLACES, "placeholder_misplaced")
        assert set(other["elsewhere"].values()) == {"placeholder_misplaced"}
        assert other["quoted"] == 200
        assert len([s for s in https_target.seen() if "/place/" in s.path]) == len(PLACES)
    lines = site.ledger(run=mine.run, ev="intent")
    assert [(line["path"], line.get("binding")) for line in lines][: len(PLACES)] == [
        ("/place/path/{path}/getMe" if name == "path" else f"/place/{name}", name) for name in PLACES
    ]
    assert https_target.token not in json.dumps(site.ledger())
