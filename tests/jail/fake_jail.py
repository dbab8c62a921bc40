"""A jail without walls, for the relay's tests: its own terminal, a pid 1 that tells of stops, and a workload.

Run as `fake_jail.py COMMAND...` from a shell. The workload is in a session whose leader is its parent, as a shell's
jobs are: the kernel ignores Ctrl-Z in an orphaned process group.
"""

import fcntl
import os
import pty
import select
import signal
import sys
import termios

from jail.lent import CONTINUED, EXITED, STOPPED
from jail.relay import Relay

WORDS = {b"s": STOPPED, b"c": CONTINUED, b"": EXITED}


def workload(slave: int, ttys: list[int], argv: list[str]) -> None:
    os.setpgid(0, 0)
    os.tcsetpgrp(slave, os.getpgrp())
    for number in (signal.SIGTTOU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    for number in ttys:
        os.dup2(slave, number)
    os.closerange(3, 64)
    os.execvp(argv[0], argv)


def pid1(slave: int, ttys: list[int], argv: list[str], tell: int, obey: int) -> None:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        workload(slave, ttys, argv)
    os.close(slave)
    for number in (0, 1, 2):
        os.close(number)
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if pid == child and os.WIFSTOPPED(status):
            os.write(tell, b"s")
        elif pid == child and os.WIFCONTINUED(status):
            os.write(tell, b"c")
        elif pid == child:
            os._exit(os.waitstatus_to_exitcode(status) % 256)
        if select.select([obey], [], [], 0.02)[0]:
            os.killpg(child, os.read(obey, 1)[0])


def main(argv: list[str]) -> int:
    ttys = [number for number in (0, 1, 2) if os.isatty(number)]
    if "FAKE_UID" in os.environ:
        os.setgroups([])
        os.setresgid(*[int(os.environ["FAKE_UID"])] * 3)
        os.setresuid(*[int(os.environ["FAKE_UID"])] * 3)
    master, slave = pty.openpty()
    events, tell = os.pipe()
    obey, order = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(master)
        pid1(slave, ttys, argv, tell, obey)
    os.close(slave)
    os.close(tell)
    Relay(
        ttys=ttys,
        master=master,
        events=events,
        receive=lambda: WORDS[os.read(events, 1)],
        patience=lambda: None,
        resume=lambda: os.write(order, bytes([signal.SIGCONT])),
        forward=lambda number: os.write(order, bytes([number])),
    ).run()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code < 128 else 128 + 256 - code  # pid1 told a signal as -n


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
