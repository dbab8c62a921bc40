"""Fixtures: real servers on loopback, each with a credential that it checks and a witness of what reached it.

The servers last for the session; each test that asks for one starts with an empty witness.
"""

import contextlib
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.needs import need
from tests.targets import content, hub, registry
from tests.targets.pki import Authority
from tests.targets.served import Target, clean_env, free_port, running

HTTPS_TARGET = Path(__file__).with_name("https_target.py")


@pytest.fixture(scope="session")
def target_state() -> Iterator[Path]:
    """A directory that an ordinary user can enter (pytest's own are closed to all but their owner)."""
    path = Path(tempfile.mkdtemp(prefix="credgate-targets-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def authority(target_state: Path) -> Authority:
    """The CA of all targets but `untrusted_target`."""
    return Authority(target_state, "acme-ca")


@contextlib.contextmanager
def https_target_at(
    state: Path,
    authority: Authority,
    host: str,
    *,
    tls: bool = True,
    script: Path = HTTPS_TARGET,
    more: Sequence[str] = (),
) -> Iterator[Target]:
    """The Python target (see https_target.py, or another `script` of its kind) for `host`, its files in a new directory
    below `state`. `more`: further names that it answers to.
    """
    home = Path(tempfile.mkdtemp(prefix=f"{host}-", dir=state))
    token = f"sk-acme-{secrets.token_hex(20)}"
    (home / "token").write_text(token)
    argv = [sys.executable, "-I", str(script), "--state", str(home)]
    if tls:
        pair = authority.issue(host, more=more)
        argv += ["--certificate", str(pair.certificate), "--key", str(pair.key)]
    port = home / "port"
    with running(argv, ready=lambda: port.exists() and port.read_text() != "", log=home / "server.log"):
        yield Target(
            host=host,
            port=int(port.read_text()),
            ca=authority.ca,
            token=token,
            witness=home / "witness.jsonl",
            access_log=home / "access.log",
            tls=tls,
        )


@pytest.fixture(scope="session")
def _https_server(target_state: Path, authority: Authority) -> Iterator[Target]:
    with https_target_at(target_state, authority, "api.acme.example") as target:
        yield target


@pytest.fixture(scope="session")
def _http_server(target_state: Path, authority: Authority) -> Iterator[Target]:
    with https_target_at(target_state, authority, "plain.acme.example", tls=False) as target:
        yield target


@pytest.fixture(scope="session")
def _untrusted_server(target_state: Path) -> Iterator[Target]:
    with https_target_at(target_state, Authority(target_state, "rogue-ca"), "rogue.acme.example") as target:
        yield target


@pytest.fixture(scope="session")
def _registry_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def _hub(target_state: Path, authority: Authority, _registry_port: int) -> Iterator[hub.Hub]:
    state = target_state / "hub"
    state.mkdir(mode=0o700)  # its files hold the credentials in the clear
    with hub.serving(state, authority, _registry_port) as served:
        yield served


@pytest.fixture(scope="session")
def _npm_server(target_state: Path, _hub: hub.Hub, _registry_port: int) -> Iterator[Target]:
    state = target_state / "registry"
    state.mkdir(mode=0o700)
    with registry.serving(state, _registry_port) as token:
        target = _hub.targets["npm"]
        target.token = token
        yield target


def _fresh(target: Target) -> Target:
    target.forget()
    return target


def _from_hub(request: pytest.FixtureRequest, name: str, *features: str) -> Target:
    need(request.node, "nginx", *features)
    served: hub.Hub = request.getfixturevalue("_hub")
    if "git" in features:
        content.restore_repository(served.repository, clean_env(served.repository))
    return _fresh(served.targets[name])


@pytest.fixture
def https_target(_https_server: Target) -> Target:
    """api.acme.example: HTTPS, HTTP/1.1, bearer token on /private/**; behaviours by path (https_target.py)."""
    return _fresh(_https_server)


@pytest.fixture
def http_target(_http_server: Target) -> Target:
    """plain.acme.example: the same without TLS."""
    return _fresh(_http_server)


@pytest.fixture
def untrusted_target(_untrusted_server: Target) -> Target:
    """rogue.acme.example: the same, by a CA of its own; the `ca` that clients would need is not `authority.ca`."""
    return _fresh(_untrusted_server)


@pytest.fixture
def git_target(request: pytest.FixtureRequest) -> Target:
    """git.acme.example: /acme/app.git as new, clone and push, Basic `x-access-token`, HTTP/1.1."""
    return _from_hub(request, "git", "git")


@pytest.fixture
def git_h2_target(request: pytest.FixtureRequest) -> Target:
    """The same repository, by a listener that offers HTTP/2."""
    return _from_hub(request, "git_h2", "git")


@pytest.fixture
def git_repository(request: pytest.FixtureRequest) -> Path:
    """The bare repository behind both, for looking at what a push left."""
    served: hub.Hub = request.getfixturevalue("_hub")
    return served.repository


@pytest.fixture
def pypi_target(request: pytest.FixtureRequest) -> Target:
    """pypi.acme.example: /simple/, packages of content.WHEELS, Basic `__token__`."""
    return _from_hub(request, "pypi")


@pytest.fixture
def h2_target(request: pytest.FixtureRequest) -> Target:
    """h2.acme.example: HTTP/2 (and 1.1), bearer token on every path."""
    return _from_hub(request, "h2")


@pytest.fixture
def npm_target(request: pytest.FixtureRequest) -> Target:
    """npm.acme.example: verdaccio, packages of content.PACKAGES, bearer token for everything."""
    need(request.node, "nginx", "npm")
    target: Target = request.getfixturevalue("_npm_server")
    return _fresh(target)
