"""The two switches of a role: closed by default, open what they say, and give nothing beyond the jail.

Each attempt is made under both roles: what fails under one succeeds under the other, or fails under both.
"""

import json
from typing import Any

import pytest

from tests.e2e.place import module_site
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
site = pytest.fixture(scope="module")(module_site)

PLAIN = "version = 1\n[role.dev]\n"
DEBUG, USERNS = PLAIN + "allow_debug = true\n", PLAIN + "allow_userns = true\n"
BOTH = USERNS + "allow_debug = true\n"

HEAD = """
import ctypes, errno, fcntl, json, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
told = {}
def of(name, result):
    told[name] = errno.errorcode.get(ctypes.get_errno(), "?") if result == -1 else "ok"
def tried(name, action):
    try:
        action()
        told[name] = "ok"
    except OSError as error:
        told[name] = errno.errorcode[error.errno]
def longs(*values): return [ctypes.c_long(value) for value in values]
"""

TRACE = """
class Vec(ctypes.Structure): _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))
libc.ptrace.restype = ctypes.c_long
KCMP, PERF = {"x86_64": (312, 298), "aarch64": (272, 241)}[os.uname().machine]
held = ctypes.create_string_buffer(b"shared by the fork")
def look(who, pid, address):
    here = ctypes.create_string_buffer(32)
    local, remote = Vec(ctypes.addressof(here), 18), Vec(address, 18)
    of(f"{who} vm", libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    pidfd = os.pidfd_open(pid)
    of(f"{who} getfd", libc.syscall(*longs(438, pidfd, 1, 0)))
    of(f"{who} kcmp", libc.syscall(*longs(KCMP, os.getpid(), pid, 0, 1, 1)))
    tried(f"{who} mem", lambda: open(f"/proc/{pid}/mem", "rb").close())
    tried(f"{who} environ", lambda: open(f"/proc/{pid}/environ", "rb").read())
    of(f"{who} ptrace", libc.ptrace(*longs(16, pid, 0, 0)))
    return here.value
child = os.fork()
if child == 0: time.sleep(60)
seen = look("child", child, ctypes.addressof(held))
told["read"] = seen.decode()
look("pid1", 1, ctypes.addressof(held))
of("perf", libc.syscall(*longs(PERF, 0, 0, -1, -1, 0)))
os.kill(child, signal.SIGKILL)
print(json.dumps(told))
"""

NEST = """
uid, gid = os.getuid(), os.getgid()
def nested(flags, zero=True):
    os.unshare(os.CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{0 if zero else uid} {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file: file.write(text)
def forked(action):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try: action()
        finally:
            os.write(writer, json.dumps(told).encode())
            os._exit(0)
    os.close(writer)
    told.update(json.loads(os.read(reader, 65536) or b'{"child": "died"}'))
    os.wait()
def interface(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        tried(name, lambda: fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x41)))  # SIOCSIFFLAGS
def attempts():
    caps = [line for line in open("/proc/self/status") if line.startswith("CapEff")][0].split()[1]
    told["caps"] = "all" if int(caps, 16) else "none"
    told["uid"] = os.getuid()
    of("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    of("bind", libc.mount(b"/proc", b"/tmp", None, 4096, None))
    of("remount", libc.mount(None, b"/", None, 32 | 4096, None))
    of("umount", libc.umount2(b"/proc/sys", 2))
    of("open_tree", libc.syscall(*longs(428, -100), b"/", *longs(1)))
    of("fsopen", libc.syscall(*longs(430), b"tmpfs", *longs(0)))
    of("newns", libc.unshare(0x20000))
    tried("setns", lambda: os.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0))
    tried("mknod", lambda: os.mknod("/tmp/null", 0o20666, os.makedev(1, 3)))
    tried("proc sys", lambda: open("/proc/sys/kernel/hostname", "w").close())
    tried("own limit", lambda: open("/proc/sys/user/max_user_namespaces", "w").close())
    tried("pid1 environ", lambda: open("/proc/1/environ", "rb").read())
    tried("pid1 mem", lambda: open("/proc/1/mem", "rb").close())
    of("pid1 ptrace", libc.ptrace(*longs(16, 1, 0, 0)))
    tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    tried("packet", lambda: socket.socket(17, socket.SOCK_RAW, 0))
    tried("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
    tried("kill pid 1", lambda: os.kill(1, signal.SIGKILL))  # no answer to a signal is the kernel's answer
    tried("write usr", lambda: open("/usr/x", "w").close())
def reach(name, address):
    def connect():
        with socket.socket() as sock:
            sock.settimeout(3)
            sock.connect((address, 3128))
    tried(name, connect)
def with_net():
    nested(os.CLONE_NEWNET)
    attempts()
    interface("own lo")
    reach("gateway", gateway)
    reach("elsewhere", "192.0.2.1")
def without_net():
    nested(0)
    interface("jail's lo")
    reach("gateway by the jail's route", gateway)
    reach("elsewhere by the jail's route", "192.0.2.1")
gateway = [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")][0]
tried("userns", lambda: forked(lambda: nested(0)))
if len(sys.argv) > 1:
    forked(with_net)
    forked(without_net)
else:
    of("unshare", libc.unshare(0x10000000))
    of("chroot", libc.chroot(b"/tmp"))
print(json.dumps(told))
"""


def told(site: Site, policy: str, code: str, *words: str) -> dict[str, Any]:
    site.policy(policy)
    done = site.run(site.python(), "-I", "-S", "-c", HEAD + code, *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_tracing_is_closed_by_default(site: Site) -> None:
    got = told(site, PLAIN, TRACE)
    assert {got[f"child {what}"] for what in ("vm", "getfd", "kcmp", "ptrace")} == {"EPERM"}
    assert got["perf"] == "EPERM"


def test_allow_debug_opens_the_jails_own_processes_and_not_pid_1(site: Site) -> None:
    got = told(site, DEBUG, TRACE)
    assert {what: got[f"child {what}"] for what in ("vm", "getfd", "kcmp", "ptrace")} == dict.fromkeys(
        ("vm", "getfd", "kcmp", "ptrace"), "ok"
    )
    assert got["read"] == "shared by the fork"
    assert {got[f"pid1 {what}"] for what in ("vm", "getfd", "kcmp", "ptrace", "mem", "environ")} <= {"EPERM", "EACCES"}
    assert got["perf"] == "EPERM"


def test_user_namespaces_are_closed_by_default(site: Site) -> None:
    got = told(site, PLAIN, NEST)
    assert (got["unshare"], got["chroot"]) == ("EPERM", "EPERM")


CALLS = ("mount", "bind", "remount", "umount", "open_tree", "fsopen", "newns", "setns", "jail's lo", "raw")
NOTHING_GAINED = dict.fromkeys(CALLS, "EPERM") | {
    "mknod": "EACCES",  # Landlock; the kernel itself would say EPERM
    "proc sys": "EROFS",
    "own limit": "EROFS",
    "write usr": "EROFS",
    "packet": "EAFNOSUPPORT",
    "vsock": "EAFNOSUPPORT",
    "gateway": "ENETUNREACH",
    "elsewhere": "ENETUNREACH",
    "elsewhere by the jail's route": "ENETUNREACH",
}


@pytest.mark.parametrize("policy", [USERNS, BOTH], ids=["allow_userns", "with allow_debug"])
def test_a_nested_namespace_gives_nothing_beyond_the_jail(site: Site, policy: str) -> None:
    got = told(site, policy, NEST, "nested")
    assert (got["caps"], got["uid"]) == ("all", 0)  # control: inside its own namespace it is root
    assert (got["own lo"], got["gateway by the jail's route"]) == ("ok", "ok")  # control: what may be done is done
    assert {name: got[name] for name in NOTHING_GAINED} == NOTHING_GAINED
    assert {got["pid1 environ"], got["pid1 mem"], got["pid1 ptrace"]} <= {"EPERM", "EACCES"}
    # The kernel takes a signal of the namespace's own to its pid 1 and drops it (pid_namespaces(7)): we are still here.
    assert got["kill pid 1"] == "ok"


MANY = """
count, (told_here, tells) = 0, os.pipe()
for _ in range(100):
    if os.fork() == 0:
        number = 0
        try: os.unshare(os.CLONE_NEWUSER)
        except OSError as error: number = error.errno
        os.write(tells, bytes([number]))
        time.sleep(300)
    if number := os.read(told_here, 1)[0]:
        told["stopped"] = errno.errorcode[number]
        break
    count += 1
told["made"] = count
print(json.dumps(told))
"""
DEEP = """
made = 0
try:
    while made < 40: os.unshare(os.CLONE_NEWUSER); made += 1
except OSError as error: told["deep"] = errno.errorcode[error.errno]
made = 0
try:
    for _ in range(60):
        if os.fork() == 0: signal.pause()
        made += 1
except BlockingIOError: told["forks"] = made
print(json.dumps(told))
os.kill(-1, signal.SIGKILL)
"""


def test_their_number_is_bounded(site: Site) -> None:
    got = told(site, USERNS, MANY)
    assert got["stopped"] == "ENOSPC"
    assert 40 < got["made"] <= 70


def test_the_limits_hold_inside_them(site: Site) -> None:
    site.policy(USERNS + "limits = { processes = 30 }\n")
    done = site.run(site.python(), "-I", "-S", "-c", HEAD + DEEP)
    got = json.loads(done.stdout)
    assert 10 < got["forks"] < 30


def test_banner_and_ledger_name_what_is_open(site: Site) -> None:
    site.policy(PLAIN)
    policy = site.home / "policy/policy.toml"
    plain = site.credgate("run", "--policy", policy, "--", "true")
    site.policy(BOTH)
    opened = site.credgate("run", "--policy", policy, "--", "true")
    assert "ON" not in plain.stderr
    assert "allow_debug ON" in opened.stderr
    assert "allow_userns ON" in opened.stderr
    starts, proofs = site.ledger(ev="run.start")[-2:], site.ledger(ev="proof")[-2:]
    assert [line.get("switches") for line in (*starts, *proofs)] == [None, ["allow_debug", "allow_userns"]] * 2
    assert starts[0]["seccomp_sha256"] != starts[1]["seccomp_sha256"]
