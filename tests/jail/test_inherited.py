"""What the daemon reads of descriptors, session and keyring of another process."""

import os
import pty
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from jail import inherited, keyring_kernel, readback
from tests.jail.forked import attempt

FOREIGN: set[int] = set()  # mounts that a process is told not to have


@contextmanager
def child(action: Callable[[], None]) -> Iterator[int]:
    """A child that has done `action` and waits."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.closerange(3, writer)
            os.closerange(writer + 1, 4096)
            os.dup2(writer, 0)  # 1 and 2 are enough for what is read here
            os.close(writer)
            writer = 0
            action()
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    try:
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def read(pid: int, *, sockets: int = 0, pipes: int = 0) -> list[str]:
    mounts = readback.read_facts(pid).mounts
    own = None if isinstance(mounts, readback.NotShown) else {mount.number for mount in mounts} - FOREIGN
    return list(inherited.descriptors(pid, inherited.shown(os.getpid()), own, sockets=sockets, pipes=pipes))


def hosts_file() -> None:
    os.open("/etc/passwd", os.O_RDONLY)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a process in a mount namespace of its own: no mount of ours is one of its."""
    mounts = readback.read_facts(os.getpid()).mounts
    assert not isinstance(mounts, readback.NotShown)
    monkeypatch.setitem(globals(), "FOREIGN", {mount.number for mount in mounts})


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """0, 1, 2 of the suite may be a terminal; these tests bring their own."""
    null = os.open(os.devnull, os.O_RDWR)
    kept = [os.dup(number) for number in range(3)]
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    yield
    for number, descriptor in enumerate(kept):
        os.dup2(descriptor, number)
        os.close(descriptor)


def test_nothing_beyond_the_standard_ones(foreign: None) -> None:
    with child(lambda: None) as pid:
        assert read(pid) == []


def test_file_of_the_host(foreign: None) -> None:
    with child(hosts_file) as pid:
        (line,) = read(pid)
    assert line.startswith("descriptor 3: expected none, got one of mount")


def test_file_of_its_own_mounts() -> None:
    with child(hosts_file) as pid:
        assert read(pid) == []


def test_sockets_and_pipes_are_counted(foreign: None) -> None:
    kept = []

    def open_some() -> None:
        kept.extend(socket.socketpair())
        os.pipe()

    with child(open_some) as pid:
        assert read(pid, sockets=2, pipes=2) == []
        assert len(read(pid, sockets=1, pipes=2)) == 1
        assert len(read(pid, sockets=2)) == 2


def test_terminal_of_the_host() -> None:
    master, slave = pty.openpty()
    os.dup2(slave, 1)
    with child(lambda: None) as pid:
        (line,) = read(pid)
    os.close(master)
    os.close(slave)
    assert line == "descriptor 1: expected a terminal of the jail's own, got one of the host"


def test_process_that_is_gone() -> None:
    with child(lambda: None) as pid:
        pass
    assert read(pid) == ["descriptors: not shown (ENOENT)"]
    assert list(inherited.session(pid, pid)) == ["session: not shown (ENOENT)"]


def test_session() -> None:
    with child(os.setsid) as pid:
        assert list(inherited.session(pid, pid)) == []
        assert list(inherited.session(pid, 1)) == [f"session: expected 1, got {pid}"]
    with child(lambda: None) as pid:
        assert list(inherited.session(pid, pid)) == [f"session: expected {pid}, got {os.getsid(0)}"]


@pytest.mark.parametrize("serials", [None, [], [1], [5, 5], [5, 0], [5, -1], ["5", "6"], [5, 6, 7], {"a": 1}])
def test_serials_that_show_no_new_keyring(serials: object) -> None:
    assert list(inherited.keyring(serials)) == [f"session keyring: expected a new one, got serials {serials!r}"]


def test_serials_of_the_kernel() -> None:
    def join() -> list[int]:
        before = keyring_kernel.session()
        keyring_kernel.join_anonymous_session()
        return [before, keyring_kernel.session()]

    serials = attempt(join).value
    assert list(inherited.keyring(serials)) == []
    same = attempt(lambda: [keyring_kernel.session(), keyring_kernel.session()]).value
    assert list(inherited.keyring(same)) != []
