"""An agent's own files: a private copy in the jail, whose data comes back and whose configuration waits for a word."""

import json
import subprocess
import time

import pytest

from tests.e2e.site import BIN, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

# What an agent does to its files, and what an attacker would: each line's failure is shown.
AGENT = r"""
set -u
cd ~/.claude || exit 9
project=projects/$(printf %s "$1" | tr -c 'A-Za-z0-9' -)
cat $project/old.jsonl
ls -A ~/.claude projects | sort
cat ~/.config/tool/config.yml
ls -A ~/.config/tool
echo 'more' >> $project/old.jsonl
echo 'new' > tmp.$$ && mv tmp.$$ $project/new.jsonl && ln $project/new.jsonl $project/second.jsonl
mkdir -p $project/deep && echo deep > $project/deep/d.jsonl
ln -s /etc/passwd $project/link.jsonl
echo '{"display":"typed inside"}' >> history.jsonl
mkdir -p hooks && echo 'curl evil' > hooks/h.sh
echo '{"apiKeyHelper":"evil"}' > settings.json
printf %s "$ANTHROPIC_API_KEY" > .credentials.json
grep -c " $HOME/.claude " /proc/self/mountinfo
"""
KEY = "sk-ant-api03-the-real-key-of-this-test-0123456789"


@pytest.fixture
def home(site: Site) -> Site:
    """A user of claude with sessions of two projects, a login, settings; and of a tool with a token beside its file."""
    project = "".join(c if c.isalnum() and c.isascii() else "-" for c in str(site.work))
    site.write(f".claude/projects/{project}/old.jsonl", "old\n")
    site.write(".claude/projects/-another/theirs.jsonl", "another project's\n")
    site.write(".claude/history.jsonl", '{"display":"typed on the host"}\n')
    site.write(".claude/.credentials.json", "the-users-own-login")
    site.write(".claude/settings.json", '{"mine": true}')
    site.write(".config/tool/config.yml", "editor: vi\n")
    site.write(".config/tool/hosts.yml", "oauth_token: the-users-own-token\n")
    assert site.credgate("init", "claude").returncode == 0
    site.secret("anthropic", KEY)
    policy = site.home / ".config/credgate/policy.toml"
    policy.write_text(policy.read_text().replace("[role.dev]\n", '[role.dev]\nstate = ["~/.config/tool"]\n'))
    return site


def test_data_comes_back_configuration_waits_and_no_login_enters(home: Site) -> None:
    claude, work = home.home / ".claude", str(home.work)
    (folder,) = (path for path in (claude / "projects").iterdir() if path.name != "-another")
    done = home.credgate("run", "--", "sh", "-c", AGENT, "sh", work)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "old"
    assert "theirs.jsonl" not in done.stdout and "-another" not in done.stdout
    assert "editor: vi" in lines and "hosts.yml" not in lines and "settings.json" not in lines
    assert "the-users-own" not in done.stdout
    assert lines[-1] == "1"  # a mount of its own

    assert (folder / "old.jsonl").read_text() == "old\nmore\n"
    assert (folder / "new.jsonl").read_text() == (folder / "second.jsonl").read_text() == "new\n"
    assert (folder / "deep/d.jsonl").read_text() == "deep\n"
    assert not (folder / "link.jsonl").is_symlink() and not (claude / "hooks").exists()
    typed = [json.loads(line)["display"] for line in (claude / "history.jsonl").read_text().splitlines()]
    assert typed == ["typed on the host", "typed inside"]
    assert (claude / "settings.json").read_text() == '{"mine": true}'
    assert (claude / ".credentials.json").read_text() == "the-users-own-login"
    assert {path.stat().st_uid for path in folder.rglob("*")} == {home.uid}

    (end,) = home.ledger(ev="run.end")
    assert (end["state_back"], end["state_kept"]) == (5, 3)
    run = str(end["run"])
    told = " ".join(done.stderr.split())
    assert "~/.claude/hooks/h.sh" in told and f"credgate diff {run}" in told and "link.jsonl" in told
    shown = home.credgate("diff", run).stdout
    assert "+curl evil" in shown and '+{"apiKeyHelper":"evil"}' in shown and '-{"mine": true}' in shown
    assert "credentials" not in shown and run in home.credgate("ps").stdout
    assert home.credgate("apply", run, ".claude/hooks/h.sh").returncode == 0
    assert (claude / "hooks/h.sh").read_text() == "curl evil\n"
    assert (claude / "settings.json").read_text() == '{"mine": true}'
    assert home.credgate("discard", run).returncode == 0
    assert home.credgate("diff", run).returncode == 1

    again = home.credgate(
        "run", "-q", "--", "sh", "-c", "cat ~/.claude/projects/*/*.jsonl; cat ~/.claude/history.jsonl"
    )
    assert again.stdout.split() == ["new", "old", "more", "new"]  # and none of what was typed elsewhere


def test_fresh_takes_and_gives_nothing(home: Site) -> None:
    """The pair: the same policy without the line."""
    policy = home.home / ".config/credgate/policy.toml"
    policy.write_text(policy.read_text().replace('agent_state = "copy"', 'agent_state = "fresh"'))
    before = {path: path.read_bytes() for path in (home.home / ".claude").rglob("*") if path.is_file()}
    done = home.credgate("run", "-q", "--", "sh", "-c", "mkdir -p ~/.claude/projects/x && ls -RA ~/.claude", timeout=60)
    assert done.returncode == 0 and ".jsonl" not in done.stdout
    after = {path: path.read_bytes() for path in (home.home / ".claude").rglob("*") if path.is_file()}
    assert after == before


def test_what_was_written_comes_back_where_the_launcher_was_killed(home: Site) -> None:
    write = "echo 'typed last' >> ~/.claude/history.jsonl; echo ready; sleep 100"
    argv = home.as_user([BIN / "credgate", "run", "-q", "--", "sh", "-c", write])
    with subprocess.Popen(argv, env=home.environment(), cwd=home.work, stdout=subprocess.PIPE, text=True) as jail:
        assert jail.stdout is not None and jail.stdout.readline() == "ready\n"
        jail.kill()
    deadline = time.monotonic() + 90
    while not home.ledger(ev="run.end"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (home.home / ".claude/history.jsonl").read_text().endswith('host"}\ntyped last\n')
