"""Build the front (native/run.c), and put it where the installed command is: `python -I -m credgate.buildfront`.

scripts/setup does that, and whoever installed from a wheel may. Without a compiler the command stays the shim of
bin/credgate, which starts the Python launcher: slower, and not weaker.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from credgate import start
from credgate.errors import CredgateError, print_error

SOURCES = Path(__file__).parent / "native"
BIN = Path(os.path.realpath(sys.prefix)) / "bin"
COMMAND, INTERPRETER = BIN / "credgate", BIN / "python"
WARNINGS = ("-std=gnu11", "-Wall", "-Wextra")  # which are errors in the tests, not for a compiler of later years
HARDENED = (
    "-O2", "-fstack-protector-strong", "-fstack-clash-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
    "-fPIE", "-Wl,-z,relro,-z,now",
)  # fmt: skip
BRANCHES = {"x86_64": ("-fcf-protection",), "aarch64": ("-mbranch-protection=standard",)}
# Without the loader it starts in half the time; not each libc comes as an archive, nor with a start file for that.
LINKED = (("-static-pie",), ("-pie",))
SECONDS = 60


def compiler() -> str | None:
    """The host's C compiler."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name)) is not None), None)


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
    found = compiler()
    if found is None:
        hint = "as root: apt-get install gcc libc6-dev, or what this system calls them; then scripts/setup"
        raise CredgateError("no_compiler", "no C compiler: each `credgate run` starts an interpreter", hint)
    texts = {"PYTHON": str(interpreter), "START": start.__file__, "STAMP": stamp()}
    defined = [f"-D{name}={_quoted(text)}" for name, text in texts.items()]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    argv = [found, *WARNINGS, *flags, *defined, "-o", str(place), *sources]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{found} was not done in {SECONDS} s"
    return done.stderr.strip() or f"{found} ended with {done.returncode}" if done.returncode else ""


def _quoted(text: str) -> str:
    """A string of C, whatever the path holds."""
    return '"' + "".join(f"\\{byte:03o}" for byte in os.fsencode(text)) + '"'


def build(command: Path = COMMAND) -> None:
    """Replace the installed command by a front. Raises CredgateError, and leaves it as it was then."""
    said = ""
    with tempfile.TemporaryDirectory(prefix=".credgate-front-", dir=command.parent) as work:
        made = Path(work) / "credgate"
        for linked in LINKED:
            said = compile_to(made, [*HARDENED, *BRANCHES.get(platform.machine(), ()), *linked])
            if not said:
                made.chmod(0o755)
                made.replace(command)
                return
    raise CredgateError("not_compiled", said.splitlines()[0], f"{compiler()} -o front {SOURCES}/*.c says more")


def main() -> int:
    """Build where that is needed."""
    if is_current():
        return 0
    try:
        build()
    except OSError as error:
        return print_error(CredgateError("not_built", f"{error.filename}: {error.strerror}", "run it as its owner"))
    except CredgateError as error:
        return print_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
