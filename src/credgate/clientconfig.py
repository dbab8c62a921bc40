"""Asking a client of the host what it is configured for: run as its user, in `/`, with little in its environment.

What an agent may have written is not asked: no program and no configuration file below a tree that a jail writes or
wrote. In `/` no client finds the configuration of a work tree.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from credgate.errors import CredgateError
from jail.plan import under

TIMEOUT = 30.0  # seconds; a client on a loaded machine needs two
MAX_OUTPUT = 4 << 20
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_KEEP = ("HOME", "PATH", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")
_FILES = ("pip_config_file", "uv_config_file", "npm_config_userconfig", "npm_config_globalconfig")
_NAMES = (
    *("npm_config_registry", "npm_config_prefix", "pip_index_url", "pip_extra_index_url", "pip_no_index"),
    *("uv_index", "uv_default_index", "uv_index_url", "uv_extra_index_url", "uv_no_config"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "pip_cert", "ssl_cert_file", "ssl_cert_dir"),
    *("uv_system_certs", "uv_native_tls", "requests_ca_bundle"),
    *_FILES,
)


class ClientError(CredgateError):
    """A client of the host can't be asked; exit status 2, as for every fault of a policy."""

    def __init__(self, code: str, detail: str, hint: str) -> None:
        super().__init__(code, detail, hint, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose clients are asked. `written`: real paths of trees that an agent writes or wrote."""

    env: Mapping[str, str]
    written: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """The home whose configuration counts."""
        return Path(self.env.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - of the passwd entry, no error

    def environment(self) -> dict[str, str]:
        """What a client gets. Raises ClientError where a variable leads to a file that an agent may have written."""
        env = {"LANG": "C.UTF-8", "COLUMNS": "2000", "NO_COLOR": "1", "PATH": _DEFAULT_PATH, "HOME": str(self.home)}
        for name, value in self.env.items():
            folded = name.lower()
            if name in _KEEP or folded in _NAMES or folded.startswith("npm_config_@"):
                env[name] = value
            if folded in _FILES:
                self.check_file(Path(value), name)
        env["PATH"] = os.pathsep.join(self._folders())
        return env

    def check_file(self, path: Path, name: str) -> None:
        """Raise ClientError where `path` lies in a written tree."""
        real = os.path.realpath(path)
        if any(under(real, tree) for tree in self.written):
            raise ClientError(
                "client_config_refused",
                f"{name}: {path} lies in a tree that an agent may have written",
                "move it out of the work tree, or write host = ... instead of host_from",
            )

    def find(self, *names: str) -> str:
        """The first of the programs that there is. Raises ClientError with the hint to install it."""
        for name in names:
            for folder in self._folders():
                path = f"{folder}/{name}"
                if os.access(path, os.X_OK) and Path(path).is_file() and not self._is_written(path):
                    return path
        raise ClientError(
            "client_missing",
            f"{names[0]} is not on PATH (outside of work trees), so nobody says which registry it is configured for",
            f"install {names[0]}, or write host = ... instead of host_from",
        )

    def _folders(self) -> Iterator[str]:
        for folder in (self.env.get("PATH") or _DEFAULT_PATH).split(os.pathsep):
            if folder.startswith("/") and not self._is_written(folder):
                yield folder

    def _is_written(self, path: str) -> bool:
        real = os.path.realpath(path)
        return any(under(real, tree) or under(path, tree) for tree in self.written)


def ask(caller: Caller, program: str, *arguments: str, sent: str = "") -> str:
    """Run a client, which is sent a text, and return what it prints. Raises ClientError without any of its output."""
    name = Path(program).name
    try:
        done = subprocess.run(
            [program, *arguments],
            env=caller.environment(),
            cwd="/",
            input=sent.encode(),
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(name, arguments, f"no answer within {TIMEOUT:g} s") from error
    except OSError as error:
        raise _failed(name, arguments, error.strerror or "not to be run") from error
    if done.returncode != 0 or len(done.stdout) > MAX_OUTPUT:
        raise _failed(name, arguments, f"exit status {done.returncode}, {len(done.stdout)} bytes")
    return done.stdout.decode("utf-8", "replace")


def _failed(name: str, arguments: Sequence[str], why: str) -> ClientError:
    return ClientError(
        "client_failed", f"{name} {' '.join(arguments)}: {why}", "run it by hand; or host = ... instead of host_from"
    )
