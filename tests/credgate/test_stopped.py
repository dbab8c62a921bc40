"""A launcher whose daemon is stopped: that is said, and not waited for; one that only takes its time is waited for."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from credgate import api, thinclient
from credgate.errors import CredgateError
from tests.conftest import CHECKOUT
from tests.credgate import front_rig
from tests.credgate.front_rig import UID, Process, Rig, end

pytestmark = pytest.mark.needs("compiler")

# Its jail is a process of its own, as it is: it ends with its launcher, by itself where it is told a line on stdin.
DAEMON = """
import json, os, signal, socket, sys, time
from jail import fdpass
place, uid, stops, before, after, kills = json.loads(sys.argv[1])
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(place + "+")
os.chmod(place + "+", 0o777)
own = os.geteuid()
os.seteuid(uid)
listener.listen()
os.seteuid(own)
os.rename(place + "+", place)
print("up", flush=True)
control, _ = listener.accept()
received = fdpass.recv(control)
jail = os.fork()
if jail == 0:
    control.close()
    listener.close()
    with socket.socket(fileno=received.fds[1]) as launcher:
        launcher.recv(1)
    os._exit(0)
for descriptor in received.fds:
    os.close(descriptor)
for message in before:
    fdpass.send_bytes(control, message.encode())
if kills:
    os.kill(jail, signal.SIGKILL)
    os.waitpid(jail, 0)
if stops:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(0.3)  # many times as long as the launcher waits between two looks
for message in after:
    fdpass.send_bytes(control, message.encode())
os.kill(jail, signal.SIGKILL)
sys.stdin.read()
"""
PYTHON = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from credgate import thinclient
from credgate.commands import run
thinclient.PATIENCE = 0.02
sys.exit(run.main(sys.argv[1:]))
"""
WORDED = dict.fromkeys(("run", "role", "limits", "opened", "files", "ledger", "proof", "gateway"), "")
READY = {"ev": "ready", "guards": 1, "pid": 1, "endpoints": 1, **WORDED}
JSON = [
    {"ev": "plan", "run": "r1"},
    READY,
    {"ev": "ended", "run": "r1", "status": 7, "reason": "exited", "requests": {}},
]
WORDS = {"front": ["P0\n", "R0\n", "E7\n"], "python": [json.dumps(body) for body in JSON]}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with front_rig.rig("-DPATIENCE=20") as made:
        (made.directory / "control").unlink()
        yield made


def by_front(rig: Rig) -> Process:
    return rig.start("run", "-q", "--", "x")


def by_python(rig: Rig) -> Process:
    argv = [sys.executable, "-I", "-c", PYTHON, str(CHECKOUT / "src"), "-q", "--", "x"]
    rights = {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(argv, env={"HOME": str(rig.home)}, cwd="/", **pipes, **rights)


class Daemon:
    """One run's. said: how many of its words come before it stops, or is silent for a while."""

    def __init__(self, rig: Rig, words: list[str], said: int, *, stops: bool) -> None:
        place = str(rig.directory / "control")
        told = json.dumps([place, UID, stops, words[:said], words[said:], said == len(words) - 1])
        argv = [sys.executable, "-c", DAEMON, told]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CHECKOUT / "src")
        assert self.process.stdout is not None and self.process.stdout.readline() == b"up\n"

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def complaint(self) -> tuple[str, str]:
        """The error, and its hint."""
        return f"the daemon, pid {self.process.pid}, is stopped", f"kill -CONT {self.process.pid}"


@pytest.mark.parametrize("stops", [True, False], ids=["stops", "slow"])
@pytest.mark.parametrize("said", [0, 1, 2], ids=["asked", "planned", "at_the_end"])
@pytest.mark.parametrize("start", [by_front, by_python])
def test_a_stopped_daemon_is_told_and_not_waited_for(
    rig: Rig, start: Callable[[Rig], Process], said: int, stops: bool
) -> None:
    with Daemon(rig, WORDS[start.__name__.removeprefix("by_")], said, stops=stops) as daemon:
        status, out, err = end(start(rig))
    error, hint = daemon.complaint
    told = f"error: {error}\nhint: {hint}\n" if stops else ""
    assert (status, out.decode(), err.decode()) == (125 if stops else 7, "", told)


@pytest.mark.parametrize("stops", [True, False], ids=["stops", "slow"])
@pytest.mark.parametrize("said", [0, 1])
def test_likewise_of_a_call(rig: Rig, said: int, stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinclient, "PATIENCE", 0.02)
    monkeypatch.setenv("HOME", str(rig.home))
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    with Daemon(rig, WORDS["python"], said, stops=stops) as daemon:
        if not stops:
            assert api.Launcher(policy="p").run(["x"]).status == 7
            return
        with pytest.raises(CredgateError) as caught:
            api.Launcher(policy="p").run(["x"])
    assert (caught.value.detail, caught.value.hint, caught.value.exit_status) == (*daemon.complaint, 125)
