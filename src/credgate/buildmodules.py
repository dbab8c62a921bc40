"""Build the compiled modules where they are not current: `python -I -m credgate.buildmodules`.

scripts/setup does that, and whoever installed from a wheel may. Without a C compiler or Python's headers the modules in
Python serve: slower, and not weaker.
"""

import os
import platform
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from credgate import compiled, compiling
from credgate.errors import CredgateError

HEADERS = Path(sysconfig.get_path("include"))
PLACE = Path(sysconfig.get_path("platlib"))
WARNINGS = ("-Wall", "-Wextra")  # which are errors in the tests, not for a compiler of later years


def compile_to(place: Path, name: str, flags: Sequence[str]) -> str:
    """Compile one; returns what the compiler said where it failed, else "". Raises CredgateError where it can't be."""
    found = compiling.needed("each request costs more of the interpreter")
    if not (HEADERS / "Python.h").is_file():
        hint = "as root: apt-get install python3-dev, or what this system calls it; then scripts/setup"
        raise CredgateError("no_headers", f"no {HEADERS}/Python.h: each request costs more of the interpreter", hint)
    source = compiled.SOURCES / f"{name}.c"
    argv = [
        found,
        *WARNINGS,
        *flags,
        f'-DSTAMP="{compiled.stamp(name)}"',
        f"-I{HEADERS}",
        "-o",
        str(place),
        str(source),
    ]
    return compiling.complaint(argv)


def build(name: str, directory: Path = PLACE) -> None:
    """Replace the module in the directory. Raises CredgateError, and leaves it as it was then."""
    with tempfile.TemporaryDirectory(prefix=".credgate-module-", dir=directory) as work:
        made = Path(work) / "module.so"
        said = compile_to(made, name, [*compiled.FLAGS, *compiling.BRANCHES.get(platform.machine(), ())])
        if said:
            hint = f"{compiling.compiler()} {compiled.SOURCES}/{name}.c says more"
            raise CredgateError("not_compiled", said.splitlines()[0], hint)
        made.chmod(0o755)
        # A crash must leave no part of it: an interpreter that loads half a module dies of it, this one too
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(directory / f"{compiled.full_name(name)}{compiled.SUFFIX}")


def missing() -> list[str]:
    """Which modules are not there, or of other sources."""
    return [name for name in compiled.names() if compiled.load(name) is None]


def build_missing() -> None:
    """Build what is missing. Raises CredgateError, OSError at the first that can't be."""
    for name in missing():
        build(name)


def main() -> int:
    """Build what is missing, where this user may. The status is that of the first that can't be."""
    if not os.access(PLACE, os.W_OK):  # root's environment: `credgate doctor` says what it lacks
        return 0
    return compiling.status(build_missing)


if __name__ == "__main__":
    sys.exit(main())
