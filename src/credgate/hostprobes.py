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
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from jail import hostcauses
from jail.errors import JailError

_PATH = {"PATH": "/usr/bin:/bin"}
_SECONDS = 10  # for the user's service manager to answer
_NO_PTRACE = 2  # from here on Yama wants a capability that a jail never has


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
    from pyroute2 import IPRoute  # 200 ms, and no other probe needs it

    with IPRoute() as route:
        route.link("add", ifname="probe0", kind="veth", peer={"ifname": "probe1", "net_ns_fd": first})
        if not route.link_lookup(ifname="probe0"):
            raise ProbeFailed("veth was made and isn't there", "modprobe veth")
    return "two namespaces joined by a veth"


def mounts() -> str:
    """A mount namespace with file systems of its own, by the calls that a jail's root is built with."""
    from jail import mounttrial

    _enter(os.CLONE_NEWNS)
    mounttrial.trial()
    return "tmpfs and devpts mounted, a tree cloned read-only with what is mounted in it"


def proc() -> str:
    """A fresh /proc in a pid namespace of its own; refused where parts of the one that is here are covered."""
    from jail import mounttrial

    _enter(os.CLONE_NEWNS | os.CLONE_NEWPID)
    child = os.fork()  # the first process of the new pid namespace: only it can mount its /proc
    if child == 0:
        try:
            mounttrial.trial_proc()
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))
    return "a fresh one mounted in a pid namespace"


def copies() -> str:
    """An overlay as a copy of a work tree is one, where copies are kept: what is written lands above, all of it."""
    from credgate.copystore import remove

    place = _near(Path(os.environ.get("CREDGATE_PROBE_AT", "")))
    _enter(os.CLONE_NEWNS)
    folder = Path(tempfile.mkdtemp(prefix=".credgate-", dir=place))
    try:
        _written_above(folder)
    finally:
        remove(folder)
    return f"an overlay mounted; written, rewritten and removed in it, and nothing below it changed (tried in {place})"


def _near(wanted: Path) -> Path:
    """The nearest directory above that this user may write in; nothing of the state is made for a look."""
    above = (wanted, *wanted.parents) if wanted.is_absolute() else ()
    found = next((path for path in above if os.path.isdir(path)), None)  # noqa: PTH112 - closed ones are none
    return found if found is not None and os.access(found, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _written_above(folder: Path) -> None:
    from jail import mountcalls
    from jail.overlays import overlay_options

    lower, upper, work = (folder / name for name in ("lower", "upper", "work"))
    for path in (lower, upper, work):
        path.mkdir()
    for name in ("kept", "gone"):
        (lower / name).write_bytes(b"host")
    options = overlay_options(str(lower), str(upper), str(work))
    flags = mountcalls.MOUNT_ATTR_NOSUID | mountcalls.MOUNT_ATTR_NODEV
    tree = mountcalls.filesystem("overlay", options, flags)
    try:
        os.unlink("gone", dir_fd=tree)
        for name in ("kept", "new"):
            descriptor = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=tree)
            os.write(descriptor, b"jail")
            os.close(descriptor)
    finally:
        os.close(tree)
    below = {path.name: path.read_bytes() for path in lower.iterdir()}
    above = {path.name for path in upper.iterdir()}
    if below != {"kept": b"host", "gone": b"host"} or above != {"kept", "gone", "new"}:
        raise ProbeFailed("an overlay was mounted, and what was written came elsewhere", "report the kernel")


def yama() -> str:
    """What Yama leaves of ptrace for a role with allow_debug. A jail needs none, and its read-back attaches to none."""
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except FileNotFoundError:
        return "Yama is not here: allow_debug opens all of ptrace inside the jail"
    if scope >= _NO_PTRACE:
        raise ProbeFailed(
            f"ptrace_scope is {scope}: allow_debug opens nothing, debuggers fail in the jail as they do outside",
            "as root: sysctl -w kernel.yama.ptrace_scope=1 (3 stays until the next boot)",
        )
    return f"ptrace_scope is {scope}: allow_debug opens " + ("tracing of own children" if scope else "all of ptrace")


def nftables() -> str:
    """Our own ruleset in a network namespace, read back."""
    from jail import firewall  # imports the GPL binding where that is installed

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
    from jail import landlock as guard
    from jail.bpf import no_new_privs

    version = guard.abi()
    closed = Path("/etc/passwd")
    closed.read_bytes()
    no_new_privs()
    guard.restrict(guard.plan_for(version, read=["/proc"], write=[], execute_all=False, dev_write=[], tcp_ports=None))
    try:
        closed.read_bytes()
    except PermissionError:
        lacks, more = guard.missing(version), guard.unused(version)
        said = f"ABI {version}, enforces"
        said += f"; does not govern {', '.join(lacks)}" if lacks else ""
        return said + (f"; not used: {', '.join(more)}" if more else "")
    raise ProbeFailed(f"ABI {version} took a ruleset and enforces nothing", "report the kernel")


def seccomp() -> str:
    """Our own filter, shown by the kernel and by a call that it refuses."""
    from jail import bpf
    from jail.seccomp import compile_filter  # finds libseccomp

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
    from credgate.limits import base_for, held_by
    from jail.cgroups import Group

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
    from credgate.limits import held_by
    from credgate.scope import in_scope
    from jail.cgroups import NEEDED

    runtime = {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}
    look = 'cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/cgroup.controllers"'
    argv = in_scope(["/bin/sh", "-c", look], runtime)
    if argv is not None:
        done = subprocess.run(argv, env=runtime | _PATH, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if set(NEEDED) <= set(done.stdout.split()):
            return "cgroup v2, in a scope that the user's service manager gives the daemon"
    mend = "as root: scripts/setup delegates a control group to the user who calls it by sudo (docs/limits.md)"
    raise ProbeFailed(f"none is delegated to this user. in its place: {'; '.join(held_by(None))}", mend)


def _libc(name: str, *args: bytes | int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


PROBES: Mapping[str, Callable[[], str]] = {
    "userns": userns,
    "netns": netns,
    "mounts": mounts,
    "proc": proc,
    "nftables": nftables,
    "landlock": landlock,
    "seccomp": seccomp,
    "cgroups": cgroups,
    "copies": copies,
    "yama": yama,
}
_BY_NAMESPACE = frozenset({"userns", "netns", "nftables"})


def attempt(name: str) -> dict[str, object]:
    """Run one probe in this very process and say how it went."""
    try:
        return {"ok": True, "detail": PROBES[name](), "mend": ""}
    except ProbeFailed as failed:
        return {"ok": False, "detail": failed.detail, "mend": failed.mend}
    except JailError as error:
        return {"ok": False, "detail": error.detail, "mend": error.hint or _mend(name, error.errno)}
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return {"ok": False, "detail": f"refused: {why}", "mend": _mend(name, error.errno or 0)}


def _mend(name: str, number: int) -> str:
    if name in _BY_NAMESPACE:
        return hostcauses.namespaces(number)
    # A namespace that could not even be made is the first cause; the mount would be the second.
    closed = hostcauses.switched_off()
    kind = {"mounts": "mounts", "proc": "proc", "copies": "overlay"}.get(name, "")
    return closed or hostcauses.mounting(kind, number) if kind else ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attempt(sys.argv[1])) + "\n")
