"""The first files of an agent's home: git's identity, beside what the profile has (tests/e2e/test_agents.py)."""

import os
import subprocess
from pathlib import Path

import pytest

from credgate.seeding import seeded
from rules.agents import Agent, Seed

FALLBACK = Agent(name="a", seeds=(Seed(path="~/.gitconfig", text="[user]\nname = a\n"),))


def files(home: Path, agent: Agent | None = None, shown: tuple[str, ...] = ()) -> dict[str, str]:
    made = dict(seeded(agent or Agent(name="a"), str(home), "/w", {}, shown))
    return {path.removeprefix(f"{home}/"): text for path, text in made.items()}


def as_git_reads(text: str, tmp_path: Path, key: str) -> str:
    config = tmp_path / "read"
    config.write_text(text)
    ask = ["git", "config", "--file", str(config), "--get", key]
    return subprocess.run(ask, capture_output=True, text=True, check=True).stdout[:-1]


@pytest.mark.needs("git")
@pytest.mark.parametrize("name", ["Ann Acme", 'Ann "the \\ one" Acme', "Ünal; # [x]"])
def test_name_and_address_are_taken_and_nothing_else(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/config").write_text("[user]\n\tname = Older\n\temail = older@acme.example\n")
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    (home / ".gitconfig").write_text('[core]\n\tfsmonitor = ./evil\n[url "https://t:secret@h/"]\n\tinsteadOf = h:\n')
    subprocess.run(["git", "config", "--global", "user.name", name], env=env, check=True)
    (text,) = files(home).values()
    assert as_git_reads(text, tmp_path, "user.name") == name
    assert as_git_reads(text, tmp_path, "user.email") == "older@acme.example"
    assert "evil" not in text and "secret" not in text


def test_who_has_none_gets_none_or_the_profiles(tmp_path: Path) -> None:
    assert files(tmp_path) == {}
    assert files(tmp_path, FALLBACK) == {".gitconfig": "[user]\nname = a\n"}
    (tmp_path / ".gitconfig").write_text("[user]\nname = Ann\n")
    assert files(tmp_path, FALLBACK) == {".gitconfig": '[user]\n\tname = "Ann"\n'}


def test_a_file_of_the_users_own_in_the_jail_stays(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[user]\nname = Ann\n")
    assert files(tmp_path, FALLBACK, (str(tmp_path / ".gitconfig"),)) == {}
    assert seeded(None, str(tmp_path), "/w", {}, ()) == ()


def test_a_pipe_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".gitconfig")
    assert files(tmp_path) == {}
