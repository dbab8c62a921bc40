"""What a policy takes from elsewhere, by one npm in the jail: its registry from the host's npm, its token from a vault,
a key from a command, and a target that the role's word chooses. The servers are the witnesses.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site, endpoint
from tests.targets import bao
from tests.targets.bao import Bao
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "clients", "npm", "nginx", "curl")

LLM = "llm.acme.example"
POLICY = """
[secret.vault-token]
source = "keyring:credgate/vault-token"
[endpoint.vault]
host = "vault.acme.example"
dial_port = {vault}
address = ["127.0.0.1"]
ca = "vault.pem"
[vault.corp]
endpoint = "vault"
token = "vault-token"
[secret.npm]
source = "vault:corp/secret/data/npm#token"
keep = "1m"
[secret.cloud]
source = "command:~/bin/cloud-key"
output = "json"
[endpoint.npm]
host_from = "npm"
dial_port = {npm}
address = ["127.0.0.1"]
ca = "ca.pem"
[[endpoint.npm.allow]]
pack = "npm-install"
[endpoint.llm]
host = "llm.acme.example"
route = {{ default = "cloud", sensitive = "local" }}
[[endpoint.llm.allow]]
id = "chat"
methods = ["GET"]
paths = ["/private/**", "/echo/**"]
[binding.npm]
secret = "npm"
endpoint = "npm"
rules = ["npm-install"]
place = "header:authorization"
format = "Bearer {{secret}}"
mode = "placeholder"
placeholder = {{ env = "NPM_TOKEN", shape = "npm_{{30}}{{crc32}}" }}
[binding.cloud]
secret = "cloud"
endpoint = "cloud"
rules = ["all"]
place = "header:authorization"
format = "Bearer {{secret}}"
[role.dev]
bindings = ["npm", "cloud"]
endpoints = ["llm", "other"]
workdir = "write"
show = [".npmrc"]
[role.sensitive]
bindings = ["npm", "cloud"]
endpoints = ["llm"]
route = "sensitive"
workdir = "write"
show = [".npmrc"]
[role.bare]
endpoints = ["npm"]
workdir = "write"
show = [".npmrc"]
[role.none]
workdir = "write"
show = [".npmrc"]
"""
SLASH = 'methods = ["GET"]\npaths = ["/*"]\nencoded_slash = true'
INSTALL = "npm install --no-audit --no-fund --fetch-retries=0 --cache /tmp/cache"
ASK = "curl -sS -o /dev/null -w '%{http_code}\\n' -H 'Authorization: Bearer mine' https://" + LLM + "/private/x"


@pytest.fixture(scope="module")
def vault(target_state: Path) -> Iterator[Bao]:
    state = target_state / "sources-vault"
    state.mkdir()
    with bao.serving(state) as running:
        yield running


def set_up(site: Site, vault: Bao, npm: Target, cloud: Target, local: Target, other: Target) -> None:
    """The host's own npm names the registry; the work tree's .npmrc names the variable, as one that is committed."""
    text = "version = 1\n" + POLICY.format(vault=vault.port, npm=npm.port)
    site.policy(
        text + endpoint(cloud, "cloud") + endpoint(local, "local") + endpoint(other, "other", allow=SLASH), npm.ca
    )
    site.write("policy/vault.pem", vault.ca.read_text())
    site.write(".npmrc", f"registry=https://{npm.host}/\n")
    hosts = (npm.host, other.host)
    site.write("work/.npmrc", "".join(f"//{host}/:_authToken=${{NPM_TOKEN}}\n" for host in hosts))
    said = json.dumps({"value": "%s%s", "expires_in": 3600})
    halves = f"{cloud.token[:9]} {cloud.token[9:]}"  # whole, the home's own scan would find it in the script
    site.write("bin/cloud-key", f"#!/bin/sh\nprintf '{said}' {halves}\n").chmod(0o755)
    site.scan.add("cloud", cloud.token)
    site.scan.add("npm", npm.token)
    site.secret("vault-token", vault.token)
    vault.api("secret/data/npm", {"data": {"token": npm.token}})


def test_a_scoped_package_a_vault_a_command_and_a_route(
    site: Site, vault: Bao, npm_target: Target, https_target: Target, http_target: Target, h2_target: Target
) -> None:
    set_up(site, vault, npm_target, https_target, http_target, h2_target)
    real, cloud = f"Bearer {npm_target.token}", f"Bearer {https_target.token}"

    # bound: the real token out of the vault, a decoy inside, and the scope's slash as npm encodes it
    done = site.run("sh", "-c", f'{INSTALL} @acme/greeting && echo "$NPM_TOKEN" && {ASK}', flags=["--role", "dev"])
    assert done.returncode == 0, done.stdout + done.stderr
    decoy, status = done.stdout.splitlines()[-2:]
    assert decoy.startswith("npm_") and decoy != npm_target.token
    assert status == "200"
    assert (site.work / "node_modules/@acme/greeting/package.json").exists()
    seen = npm_target.seen(count=4)
    assert {request.authorization for request in seen} == {real}
    assert "/@acme%2fgreeting" in {request.path for request in seen}
    assert {(r.host, r.authorization) for r in https_target.seen(count=1)} == {(https_target.host, cloud)}
    assert http_target.seen() == []
    registries = site.ledger(ev="run.start")[0]["registries"]
    assert registries == [f"npm https://{npm_target.host}:443"]
    assert {line["rule"] for line in site.ledger(ev="mint") if "rule" in line} == {"vault.corp"}

    # the same decoy at an endpoint that it is not bound to: refused, and the target saw nothing
    away = site.run(
        "sh", "-c", f"{INSTALL} --registry=https://{h2_target.host}/ @acme/greeting", flags=["--role", "dev"]
    )
    assert away.returncode != 0
    assert [line["reason"] for line in site.ledger(ev="deny", host=h2_target.host)] == ["placeholder_misplaced"]
    assert h2_target.seen() == []

    # the role's word: the local one, without any key
    https_target.forget()
    done = site.run("sh", "-c", ASK, flags=["--role", "sensitive"])
    assert done.stdout == "401\n", done.stderr
    assert [(r.host, r.authorization) for r in http_target.seen(count=1)] == [(http_target.host, "")]
    assert https_target.seen() == []

    # a role without the binding, and one without the endpoint
    npm_target.forget()
    again = f"NPM_TOKEN={decoy} {INSTALL} --force --registry=https://{npm_target.host}/ acme-words"
    site.write("work/again.sh", again)  # a decoy among the arguments would be refused before the start
    bare = site.run("sh", "again.sh", flags=["--role", "bare"])
    none = site.run("sh", "again.sh", flags=["--role", "none"])
    assert 125 not in (bare.returncode, none.returncode)
    assert bare.returncode != 0 and none.returncode != 0
    assert {request.authorization for request in npm_target.seen(count=1)} == {""}
    assert [line["reason"] for line in site.ledger(ev="deny", host=npm_target.host)] == ["host_unlisted"]
    told = "".join(path.read_text() for path in (site.state / "ledger").glob("seg-*.jsonl"))
    assert not any(value in told for value in (npm_target.token, https_target.token, vault.token))
