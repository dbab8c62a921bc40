"""Forks jails for the daemon: `python -I -S starter.py FD`, FD a SOCK_SEQPACKET socket to the daemon.

Exec'd before the daemon has loaded a secret, with a clean environment; single-threaded. What pid 1 needs is imported
once for all jails: a launch costs two forks in place of the start of an interpreter (measured: 43 ms of CPU). Nothing
is answered: what fails is told on the jail's own channel. Nothing of a launcher comes to this process but the standard
descriptors that it lent, which are closed as soon as a jail has them.

The waiter, the first fork, joins the berth, forks pid 1 and stays outside. Its end is that of pid 1, and it ends when
the starter does, or when the launcher's end of `life` is closed: by the kernel, whatever becomes of the launcher.
Standard library only.
"""

import gc
import os
import resource
import select
import signal
import socket
import sys

if __name__ == "__main__":  # -S and -I: nothing but the standard library is on the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120

from jail import caps, fdpass, launcher, pid1
from jail.errors import JailError
from jail.syscalls import prctl, syscall

# Of a message: the plan, user and network namespace, the daemon's channel, the workload's, the launcher's socket to
# pid 1, the waiter's end of `life`, and what becomes 0, 1, 2.
DESCRIPTORS = 10
IOPRIO_WHO_PROCESS = 1


class Order:
    """One jail to be started: descriptors as above, the manner of its launcher, which of 0, 1, 2 are its terminal."""

    __slots__ = ("channel", "life", "manner", "net", "peer", "plan", "standard", "ttys", "user", "workload")

    def __init__(self, message: fdpass.Received) -> None:
        fds, body = message.fds, message.body
        if len(fds) != DESCRIPTORS or body.get("op") != "start":
            raise JailError("starter_request", f"got op {body.get('op')!r} and {len(fds)} descriptors from the daemon")
        self.plan, self.user, self.net, self.channel, self.workload, self.peer, self.life, *self.standard = fds
        ttys, manner = body.get("ttys"), body.get("manner")
        if not isinstance(ttys, list) or not isinstance(manner, dict):
            raise JailError("starter_request", "got a start without ttys or manner")
        self.ttys: list[int] = ttys
        self.manner = manner


def main(arguments: list[str]) -> int:
    """Serve until the daemon's end is closed; every waiter ends with this process."""
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the waiters
    caps.last_cap()  # asked here once, for all
    gc.freeze()  # a collection in a fork would write to, and so copy, every page that holds an object
    while (message := fdpass.recv(control)) is not None:
        try:
            start(Order(message), control)
        finally:
            message.close()
    return 0


def start(order: Order, control: socket.socket) -> None:
    """Fork the waiter of one jail."""
    starter = os.getpid()
    try:
        waiter = os.fork()
    except OSError as error:
        hint = "end what runs as this user, or raise its limit of processes"
        _complain(order, JailError("starter_fork", f"fork: {error.strerror}", hint, error.errno or 0))
        return
    if waiter == 0:
        control.close()
        _wait(order, starter)


def _wait(order: Order, starter: int) -> None:
    """The waiter: joins, forks, waits. Never returns."""
    status = 1
    try:
        for number in launcher.IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        take_over(order.manner)
        launcher.join(order.user, order.net)
        # After setns: the kernel forgets a parent-death signal when credentials grow.
        prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:
            os._exit(1)
        pid = os.fork()
        if pid == 0:
            _become_pid1(order)
        _until_dead(order, pid)
        status = 0
    except JailError as error:
        _complain(order, error)
    except OSError as error:
        _complain(order, JailError("join_failed", f"joining the berth: {error.strerror}", "", error.errno or 0))
    finally:
        os._exit(status)


def take_over(manner: fdpass.Json) -> None:
    """Have umask, priorities, CPUs and limits of the launcher, as a fork of its own would have. Raises JailError."""
    try:
        os.umask(_number(manner["umask"]))
        os.setpriority(os.PRIO_PROCESS, 0, _number(manner["nice"]))
        os.sched_setscheduler(0, _number(manner["policy"]), os.sched_param(0))
        os.sched_setaffinity(0, _numbers(manner["cpus"]))
        if manner["ioprio"] is not None:
            syscall("ioprio_set", IOPRIO_WHO_PROCESS, 0, _number(manner["ioprio"]))
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123 - pathlib costs 14 ms
            file.write(b"%d" % _number(manner["oom_score_adj"]))
        for kind, bounds in enumerate(_pairs(manner["limits"])):
            resource.setrlimit(kind, bounds)
    except (OSError, ValueError, KeyError, TypeError) as error:
        number = error.errno or 0 if isinstance(error, OSError) else 0
        raise JailError("manner", f"what the launcher runs with can't be had: {error}", "", number) from None


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"got {value!r}, expected a number")
    return value


def _numbers(value: object) -> list[int]:
    if not isinstance(value, list):
        raise TypeError(f"got {value!r}, expected numbers")
    return [_number(each) for each in value]


def _pairs(value: object) -> list[tuple[int, int]]:
    if not isinstance(value, list):
        raise TypeError(f"got {value!r}, expected pairs")
    return [(soft, hard) for soft, hard in map(_numbers, value)]


def _become_pid1(order: Order) -> None:
    status = 1
    try:
        for number, descriptor in enumerate(order.standard):
            os.dup2(descriptor, number)
        status = pid1.begin([order.plan, order.channel, order.workload, order.peer], order.ttys)
    finally:
        os._exit(status)


def _until_dead(order: Order, pid: int) -> None:
    """Wait until the kernel reaps pid 1, which it does only once everything in its namespace is dead.

    Nothing is held meanwhile but `life`: neither a channel that means "the jail lives", nor a pipe of the caller's.
    """
    jail = os.pidfd_open(pid)
    first, second = sorted((jail, order.life))
    os.closerange(3, first)
    os.closerange(first + 1, second)
    os.closerange(second + 1, 1 << 30)
    poll = select.poll()
    for descriptor in (jail, order.life):
        poll.register(descriptor, select.POLLIN)
    if any(descriptor == order.life for descriptor, _ in poll.poll()):
        os.kill(pid, signal.SIGKILL)  # the launcher's end is closed
    os.waitpid(pid, 0)


def _complain(order: Order, error: JailError) -> None:
    channel = socket.socket(fileno=order.channel)
    fdpass.send(channel, {"ev": "failed", "code": error.code, "detail": error.detail, "hint": error.hint})
    channel.detach()  # whoever took the message closes it


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
