"""The launcher's part of a child run, of `credgate prove`, and of a run whose launcher the starter can't stand in for.
Join the berth, start pid 1, stay outside, come back only when the jail is dead.

Standard library only, single-threaded (measured: setns into a user namespace fails with a second thread).
"""

import os
import signal
import socket
import sys

from jail import fdpass
from jail.errors import JailError, Unsupported
from jail.syscalls import prctl, syscall

PR_SET_PDEATHSIG = 1
PID1 = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pid1.py")  # noqa: PTH100, PTH118, PTH120
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Handles:
    """Descriptors that the daemon handed over for one run, in the order of its answer."""

    __slots__ = ("channel", "net", "plan", "user", "workload")

    def __init__(self, fds: list[int]) -> None:
        if len(fds) != 5:
            raise JailError("bad_answer", f"got {len(fds)} descriptors from the daemon, expected 5")
        self.plan, self.user, self.net, self.channel, self.workload = fds

    def close(self) -> None:
        """Close all of them; the child has its own copies."""
        for descriptor in (self.plan, self.user, self.net, self.channel, self.workload):
            os.close(descriptor)


class Started:
    """A jail that this process started: `keeper` is our child that waits for pid 1, `peer` the socket to pid 1."""

    __slots__ = ("keeper", "peer")

    def __init__(self, keeper: int, peer: socket.socket) -> None:
        self.keeper = keeper
        self.peer = peer

    def wait(self) -> None:
        """Block until the pid namespace is empty: the kernel reaps pid 1 only after everything in it is dead."""
        os.waitpid(self.keeper, 0)


def start(handles: Handles, ttys: list[int]) -> Started:
    """Fork the keeper child, which joins the berth and starts pid 1. `ttys`: which of 0, 1, 2 are the user's terminal.

    Raises JailError where the fork fails; what fails later is told over the daemon's channel.
    """
    mine, theirs = fdpass.pair()
    me = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        _keeper(handles, theirs, ttys, me)  # never returns
    theirs.close()
    handles.close()
    return Started(keeper, mine)


def _keeper(handles: Handles, peer: socket.socket, ttys: list[int], launcher: int) -> None:
    status = 1
    try:
        for number in IGNORED:  # the terminal's signals are for the launcher to judge
            signal.signal(number, signal.SIG_IGN)
        join(handles.user, handles.net)
        # After setns: the kernel forgets a parent-death signal when credentials grow.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)
        pid = os.fork()
        if pid == 0:
            _become_pid1(handles, peer, ttys)
        _drop_all_but_standard()
        os.waitpid(pid, 0)
        status = 0
    except JailError as error:
        _complain(handles, error)
    except OSError as error:
        _complain(handles, JailError("join_failed", f"joining the berth: {error.strerror}", "", error.errno or 0))
    finally:
        os._exit(status)


def _complain(handles: Handles, error: JailError) -> None:
    channel = socket.socket(fileno=handles.channel)
    fdpass.send(channel, {"ev": "failed", "code": error.code, "detail": error.detail, "hint": error.hint})


def join(user: int, net: int) -> None:
    """Enter a berth's user and network namespace, with new ones of every other kind. Raises Unsupported."""
    try:
        os.setns(user, os.CLONE_NEWUSER)
        os.setns(net, os.CLONE_NEWNET)
        new = os.CLONE_NEWNS | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWCGROUP | os.CLONE_NEWPID
        os.unshare(new)
    except OSError as error:
        from jail import hostcauses  # noqa: PLC0415 - needed in this case alone

        hint = hostcauses.namespaces(error.errno or 0)
        detail = f"joining the berth's namespaces: {error.strerror}"
        raise Unsupported("namespaces_refused", detail, hint, error.errno or 0) from None


def _become_pid1(handles: Handles, peer: socket.socket, ttys: list[int]) -> None:
    """Exec pid 1 with its capabilities kept as ambient ones: it is not uid 0 and would lose them otherwise."""
    from jail import caps  # noqa: PLC0415 - needed in this process alone

    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    caps.raise_ambient()
    descriptors = [handles.plan, handles.channel, handles.workload, peer.fileno()]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    which = "".join(str(number) for number in ttys) or "-"
    arguments = [sys.executable, "-I", "-S", PID1, *(str(number) for number in descriptors), which]
    os.execve(sys.executable, arguments, {"LC_ALL": "C.UTF-8"})  # a clean environment: pid 1 needs none


def _drop_all_but_standard() -> None:
    # The keeper child only waits; it must not hold a channel open that means "the jail lives".
    syscall("close_range", 3, 0xFFFFFFFF, 0)
