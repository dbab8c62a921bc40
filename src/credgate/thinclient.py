"""The control socket for `credgate run`: `credgate.controlclient` without what that has to import (12 ms of CPU).

A daemon that is up is reached from here; whatever else is the case, `controlclient` does, and says what is wrong.
"""

import _socket
import os
import stat

from credgate.errors import CredgateError
from jail import thinpass

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from collections.abc import Mapping

CANNOT = 125
MAX_SOCKET_PATH = 107  # as credgate.paths
HINT = "`credgate doctor` says what this host can do; the daemon's log may say more"  # for an error that brings none


def connect(env: "Mapping[str, str]") -> _socket.socket:
    """A connection to the daemon, started first where there is none. Raises CredgateError."""
    sock = _running(env)
    if sock is not None:
        return sock
    from credgate import controlclient  # noqa: PLC0415
    from credgate.paths import Places  # noqa: PLC0415

    return controlclient.connect_or_start(Places.from_env(env))


def _running(env: "Mapping[str, str]") -> _socket.socket | None:
    """A connection to a daemon that is up, of our own user, in a directory as it has to be; else None."""
    path = control(env)
    if path is None or not _private(path.rpartition("/")[0]):
        return None
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        sock.connect(os.fsencode(path))
    except OSError:
        sock.close()
        return None
    if thinpass.peer_uid(sock) == os.geteuid():
        return sock
    sock.close()
    return None


def control(env: "Mapping[str, str]") -> str | None:
    """Path of the control socket; None where it is for `credgate.paths` to say what is wrong."""
    home = env.get("HOME", "")
    base = env.get("XDG_STATE_HOME", "") or f"{home}/.local/state"
    path = f"{base}/credgate/run/control"
    absolute = home.startswith("/") and base.startswith("/")
    return path if absolute and len(os.fsencode(path)) <= MAX_SOCKET_PATH else None


def _private(directory: str) -> bool:
    try:
        facts = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) == 0o700


def log_file(env: "Mapping[str, str]") -> str:
    """Where the daemon writes what it can't tell anybody."""
    return f"{(control(env) or '').rpartition('/')[0]}/daemon.log"


def receive(sock: _socket.socket) -> thinpass.Message | None:
    """The next message; None at the end, also of a peer that died with something of ours unread (unix(7): reset)."""
    try:
        return thinpass.recv(sock)
    except ConnectionResetError:
        return None


def answer(sock: _socket.socket) -> thinpass.Message:
    """The answer to what was asked, whose descriptors are the caller's. Raises CredgateError with the refusal."""
    message = receive(sock)
    if message is None:
        raise CredgateError("daemon_gone", "the daemon closed the connection", "try again: a run starts it", CANNOT)
    if message.body.get("ev") == "refused":
        message.close()
        raise refusal(message.body)
    return message


def refusal(body: "thinpass.Json") -> CredgateError:
    """The daemon's refusal as an error, never without a hint."""
    status = body.get("exit")
    hint = str(body["hint"]) or HINT
    return CredgateError(str(body["code"]), str(body["detail"]), hint, status if isinstance(status, int) else CANNOT)
