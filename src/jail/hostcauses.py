"""Why a host refuses what a jail needs, asked only after an attempt has failed: a switch says what somebody set, and
only the attempt says what the kernel, a security module or an outer container allows. Standard library only.

Each answer is a hint that says what to do. `/proc` is a parameter for tests of switches that their machine lacks.
"""

import errno
import os

APPARMOR = (
    "kernel/apparmor_restrict_unprivileged_userns",
    "1",
    "AppArmor takes the rights of user namespaces away here; give this interpreter a profile: credgate doctor "
    "--apparmor | sudo tee /etc/apparmor.d/credgate && sudo apparmor_parser -r /etc/apparmor.d/credgate",
)
# What closes namespaces on one distribution or another: path below /proc/sys, the value that does, what to say.
SWITCHES = (
    ("user/max_user_namespaces", "0", "user namespaces are off; as root: sysctl -w user.max_user_namespaces=15000"),
    ("user/max_net_namespaces", "0", "network namespaces are off; as root: sysctl -w user.max_net_namespaces=15000"),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "user namespaces are for root alone here; as root: sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    APPARMOR,
)
OUTER_FILTER = (
    "an outer seccomp filter denies it (a container's, or a service's SystemCallFilter=): start that with a profile "
    "that allows unshare, setns, mount, fsopen, open_tree, move_mount and pivot_root"
)
USED_UP = "a limit on namespaces is used up or 0, here or in an outer one: user.max_*_namespaces"
ANY_NAMESPACE = "user namespaces must be allowed for ordinary users (and this process must not be in a chroot)"
MASKED_PROC = (
    "parts of /proc are covered here, and the kernel shows no fresh one then: run credgate outside of this container, "
    "or start it with docker --security-opt systempaths=unconfined, or podman --security-opt unmask=ALL"
)
NO_UPPER = (
    "a copy can't be written into state on such a file system (NFS, another overlay): set XDG_STATE_HOME to a "
    "directory on ext4, xfs or btrfs"
)
NO_OVERLAY = "this kernel has no overlayfs, or it is not loaded; as root: modprobe overlay"
OLD_KERNEL = "boot Linux 5.12 or newer"


def namespaces(number: int, proc: str = "/proc") -> str:
    """What closes namespaces, after an attempt answered errno `number`; in the order of likelihood."""
    hint = switched_off(proc)
    if hint:
        return hint
    if number == errno.ENOSPC:
        return USED_UP
    return OUTER_FILTER if filtered(proc) else ANY_NAMESPACE


def switched_off(proc: str = "/proc") -> str:
    """The hint of the first switch that closes namespaces here, "" where none does."""
    return next((hint for path, value, hint in SWITCHES if _read(f"{proc}/sys/{path}").strip() == value), "")


def mounting(operation: str, number: int, proc: str = "/proc") -> str:
    """What closes a mount in our own namespaces; `operation` is one of the plan's, "" for a call before them.

    A fresh proc is refused where another one of this mount namespace is partly covered (mount_too_revealing in the
    kernel's fs/namespace.c). Every other call is ours to make, unless something outside took it away.
    """
    if number == errno.ENOSYS:
        return OUTER_FILTER if filtered(proc) else OLD_KERNEL
    if operation == "overlay" and number in (errno.ENODEV, errno.EINVAL):
        return NO_OVERLAY if number == errno.ENODEV else NO_UPPER
    if number not in (errno.EPERM, errno.EACCES):
        return ""
    if operation == "proc":
        return MASKED_PROC
    path, closing, hint = APPARMOR  # the other switches are this namespace's own by now, and set by pid 1
    if _read(f"{proc}/sys/{path}").strip() == closing:
        return hint
    return OUTER_FILTER if filtered(proc) else "a security module of this host denies mounting in a user namespace"


def filtered(proc: str = "/proc") -> bool:
    """Whether this process runs under a seccomp filter; before it has loaded its own, that is somebody else's."""
    return "Seccomp:\t2" in _read(f"{proc}/self/status")


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""  # this kernel has no such switch, or it is closed to us: then it says nothing
    try:
        return os.read(descriptor, 16384).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
