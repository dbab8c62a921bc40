"""The client of the control socket against a server of the test's own."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from credgate import controlclient, thinclient
from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.thinclient import HINT
from jail import fdpass


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """A state directory with a short name: a socket's path has 107 bytes."""
    short = Path("/tmp") / f"cgc-{os.getpid()}"
    short.mkdir(mode=0o700)
    (short / "run").mkdir(mode=0o700)
    yield Places(state=short, config=tmp_path)
    for path in (short / "run").iterdir():
        path.unlink()
    (short / "run").rmdir()
    short.rmdir()


@contextlib.contextmanager
def served(act: Callable[[socket.socket], object]) -> Iterator[socket.socket]:
    """A connection whose other end does `act` in a thread."""
    mine, theirs = fdpass.pair()
    thread = threading.Thread(target=act, args=(theirs,))
    thread.start()
    try:
        yield mine
    finally:
        mine.close()
        thread.join(10)
        theirs.close()


def answering(body: dict[str, object]) -> Callable[[socket.socket], None]:
    def act(sock: socket.socket) -> None:
        assert fdpass.recv(sock) is not None
        fdpass.send(sock, body)

    return act


def test_one_question_one_answer() -> None:
    with served(answering({"ok": True, "n": 1})) as sock:
        assert controlclient.ask(sock, {"op": "status"})["n"] == 1


def test_a_refusal_is_raised_with_its_status() -> None:
    body = {"ev": "refused", "code": "no", "detail": "not today", "hint": "tomorrow", "exit": 126}
    with served(answering(body)) as sock, pytest.raises(CredgateError) as caught:
        controlclient.ask(sock, {"op": "run.open"})
    error = caught.value
    assert (error.code, error.detail, error.hint, error.exit_status) == ("no", "not today", "tomorrow", 126)


@pytest.mark.parametrize("status", [None, "126", 1.5])
def test_a_refusal_without_hint_or_status_gets_both(status: object) -> None:
    error = thinclient.refusal({"code": "no", "detail": "d", "hint": "", "exit": status})
    assert (error.hint, error.exit_status) == (HINT, 125)


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_a_daemon_that_goes_away_is_one_error(read: bool) -> None:
    def leave(sock: socket.socket) -> None:
        if read:
            fdpass.recv(sock)
        sock.close()

    with served(leave) as sock, pytest.raises(CredgateError) as caught:
        controlclient.ask(sock, {"op": "status"})
    assert (caught.value.code, caught.value.exit_status) == ("daemon_gone", 125)


def test_nobody_there(places: Places) -> None:
    assert controlclient.connect(places) is None


def test_a_socket_that_a_dead_daemon_left(places: Places) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(places.control))
    assert controlclient.connect(places) is None


def test_a_daemon_of_another_user_is_not_spoken_to(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(places.control))
        listener.listen()
        ours = controlclient.connect(places)  # control
        assert ours is not None
        ours.close()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(CredgateError) as caught:
            controlclient.connect(places)
    assert caught.value.code == "foreign_daemon"


SERVER = """
import os, signal, socket, sys
from jail import fdpass
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind(sys.argv[1])
server.listen()
print("up", flush=True)
conn, _ = server.accept()
fdpass.recv(conn)
if sys.argv[2]:
    os.kill(os.getpid(), signal.SIGSTOP)
sys.stdin.read()
fdpass.send(conn, {"ok": True})
"""


@pytest.mark.parametrize("stops", [True, False])
def test_a_daemon_that_is_stopped_is_named_and_not_waited_for(
    stops: bool, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only takes its time is: the answer comes after many looks at it."""
    monkeypatch.setattr(thinclient, "PATIENCE", 0.02)
    command = [sys.executable, "-c", SERVER, str(places.control), "stops" if stops else ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"up\n"
            assert server.stdin is not None
            sock = controlclient.connect(places)
            assert sock is not None
            with sock:
                if stops:
                    with pytest.raises(CredgateError, match=f"pid {server.pid}, is stopped") as caught:
                        controlclient.ask(sock, {"op": "status"})
                    assert caught.value.hint == f"kill -CONT {server.pid}"
                else:
                    timer = threading.Timer(0.2, server.stdin.close)
                    timer.start()
                    assert controlclient.ask(sock, {"op": "status"}) == {"ok": True}
                    timer.join()
        finally:
            server.kill()


def test_the_state_of_a_process_is_read_behind_its_name() -> None:
    assert not thinclient._is_stopped(os.getpid())
    assert not thinclient._is_stopped(0)


@pytest.mark.parametrize("receive", [thinclient.receive, controlclient.receive], ids=["launcher", "others"])
@pytest.mark.parametrize("unread", [True, False])
def test_what_a_peer_said_before_it_ended_is_read(
    unread: bool, receive: Callable[[socket.socket], fdpass.Received | None]
) -> None:
    """As the exit that a jail's first process tells of, with a signal of ours unread."""
    mine, theirs = fdpass.pair()
    with mine:
        with theirs:
            if unread:
                fdpass.send(mine, {"op": "signal"})
            fdpass.send(theirs, {"ev": "exit"})
        first = receive(mine)
        assert first is not None and first.body == {"ev": "exit"}
        assert receive(mine) is None
