"""A child run's launcher: a fork of the parent's `credgate run`, so that the child has its caller's groups, limits and
control group, and dies with it. Standard library only, single-threaded as launcher.py is.
"""

import fcntl
import os
import signal
import socket

from jail import fdpass, launcher
from jail.errors import JailError
from jail.syscalls import prctl, syscall

PATIENCE = 60.0  # seconds that the daemon may take to send the plan


def spawn(fds: list[int]) -> int:
    """Fork the launcher of one child run; returns its pid, for the caller to reap.

    fds: the daemon's socket for this child, and what becomes its 0, 1, 2. The caller's to close.
    Raises JailError for another number of descriptors, OSError where the fork fails.
    """
    if len(fds) != 4:
        raise JailError("bad_answer", f"got {len(fds)} descriptors for a child run, expected 4")
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run(fds, me)  # never returns
    return pid


def _run(fds: list[int], parent: int) -> None:
    status = 1
    try:
        prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()  # the user's terminal is not the child's, and its signals are for the parent
        _quiet_signals()
        control = _settle(fds)
        control.settimeout(PATIENCE)
        answer = fdpass.recv(control)
        if answer is not None and answer.body.get("ev") == "plan":
            _stay(launcher.start(launcher.Handles(answer.fds), []))
            status = 0
    except (JailError, OSError):
        status = 1  # the daemon sees the sockets close, and says that the jail is gone
    finally:
        os._exit(status)


def _quiet_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in launcher.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)


def _settle(fds: list[int]) -> socket.socket:
    """Make the descriptors 3, 0, 1, 2, and close every other one: the parent's terminal, sockets and status file."""
    # Above 3 first: 0, 1 or 2 may be closed in the parent, and one of `fds` be in its place.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 4) for descriptor in fds]
    for number, descriptor in zip((3, 0, 1, 2), high, strict=True):
        os.dup2(descriptor, number, inheritable=number < 3)
    syscall("close_range", 4, 0xFFFFFFFF, 0)
    return socket.socket(fileno=3)


def _stay(started: launcher.Started) -> None:
    """Keep pid 1's socket open and empty until it dies: its end would end the jail, a full one would block pid 1."""
    try:
        while (message := fdpass.recv(started.peer)) is not None:
            message.close()
    finally:
        started.peer.close()
        started.wait()
