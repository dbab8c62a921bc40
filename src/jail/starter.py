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
import select
import signal
import socket
import sys

if __name__ == "__main__":  # -S and -I: nothing but the standard library is on the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120

from jail import ahead, caps, fdpass, immortal, launcher, pid1
from jail.errors import JailError
from jail.manner import take_over
from jail.syscalls import prctl

# Of a message: the plan, user and network namespace, the daemon's channel, the workload's, the launcher's socket to
# pid 1, the waiter's end of `life`, and what becomes 0, 1, 2.
DESCRIPTORS = 10
# Of one that is made ahead: user and network namespace, what its pid 1 and its waiter get their orders by.
AHEAD = 4


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


class Ahead:
    """Half a jail, of descriptors as above, whose root begins with these mounts."""

    __slots__ = ("control", "net", "operations", "reins", "user")

    def __init__(self, message: fdpass.Received) -> None:
        operations = message.body.get("mounts")
        if len(message.fds) != AHEAD or not isinstance(operations, list):
            raise JailError("starter_request", f"got {len(message.fds)} descriptors and no mounts from the daemon")
        self.user, self.net, self.control, self.reins = message.fds
        self.operations = operations


def main(arguments: list[str]) -> int:
    """Serve until the daemon's end is closed; every waiter ends with this process."""
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the waiters
    caps.last_cap()  # asked here once, for all
    immortal.forever()
    gc.freeze()  # a collection in a fork would write to, and so copy, every page that holds an object
    while (message := fdpass.recv(control)) is not None:
        try:
            if message.body.get("op") == "prepare":
                prepare(Ahead(message), control)
            else:
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


def prepare(order: Ahead, control: socket.socket) -> None:
    """Fork the waiter of half a jail. Where that fails the daemon sees both sockets end."""
    starter = os.getpid()
    try:
        waiter = os.fork()
    except OSError:
        return
    if waiter == 0:
        control.close()
        _wait_ahead(order, starter)


def _wait(order: Order, starter: int) -> None:
    """The waiter: joins, forks, waits. Never returns."""
    status = 1
    try:
        take_over(order.manner)
        _join(order.user, order.net, starter)
        pid = os.fork()
        if pid == 0:
            _become_pid1(order)
        _until_dead(order.life, pid)
        status = 0
    except JailError as error:
        _complain(order, error)
    except OSError as error:
        _complain(order, JailError("join_failed", f"joining the berth: {error.strerror}", "", error.errno or 0))
    finally:
        os._exit(status)


def _wait_ahead(order: Ahead, starter: int) -> None:
    """The same for a jail that has no launcher yet: the end of `reins` ends it, until they bring a `life`."""
    status = 1
    try:
        _join(order.user, order.net, starter)
        pid = os.fork()
        if pid == 0:
            try:
                status = ahead.stand_by(order.control, order.operations)
            finally:
                os._exit(status)
        _until_dead(order.reins, pid, ahead=True)
        status = 0
    except JailError as error:
        pid1.tell(socket.socket(fileno=order.control), {"ev": "failed", "code": error.code, "detail": error.detail})
    finally:
        os._exit(status)


def _join(user: int, net: int, starter: int) -> None:
    """Enter the berth, and die with the starter. Raises JailError, OSError."""
    for number in launcher.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    launcher.join(user, net)
    # After setns: the kernel forgets a parent-death signal when credentials grow.
    prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        os._exit(1)


def _become_pid1(order: Order) -> None:
    status = 1
    try:
        for number, descriptor in enumerate(order.standard):
            os.dup2(descriptor, number)
        status = pid1.begin([order.plan, order.channel, order.workload, order.peer], order.ttys)
    finally:
        os._exit(status)


def _until_dead(life: int, pid: int, *, ahead: bool = False) -> None:
    """Wait until the kernel reaps pid 1, which it does only once everything in its namespace is dead.

    Nothing is held meanwhile but `life`: neither a channel that means "the jail lives", nor a pipe of the caller's.
    ahead: it is the daemon's, and brings the launcher's.
    """
    jail = os.pidfd_open(pid)
    first, second = sorted((jail, life))
    os.closerange(3, first)
    os.closerange(first + 1, second)
    os.closerange(second + 1, 1 << 30)
    if _ends(jail, life) and (not ahead or _ends(jail, _given(life))):
        os.kill(pid, signal.SIGKILL)  # the launcher's end is closed
    os.waitpid(pid, 0)


def _ends(jail: int, life: int) -> bool:
    """Wait for the jail's end or for something of `life`; whether it is that."""
    if life < 0:
        return True
    poll = select.poll()
    for descriptor in (jail, life):
        poll.register(descriptor, select.POLLIN)
    return any(descriptor == life for descriptor, _ in poll.poll())


def _given(reins: int) -> int:
    """The launcher's `life`; -1 where the daemon let go."""
    with socket.socket(fileno=reins) as sock:
        message = fdpass.recv(sock)
    return message.fds[0] if message is not None and len(message.fds) == 1 else -1


def _complain(order: Order, error: JailError) -> None:
    channel = socket.socket(fileno=order.channel)
    fdpass.send(channel, {"ev": "failed", "code": error.code, "detail": error.detail, "hint": error.hint})
    channel.detach()  # whoever took the message closes it


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
