"""What the jail of a role with an agent holds before its command starts, and what a run without a policy says.

The agents themselves: tests/agents, by `scripts/test --agents`.
"""

import hashlib
import json
import subprocess
import tomllib

import pytest

from tests.e2e.place import one_error
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

KEY = "sk-proj-the-real-key-of-this-test-0123456789"
LOOK = """
cat ~/.codex/auth.json; echo ==; cat ~/.codex/config.toml; echo ==
stat -c '%a %U' ~/.codex/auth.json; echo x >> ~/.codex/config.toml && mv ~/.codex/auth.json ~/.codex/moved && echo kept
echo ==; env
"""


def test_first_files_hold_the_decoy_and_never_the_key_or_the_users_own(site: Site) -> None:
    site.write(".codex/auth.json", '{"OPENAI_API_KEY": "the-users-own-login"}')
    assert site.credgate("init", "codex").returncode == 0
    assert site.credgate("secret", "set", "openai", stdin=KEY).returncode == 0
    done = site.credgate("run", "-q", "--", "sh", "-c", LOOK)
    assert done.returncode == 0, done.stderr
    auth, config, facts, env = done.stdout.split("==\n")
    variables = dict(line.split("=", 1) for line in env.splitlines() if "=" in line)
    assert json.loads(auth) == {"auth_mode": "apikey", "OPENAI_API_KEY": variables["CODEX_API_KEY"]}
    assert variables["CODEX_API_KEY"].startswith("sk-proj-")
    assert tomllib.loads(config)["projects"] == {str(site.work): {"trust_level": "trusted"}}
    assert facts.split() == ["600", variables["USER"], "kept"]
    assert KEY not in done.stdout and "the-users-own-login" not in done.stdout
    assert (site.home / ".codex/auth.json").read_text() == '{"OPENAI_API_KEY": "the-users-own-login"}'


def test_a_tree_of_the_host_in_the_place_of_a_first_file_stops_the_run(site: Site) -> None:
    site.write(".gemini/settings.json", "{}")
    assert site.credgate("init", "gemini").returncode == 0
    site.secret("gemini", "AIza" + "k1" * 17)
    policy = site.home / ".config/credgate/policy.toml"
    policy.write_text(policy.read_text() + 'read = ["~/.gemini"]\n')
    done = site.credgate("run", "-q", "--", "true")
    assert done.returncode == 125
    assert "agent gemini: its first files hold" in done.stderr and "\nhint: take the tree out" in done.stderr


def test_a_run_of_an_agent_without_a_policy_says_in_three_lines_what_to_do(site: Site) -> None:
    done = site.credgate("run", "--", "claude", "-p", "hello")
    assert done.returncode == 125
    assert done.stderr.splitlines() == [
        "error: no policy yet, so claude may reach nothing",
        "hint: credgate init claude writes one for Claude Code, and asks for its key",
        "hint: then again: credgate run -- claude",
    ]


def test_an_agent_whose_key_was_never_kept_does_not_start(site: Site) -> None:
    assert site.credgate("init", "claude").returncode == 0
    done = site.credgate("run", "--", "touch", "mark")
    assert done.returncode == 125 and not (site.work / "mark").exists()
    error, hint = one_error(done.stderr)
    assert error.startswith("agent claude: ") and "anthropic" in error
    assert hint == "credgate secret set anthropic"


def test_a_key_on_the_command_line_is_refused_and_not_repeated(site: Site) -> None:
    key = "sk-proj-" + "Rr1" * 16
    site.policy('version = 1\n[role.dev]\nworkdir = "write"\n')
    done = site.run("sh", "-c", "touch mark", "--api-key", key)
    assert done.returncode == 125 and not (site.work / "mark").exists()
    error, hint = one_error(done.stderr)
    assert error == "argument 4 of the command looks like a credential"
    assert "credgate secret set" in hint and key not in done.stdout + done.stderr
    assert site.run("touch", "mark").returncode == 0  # control


def test_an_agent_that_is_updated_underneath_is_told_apart(site: Site) -> None:
    """By its digest in the ledger; what runs goes on."""
    program = site.write("tool/bin/agent", "#!/bin/sh\necho one; read line; echo on\n")
    program.chmod(0o755)
    run = site.start(program, stdin=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline() == "one\n"
    newer = site.write("tool/bin/newer", "#!/bin/sh\necho two\n")
    newer.chmod(0o755)
    newer.rename(program)
    said, _ = run.communicate("go\n", timeout=90)
    assert (run.returncode, said) == (0, "on\n")
    assert site.run(program).stdout == "two\n"
    first, second = site.ledger(ev="run.start")
    assert first["program_sha256"] != second["program_sha256"] == hashlib.sha256(program.read_bytes()).hexdigest()
