"""Sockets that the host has bound in a tree are found however they were bound; each beside a tree without one."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate import hostsockets, treewalk
from credgate.hostsockets import HostSocketError, SocketWatch, bound_now, first_bound, parse_dump, refuse, socket_files
from credgate.treewalk import WalkError
from tests.jail import own
from tests.jail.forked import USERS, attempt

KINDS = [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET]


@pytest.fixture
def tree() -> Iterator[Path]:
    """Where an ordinary user can look as well; pytest's own directories are the caller's alone."""
    root = Path(tempfile.mkdtemp(prefix="credgate-hs-"))
    root.chmod(0o755)
    yield _filled(root / "tree")
    shutil.rmtree(root)


def _filled(made: Path) -> Path:
    (made / "a" / "deep").mkdir(parents=True)
    (made / "a" / "file").touch()
    os.mkfifo(made / "a" / "fifo")
    (made / "link").symlink_to(made.parent)
    return made


@pytest.fixture
def there(tree: Path) -> Iterator[Path]:
    """Be in the tree: the path of a test may be longer than a socket's name can be."""
    before = Path.cwd()
    os.chdir(tree / "a" / "deep")
    yield tree
    os.chdir(before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_that_is_bound(there: Path, kind: socket.SocketKind) -> None:
    refuse([str(there)])  # control
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind("s")  # by a relative name, and nobody listens yet
        with pytest.raises(HostSocketError, match=r"listens at .*/a/deep/s"):
            refuse(["/nonexistent", str(there), str(there / "a")])
        refuse([str(there / "a" / "file")])
    refuse([str(there)])  # the file is left over


def test_what_a_link_leads_to_is_not_in_the_tree(there: Path) -> None:
    os.chdir(there.parent)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("s")
        assert (there / "link" / "s").is_socket()
        refuse([str(there)])
        assert first_bound([str(there.parent)])  # control


def test_a_listener_is_not_disturbed(there: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("s")
        sock.listen()
        sock.settimeout(0.2)
        assert first_bound([str(there)])
        with pytest.raises(TimeoutError):
            sock.accept()


@pytest.mark.needs("userns", "netns")
def test_a_socket_of_another_network_namespace(there: Path) -> None:
    def elsewhere() -> object:
        own.user_namespace()
        reader, writer = os.pipe()
        inside = os.fork()
        if inside == 0:
            os.unshare(os.CLONE_NEWNET)
            sock = socket.socket(socket.AF_UNIX)
            sock.bind("/proc/self/cwd/s")
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)
        known = [os.fsdecode(name) for _, name in bound_now() if name.endswith(b"/cwd/s")]
        found = first_bound([str(there)])
        os.kill(inside, signal.SIGKILL)
        return [found, known]

    there.joinpath("a/deep").chmod(0o777)
    told = attempt(elsewhere, uid=USERS[-1]).value
    assert told == [str(there / "a/deep/s"), []], "control: the kernel's table of this namespace does not have it"


@pytest.mark.needs("root")
def test_a_closed_door_counts_for_the_owner_alone(there: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("s")
        Path("s").chmod(0o600)
        assert attempt(lambda: first_bound([str(there)]), uid=USERS[-1]).value == ""
        os.chown("s", USERS[-1], -1)
        Path("s").chmod(0)
        assert attempt(lambda: first_bound([str(there)]), uid=USERS[-1]).value == str(there / "a/deep/s")


def test_a_long_path(there: Path) -> None:
    deep = there
    for _ in range(8):
        deep = deep / ("d" * 60)
        deep.mkdir()
    os.chdir(deep)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("s")
        assert first_bound([str(there)]) == str(deep / "s")


def test_what_can_not_be_looked_through_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tree / "a" / "deep"

    def said() -> str:
        try:
            return first_bound([str(tree)]) or "nothing"
        except WalkError as error:
            return error.code

    def look(mode: int) -> object:
        hidden.chmod(mode)
        told = attempt(said, uid=USERS[-1])
        hidden.chmod(0o755)
        return told.value

    assert look(0o755) == "nothing"
    if USERS[0] == 0:
        assert look(0o711) == "tree_unseen"
        assert look(0o700) == "nothing", "who can't enter reaches nothing in it"
        os.chown(hidden, USERS[-1], -1)
    assert look(0o000) == "tree_unseen", "its owner can open it again"
    monkeypatch.setattr(treewalk, "ENTRIES", 2)
    with pytest.raises(WalkError, match="more than 2 entries"):
        refuse([str(tree)])


def test_files_of_other_kinds_are_none(tree: Path) -> None:
    assert list(socket_files([str(tree)])) == []
    assert {stat.S_IFMT(p.lstat().st_mode) for p in tree.rglob("*")} >= {stat.S_IFIFO, stat.S_IFLNK, stat.S_IFREG}


# While it runs


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that another test has read."""
    monkeypatch.setattr(hostsockets, "_TABLE", hostsockets._Table())


@pytest.mark.parametrize(("young", "dumps"), [(60.0, 1), (0.0, 3)])
def test_one_reading_of_the_table_serves_all_runs_for_a_while(
    young: float, dumps: int, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(hostsockets, "YOUNG", young)
    monkeypatch.setattr(hostsockets, "_TABLE", hostsockets._Table())
    monkeypatch.setattr(hostsockets, "bound_now", lambda: read.append(1) or set())
    for _ in range(3):
        assert SocketWatch("r1", [str(there)]).look() == ""
    assert len(read) == dumps


@pytest.mark.parametrize("relative", [True, False])
def test_a_socket_that_is_bound_later(there: Path, relative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostsockets, "YOUNG", 0.0)
    short = Path("/tmp") / f"credgate-hs-{os.getpid()}"
    short.symlink_to(there)
    try:
        watch = SocketWatch("r1", [str(there)])
        assert watch.look() == ""
        watch._soon = 0.0
        with socket.socket(socket.AF_UNIX) as sock, socket.socket(socket.AF_UNIX) as other:
            other.bind(f"/tmp/credgate-hs-{os.getpid()}.other")
            assert watch.look() == "", "control: a socket elsewhere"
            sock.bind("s" if relative else f"{short}/a/deep/s")
            watch._soon = 0.0
            assert watch.look() == str(there / "a/deep/s")
            assert watch.look() == "", "what is known is not looked for each time"
    finally:
        short.unlink()
        Path(f"/tmp/credgate-hs-{os.getpid()}.other").unlink(missing_ok=True)


def test_the_whole_look_comes_in_time(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostsockets, "YOUNG", 0.0)
    watch = SocketWatch("r1", [str(there)])
    monkeypatch.setattr(hostsockets, "bound_now", lambda: set())  # as of another network namespace
    with socket.socket(socket.AF_UNIX) as sock:
        watch._next = watch._soon = time.monotonic() + 60
        sock.bind("s")
        assert watch.look() == ""
        watch._next = watch._soon = 0.0
        assert watch.look() == str(there / "a/deep/s")


def test_a_kernel_without_the_table_is_no_end(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> set[tuple[int, bytes]]:
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr(hostsockets, "bound_now", missing)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("s")
        assert SocketWatch("r1", [str(there)]).look() == str(there / "a/deep/s")


def test_the_kernels_error_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        parse_dump(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -2), set())


@given(st.binary(max_size=200))
def test_any_bytes_end(data: bytes) -> None:
    with contextlib.suppress(OSError):
        parse_dump(data, set())
