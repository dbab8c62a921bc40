"""The front of `credgate run` before a daemon that the test plays, and with a stand-in for Python."""

import os
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from credgate import buildfront
from jail import fdpass

UID = 65534 if os.geteuid() == 0 else os.geteuid()
PYTHON = 77  # the stand-in's status; it prints its arguments
SANITIZED = ("-Werror", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPLAINT = 99


type Process = subprocess.Popen[bytes]


class Rig:
    """A home whose daemon listens, and a front that looks there."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home = home
        self.binary = home / "credgate"
        python = home / "python"
        python.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\"\nexit {PYTHON}\n")
        python.chmod(0o755)
        failed = buildfront.compile_to(self.binary, (*SANITIZED, *flags), interpreter=python)
        assert not failed, failed
        self.directory = home / ".local/state/credgate/run"
        self.directory.mkdir(parents=True)
        self.directory.chmod(0o700)
        for path in (home, self.directory):
            os.chown(path, UID, -1)
        self.listener = self.listen(self.directory / "control", UID)

    @staticmethod
    def listen(path: Path, uid: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        path.chmod(0o777)
        before = os.geteuid()
        os.seteuid(uid)  # SO_PEERCRED of who connects is that of this moment
        listener.listen()
        os.seteuid(before)
        return listener

    def start(self, *arguments: str | bytes, env: Mapping[bytes, bytes] | None = None, **kw: Any) -> Process:
        options = f"detect_leaks=0:exitcode={COMPLAINT}"
        said = {b"HOME": os.fsencode(self.home), b"ASAN_OPTIONS": options.encode(), b"UBSAN_OPTIONS": options.encode()}
        rights = {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": "/", **kw}
        return subprocess.Popen([self.binary, *arguments], env={**said, **(env or {})}, **rights, **pipes)

    def asked(self, process: Process) -> "Asked | None":
        """What the front has asked for; None where it ended, or became Python, before."""
        gone = os.pidfd_open(process.pid)
        try:
            ready = select.select([self.listener, gone], [], [], 20)[0]
        finally:
            os.close(gone)
        assert ready
        return Asked(self.listener.accept()[0]) if self.listener in ready else None


class Asked:
    """A connection with its request read. close() ends the daemon, and the jail that there might be."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        received = fdpass.recv(control)
        assert received is not None
        self.body, (self.payload, peer, life, *self.standard) = received.body, received.fds
        self.jail = [socket.socket(fileno=number) for number in (peer, life)]
        self.raw = os.pread(self.payload, 4 << 20, 0)

    def say(self, message: bytes, fds: Sequence[int] = ()) -> None:
        fdpass.send_bytes(self.control, message, fds)

    def close(self) -> None:
        self.control.close()
        for sock in self.jail:
            sock.close()
        for number in (self.payload, *self.standard):
            os.close(number)
        self.payload, self.standard = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), []


@contextmanager
def rig(*flags: str) -> Iterator[Rig]:
    home = Path(tempfile.mkdtemp(prefix="credgate-front-"))
    home.chmod(0o755)
    try:
        made = Rig(home, *flags)
        yield made
        made.listener.close()
    finally:
        shutil.rmtree(home)


def end(process: Process) -> tuple[int, bytes, bytes]:
    """Its status, and what it printed; a sanitizer that complains fails the test."""
    out, err = (said or b"" for said in process.communicate(timeout=90))  # None: the test gave it another place
    assert process.returncode != COMPLAINT and b"runtime error" not in err, err.decode(errors="replace")
    return process.returncode, out, err


def words(out: bytes) -> list[str]:
    """The arguments that the stand-in was started with, without what is the same each time."""
    isolated, bare, start, *rest = out.decode(errors="surrogateescape").split("\0")[:-1]
    assert [isolated, bare, Path(start).name] == ["-I", "-S", "start.py"]
    return rest
