"""Each thing that is given up, in pairs: it works before, it doesn't after. In a process of its own, for good."""

import socket
import subprocess
import sys

import pytest

PAIRS = """
import errno, os, socket, sys
from resolver.confine import confine

def dial():
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", int(sys.argv[1])))

def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return sock.sendto(b"x", ("127.0.0.1", int(sys.argv[2]))) - 1
        except OSError as error:
            return error.errno

assert (dial(), send()) == (0, 0)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as old:
    confine()
    assert (dial(), send()) == (errno.ENETUNREACH, errno.ENETUNREACH)
    # A socket stays where it was made.
    assert old.sendto(b"x", ("127.0.0.1", int(sys.argv[2]))) == 1
assert "NoNewPrivs:\\t1" in open("/proc/self/status").read()
"""

CLOSED_HOST = """
import os, sys
uid, gid = os.getuid(), os.getgid()
os.unshare(os.CLONE_NEWUSER)
files = {"self/setgroups": "deny", "self/uid_map": f"0 {uid} 1", "self/gid_map": f"0 {gid} 1"}
for path, text in {**files, "sys/user/max_user_namespaces": "0"}.items():
    with open("/proc/" + path, "w") as file:
        file.write(text)
os.execv(sys.executable, [sys.executable, "-I", "-m", "resolver", sys.argv[1]])
"""


@pytest.mark.needs("netns")
def test_nothing_is_reachable_from_a_confined_process() -> None:
    """TCP and UDP to a server on loopback that is there."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        ports = [str(sock.getsockname()[1]) for sock in (tcp, udp)]
        done = subprocess.run(
            [sys.executable, "-I", "-c", PAIRS, *ports], check=False, capture_output=True, text=True, timeout=30
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("userns")
def test_where_it_cannot_be_confined_it_does_not_serve() -> None:
    """No user namespaces: an error with a hint, nothing on the control socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        number = theirs.fileno()
        done = subprocess.run(
            [sys.executable, "-I", "-c", CLOSED_HOST, str(number)],
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
            pass_fds=(number,),
        )
        theirs.close()
        assert ours.recv(100) == b""
    assert done.returncode == 1
    assert done.stderr.startswith("error: resolver: can't unshare user and network namespaces")
    assert "\nhint: " in done.stderr
