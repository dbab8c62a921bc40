"""Capabilities: all of them gone, or all of them kept over one exec. Standard library only.

Order of dropping: securebits and the bounding set need CAP_SETPCAP, so capset comes last.
"""

import ctypes
import errno
import struct

from jail.errors import JailError
from jail.syscalls import prctl, syscall

_VERSION_3 = 0x20080522
_HEADER = struct.pack("=Ii", _VERSION_3, 0)
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
_PR_CAP_AMBIENT = 47
_AMBIENT_IS_SET, _AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 1, 2, 4
_MOST = 64  # the two 32-bit words of a version 3 set

# NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE and the lock of each, and the lock of KEEP_CAPS (left off):
# becoming uid 0 by any way gives nothing back.
SECUREBITS = 0b1110_1111


_last: list[int] = []  # the answer, which no kernel changes while it runs; a fork has it of the starter


def last_cap() -> int:
    """The highest capability that the kernel knows, asked of the kernel (no /proc: it may be masked)."""
    if not _last:
        _last.append(_asked_for())
    return _last[0]


def _asked_for() -> int:
    for cap in range(_MOST):
        try:
            prctl(_PR_CAPBSET_READ, cap)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise _failed("read the bounding set", error) from error
            return cap - 1
    return _MOST - 1


def sets() -> tuple[int, int, int]:
    """(effective, permitted, inheritable) of the calling thread, as masks."""
    data = ctypes.create_string_buffer(24)
    _step("read capabilities", "capget", _HEADER, data)
    low_e, low_p, low_i, high_e, high_p, high_i = struct.unpack("=6I", data.raw)
    return low_e | high_e << 32, low_p | high_p << 32, low_i | high_i << 32


def bounding() -> int:
    """The bounding set as a mask."""
    return _mask(_PR_CAPBSET_READ)


def ambient() -> int:
    """The ambient set as a mask."""
    return _mask(_PR_CAP_AMBIENT, _AMBIENT_IS_SET)


def drop_all() -> None:
    """Empty all five sets, lock the securebits, and ask the kernel whether it is so. Raises JailError."""
    _prctl("clear the ambient set", _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    if prctl(_PR_GET_SECUREBITS) != SECUREBITS:
        _prctl("lock the securebits", _PR_SET_SECUREBITS, SECUREBITS)
    for cap in range(last_cap() + 1):
        if prctl(_PR_CAPBSET_READ, cap):
            _prctl(f"drop capability {cap} from the bounding set", _PR_CAPBSET_DROP, cap)
    _capset(0, 0, 0)
    left = (*sets(), bounding(), ambient())
    if any(left) or prctl(_PR_GET_SECUREBITS) != SECUREBITS:
        shown = " ".join(f"{mask:x}" for mask in left)
        raise JailError("caps_left", f"expected no capability, got eff perm inh bnd amb = {shown}")


def raise_ambient() -> None:
    """Make every permitted capability inheritable and ambient: pid 1 keeps them over its exec. Raises JailError.

    Only for the exec inside the run's own user namespace, where the process is not uid 0 and exec would drop them.
    """
    effective, permitted, _ = sets()
    _capset(effective, permitted, permitted)
    for cap in range(last_cap() + 1):
        if permitted >> cap & 1:
            _prctl(f"raise capability {cap} to ambient", _PR_CAP_AMBIENT, _AMBIENT_RAISE, cap)


def _capset(effective: int, permitted: int, inheritable: int) -> None:
    masks = (effective, permitted, inheritable)
    data = struct.pack("=6I", *(m & 0xFFFFFFFF for m in masks), *(m >> 32 for m in masks))
    _step("set capabilities", "capset", _HEADER, data)


def _mask(*question: int) -> int:
    return sum(1 << cap for cap in range(last_cap() + 1) if prctl(*question, cap))


def _prctl(what: str, *args: int) -> None:
    try:
        prctl(*args)
    except OSError as error:
        raise _failed(what, error) from error


def _step(what: str, name: str, *args: bytes | ctypes.Array[ctypes.c_char]) -> None:
    try:
        syscall(name, *args)
    except OSError as error:
        raise _failed(what, error) from error


def _failed(what: str, error: OSError) -> JailError:
    return JailError("caps_failed", f"could not {what}: {error.strerror}", "", error.errno or 0)
