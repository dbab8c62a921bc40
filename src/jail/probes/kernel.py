"""Attempts on the kernel's own interfaces: keys, io_uring, foreign architectures, namespaces, mounts, privileges."""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct

from jail.probes import DONE, Attempt, Context, refuse
from jail.syscalls import call, syscall

KEYCTL_SEARCH, KEYCTL_READ = 10, 11
SESSION_KEYRING = -3
X32_BIT, X32_GETPID = 0x40000000, 39
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
SIOCSIFFLAGS, SIOCADDRT = 0x8914, 0x890B
_CLONE = {"x86_64": 56, "aarch64": 220}
_SETNS = {"x86_64": 308, "aarch64": 268}
# mov eax, 20 (getpid of i386); int 0x80; ret
_INT80 = bytes.fromhex("b814000000cd80c3")


def keyring(context: Context) -> str:
    """Find a key by its name in the session keyring, and read it."""
    key = syscall("keyctl", KEYCTL_SEARCH, SESSION_KEYRING, b"user\0", context["key"].encode() + b"\0", 0)
    room = ctypes.create_string_buffer(64)
    syscall("keyctl", KEYCTL_READ, key, room, len(room))
    return DONE


def io_uring(_context: Context) -> str:
    """Set up an io_uring, whose operations no seccomp filter sees."""
    os.close(syscall("io_uring_setup", 2, ctypes.create_string_buffer(120)))
    return DONE


def clone3(_context: Context) -> str:
    """Call clone3, whose flags a filter can't read; libc must see "an older kernel" (ENOSYS)."""
    try:
        syscall("clone3", None, 0)
    except OSError as error:
        if error.errno == errno.EINVAL:  # the kernel has looked at the arguments
            return DONE
        raise
    return DONE


def foreign_arch(_context: Context) -> str:
    """Call the kernel by the i386 gate, where each number means another call."""
    if os.uname().machine != "x86_64":
        raise refuse(errno.ENOSYS)
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_INT80)
    entry = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    if entry() <= 0:
        raise refuse(errno.ENOSYS)
    return DONE


def x32(_context: Context) -> str:
    """Call by an x32 number, which a list of native numbers misses."""
    if os.uname().machine != "x86_64":
        raise refuse(errno.ENOSYS)
    call(X32_BIT + X32_GETPID)
    return DONE


def userns(_context: Context) -> str:
    """Make a user namespace, and with it every capability in it."""
    os.unshare(CLONE_NEWUSER)
    return DONE


def userns_clone(_context: Context) -> str:
    """The same by clone."""
    child = call(_CLONE[os.uname().machine], CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return DONE


def userns_limit(_context: Context) -> str:
    """Look for room for a nested user namespace: the second layer below the filter."""
    with open("/proc/sys/user/max_user_namespaces", "rb") as file:
        if int(file.read()) == 0:
            raise refuse(errno.ENOSPC)
    return DONE


def mount(context: Context) -> str:
    """Mount a tmpfs."""
    syscall("mount", b"none\0", os.fsencode(context["scratch"]) + b"\0", b"tmpfs\0", 0, None)
    return DONE


def mount_api(_context: Context) -> str:
    """Open a mount by the newer calls; without a clone that needs no privilege."""
    os.close(syscall("open_tree", -100, b"/\0", os.O_CLOEXEC))
    return DONE


def setns(_context: Context) -> str:
    """Join a network namespace."""
    target = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    call(_SETNS[os.uname().machine], target, 0)
    return DONE


def chroot(_context: Context) -> str:
    """Change the root directory."""
    os.chroot("/")
    return DONE


def root_user(_context: Context) -> str:
    """Become uid 0."""
    os.setresuid(0, 0, 0)
    return DONE


def network_admin(_context: Context) -> str:
    """Add an address to the loopback, as CAP_NET_ADMIN of the network namespace's owner may."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sHH4s8x", b"lo:9", socket.AF_INET, 0, socket.inet_aton("127.9.9.9"))
        fcntl.ioctl(sock, 0x8916, request)  # SIOCSIFADDR
    return DONE


ATTEMPTS: dict[str, Attempt] = {
    "keyring": keyring,
    "io_uring": io_uring,
    "clone3": clone3,
    "foreign_arch": foreign_arch,
    "x32": x32,
    "userns": userns,
    "userns_clone": userns_clone,
    "userns_limit": userns_limit,
    "mount": mount,
    "mount_api": mount_api,
    "setns": setns,
    "chroot": chroot,
    "root_user": root_user,
    "network_admin": network_admin,
}
