"""The stand: an ordinary process of the user, without a guard, that an attempt is aimed at and a control runs in.

It makes the stand-ins (files, sockets, a key, a terminal, itself as the process to signal and trace), tells where they
are, and runs attempts as controls. Started as `python -I -S stand.py FD`; the end of FD ends it and clears it away.
"""

import contextlib
import json
import os
import pty
import signal
import socket
import sys
import time

if __name__ == "__main__":  # -S and -I: nothing but the standard library is on the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from jail import fdpass
from jail.probes import Context, attempts, files, lab, neighbour
from jail.syscalls import prctl, syscall

PR_SET_PDEATHSIG, PR_SET_PTRACER, ANY = 1, 0x59616D61, -1
KEYCTL_JOIN_SESSION_KEYRING, SESSION_KEYRING = 1, -3
SOCKETS = {"plain": "a", "ssh_agent": "b", "docker": "c", "dbus": "d"}
CALL_EVERY = 0.01


def main(arguments: list[str]) -> int:
    """Serve `open` and `control` until the other end is closed."""
    sock = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(sock.fileno(), False)
    stand = Stand()
    try:
        while (request := _next(sock)) is not None:
            try:
                body = stand.answer(request.body)
            except Exception as error:  # noqa: BLE001 - outermost frame: it is told, and no control counts
                body = {"ok": False, "code": "stand", "detail": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(BrokenPipeError):  # likewise: the next look ends it
                fdpass.send(sock, body)
    finally:
        stand.clear()
    return 0


def _next(sock: socket.socket) -> fdpass.Received | None:
    try:
        return fdpass.recv(sock)
    except ConnectionResetError:  # the other end closed, with an answer of ours unread
        return None


class Stand:
    """The stand-ins, once `open` has made them."""

    def __init__(self) -> None:
        self.context: Context = {}
        self.kept: list[socket.socket] = []
        self.neighbour: neighbour.Standing | None = None
        self.dir = ""
        self.caller = 0
        self.keyed = False

    def answer(self, request: fdpass.Json) -> fdpass.Json:
        """One request."""
        if request["op"] == "open":
            self.open(request)
            return {"ok": True, "context": self.context}
        host, of_lab = request["host"], request["lab"]
        self.context["limits"] = request["limits"]
        if not isinstance(host, list) or not isinstance(of_lab, list):
            raise TypeError("expected lists of ids")
        if "keyring" in host and not self.keyed:  # the user had too many keys then: each jail has one (maxkeys: 200)
            self.keyed = _key(str(self.context["canary"]))
        words = attempts.run(host, self.context) | in_lab(of_lab, self.context)
        if "kill_tree" in words:
            words["kill_tree"] = self._survived(words["kill_tree"])
        if "copy_write" in words:
            words["copy_write"] = self._landed(words["copy_write"])
        return {"ok": True, "words": words}

    def _survived(self, word: str) -> str:
        """The word of kill_tree outside: whether what it left behind lives on after its parents' end; ends it."""
        try:
            with open(f"{self.dir}/scratch/left") as file:
                left = int(file.read())
            os.kill(left, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            return "ESRCH"
        return word

    def _landed(self, word: str) -> str:
        """The word of copy_write outside: whether what it wrote is in the tree; removes it."""
        there = os.path.exists(f"{self.dir}/tree/{files.copied_name(self.context)}")
        files.copy_clear(self.context)
        return word if there else "ENOENT"

    def open(self, request: fdpass.Json) -> None:
        """Make everything below a new directory `dir`. `full`: also what only `credgate prove` asks for."""
        self.dir, canary = str(request["dir"]), str(request["canary"])
        os.mkdir(self.dir, 0o700)
        for name in ("host", "tree", "readonly", "scratch"):
            os.mkdir(f"{self.dir}/{name}", 0o700)
        _write(f"{self.dir}/host/secret", canary)
        _write(f"{self.dir}/host/victim", "")
        _write(f"{self.dir}/readonly/file", "")
        _write(f"{self.dir}/hidden", canary)
        self.context = self._context(canary, request)
        self._sockets(canary)
        self.keyed = _key(canary)
        _terminal()
        with contextlib.suppress(OSError):  # no Yama here; its mode 1 would refuse a control, which says nothing
            prctl(PR_SET_PTRACER, ANY)
        if request["full"]:
            self.caller = _call(canary)
            self.neighbour = neighbour.put_up(self.context)

    def _context(self, canary: str, request: fdpass.Json) -> Context:
        me = os.getpid()
        return {
            "canary": canary,
            "key": f"credgate-{canary}",
            "secret": f"{self.dir}/host/secret",
            "victim_file": f"{self.dir}/host/victim",
            "dir": f"{self.dir}/host",
            "tree": f"{self.dir}/tree",
            "islands": [f"{self.dir}/tree"],
            "pins": [f"{self.dir}/tree"],
            "hidden": [f"{self.dir}/hidden"],
            "readonly": f"{self.dir}/readonly",
            "scratch": f"{self.dir}/scratch",
            "small": f"{self.dir}/scratch",
            "small_size": request["small_size"],
            "writable": [],
            "victim": me,
            "init": me,
            "sockets": {name: f"{self.dir}/{short}" for name, short in SOCKETS.items()} | {"datagram": f"{self.dir}/e"},
            "abstract": f"credgate-{canary}-out",
            "abstract_in": f"credgate-{canary}-in",
            "tcp_port": 0,
            "tty_devices": sorted({os.stat(path).st_dev for path in ("/dev", "/dev/pts") if os.path.isdir(path)}),
            "limits": request["limits"],
            "burst": request["burst"],
            "own": request["own"],
            "neighbour": {
                "name": f"credgate-{canary}",
                "abstract": f"credgate-{canary}-neighbour",
                "key": int(canary[:7], 16) | 1,
                "port": 20000 + int(canary[:4], 16) % 20000,
                "serves": False,
                "pid": me,
            },
        }

    def _sockets(self, canary: str) -> None:
        for name, path in self.context["sockets"].items():
            kind = socket.SOCK_DGRAM if name == "datagram" else socket.SOCK_STREAM
            self._bound(socket.AF_UNIX, kind, os.fsencode(path))
        self._bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0credgate-{canary}-out".encode())
        server = self._bound(socket.AF_INET, socket.SOCK_STREAM, (b"127.0.0.1", 0))
        self.context["tcp_port"] = server.getsockname()[1]

    def _bound(self, family: int, kind: int, address: bytes | tuple[bytes, int]) -> socket.socket:
        sock = socket.socket(family, kind)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen()
        self.kept.append(sock)
        return sock

    def clear(self) -> None:
        """Take down what outlives a process: the neighbour's things and the directory."""
        if self.caller:
            os.kill(self.caller, signal.SIGKILL)
        if self.neighbour is not None:
            self.neighbour.close()
        for root, directories, names in os.walk(self.dir, topdown=False) if self.dir else ():
            for name in names:
                os.unlink(os.path.join(root, name))
            for name in directories:
                os.rmdir(os.path.join(root, name))
        if self.dir:
            os.rmdir(self.dir)


def _write(path: str, text: str) -> None:
    with open(path, "x") as file:
        file.write(text)


def _key(canary: str) -> bool:
    """A key in a session keyring of this process's, as a login leaves one; False where there is none."""
    try:
        syscall("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)
        data = canary.encode()
        syscall("add_key", b"user", f"credgate-{canary}".encode(), data, len(data), SESSION_KEYRING)
    except OSError:
        return False  # no keys on this kernel, or too many of them: the control says so
    return True


def _terminal() -> None:
    """A terminal of the host's on descriptor 0."""
    try:
        _, slave = pty.openpty()
    except OSError:
        return  # no pty on this host: the control says so
    os.dup2(slave, 0)


def _call(canary: str) -> int:
    """A process that calls an abstract name again and again: who listens there is found."""
    pid = os.fork()
    if pid == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        name = f"\0credgate-{canary}-in".encode()
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.connect_ex(name)
            time.sleep(CALL_EVERY)
    return pid


def in_lab(ids: list[str], context: Context) -> dict[str, str]:
    """Words of attempts made within the lab, by a child of its own; none where the host gives no namespaces."""
    if not ids:
        return {}
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            lab.enter(context)
            os.write(writer, json.dumps(attempts.run(ids, context)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text = b""
    while chunk := os.read(reader, 65536):
        text += chunk
    os.close(reader)
    os.waitpid(pid, 0)
    words: dict[str, str] = json.loads(text) if text else {}
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
