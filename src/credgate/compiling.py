"""The host's C compiler, for what set-up builds (`buildfront`, `buildmodules`), and how that ends."""

import shutil
import subprocess
from collections.abc import Callable, Sequence

from credgate.errors import CredgateError, print_error

BRANCHES = {"x86_64": ("-fcf-protection",), "aarch64": ("-mbranch-protection=standard",)}
SECONDS = 60


def compiler() -> str | None:
    """The host's C compiler."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name)) is not None), None)


def needed(without: str) -> str:
    """The compiler. Raises CredgateError, which says what it is like `without` one."""
    found = compiler()
    if found is None:
        hint = "as root: apt-get install gcc libc6-dev, or what this system calls them; then scripts/setup"
        raise CredgateError("no_compiler", f"no C compiler: {without}", hint)
    return found


def complaint(argv: Sequence[str]) -> str:
    """Compile; returns what the compiler said where it failed, else ""."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{argv[0]} was not done in {SECONDS} s"
    return done.stderr.strip() or f"{argv[0]} ended with {done.returncode}" if done.returncode else ""


def status(build: Callable[[], None]) -> int:
    """Build, and say what is wrong; the exit status."""
    try:
        build()
    except OSError as error:
        return print_error(CredgateError("not_built", f"{error.filename}: {error.strerror}", "run it as its owner"))
    except CredgateError as error:
        return print_error(error)
    return 0
