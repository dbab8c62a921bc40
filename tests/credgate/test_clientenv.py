"""The environment of the command: what the role names, what clients need, and nothing else of the caller's."""

import dataclasses
import subprocess

import pytest

from credgate.clientenv import BUNDLE_NAMES, NO_PROXY, PROXY_NAMES, Inside, build_environment
from credgate.errors import CredgateError
from credgate.trust import INSIDE_BUNDLE

INSIDE = Inside(
    gateway="10.213.0.1",
    proxy_port=3128,
    user="ann",
    home="/home/ann",
    cwd="/work",
    path=("/opt/agent/bin", "/usr/bin"),
    shell="/bin/sh",
    git=(),
    git_hosts=("git.acme.example",),
    ssh=False,
)
CALLER = {
    "TERM": "xterm",
    "LC_ALL": "C",
    "BIRD": "wren",
    "FISH": "carp",
    "AWS_SECRET_ACCESS_KEY": "x",
    "HTTP_PROXY": "http://theirs",
}


def made(
    caller: dict[str, str] = CALLER, allowed: tuple[str, ...] = (), named: tuple[str, ...] = (), **decoys: str
) -> dict[str, str]:
    return build_environment(caller, allowed, named, decoys, INSIDE)


def test_nothing_of_the_caller_passes_unnamed() -> None:
    env = made()
    assert (env["TERM"], env["LC_ALL"]) == ("xterm", "C")
    assert not {"BIRD", "FISH", "AWS_SECRET_ACCESS_KEY"} & env.keys()
    assert "theirs" not in str(env)


@pytest.mark.parametrize("name", ["LC_TOKEN", "LC_", "LC_ALL_", "TERMINAL", "PYTHONPATH", "LD_PRELOAD", "BASH_ENV"])
def test_names_that_only_look_harmless(name: str) -> None:
    assert name not in made({name: "value"})


def test_the_role_names_and_the_flag_narrows() -> None:
    assert {"BIRD", "FISH"} <= made(allowed=("BIRD", "FISH")).keys()
    narrowed = made(allowed=("BIRD", "FISH"), named=("FISH",))
    assert ("BIRD" in narrowed, narrowed["FISH"]) == (False, "carp")


def test_the_flag_widens_nothing() -> None:
    with pytest.raises(CredgateError) as caught:
        made(allowed=("BIRD",), named=("FISH",))
    assert (caught.value.code, caught.value.exit_status) == ("env_not_listed", 125)


def test_a_name_that_the_caller_lacks_is_not_made_up() -> None:
    assert "GOAT" not in made(allowed=("GOAT",))


def test_what_finds_the_gateway_cannot_be_overridden() -> None:
    hostile = dict.fromkeys([*PROXY_NAMES, *BUNDLE_NAMES, "NO_PROXY", "PATH", "HOME", "TMPDIR"], "hostile")
    env = made(hostile, allowed=tuple(hostile))
    assert "hostile" not in env.values()
    assert {env[name] for name in PROXY_NAMES} == {"http://10.213.0.1:3128"}
    assert {env[name] for name in BUNDLE_NAMES} == {INSIDE_BUNDLE}


def test_loopback_alone_goes_around_the_proxy() -> None:
    assert made()["NO_PROXY"].split(",") == made()["no_proxy"].split(",") == ["localhost", "127.0.0.1", "::1"]


@pytest.mark.parametrize("value", ["[::1]", "::1/128", "*", ".example", "localhost,[::1]"])
def test_an_inherited_no_proxy_is_not_taken_over(value: str) -> None:
    """These crash clients, or switch the proxy off."""
    env = made({"NO_PROXY": value, "no_proxy": value})
    assert env["NO_PROXY"] == env["no_proxy"] == NO_PROXY


def test_the_path_is_ours_and_names_each_directory_once() -> None:
    path = made({"PATH": ".:/evil"})["PATH"].split(":")
    assert path[:2] == ["/opt/agent/bin", "/usr/bin"]
    assert len(path) == len(set(path))
    assert not {".", "", "/evil"} & set(path)


def test_decoys_are_set_last() -> None:
    assert made({"API_TOKEN": "real"}, allowed=("API_TOKEN",), API_TOKEN="decoy")["API_TOKEN"] == "decoy"


@pytest.mark.needs("git")
def test_git_reads_its_part_as_meant() -> None:
    env = {**made(), "PATH": "/usr/bin:/bin"}

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], env=env, capture_output=True, text=True, check=True, cwd="/")
        return done.stdout.splitlines()

    assert git("config", "--get-all", "url.https://git.acme.example/.insteadOf") == [
        "git@git.acme.example:",
        "ssh://git@git.acme.example/",
    ]
    assert git("config", "--get-all", "credential.helper")[-1] == ""


@pytest.mark.needs("git")
def test_git_says_why_ssh_goes_nowhere() -> None:
    def said(env: dict[str, str]) -> str:
        where = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "GIT_SSH_COMMAND": "sh -c 'echo theirs >&2; exit 255'", **env}
        asked = ["git", "ls-remote", "git@other.example:a/b"]
        done = subprocess.run(asked, env=where, capture_output=True, text=True, check=False, cwd="/", timeout=90)
        assert done.returncode == 128
        return done.stderr

    assert 'To pass: an endpoint with host = "other.example" in the role' in said(made())
    assert said(made()).count("credgate:") == 1
    has_one = build_environment(CALLER, (), (), {}, dataclasses.replace(INSIDE, ssh=True))
    assert said(has_one).startswith("theirs")  # a role with a port for ssh uses it
