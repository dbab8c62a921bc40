"""Build the front (native/run.c), and put it where the installed command is: `python -I -m credgate.buildfront`.

scripts/setup does that, and whoever installed from a wheel may. Without a compiler the command stays the shim of
bin/credgate, which starts the Python launcher: slower, and not weaker.
"""

import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from credgate import compiling, start
from credgate.errors import CredgateError

SOURCES = Path(__file__).parent / "native"
BIN = Path(os.path.realpath(sys.prefix)) / "bin"
COMMAND, INTERPRETER = BIN / "credgate", BIN / "python"
WARNINGS = ("-std=gnu11", "-Wall", "-Wextra")  # which are errors in the tests, not for a compiler of later years
HARDENED = (
    "-O2", "-fstack-protector-strong", "-fstack-clash-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
    "-fPIE", "-Wl,-z,relro,-z,now",
)  # fmt: skip
# Without the loader it starts in half the time; not each libc comes as an archive, nor with a start file for that.
LINKED = (("-static-pie",), ("-pie",))


def stamp() -> str:
    """What a front that is current has in it: of its sources and of what it starts."""
    digest = hashlib.sha256(f"{INTERPRETER}\0{start.__file__}\0{HARDENED}".encode(errors="surrogateescape"))
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(command: Path = COMMAND) -> bool:
    """Whether the installed command is a front, and of these sources."""
    try:
        built = command.read_bytes()
    except OSError:
        return False
    return built.startswith(b"\x7fELF") and f"credgate-front:{stamp()}\0".encode() in built


def compile_to(place: Path, flags: Sequence[str], interpreter: Path = INTERPRETER) -> str:
    """Compile it; returns what the compiler said where it failed, else "". Raises CredgateError where there is none."""
    found = compiling.needed("each `credgate run` starts an interpreter")
    texts = {"PYTHON": str(interpreter), "START": start.__file__, "STAMP": stamp()}
    defined = [f"-D{name}={_quoted(text)}" for name, text in texts.items()]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    argv = [found, *WARNINGS, *flags, *defined, "-o", str(place), *sources]
    return compiling.complaint(argv)


def _quoted(text: str) -> str:
    """A string of C, whatever the path holds."""
    return '"' + "".join(f"\\{byte:03o}" for byte in os.fsencode(text)) + '"'


def build(command: Path = COMMAND) -> None:
    """Replace the installed command by a front. Raises CredgateError, and leaves it as it was then."""
    said = ""
    with tempfile.TemporaryDirectory(prefix=".credgate-front-", dir=command.parent) as work:
        made = Path(work) / "credgate"
        for linked in LINKED:
            said = compile_to(made, [*HARDENED, *compiling.BRANCHES.get(platform.machine(), ()), *linked])
            if not said:
                made.chmod(0o755)
                made.replace(command)
                return
    raise CredgateError(
        "not_compiled", said.splitlines()[0], f"{compiling.compiler()} -o front {SOURCES}/*.c says more"
    )


def main() -> int:
    """Build where that is needed."""
    return 0 if is_current() else compiling.status(build)


if __name__ == "__main__":
    sys.exit(main())
