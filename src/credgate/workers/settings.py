"""`gateway.toml` in the configuration directory: how many processes accept. Standard library only.

Read when the gateway starts, and strictly; not the policy, which is a matter of what may pass.
"""

import os
import stat
import tomllib
from pathlib import Path

from credgate.errors import CredgateError

FILE = "gateway.toml"
MOST = 32  # processes
DEFAULT = 1
CORES = "cores"
_MAX_FILE = 64 * 1024


class SettingsError(CredgateError):
    """The file, or what was asked for instead, can't be taken; exit_status 2."""

    def __init__(self, detail: str, hint: str = "see docs/workers.md") -> None:
        super().__init__("gateway_settings", detail, hint, 2)


def load_processes(path: Path) -> int:
    """How many processes accept, the daemon's own among them. Raises SettingsError."""
    try:
        table = tomllib.loads(_read(path))
    except FileNotFoundError:
        return DEFAULT
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error
    unknown = sorted(table.keys() - {"workers"})
    if unknown:
        raise SettingsError(f"{path}: {', '.join(unknown)}: unknown, expected workers")
    return parse_processes(table.get("workers", DEFAULT), f"{path}: workers")


def parse_processes(value: object, where: str) -> int:
    """A number, or "cores". Raises SettingsError."""
    if value == CORES:
        return min(MOST, len(os.sched_getaffinity(0)))
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
        raise SettingsError(f"{where}: got {value!r}, expected 1 to {MOST}, or {CORES!r}")
    return number


def _read(path: Path) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        facts = os.fstat(file.fileno())
        ours = facts.st_uid in (0, os.geteuid()) and not facts.st_mode & 0o022
        if not ours or not stat.S_ISREG(facts.st_mode):
            raise SettingsError(f"{path}: others could write it", f"chmod go-w {path}")
        return file.read(_MAX_FILE).decode()
