"""A process's command line as others see it: it holds the path of our installation, and everybody may read it.

Standard library and ctypes only.
"""

import ctypes
import os

NAME = b"credgate"
_START, _END = 45, 46  # of /proc/PID/stat behind the name: fields 48 and 49 of proc(5)


def blank() -> None:
    """Write over this process's own arguments: /proc/PID/cmdline and `ps` show the name and nothing else."""
    descriptor = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
    finally:
        os.close(descriptor)
    start, end = int(fields[_START]), int(fields[_END])
    if 0 < start < end:  # 0 where the kernel keeps them to itself: then it shows no command line either
        words = NAME[: end - start - 1]
        ctypes.memmove(start, words.ljust(end - start, b"\0"), end - start)
