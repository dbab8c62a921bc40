"""The npm registry of the tests: verdaccio, with a user, two published packages, and no way to the outside."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

from tests.features import find
from tests.targets.content import PACKAGES, make_npm_package
from tests.targets.served import accepts, clean_env, running

USER = "acme-ci"

CONFIG = """\
storage: {state}/storage
auth: {{htpasswd: {{file: {state}/htpasswd, max_users: 10}}}}
uplinks: {{}}
packages:
  '**': {{access: $authenticated, publish: $authenticated, unpublish: $authenticated}}
web: {{enable: false}}
server: {{keepAliveTimeout: 60}}
log: {{type: stdout, format: json, level: warn}}
"""


def program() -> Path:
    """verdaccio's start script, where `scripts/test` installed it from tests/targets/npm/package-lock.json."""
    home = os.environ.get("CREDGATE_TEST_REGISTRY")
    if home is None:
        ask = ["bash", "-euc", "for part in say python host tools; do . scripts/lib/$part.sh; done; registry_home"]
        checkout = Path(__file__).parents[2]
        home = subprocess.run(ask, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()
    path = Path(home, "node_modules/verdaccio/bin/verdaccio")
    assert path.exists(), f"no npm registry in {home}: scripts/test installs it"
    return path


@contextlib.contextmanager
def serving(state: Path, port: int) -> Iterator[str]:
    """Serves PACKAGES by plain HTTP on the loopback port; gives a bearer token that the registry issued."""
    node = find("node")
    assert node, "no node"
    (state / "config.yaml").write_text(CONFIG.format(state=state))
    argv = [node, str(program()), "--config", str(state / "config.yaml"), "--listen", f"127.0.0.1:{port}"]
    with running(argv, ready=lambda: accepts(port), log=state / "registry.log", env=clean_env(state)):
        token = _new_user(port)
        for name in PACKAGES:
            _publish(make_npm_package(state / "packages", name), state, port, token)
        yield token


def _new_user(port: int) -> str:
    body = json.dumps({"name": USER, "password": os.urandom(12).hex()})
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("PUT", f"/-/user/org.couchdb.user:{USER}", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    assert answer.status == 201, said
    token: str = json.loads(said)["token"]
    return token


def _publish(package: Path, state: Path, port: int, token: str) -> None:
    npmrc = state / "npmrc"
    npmrc.touch(mode=0o600)
    npmrc.write_text(f"registry=http://127.0.0.1:{port}/\n//127.0.0.1:{port}/:_authToken={token}\n")
    env = clean_env(state, NPM_CONFIG_USERCONFIG=str(npmrc), NPM_CONFIG_UPDATE_NOTIFIER="false")
    npm = find("npm")
    assert npm, "no npm"
    done = subprocess.run(
        [npm, "publish", "--access", "public"],
        cwd=package,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
