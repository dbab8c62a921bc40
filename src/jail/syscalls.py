"""System calls that the standard library lacks, by number. Standard library and ctypes only: for launcher and pid 1.

The one place for numbers: everything from 424 on has the same number on every architecture of Linux
(asm-generic); the older ones differ and are listed twice.
"""

import ctypes
import os

from jail.errors import JailError

_SHARED = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "fchmodat2": 452,
    "statmount": 457,
    "listmount": 458,
    "open_tree_attr": 467,
}
NUMBERS = {
    "x86_64": {
        **_SHARED,
        "capget": 125,
        "capset": 126,
        "pivot_root": 155,
        "mount": 165,
        "renameat2": 316,
        "umount2": 166,
        "add_key": 248,
        "keyctl": 250,
        "ioprio_set": 251,
        "ioprio_get": 252,
        "seccomp": 317,
    },
    "aarch64": {
        **_SHARED,
        "capget": 90,
        "capset": 91,
        "pivot_root": 41,
        "mount": 40,
        "renameat2": 276,
        "umount2": 39,
        "add_key": 217,
        "keyctl": 219,
        "ioprio_set": 30,
        "ioprio_get": 31,
        "seccomp": 277,
    },
}

_MACHINE = os.uname().machine  # asked once: a launch makes five hundred calls by number
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.restype = ctypes.c_int

# ctypes passes a bare int as a 32-bit C int; the kernel reads whole registers.
type Argument = int | bytes | ctypes.Array[ctypes.c_char] | ctypes.Structure | None


def number(name: str, machine: str | None = None) -> int:
    """The number of `name` on `machine` (default: this one's). Raises JailError where we have no table."""
    here = machine or _MACHINE
    try:
        return NUMBERS[here][name]
    except KeyError:
        raise JailError(
            "arch_unsupported",
            f"no number for system call {name} on {here}, got tables for {', '.join(NUMBERS)}",
            "run on x86_64 or aarch64",
        ) from None


def syscall(name: str, *args: Argument) -> int:
    """Call `name`; structures and buffers go by reference. Returns its result, raises OSError with the errno."""
    return call(number(name), *args)


def call(nr: int, *args: Argument) -> int:
    """Call by number, for what has no entry in the table (tests of numbers that must be refused)."""
    ctypes.set_errno(0)
    result: int = _libc.syscall(ctypes.c_long(nr), *(_register(a) for a in args))
    if result == -1:
        _raise()
    return result


def prctl(option: int, *args: int) -> int:
    """Call prctl with missing arguments as zero (several options answer EINVAL otherwise). Raises OSError."""
    ctypes.set_errno(0)
    padded = (*args, *(0,) * (4 - len(args)))
    result: int = _libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(a) for a in padded))
    if result == -1:
        _raise()
    return result


def _register(value: Argument) -> object:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, int):
        return ctypes.c_ulong(value & (2**64 - 1))
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    return ctypes.byref(value)


def _raise() -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))
