"""What the host executes out of a work tree without being asked to: the built-in islands, read-only in every jail.

Without being asked: because a directory is entered, an editor or an agent opened, a commit made, a branch pushed. What
is executed when somebody runs it (a Makefile, a test) is no island, an agent's work consists of it; the report at the
end of a run names it (`rules.executed`).

Paths are relative to a root: the work tree, and each repository in it. Sources: the tools' own documentation.
"""

from dataclasses import dataclass

__all__ = ["GIT", "ISLANDS", "LINKED", "PATTERNS", "RESERVED", "Island", "executes", "leads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """`path` below a root; `who` executes what it says, and when."""

    path: str
    who: str


def _islands(who: str, paths: str) -> tuple[Island, ...]:
    return tuple(Island(path=path, who=who) for path in paths.split())


ISLANDS: tuple[Island, ...] = (
    *_islands("Mercurial, with any command", ".hg/hgrc .hg/hgrc-not-shared .hg/sharedpath"),
    *_islands("Jujutsu, with any command", ".jj/repo/config.toml"),
    *_islands("GitHub, Forgejo and Gitea, on a push", ".github/workflows .github/actions .forgejo .gitea"),
    *_islands("GitLab, on a push", ".gitlab-ci.yml .gitlab-ci.yaml .gitlab"),
    *_islands("CircleCI, on a push", ".circleci"),
    *_islands("Jenkins, on a push", "Jenkinsfile .jenkins"),
    *_islands("Azure Pipelines, on a push", "azure-pipelines.yml azure-pipelines.yaml .azure-pipelines .azuredevops"),
    *_islands("Bitbucket and Travis, on a push", "bitbucket-pipelines.yml .travis.yml"),
    *_islands("AppVeyor and Cirrus, on a push", "appveyor.yml .appveyor.yml .cirrus.yml .cirrus.star"),
    *_islands("Drone and Woodpecker, on a push", ".drone.yml .drone.star .woodpecker .woodpecker.yml .woodpecker.yaml"),
    *_islands("Buildkite, Semaphore, TeamCity, Tekton, on a push", ".buildkite .semaphore .teamcity .tekton"),
    *_islands("Google Cloud Build and SourceHut, on a push", "cloudbuild.yaml cloudbuild.yml .build.yml .builds"),
    *_islands("VS Code and its kin, when the folder is opened", ".vscode"),
    *_islands("JetBrains' editors, when the project is opened", ".idea .run .fleet"),
    *_islands("Zed and Helix, when the folder is opened", ".zed .helix"),
    *_islands("a dev container, when it is made", ".devcontainer .devcontainer.json"),
    *_islands("Vim and Neovim, when started here", ".exrc .vimrc .nvimrc .nvim.lua .vim"),
    *_islands("Emacs, when a file is opened", ".dir-locals.el .dir-locals-2.el"),
    *_islands("direnv and autoenv, when the directory is entered", ".envrc .autoenv .autoenv.zsh"),
    *_islands("mise, when the directory is entered", ".mise .mise.toml .mise.local.toml mise.toml mise.local.toml"),
    *_islands("mise, when the directory is entered", ".config/mise .config/mise.toml"),
    *_islands("Claude Code: hooks, MCP servers, permissions", ".claude .mcp.json"),
    *_islands("Codex and Gemini: configuration, MCP servers", ".codex .gemini .agents"),
    *_islands("Cursor and Windsurf: hooks, MCP servers", ".cursor .windsurf"),
    *_islands("OpenCode: plug-ins, MCP servers", ".opencode opencode.json opencode.jsonc"),
    *_islands("Crush: MCP servers", "crush.json .crush.json"),
    *_islands("aider: its lint and test commands", ".aider.conf.yml"),
    *_islands("Continue, Roo, Kiro, Amazon Q, Qwen, Goose, Amp", ".continue .roo .kiro .amazonq .qwen .goose .amp"),
    *_islands("GitHub Copilot: MCP servers", ".copilot"),
    *_islands("husky, on a commit", ".husky .huskyrc .huskyrc.js .huskyrc.json"),
    *_islands("pre-commit, on a commit", ".pre-commit-config.yaml"),
    *_islands("lefthook, on a commit", "lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml .lefthook"),
    *_islands("overcommit, on a commit", ".overcommit.yml .git-hooks"),
)
# Names at a root, beside the paths above, that a wildcard says.
PATTERNS: tuple[tuple[str, str], ...] = ((".code-workspace", "VS Code, when the workspace is opened"),)
# Directories that are made, empty, where they are missing at the work tree's root, so that nobody else can make them.
# Files are not: an empty one is committed by the next `git add -A`, and is a broken configuration to its reader.
RESERVED: tuple[str, ...] = (
    *(".github/workflows", ".circleci", ".vscode", ".idea", ".devcontainer"),
    *(".claude", ".codex", ".gemini", ".cursor", ".husky"),
)
# Of a git directory (gitrepository-layout(5)): what any git command of the host executes, or is led by. `hooks` and
# `commondir` are made where they are missing: whoever makes a `commondir` has git take hooks and config from elsewhere.
GIT: tuple[str, ...] = ("hooks", "config", "config.worktree", "commondir")
# Of a linked worktree's own directory below `worktrees`.
LINKED: tuple[str, ...] = ("commondir", "config.worktree", "gitdir")

_BY_FIRST: dict[str, tuple[Island, ...]] = {}
for _island in ISLANDS:
    _first = _island.path.partition("/")[0]
    _BY_FIRST[_first] = (*_BY_FIRST.get(_first, ()), _island)


_WAYS = {
    "/".join(parts[:end]): island.who
    for island in ISLANDS
    for parts in (island.path.split("/"),)
    for end in range(1, len(parts))
}


def leads(path: str) -> str:
    """Who would follow a link at this relative path to what he executes unasked; "" for nobody."""
    parts = path.split("/")
    rests = ("/".join(parts[number:]) for number in range(len(parts)))
    return next((_WAYS[rest] for rest in rests if rest in _WAYS), "")


def executes(path: str) -> str:
    """Who executes a file at this relative path, wherever in the tree its root is; "" for nobody unasked."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        rest = "/".join(parts[number:])
        for island in _BY_FIRST.get(part, ()):
            if rest == island.path or rest.startswith(island.path + "/"):
                return island.who
    return next((who for suffix, who in PATTERNS if parts[-1].endswith(suffix)), "")
