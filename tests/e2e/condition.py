"""Make this host lack something, for this process and what it starts, then exec: `condition.py NAME COMMAND...`.

Everything happens in namespaces of its own or by a filter on itself; the machine stays as it is.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38


def namespaces(flags: int) -> None:
    """A user namespace with this uid mapped to itself, and others that it owns."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # setpriv left us not dumpable: /proc/self would be root's
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path("/proc/self", name).write_text(text)


def mount(source: str, target: str, kind: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount on {target}: {os.strerror(number)}")


def own_mounts() -> None:
    namespaces(os.CLONE_NEWNS)
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def cover(*paths: str) -> None:
    """Put an empty file over each."""
    own_mounts()
    for path in paths:
        mount("/dev/null", path, "", MS_BIND)


def masked_proc() -> None:
    """As a container has it."""
    cover("/proc/kcore" if Path("/proc/kcore").exists() else "/proc/timer_list")


def read_only_sys() -> None:
    own_mounts()
    mount("/proc/sys", "/proc/sys", "", MS_BIND)
    mount("none", "/proc/sys", "", MS_BIND | MS_REMOUNT | MS_RDONLY | 0x0E)  # nosuid, nodev, noexec are locked


def no_namespaces() -> None:
    namespaces(0)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def libraries(*names: str) -> list[str]:
    """Each file of these on this machine, by its real path."""
    found = {
        os.path.realpath(path)
        for folder in ("/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64")
        for name in names
        for path in [*Path(folder).glob(f"{name}*"), *Path(folder).glob(f"*/{name}*")]
    }
    assert found, f"no {names} here"
    return sorted(found)


def no_nftables() -> None:
    programs = [os.path.realpath(path) for path in ("/usr/sbin/nft", "/sbin/nft") if Path(path).exists()]
    cover(*libraries("libnftables.so"), *dict.fromkeys(programs))


def refusing(number: int, *names: str) -> Callable[[], None]:
    """A seccomp filter that answers these calls with an errno, as a container's profile does."""

    def load() -> None:
        import pyseccomp

        made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        for name in names:
            made.add_rule(pyseccomp.ERRNO(number), name)
        made.load()

    return load


CONDITIONS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "own mounts": own_mounts,  # the control of those that cover something
    "other filter": refusing(errno.EPERM, "acct"),  # the control of those that filter
    "no namespaces": no_namespaces,
    "masked proc": masked_proc,
    "read-only sys": read_only_sys,
    "no unshare": refusing(errno.EPERM, "unshare"),
    "unshare unknown": refusing(errno.ENOSYS, "unshare"),
    "no setns": refusing(errno.EPERM, "setns"),
    "no mount": refusing(errno.EPERM, "fsopen", "open_tree", "move_mount", "mount"),
    "old kernel": refusing(errno.ENOSYS, "mount_setattr"),
    "no landlock": refusing(errno.ENOSYS, "landlock_create_ruleset"),
    "landlock off": refusing(errno.EOPNOTSUPP, "landlock_create_ruleset"),
    "no libseccomp": lambda: cover(*libraries("libseccomp.so")),
    "no nftables": no_nftables,
}


if __name__ == "__main__":
    CONDITIONS[sys.argv[1]]()
    os.execvp(sys.argv[2], sys.argv[2:])
