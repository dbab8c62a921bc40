"""The system-call filter of a jail: a table, compiled once by libseccomp to the bytes that the workload loads.

Daemon side. Default is to allow: agents run compilers, browsers and JITs, and a list of allowed calls breaks with each
libc. What is named here reaches beyond the jail's namespaces or widens the kernel's attack surface. Integer arguments
are compared in their low 32 bits, which is what the kernel reads (CVE-2019-10063: a 64-bit compare is passed by
setting a high bit).
"""

import errno
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO

from jail.argrules import Compare, Rule, low, no_set_id, spare_pid1
from jail.errors import JailError, Unsupported
from jail.syscalls import NUMBERS

_ARCHES = {"x86_64": "X86_64", "aarch64": "AARCH64"}  # names of libseccomp's
# Names that libseccomp knows and that have no number on an architecture: there is nothing to refuse.
ABSENT = {
    "x86_64": frozenset[str](),
    "aarch64": frozenset({"iopl", "ioperm", "modify_ldt", "open", "creat", "chmod", "mkdir", "mknod"}),
}

# Errno, then the names it answers. ENOSYS is what libc and libuv take for "an older kernel" and fall back from: with
# EPERM for clone3 node aborts, and python and make can't start threads.
CALLS: tuple[tuple[int, str], ...] = (
    (errno.EPERM, "unshare setns mount umount2 pivot_root chroot move_mount open_tree open_tree_attr"),
    (errno.EPERM, "fsopen fsmount fsconfig fspick mount_setattr"),
    (errno.ENOSYS, "clone3 openat2 io_uring_setup io_uring_enter io_uring_register"),
    (errno.EPERM, "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp perf_event_open"),
    (errno.EPERM, "bpf userfaultfd init_module finit_module delete_module kexec_load kexec_file_load reboot"),
    (errno.EPERM, "swapon swapoff acct quotactl quotactl_fd syslog fanotify_init fanotify_mark lookup_dcookie"),
    (errno.EPERM, "iopl ioperm modify_ldt vhangup"),
    (errno.EPERM, "add_key request_key keyctl"),
    (errno.EPERM, "open_by_handle_at name_to_handle_at settimeofday clock_settime clock_adjtime adjtimex"),
    (errno.EPERM, "sethostname setdomainname memfd_secret"),
    (errno.EPERM, "mbind set_mempolicy set_mempolicy_home_node move_pages migrate_pages"),
)
# CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET. CLONE_NEWTIME shares a bit with the exit signal: clone3 alone has it.
NEWNS, NEWTIME = 0x00020000, 0x00000080
CLONE_NEW = (NEWNS, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
# What a role's switch takes off the list. Mounting stays on it: a browser's sandbox needs none, the mounts are ours.
DEBUG_OPENS = frozenset({"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"})
USERNS_OPENS = frozenset({"unshare", "chroot"})
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
FAMILIES = (UNIX, INET, INET6, NETLINK)
# Whose arguments are looked at and that programs make all the time: compared first. The kernel keeps a bitmap of the
# calls that a filter allows by number alone and runs it for the others only (measured: openat came 89th of 467).
OFTEN = ("openat", "open", "ioctl")
RAW, PACKET = 3, 10  # socket types; the kernel turns INET with SOCK_PACKET into AF_PACKET
TYPE_MASK = 0xF  # above it: SOCK_CLOEXEC, SOCK_NONBLOCK
# MPTCP goes around Landlock's and netfilter's view of TCP; the rest is code that no agent needs.
PROTOCOLS = {"DCCP": 33, "SCTP": 132, "UDPLITE": 136, "SMC": 256, "MPTCP": 262}
IOCTLS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}  # type into, or paste on, a terminal that others read


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """`bpf`: an array of struct sock_filter, `sha256` its hex digest, `pfc` libseccomp's readable form of it."""

    bpf: bytes
    sha256: str
    pfc: str


@cache
def compile_filter(*, arch: str, debug: bool = False, userns: bool = False) -> Compiled:
    """Compile for `arch`, the machine's own ("x86_64" or "aarch64"). Raises JailError, Unsupported for another.

    Calls of another architecture (int 0x80, x32) kill the process. debug, userns: the role's switches; each makes
    another filter, with a digest of its own.
    """
    made = _empty(arch)
    opened = (DEBUG_OPENS if debug else frozenset()) | (USERNS_OPENS if userns else frozenset())
    for code, names in CALLS:
        for name in names.split():
            nr = _number(arch, name)
            if nr is not None and name not in opened:
                _add(made, code, nr)
    for code, name, args in _by_argument(userns=userns):
        nr = _number(arch, name)
        if nr is not None:
            _add(made, code, nr, *args)
    _put_first(made, arch)
    bpf = _exported(made.export_bpf)
    return Compiled(bpf=bpf, sha256=hashlib.sha256(bpf).hexdigest(), pfc=_exported(made.export_pfc).decode())


@cache
def _library() -> Any:
    """The binding, whose import finds libseccomp. Raises Unsupported where it doesn't."""
    try:
        return importlib.import_module("pyseccomp")
    except (ImportError, OSError, RuntimeError) as error:
        raise Unsupported(
            "libseccomp_missing",
            f"libseccomp can't be loaded: {error}",
            "as root: apt-get install libseccomp2 (or dnf install libseccomp)",
        ) from error


def _empty(arch: str) -> Any:
    pyseccomp = _library()
    # libseccomp takes a number for one of its own machine: one that it does not know can't be given for another.
    if arch not in _ARCHES or pyseccomp.system_arch() != getattr(pyseccomp.Arch, _ARCHES[arch]):
        raise Unsupported("arch_unsupported", f"no filter for {arch} here", f"run on {' or '.join(_ARCHES)}")
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    made.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
    return made


def _number(arch: str, name: str) -> int | None:
    """The number to refuse; None where ABSENT says that the architecture has no such call."""
    pyseccomp = _library()
    number: int = pyseccomp.resolve_syscall(getattr(pyseccomp.Arch, _ARCHES[arch]), name)
    if number >= 0:
        return number
    if name in NUMBERS[arch]:  # newer than the libseccomp that is installed
        return NUMBERS[arch][name]
    if name in ABSENT[arch]:
        return None
    raise JailError("seccomp_name", f"system call {name} has no number on {arch}", "install libseccomp 2.5.4 or newer")


def _by_argument(*, userns: bool) -> Iterator[Rule]:
    yield from spare_pid1()
    yield from no_set_id()
    for flag in (NEWNS,) if userns else CLONE_NEW:
        yield errno.EPERM, "clone", ((0, flag, flag),)
    for flag in (NEWNS, NEWTIME) if userns else ():
        yield errno.EPERM, "unshare", ((0, flag, flag),)
    for request in IOCTLS.values():
        yield errno.EPERM, "ioctl", (low(1, request),)
    for call in ("socket", "socketpair"):
        yield from ((errno.EAFNOSUPPORT, call, (family,)) for family in _other_families())
        yield from ((code, call, args) for code, args in _types_and_protocols())


def _other_families() -> Iterator[Compare]:
    """Together these match every 32-bit number that is not in FAMILIES: the small ones, then any higher bit."""
    yield from (low(0, family) for family in range(32) if family not in FAMILIES)
    yield from ((0, 1 << bit, 1 << bit) for bit in range(5, 32))


def _types_and_protocols() -> Iterator[tuple[int, tuple[Compare, ...]]]:
    # By family: libc opens its netlink sockets with SOCK_RAW, where it means nothing.
    for family in (INET, INET6):
        for kind in (RAW, PACKET):
            yield errno.EPERM, (low(0, family), (1, TYPE_MASK, kind))
        for protocol in PROTOCOLS.values():
            yield errno.EPROTONOSUPPORT, (low(0, family), low(2, protocol))
    # Any bit set: every protocol but NETLINK_ROUTE, which is 0.
    for bit in range(32):
        yield errno.EPROTONOSUPPORT, (low(0, NETLINK), (2, 1 << bit, 1 << bit))


def _add(made: Any, code: int, nr: int, *args: Compare) -> None:
    pyseccomp = _library()
    try:
        terms = (pyseccomp.Arg(position, pyseccomp.MASKED_EQ, mask, value) for position, mask, value in args)
        made.add_rule_exactly(pyseccomp.ERRNO(code), nr, *terms)
    except OSError as error:
        detail = f"libseccomp refused a rule for system call {nr}: {error.strerror}"
        raise JailError("seccomp_rule", detail, "", error.errno or 0) from error


def _put_first(made: Any, arch: str) -> None:
    for rank, name in enumerate(OFTEN):
        nr = _number(arch, name)
        if nr is not None:
            made.syscall_priority(nr, 255 - rank)


def _exported(export: Callable[[BinaryIO], None]) -> bytes:
    with open(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b") as file:  # noqa: PTH123 - a descriptor
        export(file)
        file.seek(0)
        return file.read()
