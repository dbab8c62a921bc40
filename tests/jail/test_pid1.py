"""pid 1 in a pid namespace of the test's own: what it reports, and that it ends everything."""

import ctypes
import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from jail import fdpass, pid1
from tests.jail import own
from tests.jail.forked import USERS, Outcome, attempt

pytestmark = pytest.mark.needs("userns")

LIMITS: dict[str, Any] = {
    "memory": 1 << 30,
    "data": 1 << 31,
    "processes": 100,
    "open_files": 64,
    "cpu": 60,
    "file_size": 1 << 20,
    "deadline": None,
    "sums": [],
}


def supervised(
    work: Callable[[], object], act: Callable[[socket.socket, socket.socket], object], deadline: int | None = None
) -> Outcome:
    """The last message of a pid 1 whose workload does `work`, while `act` has the daemon's and the launcher's ends."""

    def action() -> object:
        own.user_namespace()
        os.unshare(os.CLONE_NEWPID)
        daemon, daemons = fdpass.pair()
        launcher, launchers = fdpass.pair()
        init = os.fork()
        if init == 0:
            daemon.close()
            launcher.close()
            _init(daemons, launchers, work, deadline)
        daemons.close()
        launchers.close()
        held = act(daemon, launcher)
        began = time.monotonic()
        os.waitpid(init, 0)
        told = [body for sock in (daemon, launcher) if sock.fileno() >= 0 for body in _all(sock)]
        exits = [body for body in told if body.get("ev") == "exit"]
        return {"exits": exits, "held": held, "took": time.monotonic() - began, "all": told}

    return attempt(action, uid=USERS[-1])


def _init(daemon: socket.socket, launcher: socket.socket, work: Callable[[], object], deadline: int | None) -> None:
    try:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            work()
            os._exit(0)
        os.setpgid(child, child)
        plan = {"limits": {**LIMITS, "deadline": deadline}, "mounts": []}
        pid1.Supervisor(plan, daemon, launcher, child).run()
    finally:
        os._exit(0)


def _all(sock: socket.socket) -> list[dict[str, object]]:
    found = []
    sock.settimeout(60)
    while True:
        try:
            message = fdpass.recv(sock)
        except ConnectionResetError:
            return found
        if message is None:
            return found
        found.append(message.body)


def ended(outcome: Outcome) -> tuple[object, object]:
    """Status and reason, told to each that listens alike."""
    assert isinstance(outcome.value, dict), outcome
    exits = outcome.value["exits"]
    assert exits
    assert all(body == exits[0] for body in exits)
    return exits[0]["status"], exits[0]["reason"]


def nothing(_daemon: socket.socket, _launcher: socket.socket) -> None:
    pass


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def patient() -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("work", "status", "reason"),
    [
        (lambda: os._exit(0), 0, "exited"),
        (lambda: os._exit(7), 7, "exited"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 137, "signaled"),
        (lambda: os.kill(os.getpid(), signal.SIGUSR1), 138, "signaled"),
    ],
)
def test_the_commands_own_end(work: Callable[[], object], status: int, reason: str) -> None:
    assert ended(supervised(work, nothing)) == (status, reason)


def test_what_it_left_behind_ends_too() -> None:
    def leave() -> None:
        for _ in range(5):
            if os.fork() == 0:
                os.setsid()
                stubborn()
        time.sleep(0.2)

    outcome = supervised(leave, nothing)
    assert ended(outcome) == (0, "exited")


def test_the_daemons_end_is_the_gateways() -> None:
    outcome = supervised(stubborn, lambda daemon, _: daemon.close())
    assert ended(outcome) == (137, "gateway")


def test_the_launchers_end_kills() -> None:
    assert ended(supervised(stubborn, lambda _, launcher: launcher.close())) == (137, "killed")


def test_an_order_to_end_gives_a_reason_and_a_grace() -> None:
    def order(daemon: socket.socket, _: socket.socket) -> None:
        time.sleep(0.3)
        fdpass.send(daemon, {"op": "end", "reason": "alarm"})

    assert ended(supervised(patient, order)) == (143, "alarm")


def test_the_first_reason_stands() -> None:
    def order(daemon: socket.socket, launcher: socket.socket) -> None:
        time.sleep(0.3)
        fdpass.send(daemon, {"op": "end", "reason": "revoked"})
        time.sleep(0.3)
        launcher.close()

    assert ended(supervised(stubborn, order)) == (137, "revoked")


def test_an_unknown_order_ends_everything() -> None:
    outcome = supervised(stubborn, lambda daemon, _: fdpass.send(daemon, {"op": "dance"}))
    assert ended(outcome) == (137, "killed")
    assert isinstance(outcome.value, dict)
    assert any(body.get("ev") == "failed" for body in outcome.value["all"])


@pytest.mark.parametrize("junk", [b"junk", b"[1]", b"{"])
def test_what_is_no_message_ends_everything(junk: bytes) -> None:
    assert ended(supervised(stubborn, lambda _, launcher: launcher.send(junk))) == (137, "killed")


def test_the_deadline() -> None:
    assert ended(supervised(patient, nothing, deadline=1)) == (143, "timeout")


def test_stop_and_continue_are_told() -> None:
    def act(_daemon: socket.socket, launcher: socket.socket) -> list[object]:
        time.sleep(0.3)
        launcher.settimeout(60)
        said = []
        orders: list[fdpass.Json] = [{"op": "signal", "number": int(signal.SIGSTOP)}, {"op": "continue"}]
        for order in orders:
            fdpass.send(launcher, order)
            received = fdpass.recv(launcher)
            assert received is not None
            said.append(received.body["ev"])
        fdpass.send(launcher, {"op": "signal", "number": int(signal.SIGTERM)})
        return said

    outcome = supervised(patient, act)
    assert isinstance(outcome.value, dict)
    assert outcome.value["held"] == ["stopped", "continued"]
    assert ended(outcome) == (143, "signaled")


UNSETTLED = 40.0  # seconds


def unsettled() -> None:
    """A workload that another process stops and continues without an end."""
    workload = os.getpid()
    if os.fork() == 0:
        os.setsid()
        until = time.monotonic() + UNSETTLED
        while time.monotonic() < until:
            for number in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(workload, number)
                time.sleep(0.0005)
        os._exit(0)
    stubborn()


def test_a_launcher_that_does_not_read_holds_nothing_up() -> None:
    outcome = supervised(unsettled, nothing, deadline=2)
    assert ended(outcome) == (137, "timeout")
    assert isinstance(outcome.value, dict)
    assert outcome.value["took"] < UNSETTLED  # before that one stops by itself


def test_a_launcher_that_reads_again_hears_the_last_state() -> None:
    def act(daemon: socket.socket, launcher: socket.socket) -> list[object]:
        launcher.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(400):
            for order in ({"op": "signal", "number": int(signal.SIGSTOP)}, {"op": "continue"}):
                fdpass.send(daemon, order)  # in order, and slowly enough that pid 1 sees each
                time.sleep(0.002)
        fdpass.send(daemon, {"op": "signal", "number": int(signal.SIGSTOP)})
        time.sleep(0.5)
        launcher.settimeout(1)
        said: list[object] = []
        try:
            while message := fdpass.recv(launcher):
                said.append(message.body["ev"])
        except TimeoutError:
            pass
        fdpass.send(daemon, {"op": "end", "reason": "killed"})
        return said

    outcome = supervised(patient, act)
    assert isinstance(outcome.value, dict), outcome
    said = outcome.value["held"]
    assert len(said) < 801, "control: its queue was full"
    assert said[-1] == "stopped"
    assert ended(outcome) == (143, "killed")


def test_children_that_change_without_an_end_do_not_hide_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(range(10_000))
    monkeypatch.setattr(os, "waitpid", lambda *_: (next(asked) + 100, 0))  # StopIteration: it never stopped
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *_, **__: -1)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    daemon, launcher = fdpass.pair()
    one = pid1.Supervisor({"limits": LIMITS, "mounts": []}, daemon, launcher, 2)
    assert one._all_gone() is False
    assert one.unreaped, "or it would sleep with children to reap"
    os.close(one.wake)
    daemon.close()
    launcher.close()


def test_no_priority_that_a_login_may_have_been_given(monkeypatch: pytest.MonkeyPatch) -> None:
    brought: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (40, 40))
    monkeypatch.setattr(resource, "setrlimit", brought.__setitem__)
    pid1.bring_limits(LIMITS)
    assert [brought[kind] for kind in (resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE)] == [(0, 0), (0, 0)]


def test_limits_are_brought_and_never_raised() -> None:
    def action() -> object:
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        pid1.bring_limits(LIMITS)
        kinds = (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)
        return [resource.getrlimit(kind) for kind in kinds]

    # A quarter of the open files stays the daemon's, whose limit is the whole: what is in flight is compared with it.
    assert attempt(action).value == [[0, 0], [24, 24], [1 << 20, 1 << 20], [1 << 31, 1 << 31]]


def inotify_instances() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    for made in range(200):
        if libc.inotify_init() < 0:
            return made if ctypes.get_errno() == errno.EMFILE else -ctypes.get_errno()
    return 200


def without_limit_of_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    own.user_namespace()


def test_a_jail_takes_a_part_of_the_users_inotify_instances() -> None:
    def bounded() -> object:
        without_limit_of_files()
        pid1.bound_watches()
        return inotify_instances()

    def free() -> object:
        without_limit_of_files()
        return inotify_instances()

    control, got = attempt(free, uid=USERS[-1]).value, attempt(bounded, uid=USERS[-1]).value
    assert isinstance(control, int)
    assert isinstance(got, int)
    assert 0 < got <= pid1.INOTIFY < control


KINDS = {
    "cgroup": 0x02000000,
    "ipc": 0x08000000,
    "net": 0x40000000,
    "pid": 0x20000000,
    "uts": 0x04000000,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [0, 64])
def test_no_other_namespace_either_where_no_user_namespace_may_be(kind: str, most: int) -> None:
    def made() -> object:
        own.user_namespace()
        pid1.bound_user_namespaces(most)
        os.unshare(KINDS[kind])
        return "made"

    outcome = attempt(made, uid=USERS[-1])
    if most == 0:
        assert outcome.errno == errno.ENOSPC
    else:
        assert outcome.value == "made"  # control: it is the number that refuses


def test_no_mount_namespace_once_the_root_is_built() -> None:
    def made() -> object:
        own.user_namespace()
        later = pid1._opened("max_mnt_namespaces")
        os.unshare(os.CLONE_NEWNS)  # control
        pid1._write(later, 0)
        os.unshare(os.CLONE_NEWNS)

    assert attempt(made, uid=USERS[-1]).errno == errno.ENOSPC
