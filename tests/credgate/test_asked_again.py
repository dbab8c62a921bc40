"""A question that lay unread when its daemon ended is asked of the next one, once; one that was read never again."""

import os
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from credgate import api, thinclient
from credgate.commands import run
from credgate.errors import CredgateError
from jail import fdpass
from tests.credgate import front_rig
from tests.credgate.front_rig import PYTHON, end

REFUSAL: fdpass.Json = {"ev": "refused", "code": "no", "detail": "not today", "hint": "tomorrow", "exit": 126}
type Daemon = Callable[[socket.socket], None]


def accepts_and_ends(listener: socket.socket) -> None:
    listener.accept()[0].close()


def accepts_none(listener: socket.socket) -> None:
    """It ends with the connection in its queue."""


def reads_and_ends(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    with sock:
        message = fdpass.recv(sock)
        assert message is not None
        message.close()


def refuses(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    with sock:
        message = fdpass.recv(sock)
        assert message is not None
        message.close()
        fdpass.send(sock, REFUSAL)


class Daemons:
    """One after the other; the next one listens at the place of the last before that one ends.

    Whether a question is sent by then or not, it lies unread.
    """

    def __init__(self, home: Path) -> None:
        self.directory = home / ".local/state/credgate/run"
        self.directory.mkdir(parents=True)
        self.directory.chmod(0o700)
        self.served: list[str] = []

    def listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.directory / "next"))
        listener.listen()
        (self.directory / "next").rename(self.directory / "control")
        return listener

    def play(self, *daemons: Daemon) -> threading.Thread:
        """The first one listens when this returns."""
        first = self.listen()

        def all_of_them() -> None:
            listener = first
            for number, daemon in enumerate(daemons):
                select.select([listener], [], [])  # somebody has connected to this one
                following = self.listen() if number + 1 < len(daemons) else listener
                daemon(listener)
                listener.close()
                self.served.append(daemon.__name__)
                listener = following

        thread = threading.Thread(target=all_of_them, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemons]:
    with tempfile.TemporaryDirectory(prefix="cga-", dir="/tmp") as home:  # a socket's path has 107 bytes
        monkeypatch.setenv("HOME", home)
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        yield Daemons(Path(home))


def by_python() -> None:
    options = run.Options()
    options.command = ["true"]
    run.Launch(options, options.command).begin()


def by_the_api() -> None:
    api.Launcher(policy="p").run(["true"])


WAYS = pytest.mark.parametrize("ask", [by_python, by_the_api])


@WAYS
@pytest.mark.parametrize("ending", [accepts_and_ends, accepts_none])
def test_the_next_daemon_is_asked_where_the_question_lay_unread(
    daemons: Daemons, ask: Callable[[], None], ending: Daemon
) -> None:
    playing = daemons.play(ending, refuses)
    with pytest.raises(CredgateError, match="not today"):
        ask()
    playing.join(20)
    assert daemons.served == [ending.__name__, "refuses"]


@WAYS
def test_one_that_was_read_is_not_asked_again(daemons: Daemons, ask: Callable[[], None]) -> None:
    """Its run may have begun."""
    daemons.play(reads_and_ends, refuses)
    with pytest.raises(CredgateError, match="closed the connection") as caught:
        ask()
    assert not isinstance(caught.value, thinclient.NotTaken)
    assert daemons.served in ([], ["reads_and_ends"])  # [] until its thread goes on: the next one was never asked


@WAYS
def test_it_is_asked_once_more_and_then_told(daemons: Daemons, ask: Callable[[], None]) -> None:
    daemons.play(accepts_and_ends, accepts_none, refuses)
    with pytest.raises(thinclient.NotTaken) as caught:
        ask()
    assert caught.value.exit_status == 125
    assert "refuses" not in daemons.served


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@WAYS
def test_what_was_lent_is_taken_back(daemons: Daemons, ask: Callable[[], None]) -> None:
    """Two questions unread, then none of their descriptors is left (but an epoll of a launch that is thrown away)."""
    playing = daemons.play(accepts_and_ends, accepts_and_ends)
    before = descriptors()
    with pytest.raises(thinclient.NotTaken):
        ask()
    playing.join(20)
    left = {os.readlink(f"/proc/self/fd/{number}") for number in descriptors() - before if _open(number)}
    assert left <= {"anon_inode:[eventpoll]"}, left


def _open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("accepted", [True, False])
def test_a_front_leaves_it_to_python_from_the_beginning(accepted: bool) -> None:
    """As where no daemon is: nothing has begun. What Python does then is above."""
    with front_rig.rig() as rig:
        process = rig.start("run", "-q", "--", "x")
        _until_asked(rig, process)
        sock = rig.listener.accept()[0] if accepted else rig.listener
        sock.close()
        status, out, _ = end(process)
    assert (status, front_rig.words(out)) == (PYTHON, ["run", "-q", "--", "x"])


def _until_asked(rig: front_rig.Rig, process: front_rig.Process) -> None:
    """It sleeps in poll(2) once it has asked."""
    call = Path(f"/proc/{process.pid}/syscall")
    while not call.read_text().startswith("7 "):  # poll
        assert process.poll() is None
    assert rig.listener.fileno() >= 0
