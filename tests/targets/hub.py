"""Starts the nginx that serves git, the package index, the HTTP/2 API, and TLS for the npm registry."""

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.features import find
from tests.targets import content
from tests.targets.pki import Authority
from tests.targets.served import Target, accepts, clean_env, free_port, running

TEMPLATE = Path(__file__).with_name("nginx.conf.in")
BASIC_USERS = {"git": "x-access-token", "pypi": "__token__"}
FAMILIES = ("git", "pypi", "npm", "h2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The targets by name (`git_h2` is git's listener that offers HTTP/2), and where git's repository lies."""

    targets: Mapping[str, Target]
    repository: Path


@contextlib.contextmanager
def serving(state: Path, authority: Authority, registry_port: int) -> Iterator[Hub]:
    """The hub, its files in `state`; npm's part answers 502 until a registry listens on `registry_port`."""
    env = clean_env(state)
    tokens = {family: f"{family}_{secrets.token_hex(18)}" for family in FAMILIES}
    ports = {name: free_port() for name in (*FAMILIES, "git_h2")}
    for family in FAMILIES:
        _give_credentials(state, authority, family, tokens[family])
    repository = content.make_repository(state / "git", env)
    content.make_index(state / "pypi")
    config = _write_config(
        state,
        git_core=_output(["git", "--exec-path"], env),
        registry_port=registry_port,
        h2_token=tokens["h2"],
        **{f"{name}_port": port for name, port in ports.items()},
    )
    argv = [_program("nginx"), "-e", str(state / "nginx.error.log"), "-c", str(config), "-p", str(state)]
    with _fcgiwrap(state), running(argv, ready=lambda: accepts(ports["h2"]), log=state / "nginx.out", env=env):
        targets = {name: _target(state, authority, name, port, tokens) for name, port in ports.items()}
        yield Hub(targets=targets, repository=repository)


def _target(state: Path, authority: Authority, name: str, port: int, tokens: Mapping[str, str]) -> Target:
    family = name.removesuffix("_h2")
    return Target(
        host=f"{family}.acme.example",
        port=port,
        ca=authority.ca,
        user=BASIC_USERS.get(family, ""),
        token=tokens[family],
        witness=state / f"{family}.witness.jsonl",
        access_log=state / f"{family}.access.log",
    )


def _give_credentials(state: Path, authority: Authority, family: str, token: str) -> None:
    pair = authority.issue(f"{family}.acme.example")
    shutil.copy(pair.certificate, state)
    shutil.copy(pair.key, state)
    if family in BASIC_USERS:
        (state / f"{family}.users").write_text(f"{BASIC_USERS[family]}:{{PLAIN}}{token}\n")


def _write_config(state: Path, **values: object) -> Path:
    text = TEMPLATE.read_text().partition("\n\n")[2]
    # As root, nginx would give its workers to an account that cannot read the state directory's sockets.
    user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
    for name, value in {"user": user, "state": state, **values}.items():
        text = text.replace(f"@{name.upper()}@", str(value))
    assert "@" not in text, "a name in nginx.conf.in was not filled in"
    path = state / "nginx.conf"
    path.write_text(text)
    return path


@contextlib.contextmanager
def _fcgiwrap(state: Path) -> Iterator[None]:
    sock = state / "fcgiwrap.sock"
    argv = [_program("fcgiwrap"), "-c", "2", "-s", f"unix:{sock}"]
    with running(argv, ready=sock.exists, log=state / "fcgiwrap.log", env=clean_env(state)):
        yield


def _program(name: str) -> str:
    path = find(name)
    assert path, f"no {name}: scripts/test installs it"
    return path


def _output(argv: list[str], env: Mapping[str, str]) -> str:
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
