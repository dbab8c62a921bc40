"""The workload before its exec: a fork of pid 1, confined already, that waits for the daemon's word.

Nothing of the work tree (PATH, cwd, files) is executed before the exec. Standard library only.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has none; signal is made of it
import contextlib
import errno
import hashlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator

from jail import fdpass, terminal
from jail.errors import JailError
from jail.plantypes import Plan
from jail.probes import Context, attempts, files, neighbour
from jail.syscalls import prctl, syscall

PR_SET_DUMPABLE = 4
TIMEOUT = 10.0  # seconds for each step of the look from inside
CLOSE_RANGE_CLOEXEC = 4
NOT_FOUND, NOT_EXECUTABLE = 127, 126
LATE = (signal.SIGPIPE, signal.SIGXFSZ)  # ignored by Python until the exec


def run(plan: Plan, channel: socket.socket, slave: int, ttys: list[int]) -> None:
    """Take the terminal, say "armed", serve attempts, look around, wait for "go", exec. Never returns."""
    status = 125
    try:
        os.setpgid(0, 0)
        if slave >= 0:
            terminal.take(slave, ttys)
        fdpass.send(channel, {"ev": "armed"})
        ready = until_look(plan, channel)
        look_around(plan, ready)
        fdpass.send(channel, {"ev": "looked"})
        until_go(plan, channel)
        status = execute(plan, channel, ready)
    except JailError as error:
        _tell(channel, {"ev": "failed", "code": error.code, "detail": error.detail, "hint": error.hint})
    except Exception as error:  # noqa: BLE001 - outermost frame of this process: it reports and dies
        _tell(channel, {"ev": "failed", "code": "internal", "detail": f"workload: {type(error).__name__}: {error}"})
    finally:
        os._exit(status)


def _tell(channel: socket.socket, body: fdpass.Json) -> None:
    with contextlib.suppress(OSError):  # the daemon is gone: pid 1 sees that too and ends the jail
        fdpass.send(channel, body)


class Ready:
    """What can be done while the daemon judges, so that less is left between its last words and the exec.

    bundle: which file it was that had the bytes expected, where that was looked at. environment: of the command.
    """

    __slots__ = ("bundle", "environment")

    def __init__(self, plan: Plan) -> None:
        """Restore the signals, but for those that Python ignores so that a write fails in place of a death."""
        for number in _signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *LATE}:
            _signal.signal(number, 0)  # SIG_DFL; signal.signal makes an enum of each: 0.4 ms of each launch
        self.environment = {os.fsencode(name): os.fsencode(value) for name, value in plan["exec"]["env"]}
        self.bundle: tuple[int, ...] | None = None


def until_look(plan: Plan, channel: socket.socket) -> Ready:
    """Do what the daemon asks for; it says "look" only after it has compared and judged. Raises JailError for its end.

    The look around asks for nothing that needs the proof; so that one goes to the disk meanwhile, and then comes "go".
    """
    ready: Ready | None = None
    probes = plan["probes"]
    context = probes["context"] | {"_fds": [channel.fileno()], "_env": plan["exec"]["env"]}
    standing, sealed = None, False
    while (message := fdpass.recv(channel)) is not None:
        match message.body.get("op"):
            case "probe":
                fdpass.send(channel, {"ev": "probed", "words": {**_tried(probes["guards"], context)}})
                ready = ready or _made_ready(plan)
            case "clear":  # the daemon has looked for what an attempt left
                files.copy_clear(context)
                fdpass.send(channel, {"ev": "cleared"})
            case "put_up":  # of `credgate prove`: to be another jail's neighbour
                standing = neighbour.put_up(context)
                fdpass.send(channel, {"ev": "standing", "what": len(standing.sockets)})
            case "seal":  # it was read back: nobody of the jail's user reads it from here on
                prctl(PR_SET_DUMPABLE, 0)
                sealed = True
                fdpass.send(channel, {"ev": "sealed"})
            case "look" if sealed:
                return ready or _made_ready(plan)
            case _:
                break
    raise JailError("no_go", "the daemon did not say look")


def _made_ready(plan: Plan) -> Ready:
    ready = Ready(plan)
    ready.bundle = _same_bundle(plan["check"])
    return ready


def until_go(plan: Plan, channel: socket.socket) -> None:
    """Wait until what was shown is on the disk; a jail made ahead gets its command before. Raises JailError."""
    while (message := fdpass.recv(channel)) is not None:
        match message.body.get("op"):
            case "adopt":
                _adopt(plan, message)
            case "go":
                return
            case _:
                break
    raise JailError("no_go", "the daemon did not say go")


def _adopt(plan: Plan, message: fdpass.Received) -> None:
    """Have the command, and 0, 1, 2, of whoever asked for it now. Everything else stays as it was proven."""
    command, argv = message.body.get("exe"), message.body.get("argv")
    if len(message.fds) != 3 or not isinstance(command, str) or not isinstance(argv, list):
        raise JailError("adopt", f"got {len(message.fds)} descriptors and no command from the daemon")
    plan["exec"] |= {"exe": command, "argv": argv}
    for number, descriptor in enumerate(message.fds):
        os.dup2(descriptor, number, inheritable=True)
    message.close()


def _tried(guards: list[str], context: Context) -> dict[str, str]:
    try:
        return attempts.run(guards, context)
    except BlockingIOError:  # EAGAIN of fork
        hint = "give the role's limits at least 4 processes"
        raise JailError("too_few_processes", "no process left to try the guards in", hint, errno.EAGAIN) from None


def look_around(plan: Plan, ready: Ready) -> None:
    """From inside: resolver, proxy and bundle answer as they must, and a denied name is refused.

    That the bundle's bytes validate the gateway's certificates was checked by the daemon; here: that they are these.
    They are read again where it is another file by now, or was written. Both servers are asked before either is
    waited for. Raises JailError.
    """
    check, network = plan["check"], plan["network"]
    name, gateway = check["denied_name"], network["gateway"]
    resolver, proxy = f"resolver at {gateway}", f"proxy at {gateway}:{network['proxy_port']}"
    query, request = _query(name), f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream,
    ):
        with _answering("check_resolver", resolver):
            _ask(datagrams, gateway, 53, query)
        with _answering("check_proxy", proxy):
            _ask(stream, gateway, network["proxy_port"], request)
        if _identity(os.stat(check["bundle"])) != ready.bundle:  # noqa: PTH116
            ready.bundle = _same_bundle(check)
        with _answering("check_resolver", resolver):
            reply = datagrams.recv(512)
        if len(reply) < 12 or reply[:2] != query[:2] or reply[3] & 0x0F != 3:
            raise JailError("check_resolver", f"got {reply[:12].hex()}, expected NXDOMAIN for {name}")
        with _answering("check_proxy", proxy):
            answer = _head(stream)
    if not answer.startswith(b"HTTP/1.1 403") or b"credgate-verdict: deny" not in answer.lower():
        raise JailError("check_proxy", f"got {answer[:40]!r}, expected a refusal (403) of {name}")


@contextlib.contextmanager
def _answering(code: str, who: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JailError(code, f"{who}: {error}") from None


def _query(name: str) -> bytes:
    """For its IPv4 address (RFC 1035, section 4)."""
    labels = b"".join(bytes([len(part)]) + part for part in name.encode().split(b".")) + b"\0"
    return struct.pack(">HHHHHH", 0x4347, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">HH", 1, 1)


def _ask(sock: socket.socket, gateway: str, port: int, data: bytes) -> None:
    sock.settimeout(TIMEOUT)
    sock.connect((gateway.encode(), port))  # bytes: a str would load the idna codec, and the host's tree is gone
    sock.sendall(data)


def _head(stream: socket.socket) -> bytes:
    reply = b""
    while b"\r\n\r\n" not in reply and len(reply) < 8192:
        chunk = stream.recv(4096)
        if not chunk:
            break
        reply += chunk
    return reply


def _same_bundle(check: Plan) -> tuple[int, ...]:
    """Which file it is that has the bytes expected. Raises JailError for other ones, or where it changes meanwhile."""
    path, expected = check["bundle"], check["bundle_sha256"]
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        before = _identity(os.fstat(file.fileno()))
        found = hashlib.sha256(file.readall()).hexdigest()
        after = _identity(os.fstat(file.fileno()))
    if found != expected or before != after:
        raise JailError("check_bundle", f"{path}: got sha256 {found}, expected {expected}")
    return after


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    """What differs for another file, and for this one once it was written (inode(7): nobody sets st_ctime)."""
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def execute(plan: Plan, channel: socket.socket, ready: Ready) -> int:
    """Restore signals, leave the channel (close-on-exec) and become the command; returns an exit status on failure."""
    what = plan["exec"]
    for number in LATE:
        _signal.signal(number, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    syscall("close_range", 3, 0xFFFFFFFF, CLOSE_RANGE_CLOEXEC)  # nothing but 0, 1, 2 crosses the exec
    try:
        os.chdir(os.fsencode(what["cwd"]))
        fdpass.send(channel, {"ev": "exec"})
        sys.stdout.flush()
        os.execve(os.fsencode(what["exe"]), [os.fsencode(text) for text in what["argv"]], ready.environment)
    except FileNotFoundError as error:
        return _cannot(channel, what["exe"], error, NOT_FOUND)
    except OSError as error:
        return _cannot(channel, what["exe"], error, NOT_EXECUTABLE)


def _cannot(channel: socket.socket, exe: str, error: OSError, status: int) -> int:
    detail, hint = f"{exe}: {error.strerror}", "does it run without credgate?"
    if error.errno == errno.ENOENT:
        hint = "is the interpreter of its first line there, and its loader, and are they bound (role: tools)?"
    elif error.errno == errno.ENOEXEC:
        hint = "is it a program for this machine, or does its first line lack #!INTERPRETER?"
    _tell(channel, {"ev": "failed", "code": "exec_failed", "detail": detail, "hint": hint, "status": status})
    return status
