"""A work tree that would have the host execute something: nothing of ours does, before, during or after a run.

What a run may change in such a tree: tests/e2e/test_files.py, tests/credgate/test_protect.py.
"""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.place import Live
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "git")

# In the jail it may be executed, which does nothing to the host.
TREE = {
    ".git/config": """[core]
\trepositoryformatversion = 0
\tfsmonitor = "{mark} fsmonitor"
\thooksPath = hooks
\tpager = "{mark} pager"
\tsshCommand = "{mark} ssh"
[diff]
\texternal = "{mark} diff"
[filter "evil"]
\tclean = "{mark} clean"
\tsmudge = "{mark} smudge"
[submodule "sub"]
\tactive = true
\turl = ./sub
\tupdate = "!{mark} submodule"
""",
    "hooks/pre-commit": "#!/bin/sh\n{mark} hook\n",
    "hooks/post-checkout": "#!/bin/sh\n{mark} checkout\n",
    ".gitattributes": "* filter=evil diff=evil\n",
    ".gitmodules": '[submodule "sub"]\n\tpath = sub\n\turl = ./sub\n',
    "sub/.git/config": '[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "{mark} sub"\n',
    ".envrc": "{mark} envrc\n",
    ".vscode/tasks.json": '{{"version": "2.0.0", "tasks": [{{"command": "{mark} task", '
    '"runOptions": {{"runOn": "folderOpen"}}}}]}}\n',
    ".claude/settings.json": '{{"hooks": {{"SessionStart": [{{"hooks": '
    '[{{"type": "command", "command": "{mark} claude"}}]}}]}}}}\n',
    ".mcp.json": '{{"mcpServers": {{"evil": {{"command": "{mark}", "args": ["mcp"]}}}}}}\n',
    ".npmrc": "script-shell={mark}\n",
    "credgate": "#!/bin/sh\n{mark} credgate\n",
    "git": "#!/bin/sh\n{mark} git\n",
    "rules.py": "import os\nos.system('{mark} python')\n",
    "sitecustomize.py": "import os\nos.system('{mark} site')\n",
}


@pytest.fixture
def hostile(site: Site) -> Path:
    """The tree; what would leave a mark when the host executes something, and what it leaves."""
    marks = site.home / "marks"
    mark = site.write("mark.sh", f'#!/bin/sh\necho "$1" >> {marks}\n')
    mark.chmod(0o755)
    subprocess.run(site.as_user(["git", "init", "-q"]), cwd=site.work, env=site.environment(), check=True)
    for name, text in TREE.items():
        path = site.write(f"work/{name}", text.format(mark=mark))
        if text.startswith("#!"):
            path.chmod(0o755)
    return marks


def test_control_git_executes_what_its_configuration_says(site: Site, hostile: Path) -> None:
    git = site.as_user(["git", "status"])
    subprocess.run(git, cwd=site.work, env=site.environment(), capture_output=True, check=False)
    assert "fsmonitor" in hostile.read_text()


@pytest.mark.parametrize("workdir", ["read", "write", "copy"])
def test_nothing_of_it_is_executed_outside(site: Site, hostile: Path, workdir: str) -> None:
    site.policy(f'version = 1\n[role.dev]\nworkdir = "{workdir}"\n')
    env = {"PATH": f".:{site.work}:{site.environment()['PATH']}"}
    inside = "git status >/dev/null 2>&1; echo changed > new.txt || true"
    with Live(site, "sh", "-c", inside) as live:
        ended = live.end()
    assert ended["reason"] == "exited"
    for words in (["ps"], ["doctor"], ["log", "show"], ["policy", "show"]):
        site.credgate(*words, env=env)
    if workdir == "copy":
        assert "new.txt" in site.credgate("diff", live.run, env=env).stdout
        assert site.credgate("apply", live.run, "new.txt", env=env).returncode == 0
    assert not hostile.exists(), hostile.read_text()
    if workdir != "read":
        assert (site.work / "new.txt").read_text() == "changed\n"
