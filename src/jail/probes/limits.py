"""Attempts to take more than the role's limits. Nothing big is touched: what is refused is asked for, not used."""

import errno
import mmap
import os
import resource
import signal
import time

from jail.probes import DONE, Attempt, Context, refuse

MIB = 1 << 20
CHUNK, PACE, KEPT = 4 * MIB, 0.02, 3.0  # seconds: whoever sums looks four times in one
MAP_NORESERVE = 0x4000  # asm-generic/mman.h; the mmap module has it from Python 3.13 on


def memory(context: Context) -> str:
    """Ask for more private memory than a process may reserve. It is not touched, and without a reservation."""
    size = context["limits"]["data"] + 64 * MIB
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()
    return DONE


def memory_shared(context: Context) -> str:
    """Fill more than the limit with shared pages, which RLIMIT_DATA doesn't see, and keep them for some seconds."""
    kept = []
    for _ in range(0, context["burst"], CHUNK):
        pages = mmap.mmap(-1, CHUNK, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        pages.write(bytes(CHUNK))
        kept.append(pages)
        time.sleep(PACE)
    time.sleep(KEPT)
    return DONE


def processes(context: Context) -> str:
    """Have one process more than the limit, all at once."""
    children: list[int] = []
    try:
        for _ in range(context["limits"]["processes"] + 1):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
    return DONE


def open_files(context: Context) -> str:
    """Open one file more than the limit."""
    most = context["limits"]["open_files"]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most + 64, max(hard, most + 64)))
    try:
        for _ in range(most + 1):
            os.dup(0)
    finally:
        os.closerange(64, most + 64)
    return DONE


def file_size(context: Context) -> str:
    """Write a byte beyond the largest file (a hole before it takes no room)."""
    path = f"{context['scratch']}/large-{os.getpid()}"
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, b"x", context["limits"]["file_size"] + 1)
    finally:
        os.close(file)
        os.unlink(path)
    return DONE


def tmpfs_size(context: Context) -> str:
    """Reserve more than a tmpfs of the jail has. The kernel refuses it as a whole, before it takes a page."""
    path = f"{context['small']}/large-{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, context["small_size"] + MIB)
    finally:
        os.close(file)
        os.unlink(path)
    return DONE


def core(_context: Context) -> str:
    """Allow oneself a core dump."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))
    except ValueError:  # what Python makes of EPERM
        raise refuse(errno.EPERM) from None
    return DONE


ATTEMPTS: dict[str, Attempt] = {
    "memory": memory,
    "memory_shared": memory_shared,
    "processes": processes,
    "open_files": open_files,
    "file_size": file_size,
    "tmpfs_size": tmpfs_size,
    "core": core,
}
