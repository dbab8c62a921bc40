"""Pure plans by table; each right by a pair: the attempt succeeds without the plan and fails with it."""

import ctypes
import errno
import functools
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jail import landlock
from jail.bpf import no_new_privs
from jail.errors import JailError
from jail.landlock import plan_for
from tests.jail.forked import USERS, Outcome, attempt, become


def plan(version: int, **changes: Any) -> dict[str, Any]:
    lists: dict[str, Any] = {
        "read": ["/"],
        "write": [],
        "execute_all": True,
        "dev_write": ["/dev"],
        "tcp_ports": None,
    }
    return plan_for(version, **(lists | changes))


# Pure


def test_bits_by_abi() -> None:
    handled = [plan(v)["handled_fs"] for v in range(1, 9)]
    assert handled == [0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF]
    assert [plan(v)["scoped"] for v in range(4, 9)] == [0, 0, 3, 3, 3]
    assert [plan(v, tcp_ports=[443])["handled_net"] for v in range(3, 6)] == [0, 2, 2]


def test_no_rule_names_a_right_that_its_abi_lacks() -> None:
    for version in range(1, 12):
        made = plan(version, write=["/w"], private=["/tmp"], tcp_ports=[53, 443])
        assert isinstance(made["handled_fs"], int)
        assert isinstance(made["rules"], list)
        assert all(access & ~made["handled_fs"] == 0 and access for _, access in made["rules"])
        assert made["ports"] == ([[53, 2], [443, 2]] if version >= 4 else [])


def test_shared_trees_get_no_sockets_and_private_ones_do() -> None:
    rules = dict(plan(7, write=["/work"], private=["/tmp"])["rules"])
    for node in (landlock.MAKE_SOCK, landlock.MAKE_FIFO):
        assert not rules["/work"] & node
        assert rules["/tmp"] & node
    for access in rules.values():
        assert not access & (landlock.MAKE_CHAR | landlock.MAKE_BLOCK)
    assert rules["/"] == landlock.EXECUTE | landlock.READ_FILE | landlock.READ_DIR


def test_execute_only_where_asked() -> None:
    rules = dict(plan(7, read=["/usr"], write=["/work"], execute_all=False)["rules"])
    assert rules["/usr"] & landlock.EXECUTE
    assert not rules["/work"] & landlock.EXECUTE


def test_no_ports_is_not_no_rule() -> None:
    assert plan(7, tcp_ports=[])["handled_net"] == landlock.CONNECT_TCP
    assert plan(7, tcp_ports=None)["handled_net"] == 0


def test_what_an_old_kernel_lacks_is_named() -> None:
    assert landlock.missing(1) == ["refer", "truncate", "tcp", "ioctl_dev", "scope"]
    assert landlock.missing(4) == ["ioctl_dev", "scope"]
    assert landlock.missing(7) == []


# The kernel

kernel = pytest.mark.needs("landlock")
as_each = pytest.mark.parametrize("uid", USERS)


def confine(made: dict[str, object]) -> None:
    no_new_privs()
    landlock.restrict(made)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """`open` is granted, `shut` is not; both hold a file that everybody may write, so that only Landlock refuses."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(parent.stat().st_mode | 0o755)
    for name in ("open", "shut"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "file").write_text("content")
        (tmp_path / name / "file").chmod(0o666)
        (tmp_path / name / "sub").mkdir()
        (tmp_path / name / "sub").chmod(0o777)
    return tmp_path


def made_node(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)


CHANGES: dict[str, Callable[[str], object]] = {
    "write": lambda at: os.close(os.open(f"{at}/file", os.O_WRONLY)),
    "truncate": lambda at: os.truncate(f"{at}/file", 1),
    "open to truncate": lambda at: os.close(os.open(f"{at}/file", os.O_RDONLY | os.O_TRUNC)),
    "create": lambda at: os.close(os.open(f"{at}/new", os.O_WRONLY | os.O_CREAT)),
    "mkdir": lambda at: os.mkdir(f"{at}/dir"),
    "symlink": lambda at: os.symlink("x", f"{at}/link"),
    "unlink": lambda at: os.unlink(f"{at}/file"),
    "rmdir": lambda at: os.rmdir(f"{at}/sub"),
    "rename": lambda at: os.rename(f"{at}/file", f"{at}/other"),
    "rename to another directory": lambda at: os.rename(f"{at}/file", f"{at}/sub/file"),
    "link to another directory": lambda at: os.link(f"{at}/file", f"{at}/sub/file"),
}
REFUSED = (errno.EACCES, errno.EXDEV)


@kernel
@as_each
@pytest.mark.parametrize("name", CHANGES)
def test_change(trees: Path, name: str, uid: int) -> None:
    if uid != 0 and name.startswith("link"):
        (trees / "open/file").unlink()  # fs.protected_hardlinks wants the owner
        (trees / "shut/file").unlink()
        for tree in ("open", "shut"):
            made = trees / tree / "file"
            assert attempt(lambda made=made: made.write_text("content"), uid=uid).errno == 0
    held = plan(landlock.abi(), write=[str(trees / "open")])
    shut = attempt(lambda: CHANGES[name](str(trees / "shut")), guards=lambda: confine(held), uid=uid)
    assert shut.errno in REFUSED, shut
    assert attempt(lambda: CHANGES[name](str(trees / "open")), guards=lambda: confine(held), uid=uid).errno == 0
    assert attempt(lambda: CHANGES[name](str(trees / "shut")), uid=uid).errno == 0, "control"


@kernel
@as_each
def test_nodes_only_in_private_trees(trees: Path, uid: int) -> None:
    shared = plan(landlock.abi(), write=[str(trees / "open")])
    private = plan(landlock.abi(), private=[str(trees / "open")])
    for place, make in (("a", made_node), ("b", os.mkfifo)):
        action = functools.partial(make, str(trees / "open" / place))
        assert attempt(action, guards=lambda: confine(shared), uid=uid).errno == errno.EACCES
        assert attempt(action, guards=lambda: confine(private), uid=uid) == Outcome()


@kernel
@as_each
def test_read_and_execute_follow_the_rules(trees: Path, uid: int) -> None:
    held = plan(landlock.abi(), read=[str(trees / "open"), "/usr", "/lib", "/lib64", "/proc"])
    assert attempt(lambda: os.listdir(trees / "shut"), uid=uid).errno == 0
    assert attempt(lambda: os.listdir(trees / "shut"), guards=lambda: confine(held), uid=uid).errno == errno.EACCES
    assert attempt(lambda: os.listdir(trees / "open"), guards=lambda: confine(held), uid=uid).errno == 0


@kernel
@as_each
def test_a_rule_on_a_file(trees: Path, uid: int) -> None:
    held = plan(landlock.abi(), write=[str(trees / "open/file")])
    write = CHANGES["write"]
    assert attempt(lambda: write(str(trees / "open")), guards=lambda: confine(held), uid=uid).errno == 0
    assert attempt(lambda: write(str(trees / "shut")), guards=lambda: confine(held), uid=uid).errno == errno.EACCES


@kernel
@as_each
def test_devices_can_be_used(uid: int) -> None:
    def use() -> None:
        for name in ("null", "zero"):
            with open(f"/dev/{name}", "r+b", buffering=0) as device:
                device.write(b"x")

    assert attempt(use, guards=lambda: confine(plan(landlock.abi())), uid=uid).errno == 0
    shut = plan(landlock.abi(), dev_write=[])
    assert attempt(use, guards=lambda: confine(shut), uid=uid).errno == errno.EACCES


@kernel
@as_each
def test_abstract_socket_of_a_process_outside(uid: int) -> None:
    name = f"\0credgate-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen(5)

        def reach() -> None:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(name)

        assert attempt(reach, uid=uid).errno == 0
        assert attempt(reach, guards=lambda: confine(plan(landlock.abi())), uid=uid).errno == errno.EPERM


@kernel
@as_each
def test_signal_to_a_process_outside(uid: int) -> None:
    victim = os.fork()
    if victim == 0:
        become(uid)
        signal.pause()
        os._exit(0)
    try:
        for _ in range(200):  # until it has become that user
            if f"Uid:\t{uid}" in Path(f"/proc/{victim}/status").read_text():
                break
            time.sleep(0.01)
        assert attempt(lambda: os.kill(victim, 0), uid=uid).errno == 0
        held = attempt(lambda: os.kill(victim, 0), guards=lambda: confine(plan(landlock.abi())), uid=uid)
        assert held.errno == errno.EPERM
        own = attempt(lambda: os.kill(os.getpid(), 0), guards=lambda: confine(plan(landlock.abi())), uid=uid)
        assert own.errno == 0
    finally:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)


@kernel
@as_each
def test_tcp_ports(uid: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def reach() -> None:
            with socket.socket() as client:
                client.connect(("127.0.0.1", port))

        other = plan(landlock.abi(), tcp_ports=[port + 1 if port < 65535 else 1])
        assert attempt(reach, uid=uid).errno == 0
        assert attempt(reach, guards=lambda: confine(other), uid=uid).errno == errno.EACCES
        for mine in ([port], None):
            held = plan(landlock.abi(), tcp_ports=mine)
            assert attempt(reach, guards=lambda held=held: confine(held), uid=uid).errno == 0


# Nothing weaker


@kernel
def test_a_plan_for_another_abi_is_an_error_and_restricts_nothing(trees: Path) -> None:
    def tried() -> str:
        no_new_privs()
        try:
            landlock.restrict(plan(landlock.abi() - 1))
        except JailError as error:
            os.mkdir(trees / "shut" / "dir")  # no half-made domain
            return error.code
        return "no error"

    assert attempt(tried).value == "landlock_abi"


@kernel
def test_a_path_that_is_not_there_is_an_error() -> None:
    got = attempt(lambda: None, guards=lambda: confine(plan(landlock.abi(), read=["/", "/no/such/tree"])))
    assert (got.code, got.errno) == ("landlock_failed", errno.ENOENT)


@kernel
def test_without_no_new_privs_is_an_error() -> None:
    assert attempt(lambda: landlock.restrict(plan(landlock.abi()))).code == "no_new_privs"


@kernel
def test_a_second_thread_is_an_error() -> None:
    def tried() -> None:
        stop = threading.Event()
        threading.Thread(target=stop.wait, daemon=True).start()
        confine(plan(landlock.abi()))

    assert attempt(tried).code == "landlock_threads"


@kernel
def test_no_descriptor_is_left_open() -> None:
    def count() -> list[int]:
        before = len(os.listdir("/proc/self/fd"))
        confine(plan(landlock.abi(), write=["/tmp"], tcp_ports=[443]))
        return [before, len(os.listdir("/proc/self/fd"))]

    value = attempt(count).value
    assert isinstance(value, list)
    assert value[0] == value[1]


def test_absent_landlock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(landlock, "syscall", absent)
    with pytest.raises(JailError, match="landlock_missing") as caught:
        landlock.abi()
    assert caught.value.hint
    assert caught.value.errno == errno.EOPNOTSUPP


@kernel
def test_an_errno_left_by_an_earlier_failure_does_not_disturb() -> None:
    ctypes.set_errno(errno.EACCES)
    assert landlock.abi() >= 1


def test_what_later_kernels_add_is_named_and_not_used() -> None:
    assert landlock.unused(landlock.NEWEST_KNOWN) == []
    assert landlock.unused(8) == ["tsync"]
    assert landlock.unused(11) == ["tsync", "resolve_unix", "udp", "quiet", "no_new_privs"]
    newest = (
        landlock.known(t, landlock.NEWEST_KNOWN) for t in (landlock.FS_BITS, landlock.NET_BITS, landlock.SCOPE_BITS)
    )
    later = (landlock.known(table, 99) for table in (landlock.FS_BITS, landlock.NET_BITS, landlock.SCOPE_BITS))
    assert tuple(newest) == tuple(later)


def test_each_bit_stands_in_the_table_once() -> None:
    for table in (landlock.FS_BITS, landlock.NET_BITS, landlock.SCOPE_BITS):
        bits = [more for _, more in table]
        assert sum(bits) == landlock.known(table, 99)
        assert [since for since, _ in table] == sorted(since for since, _ in table)
