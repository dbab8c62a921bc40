"""What this host can enforce, found out by doing it: `python -I -m credgate.hostprobes NAME` in a throw-away child.

A sysctl says what somebody set; only the attempt says what the kernel, a security module or an outer container allows.
Each probe changes its own process alone and prints one JSON object: `ok`, `detail`, `mend`.
"""

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from jail.errors import JailError

_SWITCHES = (  # what may be the cause, looked at only after the attempt failed
    ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("user/max_net_namespaces", "0", "sysctl -w user.max_net_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
)
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


class ProbeFailed(Exception):
    """The host doesn't do it. `detail` says what it answered, `mend` how to change that."""

    def __init__(self, detail: str, mend: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.mend = mend


def _enter(flags: int) -> None:
    """New namespaces with this uid mapped to itself, as a berth has them."""
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER | flags)
    # user_namespaces(7): an unprivileged gid_map is refused until setgroups is denied
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")


def userns() -> str:
    """A user namespace whose capabilities count (AppArmor on Ubuntu lets it be made and takes them away)."""
    _enter(os.CLONE_NEWUTS)
    _libc("sethostname", b"probe", 5)
    return "made one as an ordinary user, and its capabilities count"


def netns() -> str:
    """Two network namespaces and a veth between them."""
    _enter(os.CLONE_NEWNET)
    first = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    os.unshare(os.CLONE_NEWNET)
    from pyroute2 import IPRoute  # noqa: PLC0415  200 ms, and no other probe needs it

    with IPRoute() as route:
        route.link("add", ifname="probe0", kind="veth", peer={"ifname": "probe1", "net_ns_fd": first})
        if not route.link_lookup(ifname="probe0"):
            raise ProbeFailed("veth was made and isn't there", "modprobe veth")
    return "two namespaces joined by a veth"


def mounts() -> str:
    """A mount namespace with a file system of its own and the mount calls of Linux 5.12."""
    from jail import syscalls  # noqa: PLC0415

    _enter(os.CLONE_NEWNS)
    _libc("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _libc("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=64k")  # in this namespace alone
    if os.listdir("/tmp"):  # noqa: PTH208, S108
        raise ProbeFailed("a new tmpfs isn't empty", "")
    for name in ("open_tree", "mount_setattr", "openat2"):
        # bad arguments: EINVAL or EFAULT from a kernel that has the call, ENOSYS from one that doesn't
        try:
            syscalls.syscall(name, -1, None, 0, None, 0)
        except OSError as error:
            if error.strerror == os.strerror(38):
                raise ProbeFailed(f"{name} is not there", "boot Linux 5.12 or newer") from error
    return "tmpfs mounted; open_tree, mount_setattr, openat2 are there"


def nftables() -> str:
    """Our own ruleset in a network namespace, read back."""
    from jail import firewall  # noqa: PLC0415  imports the GPL binding where that is installed

    way = firewall.find()
    _enter(os.CLONE_NEWNET)
    backend = way()
    firewall.apply(backend, [443])
    different = firewall.differences(backend.listing(), [443])
    if different:
        raise ProbeFailed(f"ruleset reads back otherwise: {different[0]}", "update nftables and the kernel")
    return f"our ruleset loaded and read back ({type(backend).__name__.strip('_').lower()})"


def landlock() -> str:
    """A ruleset that closes a file which was open before."""
    from jail import landlock as guard  # noqa: PLC0415
    from jail.bpf import no_new_privs  # noqa: PLC0415

    version = guard.abi()
    closed = Path("/etc/passwd")
    closed.read_bytes()
    no_new_privs()
    guard.restrict(guard.plan_for(version, read=["/proc"], write=[], execute_all=False, dev_write=[], tcp_ports=None))
    try:
        closed.read_bytes()
    except PermissionError:
        lacks = guard.missing(version)
        return f"ABI {version}, enforces" + (f"; does not govern {', '.join(lacks)}" if lacks else "")
    raise ProbeFailed(f"ABI {version} took a ruleset and enforces nothing", "report the kernel")


def seccomp() -> str:
    """Our own filter, shown by the kernel and by a call that it refuses."""
    from jail import bpf  # noqa: PLC0415
    from jail.seccomp import compile_filter  # noqa: PLC0415  finds libseccomp

    compiled = compile_filter(arch=platform.machine())
    bpf.no_new_privs()
    bpf.load(compiled.bpf)
    if "Seccomp:\t2\n" not in Path("/proc/self/status").read_text(encoding="ascii", errors="replace"):
        raise ProbeFailed("filter loaded, and the kernel doesn't show it", "report the kernel")
    try:
        os.unshare(os.CLONE_NEWUSER)
    except PermissionError:
        return f"filter {compiled.sha256[:16]} loaded, shown by the kernel, and it refuses"
    raise ProbeFailed("filter loaded, and a call that it refuses went through", "report the kernel")


def cgroups() -> str:
    """A group as a run gets it: made, its limits read back, a process moved in, and removed again."""
    from credgate.limits import base_for, held_by  # noqa: PLC0415
    from jail.cgroups import Group  # noqa: PLC0415

    base = base_for(os.getpid())
    if base is None:
        return _scope()
    group = Group(base, f"probe{os.getpid()}", memory=64 << 20, processes=4)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        group.enter(child)
        wrong = group.wrong([child])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        group.close()
    if wrong:
        raise ProbeFailed(f"a group was made and reads back otherwise: {wrong[0]}", "report the kernel")
    return "; ".join(held_by(base, closes_swap=group.closes_swap))


def _scope() -> str:
    """Nothing is ours now; perhaps the user's service manager gives the daemon a scope."""
    from credgate.limits import held_by  # noqa: PLC0415
    from credgate.scope import in_scope  # noqa: PLC0415

    runtime = {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}
    argv = in_scope(["/bin/true"], runtime)
    if argv is not None:
        done = subprocess.run(argv, env=runtime, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0:
            return "cgroup v2, in a scope that the user's service manager gives the daemon"
    mend = "as root: scripts/setup delegates a control group to the user who calls it by sudo (docs/limits.md)"
    raise ProbeFailed(f"none is delegated to this user. in its place: {'; '.join(held_by(None))}", mend)


def _libc(name: str, *args: bytes | int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def cause() -> str:
    """The switch that most likely closes namespaces here, as a command for root."""
    for name, closing, mend in _SWITCHES:
        try:
            value = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if value == closing:
            return f"as root: {mend}"
    return "allow user namespaces for ordinary users; in a container: allow unshare, setns and mount in its profile"


PROBES: Mapping[str, Callable[[], str]] = {
    "userns": userns,
    "netns": netns,
    "mounts": mounts,
    "nftables": nftables,
    "landlock": landlock,
    "seccomp": seccomp,
    "cgroups": cgroups,
}
_BY_NAMESPACE = frozenset({"userns", "netns", "mounts", "nftables"})


def attempt(name: str) -> dict[str, object]:
    """Run one probe in this very process and say how it went."""
    try:
        return {"ok": True, "detail": PROBES[name](), "mend": ""}
    except ProbeFailed as failed:
        return {"ok": False, "detail": failed.detail, "mend": failed.mend}
    except JailError as error:
        return {"ok": False, "detail": error.detail, "mend": error.hint or (cause() if name in _BY_NAMESPACE else "")}
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return {"ok": False, "detail": f"refused: {why}", "mend": cause() if name in _BY_NAMESPACE else ""}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attempt(sys.argv[1])) + "\n")
