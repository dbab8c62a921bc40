"""What the report at a run's end says of a path: unasked, asked, or nothing."""

import pytest

from rules.executed import When, bundled, by_name
from rules.islands import ISLANDS, RESERVED, executes

UNASKED = [
    "vendor/new/.git/hooks/pre-commit",
    ".git/hooks/post-checkout",
    ".git/modules/lib/hooks/pre-push",
    ".git/modules/lib/config",
    "x/.git/config",
    ".git/commondir",
    ".git/worktrees/x/gitdir",
    ".gitlab-ci.yml",
    "packages/a/.vscode/tasks.json",
    "a/.claude/settings.json",
    ".github/workflows/x.yml",
    "deep/er/.envrc",
    "my.code-workspace",
    "Jenkinsfile",
    ".mcp.json",
    ".git",
    "vendor/new/.git",
    "HEAD",
    "x.git/HEAD",
    "innocent/HEAD",
    ".hg/sharedpath",
    "sub/.hg",
    ".jj/repo",
    "a/.config",
]
ASKED = [
    "Makefile",
    "a/GNUmakefile",
    "rules.mk",
    "package.json",
    "setup.py",
    "tests/conftest.py",
    "vite.config.ts",
    ".eslintrc.cjs",
    ".gitattributes",
    ".gitmodules",
    "Dockerfile.dev",
    "docker-compose.override.yml",
    ".cargo/config.toml",
    "a/.mvn/jvm.config",
    "AGENTS.md",
    ".git/rebase-merge/git-rebase-todo",
    "x.pth",
]
NOTHING = [
    "README.md",
    "src/main.py",
    ".git/index",
    ".git/HEAD",
    ".git/refs/heads/config",
    ".git/logs/hooks/x",
    ".git/hooks/pre-commit.sample",
    ".git/objects/ab/config",
    ".github/ISSUE_TEMPLATE.md",
    "vscode/tasks.json",
    "x.git/config",
    "x.git",
    "docs/HEAD.md",
    ".git/refs/remotes/origin/HEAD",
    "mypackage.json",
]


def test_paths() -> None:
    def said(paths: list[str]) -> dict[str, When | None]:
        return {path: found.when if (found := by_name(path)) else None for path in paths}

    assert said(UNASKED) == dict.fromkeys(UNASKED, When.UNASKED)
    assert said(ASKED) == dict.fromkeys(ASKED, When.ASKED)
    assert said(NOTHING) == dict.fromkeys(NOTHING)


@pytest.mark.parametrize("island", ISLANDS, ids=lambda island: island.path)
def test_every_island_is_executed_wherever_it_lies(island) -> None:
    assert executes(island.path) == island.who
    assert executes(f"a/b/{island.path}") == island.who
    assert executes(f"{island.path}/below") == island.who
    assert executes(f"{island.path}x") == ""


def test_what_is_reserved_is_an_island() -> None:
    assert set(RESERVED) <= {island.path for island in ISLANDS}


def test_dependencies_count_as_one() -> None:
    assert bundled("web/node_modules/x/package.json") == "web/node_modules/"
    assert bundled(".venv/bin/python") == ".venv/"
    assert bundled("node_modules") == ""
    assert bundled("src/x.py") == ""


def test_a_directory_says_nothing_where_what_is_in_it_is_judged() -> None:
    """A link of its name would lead somewhere else."""
    for path in (".git", "sub/.hg", ".github", "a/.config", "HEAD"):
        assert by_name(path, directory=True) is None
        assert by_name(path) is not None
    for path in (".vscode", ".claude"):
        assert by_name(path, directory=True) is not None
