"""What the host executes of files that a run made or changed: for the report at its end. Pure, by paths alone.

Two words. "unasked": what `rules.islands` lists, wherever it lies. "asked": what is executed once somebody builds,
tests, installs or continues; it is an agent's ordinary work, and named so that somebody looks before he does.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from rules.hiding import DEPENDENCIES
from rules.islands import executes, leads
from rules.samenames import folded

__all__ = ["ASKED", "Executed", "When", "bundled", "by_name"]


class When(StrEnum):
    """How it comes to be executed."""

    UNASKED = "unasked"
    ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """`who` executes it, in words for people."""

    when: When
    who: str


def _names(who: str, *patterns: str) -> tuple[str, str]:
    return "|".join(patterns), who


# Regular expressions for whole names, and who executes what they say. Sources: the tools' own documentation.
ASKED: tuple[tuple[str, str], ...] = (
    _names(
        "make, CMake", r"(?:GNU)?[Mm]akefile(?:\..+)?|.+\.(?:mk|mak)", r"CMakeLists\.txt|.+\.cmake|CMakePresets\.json"
    ),
    _names("a build", r"configure(?:\.ac|\.in)?|meson\.build|SConstruct|wscript|[Jj]ustfile|Taskfile\.ya?ml|Tiltfile"),
    _names("Bazel", r"BUILD(?:\.bazel)?|WORKSPACE|MODULE\.bazel|\.bazelrc|.+\.bzl"),
    _names("a task runner", r"Earthfile|Procfile|dodo\.py|tasks\.py|fabfile\.py"),
    _names("Python's builds and tests", r"setup\.py|setup\.cfg|pyproject\.toml|tox\.ini|noxfile\.py|conftest\.py"),
    _names(
        "Python and its tools", r"pytest\.ini|(?:site|user)customize\.py|.+\.pth|\.pylintrc|\.flake8|mypy\.ini|\.pdbrc"
    ),
    _names(
        "npm and its kin",
        r"package\.json|\.yarnrc(?:\.yml)?|\.pnpmfile\.cjs|\.pnp\.c?js|binding\.gyp|(?:lerna|nx)\.json",
    ),
    _names("node's tools", r".+\.config\.[cm]?[jt]s|\.(?:eslint|prettier|babel|stylelint)rc\.[cm]?js"),
    _names("node's tools", r"[Gg]ulpfile\..+|Gruntfile\..+"),
    _names("Ruby, PHP", r"Gemfile|.+\.gemspec|Rakefile|\.irbrc|\.pryrc|\.rspec|composer\.json|phpunit\.xml(?:\.dist)?"),
    _names("Gradle", r"(?:build|settings|init)\.gradle(?:\.kts)?|gradle\.properties|gradle-wrapper\..+"),
    _names("Maven, Ant", r"pom\.xml|build\.xml"),
    _names("Cargo, Go", r"build\.rs|Cargo\.toml|rust-toolchain(?:\.toml)?|go\.work"),
    _names(".NET", r".+\.(?:cs|fs|vb)proj|Directory\.Build\..+"),
    _names("containers", r"Dockerfile(?:\..+)?|Containerfile|(?:docker-)?compose(?:\..+)?\.ya?ml"),
    _names("machines", r"Vagrantfile|.+\.tf|ansible\.cfg"),
    _names("Nix, asdf", r"flake\.nix|shell\.nix|default\.nix|devbox\.json|\.tool-versions"),
    _names("a debugger", r"\.gdbinit|\.lldbinit"),
    _names("git: drivers, and where submodules come from", r"\.gitattributes|\.gitmodules|\.lfsconfig"),
    _names("the next agent, which obeys it", r"(?:CLAUDE|AGENTS|GEMINI|QWEN|copilot-instructions)\.md"),
    _names("the next agent, which obeys it", r"\.cursorrules|\.windsurfrules"),
)
_ASKED = tuple((re.compile(pattern, re.DOTALL), who) for pattern, who in ASKED)
_BELOW = ((".cargo/config", "Cargo"), (".cargo/config.toml", "Cargo"), (".mvn", "Maven"))
# Below a git directory; hooks that end in .sample git leaves alone.
_GIT = re.compile(r"(?:.*/)?(?:hooks/(?!.*\.sample$)[^/]+|config|config\.worktree|commondir|gitdir)", re.DOTALL)
_GIT_ASKED = re.compile(r"(?:.*/)?(?:rebase-merge|rebase-apply|sequencer)/(?:git-rebase-todo|todo|done)", re.DOTALL)
# gitrepository-layout(5), git-rev-parse(1): any directory of the tree can be one that git takes hooks and config from,
# where a file or a link `.git` leads there, or where it has a HEAD, as bare repositories do (safe.bareRepository).
_REPOSITORY = {
    ".git": "git, with any command there: it says where the repository is",
    "HEAD": "git, with any command there: it makes a bare repository of its directory",
}
_ENVIRONMENTS = frozenset({".venv", "venv", ".tox", ".nox"})


def by_name(path: str, *, directory: bool = False) -> Executed | None:
    """Judge a relative path; None: its name says nothing. directory: it is one, else a file or a link.

    What a file system may take for a name that is executed unasked counts as one, whatever the tree lies on.
    """
    found = _judged(path, directory=directory)
    if found is not None and found.when is When.UNASKED:
        return found
    other = folded(path)
    taken = _judged(other, directory=directory) if other != path else None
    return taken if taken is not None and taken.when is When.UNASKED else found


def _judged(path: str, *, directory: bool) -> Executed | None:
    before, inside, rest = path.rpartition(".git/")
    if inside and (not before or before.endswith("/")):
        return _of_git(rest)
    name = path.rpartition("/")[2]
    who = executes(path) or ("" if directory else _REPOSITORY.get(name, "") or leads(path))
    if who:
        return Executed(when=When.UNASKED, who=who)
    asked = next((who for pattern, who in _ASKED if pattern.fullmatch(name)), "")
    asked = asked or next((who for part, who in _BELOW if f"/{part}/" in f"/{path}/"), "")
    return Executed(when=When.ASKED, who=asked) if asked else None


def _of_git(rest: str) -> Executed | None:
    if _GIT.fullmatch(rest) and not rest.startswith(("objects/", "refs/", "logs/", "lfs/objects/")):
        return Executed(when=When.UNASKED, who="git, with any command")
    return Executed(when=When.ASKED, who="git rebase --continue") if _GIT_ASKED.fullmatch(rest) else None


def bundled(path: str) -> str:
    """The directory of installed dependencies that a path lies in, with its slash; "" for none. They count as one."""
    parts = path.split("/")
    for number, part in enumerate(parts[:-1]):
        if part in DEPENDENCIES or part in _ENVIRONMENTS:
            return "/".join(parts[: number + 1]) + "/"
    return ""
