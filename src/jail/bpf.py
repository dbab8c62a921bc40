"""no_new_privs, and loading a compiled seccomp filter. Standard library and ctypes only: the workload's last step."""

import ctypes

from jail.errors import JailError
from jail.syscalls import prctl, syscall

_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_SECCOMP_SET_MODE_FILTER = 1
_INSTRUCTION = 8  # bytes of a struct sock_filter
_MOST = 4096  # BPF_MAXINSNS


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def no_new_privs() -> None:
    """Set no_new_privs and ask the kernel whether it holds. Raises JailError."""
    try:
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    except OSError as error:
        raise JailError(
            "no_new_privs", f"could not set no_new_privs: {error.strerror}", "", error.errno or 0
        ) from error
    _require_no_new_privs()


def load(bpf: bytes) -> None:
    """Put a filter (as libseccomp exports it) on the calling thread, for ever. Raises JailError.

    Without no_new_privs a process with CAP_SYS_ADMIN could load it too, and a set-uid program would run under it;
    so that is an error here, not left to the kernel.
    """
    count, rest = divmod(len(bpf), _INSTRUCTION)
    if rest or not 0 < count <= _MOST:
        raise JailError("seccomp_filter", f"expected 1 to {_MOST} instructions of 8 bytes, got {len(bpf)} bytes")
    _require_no_new_privs()
    try:
        syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, _SockFprog(count, bpf))
    except OSError as error:
        raise JailError("seccomp_load", f"could not load the filter: {error.strerror}", "", error.errno or 0) from error


def _require_no_new_privs() -> None:
    if prctl(_PR_GET_NO_NEW_PRIVS) != 1:
        raise JailError("no_new_privs", "expected no_new_privs to be set, got 0", "this is a fault of credgate")
