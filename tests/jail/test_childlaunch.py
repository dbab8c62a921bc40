"""The launcher of a child run: a fork that keeps nothing of its parent's but what it was given, and dies with it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jail import childlaunch
from jail.errors import JailError

PARENT = """
import os, sys
from jail import childlaunch, fdpass
ours, theirs = fdpass.pair()
secret = os.open("/etc/passwd", os.O_RDONLY)
os.set_inheritable(secret, True)
os.dup2(secret, 77)
pipe = os.pipe()
pid = childlaunch.spawn([theirs.fileno(), pipe[0], pipe[1], pipe[1]])
theirs.close()
print(pid, flush=True)
for line in sys.stdin:
    if line.strip() == "close":
        ours.close()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def start() -> tuple[subprocess.Popen[str], int]:
    argv = [sys.executable, "-I", "-c", PARENT]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def settled(pid: int) -> set[int]:
    """Its descriptors once it waits for the plan: the one that it was given is its fourth then."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        if found == {0, 1, 2, 3}:
            return found
        time.sleep(0.01)
    return found


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def test_it_holds_its_socket_and_three_streams_in_a_session_of_its_own() -> None:
    process, pid = start()
    with process:
        assert "77" in os.listdir(f"/proc/{process.pid}/fd")  # the control: its parent holds more
        assert settled(pid) == {0, 1, 2, 3}
        assert os.readlink(f"/proc/{pid}/fd/3").startswith("socket:")
        assert {os.readlink(f"/proc/{pid}/fd/{number}")[:5] for number in (0, 1, 2)} == {"pipe:"}
        assert os.getsid(pid) == pid
        process.kill()


def test_it_ends_when_the_daemon_gives_it_up() -> None:
    process, pid = start()
    with process:
        settled(pid)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("close\n")
        process.stdin.flush()
        assert process.stdout.readline() == "1\n"
        process.kill()


def test_it_dies_with_its_parent() -> None:
    process, pid = start()
    with process:
        settled(pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 60
        while state(pid) not in ("gone", "Z") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert state(pid) in ("gone", "Z")


def test_the_parents_signals_for_the_terminal_do_not_end_it() -> None:
    process, pid = start()
    with process:
        settled(pid)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            os.kill(pid, number)
        time.sleep(0.1)
        assert state(pid) == "S"
        process.kill()


def test_another_number_of_descriptors_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(JailError):
        childlaunch.spawn([theirs.fileno()])
