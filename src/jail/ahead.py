"""pid 1 of a jail that nobody has asked for yet: what all jails of a user begin with is done before.

Namespaces are joined by then, and of the root those mounts are made that no policy, work tree or command decides. It
waits for its order: the plan, its channels, and what it takes over of the launcher; everything else is done then, as by
any pid 1, the bounds on namespaces too: another jail may have to be made in this berth. It is used once, or ends
with the socket that it waits at. Whether the host's mounts and what was mounted of them are still the same is
compared by the daemon, which sees the host: this process has a mount namespace of its own.
Standard library only.
"""

import os
import signal
import socket
import sys

from jail import fdpass, manner, mounts, pid1
from jail.errors import JailError
from jail.plantypes import Operation
from jail.syscalls import prctl

DESCRIPTORS = 7  # of an order: the plan, the daemon's channel, the workload's, the launcher's socket, and 0, 1, 2


def stand_by(descriptor: int, operations: list[Operation]) -> int:
    """Begin, say so, wait for the order, become that jail's pid 1. Outermost frame: whatever goes wrong ends it."""
    control = socket.socket(fileno=descriptor)
    try:
        prctl(pid1.PR_SET_PDEATHSIG, signal.SIGKILL)
        pid1.close_others([descriptor])
        os.umask(0o022)
        begun = mounts.begin(operations)
        fdpass.send(control, {"ev": "prepared", "seen": begun.seen})
        order = fdpass.recv(control)
    except JailError as error:
        pid1.tell(control, {"ev": "failed", "code": error.code, "detail": error.detail, "hint": error.hint})
        return 1
    except OSError as error:
        sys.stderr.write(f"error: a jail made ahead: {error}\n")
        return 1
    control.close()
    return 0 if order is None else _become(order, begun)


def _become(order: fdpass.Received, begun: mounts.Begun) -> int:
    if len(order.fds) != DESCRIPTORS:
        return 1  # the daemon sees the jail's channel end
    plan, channel, workload, peer, *standard = order.fds
    try:
        manner.take_over(order.body)
    except JailError as error:
        told = socket.socket(fileno=channel)
        pid1.tell(told, {"ev": "failed", "code": error.code, "detail": error.detail, "hint": error.hint})
        return 1
    for number, lent in enumerate(standard):
        os.dup2(lent, number)
    ttys = order.body["ttys"]
    return pid1.begin(
        [plan, channel, workload, peer], [int(str(tty)) for tty in ttys] if isinstance(ttys, list) else [], begun
    )
