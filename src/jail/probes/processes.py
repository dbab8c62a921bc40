"""Attempts on processes: of the host, on pid 1 of the jail, and at what is inherited from them."""

import contextlib
import ctypes
import errno
import os
import signal
import stat
import time

from jail.probes import DONE, Attempt, Context, refuse
from jail.syscalls import call, syscall

PTRACE_SEIZE = 0x4206
OWN_DESCRIPTORS = (0, 1, 2)
OWN_VARIABLES = ("LC_ALL",)  # the launcher's environment for pid 1


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1 << 20)


def proc_host(context: Context) -> str:
    """Read the environment of a process of the host, by its pid there."""
    if context["canary"].encode() not in _read(f"/proc/{context['victim']}/environ"):
        raise refuse(errno.ESRCH)  # a process of the jail's own that has this number
    return DONE


def proc_scan(context: Context) -> str:
    """Look for the canary in the environment of every process and thread that /proc shows."""
    canary = context["canary"].encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # ended, or not ours to see
        for path in (f"/proc/{pid}/environ", *(f"/proc/{pid}/task/{thread}/environ" for thread in threads)):
            try:
                if canary in _read(path):
                    return DONE
            except OSError:
                continue
    raise refuse(errno.ENOENT)


def pid1_environ(context: Context) -> str:
    """Read the environment of pid 1."""
    _read(f"/proc/{context['init']}/environ")
    return DONE


def pid1_mem(context: Context) -> str:
    """Open the memory of pid 1."""
    os.close(os.open(f"/proc/{context['init']}/mem", os.O_RDONLY | os.O_CLOEXEC))
    return DONE


def signal_host(context: Context) -> str:
    """Send a signal to a process of the host."""
    os.kill(context["victim"], signal.SIGCONT)
    return DONE


def _ptrace(request: int, pid: int) -> None:
    call(_PTRACE[os.uname().machine], request, pid, 0, 0)


_PTRACE = {"x86_64": 101, "aarch64": 117}
_PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}


def ptrace(_context: Context) -> str:
    """Trace a child of one's own."""
    child = _sleeper()
    try:
        _ptrace(PTRACE_SEIZE, child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return DONE


def _sleeper() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


def ptrace_host(context: Context) -> str:
    """Trace a process of the host."""
    _ptrace(PTRACE_SEIZE, context["victim"])
    return DONE  # the tracer's end detaches


def process_vm(context: Context) -> str:
    """Read the memory of pid 1, from whom this process was forked: the address is the same in both."""
    here, there = ctypes.create_string_buffer(8), ctypes.create_string_buffer(b"forked!", 8)
    vectors = [_Iovec(ctypes.addressof(buffer), 8) for buffer in (here, there)]
    call(_PROCESS_VM_READV[os.uname().machine], context["init"], vectors[0], 1, _Iovec(id(DONE), 8), 1, 0)
    return DONE


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def pidfd_getfd(context: Context) -> str:
    """Take a descriptor out of pid 1."""
    target = os.pidfd_open(context["init"])
    try:
        os.close(syscall("pidfd_getfd", target, 0, 0))
    finally:
        os.close(target)
    return DONE


def descriptors(context: Context) -> str:
    """Find a descriptor that was inherited: any but 0, 1, 2 and those that the attempt itself needs, or a directory."""
    for descriptor in OWN_DESCRIPTORS:
        with contextlib.suppress(OSError):  # closed
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                return DONE
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor in OWN_DESCRIPTORS or descriptor in context["_fds"]:
            continue
        try:
            os.fstat(descriptor)
        except OSError:
            continue  # of the listing itself
        return DONE
    raise refuse(errno.EBADF)


def environment(context: Context) -> str:
    """Find a variable that pid 1 was not given, or the canary in the environment that the command will get."""
    if any(name not in OWN_VARIABLES for name in os.environ):
        return DONE
    if any(context["canary"] in value for _, value in context.get("_env", ())):
        return DONE
    raise refuse(errno.ENOENT)


def kill_tree(context: Context) -> str:
    """Leave a process behind: detached twice, in a session of its own, deaf to TERM and HUP.

    Whether it outlives the end is looked at from outside, afterwards; its pid is left in a file of the scratch place.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        left = os.fork()
        if left == 0:
            os.setsid()
            for deaf in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(deaf, signal.SIG_IGN)
            os.closerange(0, 1024)
            time.sleep(60)  # of one whose stand was killed, nobody else makes an end
        with open(f"{context['scratch']}/left", "w") as file:
            file.write(str(left))
        os._exit(0)
    os.waitpid(child, 0)
    return DONE


ATTEMPTS: dict[str, Attempt] = {
    "proc_host": proc_host,
    "proc_scan": proc_scan,
    "pid1_environ": pid1_environ,
    "pid1_mem": pid1_mem,
    "signal_host": signal_host,
    "ptrace": ptrace,
    "ptrace_host": ptrace_host,
    "process_vm": process_vm,
    "pidfd_getfd": pidfd_getfd,
    "descriptors": descriptors,
    "environment": environment,
    "kill_tree": kill_tree,
}
