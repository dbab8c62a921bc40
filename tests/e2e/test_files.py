"""Islands and hidden files of a work tree, in whole runs: what an agent may not change or see, beside what it may."""

import shutil
import subprocess

import pytest

from tests.e2e.place import module_site
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
