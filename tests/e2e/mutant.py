"""`credgate run` and `credgate prove` with one guard taken out: a launcher of the test's own, and its own pid 1."""

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


def wrapper(site: Site, name: str, command: str = "run") -> list[str]:
    """The command line in place of `credgate COMMAND`; `name` "" takes nothing out."""
    inner = f"""{_LOAD}
if {name!r} in mutations.PID1:
    mutations.PID1[{name!r}]()
sys.exit(mutations.pid1.main(sys.argv[1:]))
"""
    script = site.write(f"mutants/{name}-pid1.py", inner)
    outer = f"""import sys
from jail import launcher
launcher.PID1 = {str(script)!r}
{_LOAD}
if {name!r} in mutations.LAUNCHER:
    mutations.LAUNCHER[{name!r}]()
from credgate.commands import {command}
sys.exit({command}.main(sys.argv[1:]))
"""
    return [sys.executable, "-I", str(site.write(f"mutants/{name}-{command}.py", outer))]
