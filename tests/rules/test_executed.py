"""What the report at a run's end says of a path: unasked, asked, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.executed import When, bundled, by_name
from rules.islands import ISLANDS, RESERVED, Island, executes
from rules.naming import Naming
from rules.samenames import folded

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


ALIKE = [
    ".GIT/hooks/post-checkout",
    "sub/.Git/config",
    ".git./hooks/x",
    ".git /config",
    ".git::$INDEX_ALLOCATION/config",
    "git~1/config",
    "GIT~2/hooks/x",
    ".g\u200cit/config",
    ".GitHub/Workflows/x.yml",
    "GITHUB~1/workflows/x.yml",
    "claude~1/settings.json",
    ".ENVRC",
    "jenkinsFILE",
    "head",
    "x.Code-Workspace",
    "sub/.GIT",
]
OTHERS = [
    "src/header.h",
    "a:b",
    "...",
    ". .",
    "src/hooks/x",
    "Config",
    "~1",
    "gitter~1/config",
    "vscode/x",
    "README.md",
]


def test_what_a_file_system_takes_for_such_a_name_counts_as_one() -> None:
    """A work tree on one that tells no case: there git runs hooks out of `.GIT`."""
    found = {path: by_name(path) for path in (*ALIKE, *OTHERS)}
    assert {path for path, found in found.items() if found is not None} == set(ALIKE)
    assert all(found is None or found.when is When.UNASKED for found in found.values())
    naming = Naming.of(("deploy/",), (), ())
    assert all(naming.why(path).startswith("executed by the host unasked") for path in ALIKE)
    assert not any(map(naming.why, OTHERS))
    assert naming.why("Deploy/x") == naming.why("deploy/x") == "held by the role's readonly"


@given(st.sampled_from(ISLANDS), st.integers(0, 2**64 - 1), st.sampled_from(["", ".", " ", "::$DATA", "\u200d"]))
def test_an_island_is_one_in_any_case(island: Island, bits: int, behind: str) -> None:
    mixed = "".join(c.upper() if bits >> n & 1 else c.lower() for n, c in enumerate(island.path))
    found = by_name(f"a/{mixed}{behind}")
    assert found is not None and (found.when, found.who) == (When.UNASKED, island.who)


@given(st.text("aA.~:1 git/\u200c", max_size=30))
def test_twice_is_as_once(path: str) -> None:
    assert folded(folded(path)) == folded(path)
