"""Run a command in a network namespace of its own, loopback alone: what a failing guard lets out goes nowhere.

usage (by root): own_network.py COMMAND [ARGUMENT...]
"""

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def enter() -> None:
    """Leave the network of the caller. Raises OSError where the namespace is refused."""
    os.unshare(os.CLONE_NEWNET)
    with socket.socket() as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))


def main(command: list[str]) -> None:
    """Become the command in there."""
    enter()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
