"""Agent CLIs as npm installs them, with the policy that `credgate init` writes, on a fresh home.

Only the API host is allowed, and it is a stand-in that wants the real key: each turn has a tool call that edits a file
and commits it, then an answer. Everything else that the agents ask for is refused.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agents.tmux import Screen
from tests.e2e.site import BIN, PATH, Site
from tests.targets.fixtures import https_target_at
from tests.targets.pki import Authority
from tests.targets.served import Target

pytestmark = [pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "node", "git")]

SCRIPT = Path(__file__).parents[1] / "targets/llm_target.py"
HOME = Path(os.environ["CREDGATE_TEST_AGENTS"])
ANSWER, ASK = "the word is pomegranate", "call the shell"
# What is left of the run, as one stream: environment and files. The key's name is not in the command.
LOOK = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; find ~ /tmp /run -xdev -type f -size -8M -exec cat {} +"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    """One agent: where it asks, and how it is started for one turn."""

    name: str
    host: str
    secret: str
    argv: tuple[str, ...]
    decoy: str  # the variable that holds it
    screen: tuple[str, ...]  # how it is started for a person
    prompt: str  # on its screen once it may be typed at
    patience: float = 20.0  # seconds until a refusal has ended it


CLIS = (
    Cli(
        name="claude",
        host="api.anthropic.com",
        secret="anthropic",
        argv=("claude", "-p", "--dangerously-skip-permissions"),
        decoy="ANTHROPIC_API_KEY",
        screen=("claude",),
        prompt="for shortcuts",
    ),
    Cli(
        name="codex",
        host="api.openai.com",
        secret="openai",
        argv=("codex", "exec", "--skip-git-repo-check"),
        decoy="CODEX_API_KEY",
        screen=("codex",),
        prompt="Ask Codex to do anything",
    ),
    Cli(
        name="gemini",
        host="generativelanguage.googleapis.com",
        secret="gemini",
        argv=("gemini", "--approval-mode", "yolo", "-p"),
        decoy="GEMINI_API_KEY",
        screen=("gemini",),
        prompt="Type your message",
    ),
    Cli(
        name="opencode",
        host="api.anthropic.com",
        secret="anthropic",
        argv=("opencode", "run", "-m", "anthropic/claude-sonnet-4-5"),
        decoy="ANTHROPIC_API_KEY",
        screen=("opencode", "-m", "anthropic/claude-sonnet-4-5"),
        prompt="Ask anything",
        patience=60.0,  # tries again by itself: 11 s on an idle machine, 31 s measured on a busy one
    ),
)


@pytest.fixture(params=CLIS, ids=[cli.name for cli in CLIS])
def cli(request: pytest.FixtureRequest) -> Cli:
    """Each of the four."""
    found: Cli = request.param
    return found


@pytest.fixture
def api(cli: Cli, target_state: Path, authority: Authority) -> Iterator[Target]:
    """The stand-in under the name of the real API host."""
    with https_target_at(target_state, authority, cli.host, script=SCRIPT) as target:
        yield target


@pytest.fixture
def ready(site: Site, cli: Cli, api: Target) -> Site:
    """A site with the agent's own policy, the key kept, a repository as work tree, and the agent on PATH."""
    site.env["PATH"] = f"{HOME / 'bin'}:{PATH}"
    text = site.credgate("init", cli.name, "--print").stdout
    line = next(line for line in text.splitlines() if line.startswith("pack = "))
    here = f'address = ["127.0.0.1"]\ndial_port = {api.port}\nca = "ca.pem"'
    site.policy(text.replace(line, f"{line}\n{here}", 1), api.ca)
    site.secret(cli.secret, api.token)
    git = ["git", "-C", str(site.work), "init", "-q", "-b", "main"]
    subprocess.run(site.as_user(git), env=site.environment(), check=True)
    return site


def saw(api: Target) -> set[str]:
    """The keys that arrived, in whichever header."""
    names = ("x-api-key", "x-goog-api-key", "authorization")
    heads = [dict(line["headers"]) for line in api.lines() if line["event"] == "request"]  # type: ignore[call-overload]
    values = [v.removeprefix("Bearer ") for head in heads for k, v in head.items() if k.lower() in names]
    return set(values)


def test_a_turn_with_a_tool_call_that_edits_and_commits(ready: Site, cli: Cli, api: Target) -> None:
    done = ready.run(*cli.argv, f"please {ASK} now", timeout=110)
    told = json.dumps(ready.ledger(ev="deny"), indent=0)[-3000:]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:] + told
    assert ANSWER in done.stdout + done.stderr, done.stdout + done.stderr[-3000:] + told
    assert (ready.work / "fruit.txt").read_text() == "quince\n"
    log = ["git", "-C", str(ready.work), "log", "--format=%s"]
    assert subprocess.check_output(ready.as_user(log), env=ready.environment(), text=True) == "fruit\n"
    assert saw(api) == {api.token}
    assert api.token not in done.stdout + done.stderr


def test_no_real_key_is_in_the_jail_after_a_turn(ready: Site, cli: Cli, api: Target) -> None:
    policy = ready.home / "policy/policy.toml"
    ready.policy(policy.read_text().replace("bindings =", f'tools = ["{HOME}"]\nbindings =', 1), api.ca)
    turn = f"""{HOME}/bin/"$@" 'say a word' </dev/null || exit; printf '\\n====\\n'; {LOOK}"""
    argv = ready.as_user([BIN / "credgate", "run", "-q", "--policy", policy, "--", "sh", "-c", turn, "sh", *cli.argv])
    place = {"env": ready.environment(), "cwd": ready.work}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=110, check=False, **place)
    said, mark, left = done.stdout.partition(b"\n====\n")
    assert mark and ANSWER.encode() in said + done.stderr, said[-2000:] + done.stderr[-3000:]
    decoy = next(v for k, _, v in (line.partition(b"=") for line in left.splitlines()) if k == cli.decoy.encode())
    assert left.count(decoy) >= 2  # the look finds what is there
    assert api.token.encode() not in done.stdout + done.stderr
    assert saw(api) == {api.token}


@pytest.mark.needs("tmux")
def test_on_a_screen_it_asks_nothing_first_and_answers(ready: Site, cli: Cli, api: Target) -> None:
    run = [BIN / "credgate", "run", "-q", "--policy", ready.home / "policy/policy.toml", "--", *cli.screen]
    with Screen(ready, run) as screen:
        screen.until(cli.prompt)
        screen.type("say a word")
        screen.until(ANSWER)
    assert saw(api) == {api.token}


def test_a_refusal_ends_it_soon_and_reaches_the_user(ready: Site, cli: Cli, api: Target) -> None:
    policy = ready.home / "policy/policy.toml"
    text = policy.read_text()
    allow = text.index("[[endpoint.")
    at = text.index("\n", text.index("pack = ", allow)) + 1
    ready.policy(f'{text[:at]}rules = ["read"]\n{text[at:]}', api.ca)
    begun = time.monotonic()
    done = ready.run(*cli.argv, "say a word", timeout=60)
    assert done.returncode != 0
    assert time.monotonic() - begun < cli.patience
    assert "No rule" in done.stdout + done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    assert not any(line["method"] == "POST" for line in api.lines() if line["event"] == "request")
