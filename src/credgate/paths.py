"""Where state and configuration lie, and the check that nobody else can read or change them.

A wrong owner or mode is never mended in silence: whoever could write there may have done so already.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from credgate.errors import CredgateError

MAX_SOCKET_PATH = 107  # sockaddr_un.sun_path is 108 bytes, the last one NUL (unix(7))
_DIR_MODE = 0o700
_FILE_MODE = 0o600


class PlaceError(CredgateError):
    """A state file or directory is missing, not ours, or open to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Two absolute directories of ours and the names below them. Nothing is created by asking."""

    state: Path
    config: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Places":
        """Take HOME, XDG_STATE_HOME and XDG_CONFIG_HOME of `env`. Raise PlaceError unless absolute."""
        return cls(
            state=_base(env, "XDG_STATE_HOME", ".local/state") / "credgate",
            config=_base(env, "XDG_CONFIG_HOME", ".config") / "credgate",
        )

    @property
    def ledger(self) -> Path:
        """Directory of the ledger's segments."""
        return self.state / "ledger"

    @property
    def run(self) -> Path:
        """Directory of the control socket."""
        return self.state / "run"

    @property
    def control(self) -> Path:
        """The daemon's control socket. Raise PlaceError when the kernel couldn't bind so long a path."""
        path = self.run / "control"
        length = len(os.fsencode(path))
        if length > MAX_SOCKET_PATH:
            raise PlaceError(
                "socket_path_too_long",
                f"control socket {path}: path has {length} bytes, a unix socket takes at most {MAX_SOCKET_PATH}",
                "set XDG_STATE_HOME to a shorter directory",
            )
        return path

    @property
    def ca(self) -> Path:
        """Directory of the gateway's certificate authority."""
        return self.state / "ca"

    @property
    def sealed(self) -> Path:
        """Directory of the sealed secrets and their key."""
        return self.state / "sealed"

    @property
    def copies(self) -> Path:
        """Directory of the copies of work trees that runs made, until they are taken over or thrown away."""
        return self.state / "copies"

    @property
    def secrets(self) -> Path:
        """Index of the secrets that `secret set` stored: names and backends, no values."""
        return self.state / "secrets.json"

    @property
    def trusted(self) -> Path:
        """Hashes of the policies that `policy trust` took."""
        return self.state / "trusted.json"


def _base(env: Mapping[str, str], variable: str, below_home: str) -> Path:
    value = env.get(variable, "")
    if value:
        return _absolute(variable, value)
    home = env.get("HOME", "")
    if not home:
        raise PlaceError("no_home", f"neither HOME nor {variable} is set", f"set HOME or {variable}")
    return _absolute("HOME", home) / below_home


def _absolute(variable: str, value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise PlaceError(
            "path_not_absolute", f"{variable}: got {value!r}, expected an absolute path", f"set {variable} to one"
        )
    return path


def private_dir(path: Path) -> Path:
    """Create `path` with mode 0700 where it is missing (parents too), check it, return it. Raise PlaceError."""
    missing = [p for p in (path, *path.parents) if not _exists(p)]
    for part in reversed(missing):
        try:
            part.mkdir(mode=_DIR_MODE, exist_ok=True)
        except OSError as error:
            raise _unusable(part, "create", error) from error
    check_private_dir(path)
    return path


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(path, "read", error) from error
    return True


def check_private_dir(path: Path) -> None:
    """Raise PlaceError unless `path` is a directory of our own with mode 0700 and no symbolic link."""
    try:
        facts = path.lstat()
    except OSError as error:
        raise _unusable(path, "read", error) from error
    if not stat.S_ISDIR(facts.st_mode):
        raise PlaceError("not_a_directory", f"{path}: got {_kind(facts)}, expected a directory", "move it away")
    _check_owner(path, facts)
    _check_mode(path, facts, _DIR_MODE)


def check_private_fd(fd: int, path: Path) -> None:
    """Raise PlaceError unless the open file is a regular one of our own, mode 0600, with one name."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise PlaceError("not_a_file", f"{path}: got {_kind(facts)}, expected a regular file", "move it away")
    _check_owner(path, facts)
    _check_mode(path, facts, _FILE_MODE)


def _check_owner(path: Path, facts: os.stat_result) -> None:
    uid = os.geteuid()
    if facts.st_uid != uid:
        raise PlaceError(
            "wrong_owner",
            f"{path}: owner is uid {facts.st_uid}, expected uid {uid}",
            f"see who made it; then: chown {uid} {path}",
        )


def _check_mode(path: Path, facts: os.stat_result, want: int) -> None:
    mode = stat.S_IMODE(facts.st_mode)
    if mode != want:
        raise PlaceError(
            "wrong_mode",
            f"{path}: mode is {mode:04o}, expected {want:04o}",
            f"see what others may have changed in it; then: chmod {want:04o} {path}",
        )


def open_private(path: Path, flags: int) -> int:
    """Open a state file (created 0600 where `flags` say so), check it, return the descriptor. Raise PlaceError.

    FileNotFoundError comes through as it is: whether a missing file is an error is the caller's knowledge.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, _FILE_MODE)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(path, "open", error) from error
    try:
        check_private_fd(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_private(path: Path, limit: int) -> bytes:
    """Read a state file of at most `limit` bytes. Raise PlaceError, or FileNotFoundError where it isn't there."""
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        # read(limit) would ask for that much memory each time
        size = os.fstat(file.fileno()).st_size
        data = file.read() if size <= limit else b""
    if max(size, len(data)) > limit:
        raise PlaceError("file_too_large", f"{path}: more than {limit} bytes", "see who wrote it; then move it away")
    return data


def write_private(path: Path, data: bytes) -> None:
    """Replace a state file as a whole: afterwards it is on the disk, or the old one still is. Raise PlaceError."""
    # the name is our own and fixed: callers hold a lock, and what a crash left behind is overwritten
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_dir(path.parent)
    except OSError as error:
        raise _unusable(path, "write", error) from error


def sync_dir(path: Path) -> None:
    """Put the names in a directory on the disk (fsync(2): the file's own fsync doesn't). OSError comes through."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _kind(facts: os.stat_result) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a directory",
        stat.S_IFREG: "a file",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(facts.st_mode), "a device")


def _unusable(path: Path, verb: str, error: OSError) -> PlaceError:
    why = (error.strerror or str(error)).lower()
    return PlaceError("place_unusable", f"can't {verb} {path}: {why}", "check that it exists and belongs to you")
