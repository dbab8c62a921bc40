"""Islands and hidden files of a work tree, in whole runs: what an agent may not change or see, beside what it may."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.e2e.place import Live, daemon_pid, module_site, one_error, wait_for
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "git")
place = pytest.fixture(scope="module")(module_site)

WRITE = 'version = 1\n[role.dev]\nworkdir = "write"\n'
KEY = "-----BEGIN PRIVATE KEY-----\nnot one\n"
SECRET = "hunter2-of-the-test"


@pytest.fixture
def site(place: Site) -> Site:
    """A new work tree with a repository in it, another one below, and what may not be seen."""
    shutil.rmtree(place.work)
    place.work.mkdir()
    place.own(place.work)
    place.policy(WRITE)
    host(place, "git init -q -b main . && git config user.email a@b.test && git config user.name a")
    for name, text in {
        ".env": f"PASSWORD={SECRET}\n",
        "config/prod.env": f"PASSWORD={SECRET}\n",
        "config/tls.key": KEY,
        "config/ca.pem": "-----BEGIN CERTIFICATE-----\nAAAA\n",
        ".env.example": "PASSWORD=\n",
        ".gitlab-ci.yml": "test: {}\n",
        ".envrc": "export A=1\n",
        ".claude/settings.json": "{}\n",
        "src/main.py": "print()\n",
        ".gitignore": ".env\n*.key\n",
    }.items():
        place.write(f"work/{name}", text)
    # Older than the index: what is as new as that git reads again, gitindex's "racy" entries.
    host(place, "find . -type f -exec touch -d 2020-01-01 {} + && git add -A && git commit -qm first")
    host(place, "git init -q vendor/sub")
    return place


def host(site: Site, code: str) -> str:
    done = subprocess.run(
        site.as_user(["sh", "-euc", code]),
        cwd=site.work,
        env=site.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tried(site: Site, attempts: dict[str, str]) -> dict[str, bool]:
    """Which of these shell commands succeed in one jail; each runs in a subshell of its own."""
    code = "".join(f"if ( {text} ) >/dev/null 2>&1; then echo '{name}'; fi\n" for name, text in attempts.items())
    done = site.run("bash", "-c", code)
    assert done.returncode == 0, done.stderr
    return {name: name in done.stdout.splitlines() for name in attempts}


# Each is an attempt of row 17: planting what the host runs later. The control does the same on the host.
PLANTED = {
    "hook": "echo true > .git/hooks/pre-commit",
    "hook of a repository below": "echo true > vendor/sub/.git/hooks/pre-commit",
    "git config": "git config core.fsmonitor true",
    "git config by hand": "echo '[core]' >> .git/config",
    "config of a repository below": "echo '[core]' >> vendor/sub/.git/config",
    "commondir": "echo ../evil > .git/commondir",
    "ci": "echo 'x: {}' > .gitlab-ci.yml",
    "workflow": "echo 'on: push' > .github/workflows/x.yml",
    "editor": "echo '{}' > .vscode/tasks.json",
    "agent": "echo '{}' > .claude/settings.json",
    "direnv": "echo true > .envrc",
    "chmod": "chmod +x .git/hooks/*.sample && chmod 777 .git/hooks",
    "hooks aside": "mv .git/hooks .git/hooks2 && mv .git/hooks2 .git/hooks",
    "git aside": "mv .git .git2 && mv .git2 .git",
    "below aside": "mv vendor/sub/.git vendor/x && mv vendor/x vendor/sub/.git",
    "parent aside": "mv vendor vendor2 && mv vendor2 vendor",
    "file removed": "mv .envrc /tmp/.envrc && cp /tmp/.envrc .envrc",
    "file replaced": "echo true > new && mv -f new .envrc",
    "linked over": "ln -f src/main.py .envrc",
}
UNSEEN = {
    "env": 'test -n "$(cat .env)"',
    "env below": 'test -n "$(cat config/prod.env)"',
    "key": 'test -n "$(cat config/tls.key)"',
    "env written": "echo A=1 >> .env",
    "env moved": "mv .env x && mv x .env",
    "env linked": 'ln .env x && test -n "$(cat x)"; rm x',
    "env opened up": "chmod 600 .env",
    "hidden after a rename of its directory": "mv config c2; cat c2/tls.key > /tmp/k; mv c2 config; test -s /tmp/k",
}
FREE = {
    "source": "echo 'print(1)' > src/main.py",
    "example": "grep -q PASSWORD .env.example",
    "certificate": "grep -q CERTIFICATE config/ca.pem",
    "rename": "mv src s2 && mv s2 src",
    "commit": "git add src && git commit -qm second",
    "branch": "git branch b && git checkout -q b && git checkout -q main && git merge -q b",
    "stash": "echo 'print(2)' > src/main.py && git stash -q && git stash pop -q && git commit -qam third",
    "tag and gc": "git tag v1 && git gc -q && git fsck",
    "clone": "git clone -q . /tmp/clone && git -C /tmp/clone log",
    "fetch": "git fetch -q /tmp/clone main",
    "push": "git push -q /tmp/clone main:other",
    "worktree": "git worktree add -q /tmp/wt && git worktree list && git worktree remove /tmp/wt",
    "rebase": "git checkout -q b && echo x > y && git add y && git commit -qm y && git rebase -q main",
    "commit below": "cd vendor/sub && git commit -q --allow-empty -m one",
    "new repository": "git init -q fresh && git -C fresh config user.name x",
    "hook runs": "test -x .git/hooks/pre-push",
}


def test_islands_hidden_files_and_what_is_left_free(site: Site) -> None:
    hook = site.write("work/.git/hooks/pre-push", "#!/bin/sh\n")
    hook.chmod(0o755)
    before = host(site, "find .git/hooks .git/config .envrc .env config -type f -exec sha256sum {} +")
    inside = tried(site, {**PLANTED, **UNSEEN, **FREE})
    assert {name for name in {**PLANTED, **UNSEEN} if inside[name]} == set()
    assert {name for name in FREE if not inside[name]} == set()
    after = host(site, "find .git/hooks .git/config .envrc .env config -type f -exec sha256sum {} +")
    assert after == before
    for name in (".vscode", ".github", ".idea", ".cursor", ".circleci", ".git/commondir"):
        assert not (site.work / name).exists(), name  # made for the run, gone with it
    outside = {  # the control: on the host each of them is done
        name: subprocess.run(
            site.as_user(["bash", "-c", f"mkdir -p .vscode .github/workflows; {text}"]),
            cwd=site.work,
            env=site.environment(),
            capture_output=True,
            check=False,
        ).returncode
        for name, text in {**PLANTED, **UNSEEN}.items()
    }
    assert set(outside.values()) == {0}, outside


def status_of(site: Site, code: str) -> tuple[dict, str]:
    """The exit line's `files` of a run, and what it said on stderr; not quiet."""
    reader, writer = os.pipe()
    policy = site.home / "policy/policy.toml"
    argv = ["run", "--policy", policy, "--status-fd", str(writer), "--", "bash", "-euc", code]
    try:
        done = site.credgate(*argv, pass_fds=[writer])
    finally:
        os.close(writer)
    assert done.returncode == 0, done.stderr
    with os.fdopen(reader) as lines:
        return json.loads(lines.readlines()[-1])["files"], done.stderr


def test_what_was_planted_elsewhere_is_reported(site: Site) -> None:
    quiet, said = status_of(site, "echo 'print(3)' > src/main.py; git commit -qam x")
    assert (quiet["unasked_count"], quiet["asked_count"]) == (0, 0)  # the control: an agent's plain work
    assert "executed" not in said
    assert "hidden: .env, config/prod.env, config/tls.key, " in said
    assert "perhaps secret and not hidden: .envrc, " in said
    code = """
    git clone -q . vendor/new; printf '#!/bin/sh\n' > vendor/new/.git/hooks/post-checkout
    mkdir -p packages/a/.vscode; echo '{}' > packages/a/.vscode/tasks.json
    touch -d 2001-01-01 packages/a/.vscode/tasks.json
    echo 'x: {}' > .travis.yml
    printf '#!/bin/sh\n' > run.sh; chmod +x run.sh; echo 'all:' > Makefile; echo '{}' > package.json
    """
    found, said = status_of(site, code)
    assert {"packages/a/.vscode/tasks.json", ".travis.yml", "vendor/new/.git/hooks/post-checkout"} <= set(
        found["unasked"]
    )
    assert {"run.sh", "Makefile", "package.json"} <= set(found["asked"])
    assert "new or changed, and executed by the host unasked: .travis.yml, " in said
    ended = site.ledger(ev="run.end")[-1]
    assert (ended["runs_unasked_count"], ended["runs_unasked"]) == (found["unasked_count"], found["unasked"])
    started = site.ledger(ev="run.start")[-1]
    assert started["hidden"] == [".env", "config/prod.env", "config/tls.key"]
    assert started["protected"] > 10


def test_a_repository_made_where_none_was_is_reported(site: Site) -> None:
    shutil.rmtree(site.work / ".git")
    code = "git init -q .; git config core.fsmonitor ./evil; echo true > .git/hooks/pre-commit"
    found, said = status_of(site, code)
    assert {".git/config", ".git/hooks/pre-commit"} <= set(found["unasked"])
    assert ".git/config" in said
    shutil.rmtree(site.work / ".git")
    site.policy(WRITE + 'readonly = [".git/"]\n')  # who wants it reserved says so
    done = site.run("git", "init", "-q", ".")
    assert done.returncode != 0
    assert not (site.work / ".git").exists()


def test_a_roles_own_lists(site: Site) -> None:
    for name in ("deploy/up.sh", "a/deploy/x", "private/note", "a.p12x", "t/.env"):
        site.write(f"work/{name}", f"{SECRET}\n")
    lists = 'readonly = ["deploy/", "fresh/"]\nhide = ["*.p12x", "private/"]\nshow = ["t/.env"]\n'
    closed = {
        "deploy": "echo x > deploy/up.sh",
        "deploy below": "touch a/deploy/new",
        "fresh": "mkdir -p fresh && touch fresh/x",
        "hidden": "test -s a.p12x && cat a.p12x",
        "directory": "ls private",
        "in directory": "touch private/new",
        "directory aside": "mv private p2 && mv p2 private",
    }
    site.policy(WRITE + lists)
    inside = tried(site, {**closed, "shown": f"grep -q {SECRET} t/.env", "free": "touch a/new"})
    assert inside == {**dict.fromkeys(closed, False), "shown": True, "free": True}
    site.policy(WRITE)
    inside = tried(site, {**closed, "shown": f"grep -q {SECRET} t/.env"})
    assert inside == {**dict.fromkeys(closed, True), "shown": False}  # control: the built-in lists alone


def test_a_read_only_tree_hides_as_well(site: Site) -> None:
    site.policy("version = 1\n[role.dev]\n")
    inside = tried(site, {**UNSEEN, "source": "test -s src/main.py", "git": "git log && git status"})
    assert {name for name, went in inside.items() if went} == {"source", "git"}
    assert not (site.work / ".vscode").exists()


def test_a_run_ends_when_the_host_replaces_an_island(site: Site) -> None:
    """And not when it changes what is beside one, or makes a file in one."""
    with Live(site, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done") as run:
        assert run.line() == "up\n"
        host(site, "echo y > src/main.py; mv src s2; mv s2 src; touch .claude/new.json; git commit -qam y")
        assert run.process.poll() is None
        host(site, "git config user.name b")  # a lock file that is renamed over it
        ended = run.end()
    assert (ended["reason"], ended["status"]) == ("alarm", 137)
    assert site.ledger(ev="alarm", run=run.run, reason="mount_changed")


def test_two_runs_in_one_tree_and_a_daemon_that_is_killed(site: Site) -> None:
    with Live(site, "sleep", "300") as first:
        assert (site.work / ".vscode").is_dir()
        assert site.run("true").returncode == 0
        assert (site.work / ".vscode").is_dir()  # the first one holds it
        assert first.process.poll() is None  # and its mounts are as they were
        os.kill(daemon_pid(site), signal.SIGKILL)
        first.end()
    assert (site.work / ".vscode").is_dir()
    assert site.credgate("gateway", "start").returncode == 0
    wait_for(lambda: not (site.work / ".vscode").exists(), "the next daemon to clear up")
    assert not (site.work / ".git/commondir").exists()


def test_a_tree_with_too_much_to_hold_is_refused(site: Site) -> None:
    for number in range(2100):
        (site.work / f"{number}.p12").touch()
    done = site.run("touch", "marker")
    assert done.returncode == 125
    assert "places to protect or hide, at most 2000" in one_error(done.stderr)[0]
    assert not (site.work / "marker").exists()
