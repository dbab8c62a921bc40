"""What a test may need of the host, each found out by doing it: a kernel that lists a feature may still refuse it."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from tests import delegated
from tests.targets import clients

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

_NFT_IN_NETNS = """
import ctypes, os
os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {os.environ['FOR_UID']} 1")
lib = ctypes.CDLL("libnftables.so.1")
lib.nft_ctx_new.restype = ctypes.c_void_p
lib.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
raise SystemExit(lib.nft_run_cmd_from_buffer(lib.nft_ctx_new(0), b"add table inet t"))
"""


def find(name: str) -> str | None:
    """The path of a program; sbin counts, though an ordinary user's PATH leaves it out."""
    return shutil.which(name, path=PATH)


def _program(*names: str) -> Callable[[], str]:
    def lack() -> str:
        return "".join(f"{name} is not installed " for name in names if find(name) is None).strip()

    return lack


def _python(code: str) -> Callable[[], str]:
    def lack() -> str:
        env = {"PATH": PATH, "FOR_UID": str(os.geteuid())}
        argv = [sys.executable, "-I", "-c", code]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=30, check=False)
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]

    return lack


def _landlock() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    # landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) gives the ABI; 444 on every architecture.
    abi = libc.syscall(444, None, 0, 1)
    return "" if abi > 0 else os.strerror(ctypes.get_errno())


def _root() -> str:
    return "" if os.geteuid() == 0 else "not run by root"


def _user_manager() -> str:
    if not os.path.exists("/usr/lib/systemd/systemd"):
        return "systemd is not installed"
    with open("/proc/self/mounts") as mounts:
        if not any(line.split()[2] == "cgroup2" for line in mounts):
            return "no cgroup v2 is mounted"
    return _program("systemd-run", "busctl", "dbus-daemon")()


FEATURES: dict[str, Callable[[], str]] = {
    "root": _root,
    "userns": _python("import os; os.unshare(os.CLONE_NEWUSER)"),
    "netns": _python("import os; os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)"),
    "nftables": _python(_NFT_IN_NETNS),
    "landlock": _landlock,
    "seccomp": _python("import ctypes; ctypes.CDLL('libseccomp.so.2'); open('/proc/sys/kernel/seccomp/actions_avail')"),
    "apache": _program("apache2"),
    "bash": _program("bash"),
    "cgroup": delegated.lack,
    "certutil": _program("certutil"),
    "chromium": _program("chromium"),
    "compiler": _program("gcc", "make"),
    "curl": _program("curl"),
    "clients": clients.lack,
    "gh": _program("gh"),
    "git": _program("git"),
    "java": _program("java"),
    "javac": _program("java", "javac"),
    "less": _program("less"),
    "nginx": _program("nginx"),
    "node": _program("node"),
    "npm": _program("npm", "node"),
    "squid": _program("squid"),
    "strace": _program("strace"),
    "tmux": _program("tmux"),
    "top": _program("top"),
    "user_manager": _user_manager,
    "vim": _program("vim.tiny"),
}
