"""The jail's own pseudo terminal: made in the jail's devpts by pid 1, its master handed to the launcher.

A child that calls setsid and keeps the *user's* terminal would read what is typed at the host shell (measured), so the
workload never gets that one. Standard library only.
"""

import fcntl
import os
import signal
import socket
import struct
import termios

from jail import fdpass

TIOCSPTLCK, TIOCGPTN = 0x40045431, 0x80045430  # asm-generic/ioctls.h; the termios module lacks them


def open_pty(launcher: socket.socket) -> int:
    """Make the pair, send the master to the launcher, return the slave's descriptor."""
    master = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
    number = struct.unpack("i", fcntl.ioctl(master, TIOCGPTN, struct.pack("i", 0)))[0]
    slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fdpass.send(launcher, {"ev": "pty"}, [master])
    os.close(master)
    return slave


def adopt(slave: int) -> None:
    """Make `slave` the controlling terminal of this session (pid 1's)."""
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def take(slave: int, ttys: list[int]) -> None:
    """Become the terminal's foreground and have it as the descriptors `ttys` (of 0, 1, 2)."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a group that is not yet the foreground would stop here
    os.tcsetpgrp(slave, os.getpgrp())
    for number in ttys:
        os.dup2(slave, number, inheritable=True)
    os.close(slave)
