"""The fixed list of guards, as data. docs/guards.md is this table in words, and a test holds the two equal.

A guard stands for one thing that the jail forbids. `jail.probes.attempts.ATTEMPTS` has the attempt under the same id;
`jail.verdict` says from read-back, attempt inside and control outside whether the guard is shown.
"""

from dataclasses import dataclass
from enum import StrEnum


class Where(StrEnum):
    """Where the control runs: as the user, or in user, mount and network namespaces made for it.

    The second for what an ordinary user may do nowhere else: it holds every capability there, and the addresses that
    nothing may be sent to from the host's own network.
    """

    HOST = "host"
    LAB = "lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard.

    readback: groups of the daemon's own read-back that it stands on; empty where the kernel shows nothing (Landlock).
    refused: the words of the attempt inside that count as refused; any other shows nothing. closed: the words of the
    control that mean "closed by host". per_run: tried before every exec. unless: the switch of a role that opens it.
    copy: of runs on a copy of their work tree alone.
    """

    id: str
    mechanism: str
    readback: tuple[str, ...]
    refused: frozenset[str]
    closed: frozenset[str] = frozenset()
    where: Where = Where.HOST
    per_run: bool = False
    unless: str = ""
    copy: bool = False


# Groups of the read-back; `credgate.proof` fills each.
GROUPS = (
    "seccomp",
    "no_new_privs",
    "capabilities",
    "user",
    "namespaces",
    "route",
    "ipv6",
    "mounts",
    "limits",
    "pid1",
    "descriptors",
    "terminal",
    "keyring",
    "berth_links",
    "berth_firewall",
)


def _guard(
    name: str, mechanism: str, readback: str, refused: str, closed: str = "", *, lab: bool = False, unless: str = ""
) -> Guard:
    return Guard(
        id=name,
        mechanism=mechanism,
        readback=tuple(readback.split()),
        refused=frozenset(refused.split()),
        closed=frozenset(closed.split()),
        where=Where.LAB if lab else Where.HOST,
        per_run=name in _PER_RUN,
        unless=unless,
        copy=name in _OF_COPIES,
    )


# What is cheap, and what a fault in one launch alone could open. The rest is shown by `credgate prove`.
_PER_RUN = frozenset(
    [
        "file_read",
        "file_write",
        "file_create",
        "readonly_mounts",
        "landlock",
        "tree_socket",
        "tree_fifo",
        "island_write",
        "island_rename",
        "hidden_read",
        "copy_write",
        "own_ledger",
        "own_ca_key",
        "own_socket",
        "proc_sys",
        "proc_masks",
        "sysfs",
        "proc_host",
        "pid1_environ",
        "pid1_mem",
        "signal_host",
        "process_vm",
        "pidfd_getfd",
        "descriptors",
        "environment",
        "keyring",
        "io_uring",
        "clone3",
        "foreign_arch",
        "userns",
        "userns_limit",
        "mount_api",
        "unix_path",
        "unix_abstract",
        "vsock",
        "raw",
        "packet",
        "mptcp",
        "netlink",
        "tcp_metadata",
        "tcp_private",
        "tcp_anywhere",
        "host_loopback",
        "udp",
        "ipv6",
        "network_admin",
        "terminal",
        "tiocsti",
        "memory",
        "core",
    ]
)

_OF_COPIES = frozenset(["copy_write"])
COPIED = "copied"  # a word that the daemon alone gives: it saw the write in the copy, and not in the host's tree

_UNBOUND = "not bound into the root"
_READ_ONLY = "read-only mounts, Landlock"
_FILTER = "seccomp"
_NO_ROUTE = "network namespace with one route"
_NO_IPV6 = "ENETUNREACH EADDRNOTAVAIL EAFNOSUPPORT"

GUARDS: tuple[Guard, ...] = (
    # files
    _guard("file_read", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("file_write", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("file_create", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("file_truncate", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("file_rename_out", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("file_link_out", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("readonly_write", _READ_ONLY, "mounts", "EROFS EACCES"),
    _guard("readonly_create", _READ_ONLY, "mounts", "EROFS EACCES"),
    _guard("readonly_truncate", _READ_ONLY, "mounts", "EROFS EACCES"),
    _guard("readonly_rename", _READ_ONLY, "mounts", "EROFS EACCES"),
    _guard("readonly_link", _READ_ONLY, "mounts", "EROFS EACCES"),
    _guard("readonly_meta", "read-only mounts (Landlock doesn't govern it)", "mounts", "EROFS"),
    _guard("readonly_mounts", "recursive mount_setattr", "mounts", "EROFS"),
    _guard("landlock", "Landlock", "", "EACCES", "EPERM"),
    _guard("tree_socket", "Landlock MAKE_SOCK, or a read-only work tree", "mounts", "EACCES EROFS"),
    _guard("tree_fifo", "Landlock MAKE_FIFO, or a read-only work tree", "mounts", "EACCES EROFS"),
    _guard("island_write", "read-only mounts", "mounts", "EROFS EACCES"),
    _guard("island_rename", "each directory on the way is a mount point", "mounts", "EBUSY EROFS"),
    _guard("hidden_read", "an empty file of mode 0 over each, read-only", "mounts", "EACCES"),
    _guard("hidden_write", "likewise: a mount point can't be moved", "mounts", "EBUSY EROFS EACCES"),
    _guard("copy_write", "overlayfs: the host's work tree is its lower layer", "mounts", COPIED),
    _guard("own_policy", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("own_ledger", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("own_ca_key", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("own_socket", _UNBOUND, "mounts namespaces", "ENOENT"),
    _guard("proc_sys", "read-only mount, no capability", "mounts capabilities", "EROFS", "EROFS", lab=True),
    _guard("proc_masks", "masks over files of /proc", "mounts", "ENODATA", "ENODATA"),
    _guard("sysfs", _UNBOUND, "mounts", "ENOENT", "ENOENT"),
    # processes
    _guard("proc_host", "pid namespace with a /proc of its own", "namespaces", "ENOENT ESRCH"),
    _guard("proc_scan", "pid namespace with a /proc of its own, clean environment", "namespaces", "ENOENT"),
    _guard("pid1_environ", "pid 1 is not dumpable", "pid1", "EACCES"),
    _guard("pid1_mem", "pid 1 is not dumpable", "pid1", "EACCES", "EACCES"),
    _guard("signal_host", "pid namespace, Landlock scope", "namespaces", "ESRCH EPERM"),
    _guard("ptrace", _FILTER, "seccomp", "EPERM", "EPERM", unless="allow_debug"),
    _guard("ptrace_host", "pid namespace, seccomp", "namespaces seccomp", "EPERM ESRCH", "EPERM"),
    _guard("process_vm", "seccomp, pid 1 is not dumpable", "seccomp pid1", "EPERM", "EPERM"),
    _guard("pidfd_getfd", "seccomp, pid 1 is not dumpable", "seccomp pid1", "EPERM", "EPERM"),
    _guard("descriptors", "every descriptor closed that isn't named", "descriptors", "EBADF"),
    _guard("environment", "an environment built anew", "", "ENOENT"),
    _guard("kill_tree", "pid namespace: the kernel ends it with pid 1", "namespaces", "ESRCH"),
    # the kernel's own interfaces
    _guard("keyring", "a session keyring of the jail's own, seccomp", "keyring seccomp", "EPERM", "ENOSYS"),
    _guard("io_uring", _FILTER, "seccomp", "ENOSYS", "EPERM ENOSYS"),
    _guard("clone3", _FILTER, "seccomp", "ENOSYS", "ENOSYS"),
    _guard("foreign_arch", _FILTER, "seccomp", "SIGSYS ENOSYS", "ENOSYS SIGSEGV SIGSYS"),
    _guard("x32", _FILTER, "seccomp", "SIGSYS ENOSYS", "ENOSYS SIGSYS"),
    _guard("userns", _FILTER, "seccomp", "EPERM", unless="allow_userns"),
    _guard("userns_clone", _FILTER, "seccomp", "EPERM", unless="allow_userns"),
    _guard("userns_limit", "user.max_user_namespaces = 0", "user", "ENOSPC", unless="allow_userns"),
    _guard("mount", "seccomp, Landlock, no capability", "seccomp capabilities", "EPERM", lab=True),
    _guard("mount_api", _FILTER, "seccomp", "EPERM", "ENOSYS"),
    _guard("setns", "seccomp, no capability", "seccomp capabilities", "EPERM", lab=True),
    _guard("chroot", "seccomp, no capability", "seccomp capabilities", "EPERM", lab=True, unless="allow_userns"),
    _guard("root_user", "one uid is mapped, no_new_privs", "user no_new_privs capabilities", "EINVAL EPERM", "EPERM"),
    _guard("network_admin", "no capability", "capabilities", "EPERM", lab=True),
    # sockets
    _guard("unix_path", _UNBOUND, "mounts", "ENOENT"),
    _guard("unix_datagram", _UNBOUND, "mounts", "ENOENT"),
    _guard("unix_abstract", "network namespace, Landlock scope", "namespaces", "ECONNREFUSED EPERM"),
    _guard("unix_abstract_in", "network namespace", "namespaces", "ETIMEDOUT"),
    _guard("ssh_agent", _UNBOUND, "mounts", "ENOENT"),
    _guard("docker", _UNBOUND, "mounts", "ENOENT"),
    _guard("dbus", _UNBOUND, "mounts", "ENOENT"),
    _guard("vsock", _FILTER, "seccomp", "EAFNOSUPPORT", "EAFNOSUPPORT"),
    _guard("raw", "seccomp, no capability", "seccomp capabilities", "EPERM", lab=True),
    _guard("packet", "seccomp, no capability", "seccomp capabilities", "EAFNOSUPPORT", "EAFNOSUPPORT", lab=True),
    _guard("mptcp", _FILTER, "seccomp", "EPROTONOSUPPORT", "EPROTONOSUPPORT ENOPROTOOPT EINVAL"),
    _guard("sctp", _FILTER, "seccomp", "EPROTONOSUPPORT", "EPROTONOSUPPORT ESOCKTNOSUPPORT"),
    _guard("udplite", _FILTER, "seccomp", "EPROTONOSUPPORT", "EPROTONOSUPPORT"),
    _guard("netlink", _FILTER, "seccomp", "EPROTONOSUPPORT", "EPROTONOSUPPORT"),
    # the network
    _guard("tcp_metadata", _NO_ROUTE, "route berth_links", "ENETUNREACH", lab=True),
    _guard("tcp_private", _NO_ROUTE, "route berth_links", "ENETUNREACH", lab=True),
    _guard("tcp_anywhere", _NO_ROUTE, "route berth_links", "ENETUNREACH", lab=True),
    _guard("tcp_fastopen", _NO_ROUTE, "route berth_links", "ENETUNREACH EOPNOTSUPP", "EOPNOTSUPP", lab=True),
    _guard("host_loopback", "network namespace", "namespaces", "ECONNREFUSED"),
    _guard("gateway_port", "nftables in the gate namespace", "berth_firewall", "ECONNREFUSED", lab=True),
    _guard("gateway_udp", "nftables in the gate namespace", "berth_firewall", "ECONNREFUSED", lab=True),
    _guard("udp", _NO_ROUTE, "route berth_links", "ENETUNREACH", lab=True),
    _guard("dns_outside", _NO_ROUTE, "route berth_links", "ENETUNREACH", lab=True),
    _guard("icmp", "ping sockets closed, one route", "route berth_links", "EACCES ENETUNREACH", lab=True),
    _guard("ipv6", "IPv6 off", "ipv6 berth_links", _NO_IPV6, _NO_IPV6, lab=True),
    _guard("ipv6_late", "IPv6 off", "ipv6 berth_links", _NO_IPV6, _NO_IPV6, lab=True),
    # the terminal
    _guard("terminal", "a session and a pty of the jail's own", "terminal descriptors", "ENOTTY", "ENOTTY"),
    _guard("tiocsti", _FILTER, "seccomp", "EPERM", "EIO ENOENT"),
    _guard("tioclinux", _FILTER, "seccomp", "EPERM", "ENOTTY ENOENT"),
    # limits
    _guard("memory", "RLIMIT_DATA", "limits", "ENOMEM", "ENOMEM"),
    _guard("memory_shared", "control group, or pid 1's sums", "limits", "oom"),
    _guard("processes", "control group, RLIMIT_NPROC", "limits", "EAGAIN", "EAGAIN"),
    _guard("open_files", "RLIMIT_NOFILE", "limits", "EMFILE", "EMFILE EPERM"),
    _guard("file_size", "RLIMIT_FSIZE", "limits", "EFBIG", "EFBIG"),
    _guard("tmpfs_size", "size of each tmpfs", "mounts", "ENOSPC", "ENOSPC EDQUOT"),
    _guard("core", "RLIMIT_CORE 0", "limits", "EPERM", "EPERM"),
    # another jail
    _guard("neighbour_network", "network namespace", "namespaces", "ECONNREFUSED", lab=True),
    _guard("neighbour_tmp", "mount namespace, private tmpfs", "namespaces mounts", "ENOENT"),
    _guard("neighbour_shm", "mount namespace, private tmpfs", "namespaces mounts", "ENOENT"),
    _guard("neighbour_sysv", "ipc namespace", "namespaces", "ENOENT", "ENOSYS"),
    _guard("neighbour_abstract", "network namespace, Landlock scope", "namespaces", "ECONNREFUSED EPERM"),
    _guard("neighbour_signal", "pid namespace, Landlock scope", "namespaces", "ESRCH EPERM"),
    _guard("neighbour_tree", "no socket can be made in a work tree", "mounts", "ENOENT"),
)

BY_ID = {guard.id: guard for guard in GUARDS}


def needed(*, per_run: bool, switches: frozenset[str] = frozenset(), copy: bool = False) -> tuple[Guard, ...]:
    """The guards of a run: all of them, or those before every exec, less those that the role's switches open, and less
    those of a copy where the run has none.
    """
    here = (g for g in GUARDS if copy or not g.copy)
    return tuple(g for g in here if (g.per_run or not per_run) and g.unless not in switches)
