"""The control socket for `credgate run`: `credgate.controlclient` without what that has to import (12 ms of CPU).

A daemon that is up is reached from here; whatever else is the case, `controlclient` does, and says what is wrong.
"""

import _socket
import os
import stat

from credgate.errors import CredgateError
from jail import thinpass
from jail.ready import readable

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CANNOT = 125
PATIENCE = 10.0  # seconds without a word after which the daemon is looked at
MAX_SOCKET_PATH = 107  # as credgate.paths
HINT = "`credgate doctor` says what this host can do; the daemon's log may say more"  # for an error that brings none


class NotTaken(CredgateError):
    """The daemon ended before it read what it was asked: nothing has begun, so another daemon can be asked."""


def asked[T](env: "Mapping[str, str]", ask: "Callable[[_socket.socket], T]") -> "T":
    """What comes of asking the daemon; of asking the next one, once, where this one ended with the question unread.

    ask: gets the connection, which is its own where it returns. Raises what it raises.
    """
    try:
        return _asked(env, ask)
    except NotTaken:
        return _asked(env, ask)


def _asked[T](env: "Mapping[str, str]", ask: "Callable[[_socket.socket], T]") -> "T":
    control = connect(env)
    try:
        return ask(control)
    except BaseException:
        control.close()
        raise


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
    if thinpass.peer(sock)[1] == os.geteuid():
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


def put(sock: _socket.socket, body: "thinpass.Json", fds: "Sequence[int]") -> bool:
    """Send one message; False where its reader has gone, which the next message, or its absence, explains."""
    try:
        thinpass.send(sock, body, fds)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def receive(sock: _socket.socket) -> thinpass.Message | None:
    """The next message; None at the end.

    Of a peer that died with something of ours unread the kernel says first, once, that it was reset (unix(7)).
    """
    try:
        return thinpass.recv(sock)
    except ConnectionResetError:
        pass
    try:
        return thinpass.recv(sock)
    except ConnectionResetError:
        return None


def expect(sock: _socket.socket) -> None:
    """Wait until there is a word of the daemon's, or its end. It may take long, but not of a daemon that is stopped.

    Raises CredgateError with that.
    """
    while not readable(sock, PATIENCE):
        check_not_stopped(sock)


def check_not_stopped(sock: _socket.socket) -> None:
    """Raises CredgateError where whoever made the other end of the connection is stopped, and so says nothing."""
    pid, _ = thinpass.peer(sock)
    if _is_stopped(pid):
        raise CredgateError("daemon_stopped", f"the daemon, pid {pid}, is stopped", f"kill -CONT {pid}", CANNOT)


def _is_stopped(pid: int) -> bool:
    """By proc_pid_stat(5): the state stands behind the name, which may hold anything."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(file, 256).rpartition(b")")[2][:2] in (b" T", b" t")
    except OSError:  # ESRCH: it has ended
        return False
    finally:
        os.close(file)


def answer(sock: _socket.socket, *, sent: bool = True) -> thinpass.Message:
    """The answer to what was asked, whose descriptors are the caller's. Raises CredgateError with the refusal.

    sent: whether the question could be. Raises NotTaken where it lay unread: the kernel resets a connection that is
    closed with something unread (unix(7)), and one that was never accepted; else its end is an end.
    """
    taken = sent
    expect(sock)
    try:
        message = thinpass.recv(sock)
    except ConnectionResetError:
        message, taken = None, False
    if message is None:
        gone = CredgateError if taken else NotTaken
        raise gone("daemon_gone", "the daemon closed the connection", "try again: a run starts it", CANNOT)
    if message.body.get("ev") == "refused":
        message.close()
        raise refusal(message.body)
    return message


def refusal(body: "thinpass.Json") -> CredgateError:
    """The daemon's refusal as an error, never without a hint."""
    status = body.get("exit")
    hint = str(body["hint"]) or HINT
    return CredgateError(str(body["code"]), str(body["detail"]), hint, status if isinstance(status, int) else CANNOT)
