"""Landlock: which rights exist at which ABI, a plan from them (pure), and the calls that apply a plan.

Standard library only: runs in the workload before its exec. Bits from the kernel's
Documentation/userspace-api/landlock.rst. Later ABIs only add bits; a kernel newer than the table is governed by the
newest rights that the table has, and its number still stands in the plan.
"""

import os
import stat
import struct

from jail.errors import JailError, Unsupported
from jail.syscalls import prctl, syscall

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15

BIND_TCP = 1 << 0
CONNECT_TCP = 1 << 1

SCOPE_ABSTRACT_UNIX = 1 << 0
SCOPE_SIGNAL = 1 << 1

# (ABI that brought it, bits). ABI 7 brought log flags, no rights.
FS_BITS = ((1, (1 << 13) - 1), (2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
NET_BITS = ((4, BIND_TCP | CONNECT_TCP),)
SCOPE_BITS = ((6, SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL),)
NEWEST_KNOWN = 7
# What later kernels document, by name alone: no kernel here shows that it works, so nothing relies on it.
LATER = ((8, "tsync"), (9, "resolve_unix"), (10, "udp"), (10, "quiet"), (11, "no_new_privs"))

FS_NAMES = (  # by bit
    *("execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char", "make_dir"),
    *("make_reg", "make_sock", "make_fifo", "make_block", "make_sym", "refer", "truncate", "ioctl_dev"),
)

# The kernel answers EINVAL to a rule on a file that names a right of directories.
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

LOOK = READ_FILE | READ_DIR
EDIT = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
MEET = MAKE_SOCK | MAKE_FIFO
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV

_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH, _NET_PORT = 1, 2
_PR_GET_NO_NEW_PRIVS = 39


def abi() -> int:
    """The kernel's Landlock ABI, 1 or more. Raises Unsupported where Landlock is absent or switched off."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError as error:
        raise Unsupported(
            "landlock_missing",
            f"the kernel answers {error.strerror} when asked for its landlock version",
            "boot a kernel with landlock in its lsm= list (5.13 or newer)",
            error.errno or 0,
        ) from error


def known(table: tuple[tuple[int, int], ...], version: int) -> int:
    """The bits of one of the tables above that a kernel of ABI `version` has."""
    bits = 0
    for since, more in table:
        bits |= more if since <= version else 0
    return bits


def unused(version: int) -> list[str]:
    """What a kernel of this ABI could govern besides, by name, and this table does not use."""
    return [name for since, name in LATER if since <= version]


def missing(version: int) -> list[str]:
    """What a kernel of this ABI does not govern, by name; the caller decides if another guard covers it."""
    names = ((2, "refer"), (3, "truncate"), (4, "tcp"), (5, "ioctl_dev"), (6, "scope"))
    return [name for since, name in names if version < since]


def rights(version: int) -> dict[str, list[str]]:
    """What a kernel of this ABI governs, by the kernel's names: of files, TCP and scopes."""
    names = {
        "fs": (FS_NAMES, FS_BITS),
        "net": (("bind_tcp", "connect_tcp"), NET_BITS),
        "scope": (("abstract_unix_socket", "signal"), SCOPE_BITS),
    }
    governed = {kind: known(table, version) for kind, (_, table) in names.items()}
    return {k: [name for bit, name in enumerate(of) if governed[k] >> bit & 1] for k, (of, _) in names.items()}


def plan_for(
    version: int,
    *,
    read: list[str],
    write: list[str],
    execute_all: bool,
    dev_write: list[str],
    tcp_ports: list[int] | None,
    private: list[str] | None = None,
    change: list[str] | None = None,
) -> dict[str, object]:
    """Rules for the jail's own root. Rights of a path are the union of those of its ancestors.

    read: read and execute. write: trees shared with the host: create, change, rename, delete, but no socket, FIFO or
    device node (a socket there would let two jails lend each other descriptors). private: trees that die with the run:
    sockets and FIFOs as well. dev_write: device files (or a directory of them), read, write and ioctl.
    change: what is there may be read, written and truncated, nothing made.
    execute_all: EXECUTE in writable trees too; where `read` holds "/" that makes no difference, and Landlock's EXECUTE
    is no "noexec" anyway (ld.so FILE and memfd go around it). tcp_ports: the only ports that may be connected to, own
    loopback servers included; None leaves TCP to the network namespace.
    """
    fs = known(FS_BITS, version)
    run = EXECUTE if execute_all else 0
    trees = (
        (read, EXECUTE | LOOK),
        (write, run | LOOK | EDIT),
        (private or [], run | LOOK | EDIT | MEET),
        (dev_write, DEVICE),
        (change or [], READ_FILE | WRITE_FILE | TRUNCATE),
    )
    net = known(NET_BITS, version) & CONNECT_TCP if tcp_ports is not None else 0
    return {
        "abi": version,
        "handled_fs": fs,
        "handled_net": net,
        "scoped": known(SCOPE_BITS, version),
        "rules": [[path, access & fs] for paths, access in trees for path in paths],
        "ports": [[port, net] for port in tcp_ports or []] if net else [],
    }


def restrict(plan: dict[str, object]) -> None:
    """Confine the calling thread, for ever, to a plan of plan_for(). Raises JailError; nothing is skipped.

    A plan for another ABI than the kernel's is an error: it was made for a machine that governs other things.
    """
    _ready(plan)
    attr = _ruleset_attr(_int(plan, "handled_fs"), _int(plan, "handled_net"), _int(plan, "scoped"))
    ruleset = _step("create a ruleset", "landlock_create_ruleset", attr, len(attr), 0)
    try:
        for path, access in _pairs(plan, "rules"):
            _allow_path(ruleset, path, access)
        for port, access in _pairs(plan, "ports"):
            _step(f"allow port {port}", "landlock_add_rule", ruleset, _NET_PORT, struct.pack("=QQ", access, port), 0)
        _step("restrict this process", "landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _ready(plan: dict[str, object]) -> None:
    here = abi()
    if plan["abi"] != here:
        raise JailError(
            "landlock_abi", f"plan is for landlock abi {plan['abi']}, got a kernel with {here}", "start again"
        )
    # Landlock confines the calling thread alone (before ABI 8): a second one would stay free.
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - pathlib costs 14 ms at start
    if threads != 1:
        raise JailError("landlock_threads", f"expected one thread, got {threads}", "this is a fault of credgate")
    if prctl(_PR_GET_NO_NEW_PRIVS) != 1:
        raise JailError("no_new_privs", "no_new_privs is not set before landlock", "this is a fault of credgate")


def _ruleset_attr(fs: int, net: int, scoped: int) -> bytes:
    # A kernel that knows fewer fields answers E2BIG to more; each came with an ABI of its own.
    fields = (fs, net, scoped) if scoped else (fs, net) if net else (fs,)
    return struct.pack(f"={len(fields)}Q", *fields)


def _allow_path(ruleset: int, path: str | bytes, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(f"open {path!r}", error) from error
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= OF_FILES
        _step(f"allow {path!r}", "landlock_add_rule", ruleset, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0)
    finally:
        os.close(fd)


def _step(what: str, name: str, *args: int | bytes) -> int:
    try:
        return syscall(name, *args)
    except OSError as error:
        raise _failed(what, error) from error


def _failed(what: str, error: OSError) -> JailError:
    return JailError("landlock_failed", f"landlock: could not {what}: {error.strerror}", "", error.errno or 0)


def _int(plan: dict[str, object], key: str) -> int:
    value = plan[key]
    if not isinstance(value, int):
        raise JailError("landlock_plan", f"expected a number for {key}, got {value!r}", "this is a fault of credgate")
    return value


def _pairs(plan: dict[str, object], key: str) -> list[tuple[str, int]]:
    value = plan[key]
    if not isinstance(value, list):
        raise JailError("landlock_plan", f"expected a list for {key}, got {value!r}", "this is a fault of credgate")
    return value
