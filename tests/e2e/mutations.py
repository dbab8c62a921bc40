"""Guards taken out, one at a time, in the launcher or in pid 1 of a jail. The daemon stays as it is: it has to notice.

Loaded by the wrappers of tests/e2e/mutant.py with `-I -S`: standard library and our own launcher code only. Nothing of
this is in the installed package.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Callable

from jail import bpf, caps, keyring_kernel, landlock, launcher, mounts, pid1, terminal, workload

SIOCADDRT, SIOCSIFADDR = 0x890B, 0x8916
RTF_UP, RTF_GATEWAY = 1, 2
MAKE_SOCK_AND_FIFO = landlock.MAKE_SOCK | landlock.MAKE_FIFO
ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # ret SECCOMP_RET_ALLOW


def nothing(*_: object) -> None:
    """A step left out."""


def before(module: object, name: str, more: Callable[[], None]) -> None:
    """Have `more` done before module.name."""
    step = getattr(module, name)

    def both(*arguments: object) -> object:
        more()
        return step(*arguments)

    setattr(module, name, both)


def planned(change: Callable[[list[dict]], list[dict]]) -> None:
    """Change the plan's mounts. No root is begun ahead then: what is changed may lie before or behind the border."""
    build = mounts.build_root
    mounts.build_root = lambda operations, _begun: build(change(operations))
    mounts.begin = refused


def refused(_operations: list[dict]) -> None:
    raise OSError(1, "left out by a test")


def write(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, text)
    os.close(descriptor)


# In pid 1


def no_landlock() -> None:
    landlock.restrict = nothing


def no_seccomp() -> None:
    bpf.load = nothing


def empty_filter() -> None:
    load = bpf.load
    bpf.load = lambda _planned: load(ALLOW_ALL)


def no_new_privs_left_out() -> None:
    bpf.no_new_privs = nothing


def capabilities_kept() -> None:
    caps.drop_all = nothing


def one_capability_kept() -> None:
    """CAP_NET_ADMIN, in the effective set alone."""
    caps.drop_all = lambda: caps._capset(1 << 12, 1 << 12, 0)


def keyring_kept() -> None:
    keyring_kernel.join_anonymous_session = nothing


def dumpable() -> None:
    call = pid1.prctl
    pid1.prctl = lambda option, *more: 0 if option == pid1.PR_SET_DUMPABLE else call(option, *more)


def limits_not_set() -> None:
    pid1.bring_limits = nothing


def sums_left_out() -> None:
    pid1.Supervisor._sum = nothing


def core_allowed() -> None:
    kept = pid1.resource.getrlimit(pid1.resource.RLIMIT_CORE)
    if kept[1] == 0:
        raise RuntimeError("core dumps are off outside already: nothing can be shown of it")
    bring = pid1.bring_limits

    def all_but_core(limits: dict) -> None:
        setrlimit = pid1.resource.setrlimit
        pid1.resource.setrlimit = lambda kind, value: (
            None if kind == pid1.resource.RLIMIT_CORE else setrlimit(kind, value)
        )
        bring(limits)

    pid1.bring_limits = all_but_core


def user_namespaces_unbounded() -> None:
    pid1.bound_user_namespaces = nothing


def descriptor_leaked() -> None:
    pid1.close_others = lambda _named: os.open("/etc/passwd", os.O_RDONLY)


def variable_inherited() -> None:
    os.environ["LEFT_OVER"] = "1"


def extra_route() -> None:
    """A default route through the gateway's address, as a careless DHCP client would set it."""

    def add() -> None:
        def address(text: str) -> bytes:
            return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))

        request = struct.pack("L", 0) + address("0.0.0.0") + address("10.213.0.1") + address("0.0.0.0")
        request += struct.pack("H", RTF_UP | RTF_GATEWAY) + bytes(64)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, SIOCADDRT, request)

    before(pid1, "bring_limits", add)


def ipv6_on() -> None:
    def enable() -> None:
        for link in ("all", "default", "lo", "jail0"):
            write(f"/proc/sys/net/ipv6/conf/{link}/disable_ipv6", b"0")

    before(mounts, "build_root", enable)


def second_address() -> None:
    def add() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            here = struct.pack("16sHH4s16x", b"lo:1", socket.AF_INET, 0, socket.inet_aton("127.9.9.9"))
            fcntl.ioctl(sock, SIOCSIFADDR, here)

    before(pid1, "bring_limits", add)


def other_network() -> None:
    """A network namespace that is not the berth's: made before pid 1 allows no more of them."""
    before(pid1, "close_others", lambda: os.unshare(os.CLONE_NEWNET))


def uid_zero() -> None:
    """A further user namespace, in which this user is uid 0."""

    def map_to_zero() -> None:
        uid, gid = os.geteuid(), os.getegid()
        os.unshare(os.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            write(f"/proc/self/{name}", text.encode())

    pid1.bound_user_namespaces = nothing
    before(landlock, "restrict", nothing)
    before(caps, "drop_all", map_to_zero)


def host_proc() -> None:
    def change(operations: list[dict]) -> list[dict]:
        kept = [op for op in operations if op["op"] not in ("mask", "readonly", "proc")]
        return [{"op": "bind", "from": "/proc", "at": "/proc", "write": True}, *kept]

    planned(change)


def unmasked_proc() -> None:
    planned(lambda operations: [op for op in operations if op["op"] != "mask"])


def writable_proc_sys() -> None:
    planned(lambda operations: [op for op in operations if op["op"] != "readonly"])


def host_sys() -> None:
    planned(lambda operations: [*operations, {"op": "bind", "from": "/sys", "at": "/sys", "write": False}])


def _home(operations: list[dict]) -> str:
    return next(op["at"] for op in operations if op["op"] == "tmpfs" and op["mode"] == 0o700)


def host_home() -> None:
    """The user's home instead of an empty one."""

    def change(operations: list[dict]) -> list[dict]:
        home = _home(operations)
        # What a jail's own home is given by copy is there on the host already, and would be refused.
        made = [op["at"] for op in operations if op["op"] == "file" and op["at"].startswith(home + "/")]
        kept = [op for op in operations if op["at"] not in (home, *made)]
        bound = {"op": "bind", "from": home, "at": home, "write": True}
        below = next((i for i, op in enumerate(kept) if op["at"].startswith(home + "/")), len(kept))
        return [*kept[:below], bound, *kept[below:]]

    planned(change)


def host_tmp() -> None:
    """/tmp and /dev/shm of the host."""

    def change(operations: list[dict]) -> list[dict]:
        return [
            {"op": "bind", "from": op["at"], "at": op["at"], "write": True} if op["at"] in ("/tmp", "/dev/shm") else op
            for op in operations
        ]

    planned(change)


def writable_binds() -> None:
    planned(lambda operations: [op | {"write": True} if op["op"] == "bind" else op for op in operations])


def copy_bound() -> None:
    """The host's own work tree where a copy of it was planned, without what was reserved in the copy alone."""

    def change(operations: list[dict]) -> list[dict]:
        kept = [op for op in operations if op["op"] not in ("pin", "island")]
        return [op | {"op": "bind", "write": True} if op["op"] == "overlay" else op for op in kept]

    planned(change)


def large_tmpfs() -> None:
    planned(lambda operations: [op | {"size": op["size"] * 16} if op["op"] == "tmpfs" else op for op in operations])


def _without_op(name: str) -> Callable[[], None]:
    return lambda: planned(lambda operations: [op for op in operations if op["op"] != name])


def islands_left_out() -> None:
    """What the host executes is as writable as the rest of the tree."""
    _without_op("island")()


def pins_left_out() -> None:
    """Islands are there, but what leads to them can be renamed."""
    _without_op("pin")()


def hidden_left_out() -> None:
    _without_op("hide")()


def sockets_in_tree() -> None:
    """Landlock's rule for the work tree as it is for trees that die with the run."""
    restrict = landlock.restrict

    def widened(plan: dict) -> None:
        rules = [
            [path, access | MAKE_SOCK_AND_FIFO] if access & landlock.EDIT else [path, access]
            for path, access in plan["rules"]
        ]
        restrict(plan | {"rules": rules})

    landlock.restrict = widened


def users_terminal() -> None:
    """No pty of the jail's own: 0, 1, 2 stay what they were."""
    terminal.open_pty = lambda _launcher: -1


def users_session() -> None:
    """The user's session, and with it the controlling terminal."""
    os.setsid = nothing
    terminal.open_pty = lambda _launcher: -1


def users_environment() -> None:
    """Pid 1 can be read; what there is to be found comes from the launcher."""
    dumpable()


# In the launcher


def launchers_environment() -> None:
    execve = os.execve
    launcher.os.execve = lambda exe, arguments, _planned: execve(exe, arguments, dict(os.environ))


def _without(flag: int) -> None:
    unshare = os.unshare
    launcher.os.unshare = lambda flags: unshare(flags & ~flag)


def hosts_ipc() -> None:
    _without(os.CLONE_NEWIPC)


def hosts_cgroup() -> None:
    _without(os.CLONE_NEWCGROUP)


# In the starter


def workload_dumpable() -> None:
    workload.prctl = nothing


def waiters_descriptor() -> None:
    """What the starter holds stays open in the jail."""
    kept = os.open("/etc/passwd", os.O_RDONLY)
    close = pid1.close_others
    pid1.close_others = lambda named: close([*named, kept])


def unsealed_go() -> None:
    """Both say that they gave it up, and have not."""
    dumpable()
    workload_dumpable()


def _begun(change: Callable[[list[dict]], list[dict]]) -> None:
    """Change what a root begins with that is made ahead, and say that it was made as asked."""
    begin = mounts.begin

    def begun(operations: list[dict]) -> mounts.Begun:
        made = begin(change(operations))
        made.operations = operations
        return made

    mounts.begin = begun


def begun_unmasked() -> None:
    _begun(lambda operations: [op for op in operations if op["op"] not in ("mask", "readonly")])


def begun_writable() -> None:
    _begun(lambda operations: [op | {"write": True} if op["op"] == "bind" else op for op in operations])


STARTER = {
    step.__name__: step
    for step in (workload_dumpable, waiters_descriptor, hosts_ipc, unsealed_go, begun_unmasked, begun_writable)
}
LAUNCHER = {"hosts_ipc": hosts_ipc, "hosts_cgroup": hosts_cgroup, "users_environment": launchers_environment}
PID1 = {
    step.__name__: step
    for step in (
        no_landlock,
        no_seccomp,
        empty_filter,
        no_new_privs_left_out,
        capabilities_kept,
        one_capability_kept,
        keyring_kept,
        dumpable,
        limits_not_set,
        sums_left_out,
        core_allowed,
        user_namespaces_unbounded,
        descriptor_leaked,
        variable_inherited,
        extra_route,
        ipv6_on,
        second_address,
        other_network,
        uid_zero,
        host_proc,
        users_environment,
        unmasked_proc,
        writable_proc_sys,
        host_sys,
        host_home,
        host_tmp,
        writable_binds,
        large_tmpfs,
        copy_bound,
        islands_left_out,
        pins_left_out,
        hidden_left_out,
        sockets_in_tree,
        users_terminal,
        users_session,
    )
}
