"""`credgate run` and `credgate prove` with one guard taken out: a launcher of the test's own, and its own pid 1."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from tests.conftest import CHECKOUT
from tests.e2e.site import Site

MUTATIONS = Path(__file__).with_name("mutations.py")
_LOAD = f"""import importlib.util, sys
sys.path.insert(0, {str(CHECKOUT / "src")!r})
spec = importlib.util.spec_from_file_location("mutations", {str(MUTATIONS)!r})
mutations = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutations)
"""


READY = 60.0  # seconds for a daemon to start


def start_patched(site: Site, text: str) -> subprocess.Popen[bytes]:
    """A daemon for the site's user that is started by a script: there is none of that in the installed package."""
    script = site.write("patched.py", text)
    for name in (".local", ".local/state", ".local/state/credgate", ".local/state/credgate/run"):
        (site.home / name).mkdir(mode=0o700, exist_ok=True)
        site.own(site.home / name)
    reader, writer = os.pipe()
    argv = site.as_user([sys.executable, "-I", script, str(writer), "600"])
    log = (site.home / "patched.log").open("wb")
    process = subprocess.Popen(argv, env=site.environment(), cwd="/", pass_fds=[writer], stdout=log, stderr=log)
    os.close(writer)
    log.close()
    if not select.select([reader], [], [], READY)[0] or not json.loads(os.read(reader, 65536) or b"{}").get("ok"):
        raise RuntimeError(Path(site.home / "patched.log").read_text())
    os.close(reader)
    return process


def start_mutated(site: Site, name: str) -> subprocess.Popen[bytes]:
    """A daemon, as installed but for its starter, in which `name` takes a guard out."""
    inner = f"""{_LOAD}
from jail import starter
(mutations.STARTER.get({name!r}) or mutations.PID1[{name!r}])()
sys.exit(starter.main(sys.argv[1:]))
"""
    program = site.write(f"mutants/{name}-starter.py", inner)
    outer = f"""{_LOAD}
from credgate import daemon
start = daemon.StarterProcess.start
daemon.StarterProcess.start = lambda python: start(python, {str(program)!r})
sys.exit(daemon.main(sys.argv[1:]))
"""
    return start_patched(site, outer)


def wrapper(site: Site, name: str, command: str = "run") -> list[str]:
    """The command line in place of `credgate COMMAND`; `name` "" takes nothing out."""
    inner = f"""{_LOAD}
if {name!r} in mutations.PID1:
    mutations.PID1[{name!r}]()
sys.exit(mutations.pid1.main(sys.argv[1:]))
"""
    script = site.write(f"mutants/{name}-pid1.py", inner)
    outer = f"""import sys
from jail import launcher, lent
lent.Lent.descriptors = lambda self: []  # so that this launcher forks the jail itself
launcher.PID1 = {str(script)!r}
{_LOAD}
if {name!r} in mutations.LAUNCHER:
    mutations.LAUNCHER[{name!r}]()
from credgate.commands import {command}
sys.exit({command}.main(sys.argv[1:]))
"""
    return [sys.executable, "-I", str(site.write(f"mutants/{name}-{command}.py", outer))]
