"""A real service manager of a user: it gives the daemon a scope, and moves a process of a login session into it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jail.cgroups import hierarchies
from tests.jail.forked import NOBODY

pytestmark = pytest.mark.needs("root", "user_manager")

HERE = Path(__file__).parent
ASK = """
import json, os, subprocess, sys, time
from credgate.scope import in_scope
from jail import cgroups
def own(pid): return open(f"/proc/{pid}/cgroup").read().splitlines()[-1].partition("::")[2]
argv = in_scope(["/bin/sh", "-c", "echo up; exec sleep 60"], os.environ)
daemon = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
assert daemon.stdout.readline() == "up\\n"
scope = own(daemon.pid)
directory = "/sys/fs/cgroup" + scope
told = {"scope": scope, "owner": os.stat(directory).st_uid, "same process": own(os.getpid()) != scope}
for name in ("daemon", "r1"): os.mkdir(f"{directory}/{name}")
cgroups._write(f"{directory}/daemon/cgroup.procs", str(daemon.pid))
other = subprocess.Popen(["sleep", "60"])
told["before"] = own(other.pid)
cgroups._attach(scope.rpartition("/")[2], "r1", other.pid)
told["after"] = own(other.pid)
try: cgroups._attach("credgate-none.scope", "r1", other.pid)
except OSError as error: told["refused"] = str(error)
told["is ours"] = cgroups._is_scope(scope)
other.kill()
daemon.kill()
print(json.dumps(told))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """An empty directory of the cgroup v2 hierarchy."""
    mounted = [h.at for h in hierarchies(Path("/proc/self/mountinfo").read_text()) if not h.controllers]
    made = Path(mounted[0]) / f"credgate-test-{os.getpid()}"
    made.mkdir()
    yield made
    for directory, _, _ in os.walk(made, topdown=False):
        Path(directory).rmdir()


def test_the_manager_gives_a_scope_and_moves_into_it(group: Path) -> None:
    space = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    argv = [*space, "bash", str(HERE / "manager.sh"), str(NOBODY), str(group), sys.executable, "-I", "-c", ASK]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["is ours"] is True
    assert told["owner"] == NOBODY  # delegated
    assert told["before"] == f"/{group.name}/session"
    assert told["after"] == f"{told['scope']}/r1"
    assert "not loaded" in told["refused"]
