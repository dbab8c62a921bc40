"""The daemon's side of the starter (`jail.starter`): one message starts a jail. Nothing here waits."""

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Self

from jail import fdpass
from jail import starter as script
from jail.errors import JailError

_PATIENCE = 5.0  # seconds


class StarterProcess:
    """A running starter. `pidfd` is readable once it has died; every jail that it forked dies with it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process, self._sock = process, sock
        self.pidfd = os.pidfd_open(process.pid)

    @classmethod
    def start(cls, python: str, program: str = script.__file__) -> Self:
        """Exec one; call it before any secret is loaded. Raises JailError."""
        ours, theirs = fdpass.pair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [python, "-I", "-S", program, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={"LC_ALL": "C.UTF-8"},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise JailError("starter_start", f"{python}: {error.strerror}", "", error.errno or 0) from error
        ours.settimeout(_PATIENCE)
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """Process id of the starter."""
        return self._process.pid

    def launch(self, descriptors: Sequence[int], ttys: Sequence[int], manner: Mapping[str, Any]) -> None:
        """Have a jail started, of descriptors in the order of `jail.starter`; they stay the caller's.

        What fails from here on is said on the jail's own channel. Raises JailError where the starter takes nothing.
        """
        try:
            fdpass.send(self._sock, {"op": "start", "ttys": list(ttys), "manner": dict(manner)}, descriptors)
        except OSError as error:
            hint = "start the daemon again: credgate gateway stop"
            raise JailError("starter_gone", f"the starter takes no jail: {error}", hint, error.errno or 0) from error

    def prepare(self, descriptors: Sequence[int], mounts: Sequence[Mapping[str, Any]]) -> None:
        """Have half a jail made, whose root begins with these mounts; descriptors as `jail.starter.AHEAD` says.

        Raises JailError where the starter takes nothing.
        """
        try:
            fdpass.send(self._sock, {"op": "prepare", "mounts": [dict(each) for each in mounts]}, descriptors)
        except OSError as error:
            raise JailError("starter_gone", f"the starter takes nothing: {error}", "", error.errno or 0) from error

    def stop(self) -> None:
        """End it, and every jail that it forked; returns once it is dead. May be called again."""
        self._sock.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the waiters have it as their PDEATHSIG parent
            self._process.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
