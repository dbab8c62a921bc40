"""The client's side of the control socket: connect, start the daemon where there is none. Standard library only."""

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from credgate.errors import CredgateError
from credgate.paths import Places, open_private, private_dir
from credgate.scope import in_scope
from credgate.thinclient import HINT, expect, refusal
from jail import fdpass
from jail.ready import readable

START = 30.0  # seconds that a daemon may take to say ready
ENDING = 30.0  # seconds that an ending daemon may take: its runs have 3 until KILL, and 10 for the kernel to show it
IDLE = 600.0  # seconds without a run after which it leaves
# What a desktop keyring is reached by, and where our own files are; nothing else of the caller's reaches the daemon.
KEPT = ("HOME", "USER", "LOGNAME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")
KEPT_MORE = ("DBUS_SESSION_BUS_ADDRESS", "CREDENTIALS_DIRECTORY")
CANNOT = 125


def connect(places: Places) -> socket.socket | None:
    """A connection to the running daemon, None where there is none. Raises CredgateError for a foreign socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(os.fsencode(places.control))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    _, uid, _ = fdpass.peer_credentials(sock)
    if uid != os.geteuid():
        sock.close()
        raise CredgateError("foreign_daemon", f"the control socket is served by uid {uid}", "see who made it", CANNOT)
    return sock


def connect_or_start(places: Places, idle: float = IDLE, workers: str = "") -> socket.socket:
    """A connection to the daemon, started first where there is none. `workers` "": as its settings say.

    Raises CredgateError with the daemon's reason.
    """
    private_dir(places.run)
    starting = open_private(places.run / "start.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(starting, fcntl.LOCK_EX)  # of two first runs at once, one starts it
        sock = connect(places)
        if sock is None:
            _until_gone(places)
            _start(places, [str(idle), *([workers] if workers else [])])
            sock = connect(places)
        if sock is None:
            raise CredgateError("daemon_gone", "the daemon said ready and is gone", f"see {log_file(places)}", CANNOT)
        return sock
    finally:
        os.close(starting)


def gone(places: Places) -> bool:
    """Whether no daemon lives. Its lock is the last thing it lets go, after the ledger is closed and signed."""
    try:
        descriptor = open_private(places.run / "daemon.lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _until_gone(places: Places) -> None:
    """Wait for the end of a daemon that is ending: it takes no more questions, and a new one needs its lock. One that
    is still there after that is for the new one to name.
    """
    deadline = time.monotonic() + ENDING
    while not gone(places) and time.monotonic() < deadline:
        time.sleep(0.02)


def log_file(places: Places) -> Path:
    """Where the daemon writes what it can't tell anybody."""
    return places.run / "daemon.log"


def _start(places: Places, more: Sequence[str]) -> None:
    environment = {name: os.environ[name] for name in (*KEPT, *KEPT_MORE) if name in os.environ}
    environment |= {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
    if in_scope([], environment) is not None:
        try:
            _await_ready(places, _spawn(places, more, environment, scoped=True))
            return
        except CredgateError as error:
            if error.code != "daemon_failed":  # what the daemon itself said stands; else the scope was refused
                raise
    _await_ready(places, _spawn(places, more, environment, scoped=False))


def _spawn(places: Places, more: Sequence[str], environment: dict[str, str], *, scoped: bool) -> int:
    """Start it and return the descriptor on which it will say ready."""
    ready, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    log = open_private(log_file(places), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    arguments = [sys.executable, "-I", "-m", "credgate.daemon", str(theirs), *more]
    argv = (in_scope(arguments, environment) if scoped else None) or arguments
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True)
    for descriptor in (theirs, log, null):
        os.close(descriptor)
    return ready


def _await_ready(places: Places, ready: int) -> None:
    deadline = time.monotonic() + START
    said = b""
    while not said.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not readable(ready, left):
            raise CredgateError(
                "daemon_slow", f"no word from the daemon in {START:.0f} s", f"see {log_file(places)}", CANNOT
            )
        chunk = os.read(ready, 65536)
        if not chunk:
            raise CredgateError("daemon_failed", "the daemon ended while starting", f"see {log_file(places)}", CANNOT)
        said += chunk
    os.close(ready)
    body = json.loads(said)
    if not body["ok"]:
        raise CredgateError(body["code"], body["detail"], body["hint"] or HINT, CANNOT)


def receive(sock: socket.socket) -> fdpass.Received | None:
    """The next message; None at the end.

    Of a peer that died with something of ours unread the kernel says first, once, that it was reset (unix(7)).
    """
    try:
        return fdpass.recv(sock)
    except ConnectionResetError:
        pass
    try:
        return fdpass.recv(sock)
    except ConnectionResetError:
        return None


def exchange(sock: socket.socket, body: fdpass.Json, fds: Sequence[int] = ()) -> fdpass.Received:
    """One question, one answer, whose descriptors are the caller's. Raises CredgateError with the daemon's refusal."""
    try:
        fdpass.send(sock, body, fds)
        expect(sock)
        answer = receive(sock)
    except BrokenPipeError:
        answer = None
    if answer is None:
        raise CredgateError("daemon_gone", "the daemon closed the connection", "try again: a run starts it", CANNOT)
    if answer.body.get("ev") == "refused":
        answer.close()
        raise refusal(answer.body)
    return answer


def ask(sock: socket.socket, body: fdpass.Json) -> fdpass.Json:
    """One question, one answer without descriptors. Raises CredgateError with the daemon's refusal."""
    answer = exchange(sock, body)
    answer.close()
    return answer.body
