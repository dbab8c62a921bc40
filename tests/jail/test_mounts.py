"""The root is built in a child's own namespaces; each guard beside what happens without it."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jail import caps, mounts
from jail.syscalls import syscall
from tests.jail import own
from tests.jail.forked import USERS, Outcome, attempt

pytestmark = pytest.mark.needs("userns")

BASE = [
    {"op": "tmpfs", "at": "/dev", "size": 1 << 20, "inodes": 64, "mode": 0o755},
    {"op": "device", "from": "/dev/null", "at": "/dev/null"},
]
MIB = 1 << 20


@pytest.fixture
def tree() -> Iterator[Path]:
    """A directory of everybody's, with a file and a directory in it (pytest's own are closed to other users)."""
    path = Path(os.path.realpath(tempfile.mkdtemp(prefix="credgate-mounts-")))
    (path / "sub").mkdir()
    (path / "file").write_text("text\n")
    for each in (path, path / "sub", path / "file"):
        each.chmod(0o777)
    yield path
    shutil.rmtree(path)


def spaces() -> None:
    own.user_namespace()
    os.unshare(os.CLONE_NEWNS)


def built(*operations: dict[str, object], look: Callable[[], object], before: Callable[[], object] = spaces) -> Outcome:
    """What `look` says in a root of BASE and these."""

    def action() -> object:
        mounts.build_root([*BASE, *operations])
        return look()

    return attempt(action, guards=before, uid=USERS[-1])


def bind(tree: Path, at: str = "/t", *, write: bool = False) -> dict[str, object]:
    return {"op": "bind", "from": str(tree), "at": at, "write": write}


def writes(*paths: str) -> list[int]:
    """The errno of writing each, 0 where it went."""
    said = []
    for path in paths:
        try:
            Path(path).write_text("new\n")
        except OSError as error:
            said.append(error.errno or -1)
        else:
            said.append(0)
    return said


def test_the_hosts_tree_is_gone(tree: Path) -> None:
    seen = built(bind(tree), look=lambda: [sorted(os.listdir("/")), sorted(os.listdir("/t"))])
    assert seen.value == [["dev", "t"], ["file", "sub"]]


def test_root_and_dev_take_nothing(tree: Path) -> None:
    assert built(bind(tree), look=lambda: writes("/x", "/dev/x", "/dev/null")).value == [errno.EROFS, errno.EROFS, 0]


def test_read_only_goes_for_what_is_mounted_below_too(tree: Path) -> None:
    def before() -> None:
        spaces()
        syscall("mount", b"none", os.fsencode(tree / "sub"), b"tmpfs", 0, None)

    paths = ("/t/file", "/t/sub/file")
    assert built(bind(tree), look=lambda: writes(*paths), before=before).value == [errno.EROFS] * 2
    assert built(bind(tree, write=True), look=lambda: writes(*paths), before=before).value == [0, 0]


def test_a_link_in_place_of_a_source_is_refused(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "sub")
    (tree / "sub/deep").mkdir()
    for name in ("link", "link/deep"):
        refused = built(bind(tree / name), look=lambda: True)
        assert (refused.code, refused.errno) == ("mount_failed", errno.ELOOP)
    assert built(bind(tree / "sub/deep"), look=lambda: True).value is True  # control


def test_a_source_that_vanished_is_refused(tree: Path) -> None:
    refused = built(bind(tree / "gone"), look=lambda: True)
    assert (refused.code, refused.errno) == ("mount_failed", errno.ENOENT)


def test_a_planted_link_leads_no_mount_elsewhere(tree: Path) -> None:
    (tree / "link").symlink_to("/dev")
    hostile = {"op": "tmpfs", "at": "/t/link", "size": MIB, "inodes": 8, "mode": 0o755}
    refused = built(bind(tree, write=True), hostile, look=lambda: True)
    assert (refused.code, refused.errno) in {("mount_failed", errno.ELOOP), ("mount_failed", errno.ENOTDIR)}
    honest = hostile | {"at": "/t/sub"}
    assert built(bind(tree, write=True), honest, look=lambda: os.path.ismount("/t/sub")).value is True  # control


def test_no_set_user_id_and_no_devices(tree: Path) -> None:
    flags = built(bind(tree, write=True), look=lambda: os.statvfs("/t").f_flag).value
    assert isinstance(flags, int)
    assert (flags & os.ST_NOSUID, flags & os.ST_NODEV) == (os.ST_NOSUID, os.ST_NODEV)


def test_a_tmpfs_has_an_end() -> None:
    small = {"op": "tmpfs", "at": "/small", "size": MIB, "inodes": 8, "mode": 0o700}

    def fill() -> list[int]:
        said = []
        for name, size in (("fits", MIB // 2), ("more", 2 * MIB)):
            try:
                Path("/small", name).write_bytes(bytes(size))
            except OSError as error:
                said.append(error.errno or -1)
            else:
                said.append(0)
        Path("/small/more").unlink()
        return [*said, *writes(*(f"/small/{number}" for number in range(10)))]

    first, second, *rest = built(small, look=fill).value
    assert (first, second) == (0, errno.ENOSPC)
    assert rest[0] == 0 and rest[-1] == errno.ENOSPC  # out of inodes


def test_names_that_are_not_utf8(tree: Path) -> None:
    name = os.fsdecode(os.fsencode(tree) + b"/\xff two\nlines")
    os.mkdir(os.fsencode(name))
    assert built(bind(Path(name), at=name), look=lambda: os.path.ismount(os.fsencode(name))).value is True


def test_files_and_links(tree: Path) -> None:
    text = {"op": "file", "at": "/etc/made/by/us", "text": "here\n"}
    link = {"op": "link", "at": "/etc/link", "to": "made/by"}

    def look() -> list[object]:
        return [
            Path("/etc/link/us").read_text(),
            stat.S_IMODE(Path("/etc/made/by/us").stat().st_mode),
            *writes("/etc/made/by/us"),
        ]

    assert built(text, link, look=look).value == ["here\n", 0o444, errno.EROFS]


def test_what_is_there_already_is_not_written_over(tree: Path) -> None:
    again = {"op": "file", "at": "/t/file", "text": "ours\n"}
    refused = built(bind(tree, write=True), again, look=lambda: True)
    assert (refused.code, refused.errno) == ("mount_failed", errno.EEXIST)
    assert (tree / "file").read_text() == "text\n"


def test_only_a_device_is_bound_as_one(tree: Path) -> None:
    posing = {"op": "device", "from": str(tree / "file"), "at": "/dev/zero"}
    assert built(posing, look=lambda: True).code == "mount_failed"


def test_a_mask_hides_and_what_is_not_there_needs_none(tree: Path) -> None:
    masks = [{"op": "mask", "at": "/t/file"}, {"op": "mask", "at": "/t/none"}]
    assert built(bind(tree), look=lambda: Path("/t/file").read_text()).value == "text\n"  # control
    assert built(bind(tree), *masks, look=lambda: Path("/t/file").read_text()).value == ""


def test_a_part_can_be_read_only_in_a_tree_that_is_not(tree: Path) -> None:
    part = {"op": "readonly", "at": "/t/sub"}
    seen = built(bind(tree, write=True), part, look=lambda: writes("/t/file", "/t/sub/file"))
    assert seen.value == [0, errno.EROFS]


# What is held fast, and what is hidden


def done(*actions: Callable[[], object]) -> list[int]:
    """The errno of each, 0 where it went, for a process without the capabilities that a mode doesn't hold."""
    said = []
    caps.drop_all()
    for action in actions:
        try:
            action()
        except OSError as error:
            said.append(error.errno or -1)
        else:
            said.append(0)
    return said


def around() -> list[int]:
    """Ways around a read-only part /t/sub: through it, with it moved aside, or removed."""
    return [
        *writes("/t/sub/file"),
        *done(
            lambda: os.rename("/t/sub", "/t/aside"),
            lambda: os.rename("/t/new", "/t/sub"),
            lambda: os.rmdir("/t/sub"),
        ),
    ]


def test_an_island_is_read_only_and_stays_where_it_is(tree: Path) -> None:
    (tree / "new").mkdir()
    for path in (tree / "new", tree / "sub"):
        path.chmod(0o777)
    island = {"op": "island", "at": "/t/sub"}
    busy, read_only = errno.EBUSY, errno.EROFS
    assert built(bind(tree, write=True), island, look=around).value == [read_only, busy, busy, busy]
    assert built(bind(tree, write=True), look=around).value == [0] * 4  # control


def parent_aside() -> list[int]:
    return done(
        lambda: os.rename("/t/sub", "/t/aside"),
        lambda: os.makedirs("/t/sub/deep"),
        lambda: Path("/t/sub/deep/planted").write_text("ours\n"),
    )


def test_a_parent_that_is_renamed_goes_around_an_island_unless_it_is_pinned(tree: Path) -> None:
    (tree / "sub/deep").mkdir()
    for path in (tree / "sub", tree / "sub/deep"):
        path.chmod(0o777)
    island, pin = {"op": "island", "at": "/t/sub/deep"}, {"op": "pin", "at": "/t/sub"}
    said = built(bind(tree, write=True), pin, island, look=parent_aside).value
    assert said == [errno.EBUSY, errno.EEXIST, errno.EROFS]
    assert built(bind(tree, write=True), pin, look=lambda: writes("/t/sub/free")).value == [0]
    assert built(bind(tree, write=True), island, look=parent_aside).value == [0, 0, 0]  # control


def test_a_link_is_held_as_a_link(tree: Path) -> None:
    (tree / "link").symlink_to("sub")

    def look() -> list[object]:
        tried = done(lambda: os.unlink("/t/link"), lambda: os.rename("/t/file", "/t/link"))
        return [*tried, os.path.islink("/t/link"), *writes("/t/link/x")]

    island = {"op": "island", "at": "/t/link"}
    assert built(bind(tree, write=True), island, look=look).value == [errno.EBUSY, errno.EBUSY, True, 0]
    assert built(bind(tree, write=True), look=look).value == [0, 0, False, errno.ENOTDIR]  # control


@pytest.mark.parametrize("op", ["island", "pin"])
def test_an_island_that_vanished_is_refused(tree: Path, op: str) -> None:
    refused = built(bind(tree, write=True), {"op": op, "at": "/t/none"}, look=lambda: True)
    assert (refused.code, refused.errno) == ("mount_failed", errno.ENOENT)


def hide(at: str, *, directory: bool = False, number: int = 0, size: int = 0, mtime: int = 0) -> dict[str, object]:
    return {"op": "hide", "at": at, "directory": directory, "number": number, "size": size, "mtime": mtime}


def reached() -> list[int]:
    """Ways to what is in /t/file and /t/sub."""
    return done(
        lambda: Path("/t/file").read_text(),
        lambda: Path("/t/file").write_text("new\n"),
        lambda: os.chmod("/t/file", 0o666),
        lambda: os.link("/t/file", "/t/second"),
        lambda: os.rename("/t/file", "/t/moved"),
        lambda: os.listdir("/t/sub"),
        lambda: Path("/t/sub/new").write_text("new\n"),
        lambda: os.rename("/t/sub", "/t/away"),
    )


def test_what_is_hidden_can_not_be_reached_or_moved(tree: Path) -> None:
    os.chown(tree / "file", USERS[-1], -1)  # who may change its mode
    facts = (5, 7_000_000_000)
    covers = [hide("/t/file", size=facts[0], mtime=facts[1]), hide("/t/sub", directory=True, number=1)]
    refused = built(bind(tree, write=True), *covers, look=reached).value
    closed, fixed, busy = errno.EACCES, errno.EROFS, errno.EBUSY
    assert refused == [closed, fixed, fixed, errno.EXDEV, busy, closed, closed, busy]

    def look() -> list[object]:
        seen = os.stat("/t/file")
        return [seen.st_size, seen.st_mtime_ns, stat.S_IMODE(seen.st_mode), seen.st_blocks]

    assert built(bind(tree, write=True), *covers, look=look).value == [*facts, 0, 0]  # a hole: no room, nothing in it
    assert built(bind(tree, write=True), look=reached).value == [0] * 8  # control


def test_a_cover_stays_when_a_directory_above_is_renamed(tree: Path) -> None:
    (tree / "sub/secret").write_text("secret\n")
    (tree / "sub/secret").chmod(0o666)

    def look() -> list[int]:
        return done(lambda: os.rename("/t/sub", "/t/other"), lambda: Path("/t/other/secret").read_text())

    assert built(bind(tree, write=True), hide("/t/sub/secret"), look=look).value == [0, errno.EACCES]
    (tree / "other").rename(tree / "sub")
    assert built(bind(tree, write=True), look=look).value == [0, 0]  # control


def test_a_link_that_came_in_a_hidden_files_place_is_refused(tree: Path) -> None:
    (tree / "link").symlink_to("file")
    assert built(bind(tree, write=True), hide("/t/link"), look=lambda: True).code == "mount_failed"


def copied(tree: Path) -> dict[str, object]:
    return {"op": "file", "from": str(tree / "file"), "at": "/home/ann/file", "mode": 0o600}


def test_a_copy_is_the_jails_own(tree: Path) -> None:
    """What is bound can't be written; what is copied can, and the host's keeps what it had."""
    home = {"op": "tmpfs", "at": "/home/ann", "size": MIB, "inodes": 64, "mode": 0o700}

    def look() -> object:
        before = Path("/home/ann/file").read_text()
        return [before, writes("/home/ann/file", "/t/file"), oct(stat.S_IMODE(os.stat("/home/ann/file").st_mode))]

    assert built(home, copied(tree), bind(tree), look=look).value == ["text\n", [0, errno.EROFS], "0o600"]
    assert (tree / "file").read_text() == "text\n"


def test_a_copy_of_what_a_link_leads_to_is_none(tree: Path) -> None:
    (tree / "file").unlink()
    (tree / "file").symlink_to("/etc/hostname")
    assert "mount_failed" in str(built(copied(tree), look=lambda: 0))
