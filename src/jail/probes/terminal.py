"""Attempts at the user's terminal."""

import ctypes
import errno
import fcntl
import os
import pty
import termios

from jail.probes import DONE, Attempt, Context, refuse
from jail.syscalls import call

_IOCTL = {"x86_64": 16, "aarch64": 29}
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
HIGH = 1 << 32  # the kernel reads 32 bits of the request; a filter that compares 64 misses it (CVE-2019-10063)


def terminal(context: Context) -> str:
    """Have a terminal of the host's: as a descriptor, or as the one that /dev/tty stands for."""
    for descriptor in range(3):
        try:
            if os.isatty(descriptor) and os.fstat(descriptor).st_dev in context["tty_devices"]:
                return DONE
        except OSError:
            continue  # closed
    try:
        mine = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        raise refuse(errno.ENOTTY) from None
    if os.tcgetpgrp(mine) == 0:  # its foreground group has no number here: a session outside the pid namespace
        return DONE
    raise refuse(errno.ENOTTY)


def _own_terminal() -> int:
    """A new pair, its slave the controlling terminal of a new session (the attempt runs in a process of its own)."""
    master, slave = pty.openpty()
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    os.set_inheritable(master, False)
    return slave


def _ioctl(descriptor: int, request: int, value: bytes) -> None:
    call(_IOCTL[os.uname().machine], descriptor, request, ctypes.create_string_buffer(value))


def tiocsti(_context: Context) -> str:
    """Type into a terminal, in both spellings of the request."""
    slave = _own_terminal()
    try:
        _ioctl(slave, TIOCSTI, b"x")
    except OSError:
        _ioctl(slave, TIOCSTI | HIGH, b"x")
    return DONE


def tioclinux(_context: Context) -> str:
    """Paste into a virtual console."""
    slave = _own_terminal()
    try:
        _ioctl(slave, TIOCLINUX, b"\x03")
    except OSError:
        _ioctl(slave, TIOCLINUX | HIGH, b"\x03")
    return DONE


ATTEMPTS: dict[str, Attempt] = {"terminal": terminal, "tiocsti": tiocsti, "tioclinux": tioclinux}
