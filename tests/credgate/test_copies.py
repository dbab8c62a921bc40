"""Copies of work trees without a jail: what an upper layer says, whatever is in it, and what of it is taken over."""

import contextlib
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from credgate import copyapply, copylook, copytext
from credgate.beneath import Beneath
from credgate.copies import Copies, overlay
from credgate.copyapply import apply, relative_to
from credgate.copylook import Change, changes, opened_tree
from credgate.copystore import Copy, CopyError, find, listed, locked, remove
from credgate.paths import Places
from jail.plan import JailSpec, Protection
from rules.policy import Role, Workdir

RUN = "r0123456789ab"


@dataclass
class Rig:
    """A tree and the copy of it; the upper layer is written here as a jail's kernel would."""

    tree: Path
    places: Places
    copy: Copy

    @property
    def upper(self) -> Path:
        return self.copy.upper

    def put(self, path: str, text: str = "new\n") -> Path:
        file = self.upper / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def whiteout(self, path: str) -> None:
        file = self.upper / path
        file.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(file, 0o000 | stat.S_IFCHR, os.makedev(0, 0))

    def found(self) -> dict[str, str]:
        return {change.path: str(change.kind) for change in changes(self.copy)}

    def apply(self, *paths: str) -> tuple[set[str], dict[str, str]]:
        done = apply(self.copy, paths)
        left = {change.path: why for change, why in done.left}
        return {c.path for c in done.taken}, left | {c.path: c.naming for c in done.apart}


def spec_of(tree: Path, places: Places, protected: Protection) -> JailSpec:
    return JailSpec(
        run=RUN,
        uid=1000,
        gid=1000,
        user="u",
        home="/home/u",
        workdir=str(tree),
        workdir_write=True,
        cwd=str(tree),
        argv=("true",),
        exe="/usr/bin/true",
        env=(),
        system=(),
        etc=(),
        protected=protected,
        overlay=overlay(places, RUN),
    )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    tree = tmp_path / "tree"
    for name in ("src/main.py", "src/other.py", "old/a", "old/deep/b", "keep", ".github/README"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(f"{name}\n")
    (tree / "link").symlink_to("keep")
    (tree / "src").chmod(0o750)
    places = Places(state=tmp_path / "state", config=tmp_path / "config")
    work = str(tree)
    reserved = {
        f"{work}/.github/workflows": "",
        f"{work}/.vscode": "",
        f"{work}/.git": "",
        f"{work}/.git/commondir": ".\n",
    }
    copies = Copies()
    spec = spec_of(tree, places, Protection(reserved=tuple(reserved.items())))
    copies.take(places, spec, Role(name="dev", workdir=Workdir.COPY, readonly=("deploy/",), hide=("private/",)))
    with pytest.raises(KeyError):
        copies.finish("another")
    os.close(copies._live.pop(RUN)[1])
    return Rig(tree=tree, places=places, copy=find(places, RUN))


def snapshot(tree: Path) -> dict[str, object]:
    return {str(p): (p.lstat().st_mode, p.lstat().st_mtime_ns, p.lstat().st_ino) for p in tree.rglob("*")}


def test_what_is_made_for_the_run_is_no_change_and_lies_in_the_copy(rig: Rig) -> None:
    assert rig.found() == {}
    assert (rig.upper / ".github/workflows").is_dir() and not (rig.tree / ".github/workflows").exists()
    assert stat.S_IMODE(rig.upper.stat().st_mode) == stat.S_IMODE(rig.tree.stat().st_mode)
    rig.put(".vscode/tasks.json")
    assert rig.found() == {".vscode": "added", ".vscode/tasks.json": "added"}


def test_every_kind_of_change(rig: Rig) -> None:
    rig.put("keep", "keep\n")  # copied up and not changed
    (rig.upper / "keep").chmod(rig.tree.joinpath("keep").stat().st_mode & 0o777)
    rig.put("src/main.py").chmod(0o755)
    (rig.upper / "src").chmod(0o700)
    (rig.upper / "link").symlink_to("src")
    rig.whiteout("old")
    rig.put("fresh/x")
    assert rig.found() == {
        "src": "mode",
        "src/main.py": "modified",
        "link": "modified",
        "old": "deleted",
        "old/a": "deleted",
        "old/deep": "deleted",
        "old/deep/b": "deleted",
        "fresh": "added",
        "fresh/x": "added",
    }
    taken, left = rig.apply()
    assert (taken, left) == (set(rig.found() | dict.fromkeys(taken)), {})
    assert rig.found() == {}
    assert (rig.tree / "src/main.py").read_text() == "new\n"
    assert stat.S_IMODE((rig.tree / "src").stat().st_mode) == 0o700
    assert os.readlink(rig.tree / "link") == "src"
    assert not (rig.tree / "old").exists() and (rig.tree / "src/other.py").exists()


@pytest.mark.parametrize("mark", ["opaque", "whiteout attribute", "type"])
def test_the_other_marks_of_a_deletion(rig: Rig, mark: str) -> None:
    if mark == "opaque":
        rig.put("old/new")
        os.setxattr(rig.upper / "old", "user.overlay.opaque", b"y")
        wanted = {"old/a": "deleted", "old/deep": "deleted", "old/deep/b": "deleted", "old/new": "added"}
    elif mark == "type":
        rig.put("old", "a file\n")
        wanted = {"old/a": "deleted", "old/deep": "deleted", "old/deep/b": "deleted", "old": "added"}
    else:
        rig.put("old/a", "")
        os.setxattr(rig.upper / "old/a", "user.overlay.whiteout", b"")
        wanted = {"old/a": "deleted"}
    assert rig.found() == wanted
    assert rig.apply()[1] == {}
    assert rig.found() == {} and not (rig.tree / "old/a").exists()


def test_a_directory_in_the_place_of_a_file_and_back(rig: Rig) -> None:
    rig.put("keep/below")
    (rig.upper / "src").symlink_to("old")
    _, left = rig.apply("keep", "src")
    assert left == {}
    assert (rig.tree / "keep/below").read_text() == "new\n" and os.readlink(rig.tree / "src") == "old"


HOST: dict[str, tuple[Callable[[Rig], None], Callable[[Rig], None]]] = {
    "modified and modified": (
        lambda r: r.put("keep") and None,
        lambda r: r.tree.joinpath("keep").write_text("host") and None,
    ),
    "deleted and modified": (
        lambda r: r.whiteout("keep"),
        lambda r: r.tree.joinpath("keep").write_text("host") and None,
    ),
    "modified and replaced": (lambda r: r.put("keep") and None, lambda r: _replaced(r.tree / "keep")),
    "added and added": (
        lambda r: r.put("both") and None,
        lambda r: r.tree.joinpath("both").write_text("host") and None,
    ),
    "deleted, and a file made below": (
        lambda r: r.whiteout("old"),
        lambda r: r.tree.joinpath("old/deep/host").write_text("host") and None,
    ),
    "modified and a directory": (lambda r: r.put("keep") and None, lambda r: _directory(r.tree / "keep")),
}


def _replaced(path: Path) -> None:
    times = path.stat()
    path.with_name("x").write_text(path.read_text().upper())
    os.utime(path.with_name("x"), ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same time
    path.with_name("x").rename(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "host").write_text("host")


@pytest.mark.parametrize("name", HOST)
def test_nothing_of_the_hosts_is_lost(rig: Rig, name: str) -> None:
    inside, outside = HOST[name]
    inside(rig)
    outside(rig)
    hosts = {
        p: p.read_bytes() for p in rig.tree.rglob("*") if p.is_file() and p.stat().st_ctime_ns and "old/a" not in str(p)
    }
    _, left = rig.apply()
    assert left
    assert {p: p.read_bytes() for p in hosts if "old/deep/b" not in str(p)} == {
        p: text for p, text in hosts.items() if "old/deep/b" not in str(p)
    }
    assert not list(rig.tree.rglob(".credgate-*"))


def test_the_same_without_a_host_that_writes(rig: Rig) -> None:
    """The control: what each of the cases does inside is taken over where the host changed nothing."""
    for path in ("keep", "both"):
        rig.put(path)
    rig.whiteout("old")
    assert rig.apply()[1] == {}
    assert (rig.tree / "keep").read_text() == (rig.tree / "both").read_text() == "new\n"


@pytest.mark.parametrize("kind", ["modified", "deleted", "added"])
def test_a_change_in_the_last_moment(rig: Rig, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The host writes between the look and the rename: what was there then is there again."""
    path = "fresh" if kind == "added" else "keep"
    rig.whiteout(path) if kind == "deleted" else rig.put(path)
    real, done = copyapply.rename, []

    def late(folder: int, old: str, new: str, flags: int) -> None:
        if not done:
            done.append((rig.tree / path).write_text("the host's, late\n"))
        real(folder, old, new, flags)

    monkeypatch.setattr(copyapply, "rename", late)
    taken, left = rig.apply()
    assert not taken and set(left) == {path}
    assert (rig.tree / path).read_text() == "the host's, late\n"
    assert not list(rig.tree.rglob(".credgate-*"))


def test_no_link_is_followed_on_either_side(rig: Rig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "main.py").write_text("theirs\n")
    (outside / "secret").write_text("not in the tree\n")
    before = snapshot(outside)
    rig.put("src/main.py")
    rig.put("src/new/deep")
    rig.whiteout("src/other.py")
    (rig.upper / "old").symlink_to(outside)  # a directory became a link that leads out
    (rig.upper / "keep").unlink(missing_ok=True)
    (rig.upper / "keep").symlink_to(outside / "secret")
    (rig.tree / "src").rename(tmp_path / "moved")
    (rig.tree / "src").symlink_to(outside)  # the host's own tree leads out by now
    taken, left = rig.apply()
    assert {"old", "keep"} <= set(left) and not {p for p in taken if p.startswith("src")}
    rig.apply("old", "keep")
    assert snapshot(outside) == before and (outside / "secret").read_text() == "not in the tree\n"
    assert os.readlink(rig.tree / "old") == str(outside)  # named, it is a link and nothing behind it


def test_what_is_never_taken_over(rig: Rig) -> None:
    os.mkfifo(rig.put("pipes/x").parent / "fifo")
    with socket.socket(socket.AF_UNIX) as held, contextlib.chdir(rig.upper / "pipes"):  # a name has 107 bytes
        held.bind("socket")
    rig.put("pipes/closed").chmod(0)
    rig.put("tool").chmod(0o6755)
    rig.put("folder/x").parent.chmod(0o3775)
    taken, left = rig.apply()
    assert {"pipes/fifo", "pipes/socket"} <= set(left)
    if os.geteuid() != 0:
        assert "pipes/closed" in left
    assert stat.S_IMODE((rig.tree / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((rig.tree / "folder").stat().st_mode) == 0o775
    assert {p.name for p in (rig.tree / "pipes").iterdir()} <= {"x", "closed"} and "tool" in taken


def test_what_must_be_named(rig: Rig) -> None:
    apart = {
        *(".github/workflows/ci.yml", "sub/.envrc", ".git/hooks/pre-commit", ".git/config", "a/b/server.key", ".env"),
        *("deploy/x", "private/y"),
    }
    for path in apart:
        rig.put(path)
    (rig.upper / "up").symlink_to("../elsewhere")
    (rig.upper / "fine").symlink_to("src/main.py")
    (rig.upper / "a/b").mkdir(parents=True, exist_ok=True)
    (rig.upper / "a/b/top").symlink_to("../../src")  # in the tree, and from there
    (rig.upper / "a/b/out").symlink_to("top/../../x")  # out of it, whatever the text looks like
    (rig.upper / "a/b/in").symlink_to("../../src/main.py")
    done = apply(rig.copy, ["."])
    passed = {c.path for c in done.apart}
    assert passed >= {*apart, "up", "private", "deploy"}
    assert "a/b/out" in passed
    assert {"fine", "a/b/top", "a/b/in"} <= {c.path for c in done.taken} and not done.whole
    assert not any((rig.tree / path).exists() for path in apart)
    assert apply(rig.copy, sorted({*apart, "up"})).left == ()
    assert all((rig.tree / path).exists() for path in apart)


def test_names_and_contents_are_hostile(rig: Rig) -> None:
    name = "a\x1b[2Jb\nc\u202e\udcff"
    rig.put(name, "\x1b]0;title\x07\n")
    rig.put("src/main.py", "src\r\x1b[31mred\n")
    (rig.upper / "l").symlink_to("\x1b[0m")
    found = changes(rig.copy)
    with Beneath(str(rig.upper)) as upper, opened_tree(rig.copy) as tree:
        lines = [line for c in found for line in (copytext.line(c), *copytext.unified(c, upper, tree))]
    assert lines and all(line.isprintable() for line in lines), lines
    assert rig.apply()[1] == {}
    assert name in os.listdir(rig.tree)


def test_paths_of_the_command_line(rig: Rig) -> None:
    tree = rig.copy.meta.tree
    assert relative_to(rig.copy, "/", "src/main.py") == "src/main.py"
    assert relative_to(rig.copy, f"{tree}/src", "main.py") == "src/main.py"
    assert relative_to(rig.copy, tree, f"{tree}/src/") == "src"
    for path in ("../x", "/etc/passwd", "src/../../x"):
        with pytest.raises(CopyError, match="not in"):
            relative_to(rig.copy, tree, path)
    rig.put("keep")
    with pytest.raises(CopyError, match="changed nothing"):
        apply(rig.copy, ["src"])


def test_a_tree_that_was_replaced_is_refused(rig: Rig) -> None:
    rig.put("keep")
    rig.tree.rename(rig.tree.with_name("aside"))
    rig.tree.mkdir()
    with pytest.raises(CopyError, match="not the directory"):
        apply(rig.copy, [])
    assert list(rig.tree.iterdir()) == []


def test_a_copy_is_thrown_away_however_deep_and_closed(rig: Rig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "stays").write_text("x")
    here = os.open(rig.upper, os.O_RDONLY | os.O_DIRECTORY)
    (rig.upper / "link").symlink_to(outside)
    for _ in range(3000):  # deeper than a path may be long
        os.mkdir("directory", dir_fd=here)
        following = os.open("directory", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.fchmod(here, 0)
        os.close(here)
        here = following
    os.close(here)
    remove(rig.copy.folder)
    assert not rig.copy.folder.exists() and listed(rig.places) == []
    assert (outside / "stays").exists()


@pytest.mark.parametrize("run", ["../state", "", "r0123456789ac", "r0123456789ab/upper", "R0123456789AB"])
def test_no_other_name_is_a_copys(rig: Rig, run: str) -> None:
    with pytest.raises(CopyError, match=RUN):
        find(rig.places, run)


def test_what_is_read_needs_the_lock(rig: Rig) -> None:
    """Locks are the process's: a child holds it, as the daemon does."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with locked(rig.copy):
            os.write(writer, b"x")
            signal.pause()
    try:
        assert os.read(reader, 1) == b"x"
        with pytest.raises(CopyError, match="has not ended"), locked(rig.copy):
            pass
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    with locked(rig.copy):
        pass


def test_changes_are_told_in_full(rig: Rig) -> None:
    rig.put("keep").chmod(0o4755)
    (change,) = changes(rig.copy)
    assert isinstance(change, Change)
    body = copytext.as_json(change)
    assert (body["kind"], body["after"]) == ("modified", {"type": "file", "mode": "0755", "size": 4})
    assert "not taken over" in copytext.line(change)


def steps(work: Callable[[], object]) -> int:
    """How often a loop of Python's went round meanwhile: what takes long, whatever else the machine does."""
    watch, count = sys.monitoring, 0

    def one(*_: object) -> None:
        nonlocal count
        count += 1

    watch.use_tool_id(watch.PROFILER_ID, "steps")
    try:
        watch.register_callback(watch.PROFILER_ID, watch.events.JUMP, one)
        watch.set_events(watch.PROFILER_ID, watch.events.JUMP)
        work()
    finally:
        watch.set_events(watch.PROFILER_ID, 0)
        watch.free_tool_id(watch.PROFILER_ID)
    return count


@pytest.mark.parametrize("kind", ["not to be looked into", "directories to be made"])
def test_twice_as_many_entries_take_twice_as_long(kind: str, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jail makes as many as it likes, and who looks at the end is the daemon, which serves others."""
    if kind == "not to be looked into":
        monkeypatch.setattr(copylook._Looking, "_directory", closed_below(copylook._Looking._directory))

    def look() -> None:
        found = changes(rig.copy)
        assert len(copyapply._chosen(found, [])[0]) == len(found)

    def more(numbers: range) -> int:
        for number in numbers:
            rig.put(f"d{number}/f")
        return steps(look)

    few, many = more(range(500)), more(range(500, 1000))
    assert many < 3 * few


def closed_below(real: Callable[..., list[tuple[str, bool]]]) -> Callable[..., list[tuple[str, bool]]]:
    """As if the jail had taken all rights from the directories that it made; root would look into them all the same."""

    def directory(looking: copylook._Looking, folder: str, *, fresh: bool) -> list[tuple[str, bool]]:
        if folder.startswith("d"):
            raise PermissionError(13, "Permission denied")
        return real(looking, folder, fresh=fresh)

    return directory


@pytest.mark.parametrize(("bound", "value"), [("IN_PASSING", 2), ("SECONDS", -1.0)])
def test_the_daemon_looks_in_passing_and_keeps_what_is_too_much_for_that(
    bound: str, value: float, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        rig.put(name)
    copies = Copies()
    copies._live[RUN] = (rig.copy, os.open("/dev/null", os.O_RDONLY))
    assert copies.finish(RUN) == 3
    monkeypatch.setattr(copylook, bound, value)
    copies._live[RUN] = (rig.copy, os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(CopyError, match="and there are more"):
        copies.finish(RUN)
    assert len(changes(rig.copy)) == 3, "the user's own command looks as long as it takes"


def test_a_file_is_compared_no_longer_than_the_look_may_take(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk image of a terabyte, touched: it has as many bytes to be read as it says, and it is one entry."""
    monkeypatch.setattr(copylook, "CHUNK", 1)

    class Checks(copylook.Bound):
        made, most = 0, 1000

        def check(self) -> None:
            self.made += 1
            if self.made > self.most:
                raise CopyError("copy_too_large", "looked at often enough")

    without, touched, ended = Checks(1000), Checks(1000), Checks(1000)
    assert copylook.changes(rig.copy, without) == []
    rig.put("keep", "keep\n")
    assert copylook.changes(rig.copy, touched) == []
    assert touched.made == without.made + len("keep\n")
    ended.most = touched.made - 1
    with pytest.raises(CopyError, match="often enough"):
        copylook.changes(rig.copy, ended)


def test_long_paths_count_for_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each a text of up to 4 KiB is kept."""
    folder = "/".join(["d" * 250] * 10)
    for number in range(5):
        rig.put(f"s{number}")
    monkeypatch.setattr(copylook, "ENTRIES", 15)
    assert len(changes(rig.copy)) == 5
    for number in range(5):
        rig.put(f"{folder}/{number}")
    with pytest.raises(CopyError, match="and there are more"):
        changes(rig.copy)


def test_a_file_of_holes_takes_no_more_room_in_the_tree(rig: Rig) -> None:
    """A jail writes eight GiB of nothing in no time; taken over byte for byte they fill the disk."""
    file = rig.put("sparse", "")
    with file.open("r+b") as out:
        for at, data in ((0, b"first"), (16 << 20, b"middle" * 1000), ((64 << 20) - 4, b"last")):
            out.seek(at)
            out.write(data)
        out.truncate(65 << 20)
    if file.stat().st_blocks * 512 > 4 << 20:
        pytest.skip("this file system has no holes")
    rig.put("empty", "")
    rig.put("keep", "x" * 3_000_000)
    assert rig.apply() == ({"sparse", "empty", "keep"}, {})
    made = rig.tree / "sparse"
    assert made.stat().st_blocks * 512 < 4 << 20
    with made.open("rb") as one:
        assert one.read(10) == b"first" + bytes(5)
        one.seek(16 << 20)
        assert one.read(6010) == b"middle" * 1000 + bytes(10)
        one.seek((64 << 20) - 8)
        assert one.read(16) == bytes(4) + b"last" + bytes(8)
    assert (made.stat().st_size, (rig.tree / "empty").stat().st_size) == (65 << 20, 0)
    assert (rig.tree / "keep").read_text() == "x" * 3_000_000


def test_a_large_file_is_told_with_its_size_and_a_change_behind_what_is_shown_too(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(b"x" * (copytext.MOST + 10) + b"old")
    places = Places(state=tmp_path / "state", config=tmp_path / "config")
    copies = Copies()
    copies.take(places, spec_of(tree, places, Protection()), Role(name="dev", workdir=Workdir.COPY))
    os.close(copies._live.pop(RUN)[1])
    copy = find(places, RUN)
    (copy.upper / "large").write_bytes(b"x" * (copytext.MOST + 10) + b"new")
    (copy.upper / "more").write_bytes(b"y" * (5 << 20))
    with Beneath(str(copy.upper)) as upper, opened_tree(copy) as host:
        told = {change.path: list(copytext.unified(change, upper, host)) for change in changes(copy)}
    size = copytext.MOST + 13
    assert told == {
        "large": [f"  binary or large: {size} bytes before, {size} after"],
        "more": [f"  binary or large: 0 bytes before, {5 << 20} after"],
    }


def test_what_makes_git_take_any_directory_for_a_repository_is_named(rig: Rig) -> None:
    """Its config can name a program that `git status` starts, in a shell's prompt too."""
    rig.put("innocent/config", "[core]\n\tfsmonitor = ./x\n")
    rig.put("innocent/HEAD", "ref: refs/heads/main\n")
    rig.put("innocent/objects/a")
    rig.put("by_file/.git", "gitdir: ../innocent\n")
    rig.put("by_link/x")
    (rig.upper / "by_link/.git").symlink_to("../innocent")
    rig.put("cloned/.git/objects/x")
    wanted = {change.path: change.naming for change in changes(rig.copy) if change.naming}
    assert set(wanted) == {"innocent/HEAD", "by_file/.git", "by_link/.git"}
    assert all(why.startswith("executed by the host unasked: git") for why in wanted.values())
    _, left = rig.apply()
    assert left == wanted
    assert not any((rig.tree / path).exists() for path in wanted)
    assert (rig.tree / "cloned/.git/objects/x").exists()


def acl(*entries: tuple[int, int, int]) -> bytes:
    """The attribute of acl(5), version 2: tag, permissions, id."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def again(rig: Rig) -> None:
    """Another copy, of the tree as it is by now."""
    remove(rig.copy.folder)
    copies = Copies()
    copies.take(rig.places, spec_of(rig.tree, rig.places, Protection()), Role(name="dev", workdir=Workdir.COPY))
    os.close(copies._live.pop(RUN)[1])
    rig.copy = find(rig.places, RUN)


NOBODY = 0xFFFFFFFF
# owner rw, user 65534 rw, group nothing, mask rw, others nothing: its mode is 0660, and the group has nothing
LIST = acl((1, 6, NOBODY), (2, 6, 65534), (4, 0, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY))


def test_a_file_in_the_place_of_another_lets_in_nobody_else(rig: Rig) -> None:
    """Its access list and attributes stay; the copy's own are a jail's, and none of them is taken over."""
    host = rig.tree / "keep"
    os.setxattr(host, "system.posix_acl_access", LIST)
    os.setxattr(host, "user.note", b"mine")
    again(rig)
    written = rig.put("keep", "other\n")
    os.setxattr(written, "user.theirs", b"x")
    written.chmod(0o660)
    assert rig.apply() == ({"keep"}, {})
    assert host.read_text() == "other\n"
    assert stat.S_IMODE(host.stat().st_mode) == 0o660
    assert os.getxattr(host, "system.posix_acl_access") == LIST
    assert os.getxattr(host, "user.note") == b"mine"
    assert "user.theirs" not in os.listxattr(host)


def test_a_directorys_default_list_lets_nobody_into_a_file_that_had_none(rig: Rig) -> None:
    """What is made beside the host's file inherits it; what replaces nothing has it as any new file does."""
    os.setxattr(rig.tree, "system.posix_acl_default", LIST)
    again(rig)
    for name in ("keep", "new"):
        rig.put(name, "other\n").chmod(0o660)
    assert rig.apply() == ({"keep", "new"}, {})
    assert "system.posix_acl_access" not in os.listxattr(rig.tree / "keep")
    assert "system.posix_acl_access" in os.listxattr(rig.tree / "new")


@pytest.mark.parametrize("member", [True, False])
def test_a_file_in_the_place_of_another_has_its_group_or_none(
    rig: Rig, member: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group that this user is not in nothing is left but what all others have."""
    host, calls = rig.tree / "keep", list[tuple[int, int]]()
    real, group = os.fstat, host.stat().st_gid + 4711

    def fstat(descriptor: int) -> os.stat_result:
        """The host's file is of a group that this process needn't be in, which a test can't make."""
        facts = real(descriptor)
        if facts.st_ino != inode:
            return facts
        return os.stat_result([*facts[:5], group, *facts[6:]], facts.__reduce__()[1][1])  # type: ignore[misc,index] # untyped

    def fchown(_descriptor: int, owner: int, to: int) -> None:
        calls.append((owner, to))
        if not member:
            raise PermissionError

    inode = host.stat().st_ino
    rig.put("keep", "other\n").chmod(0o664)
    monkeypatch.setattr(copyapply.os, "fchown", fchown)
    monkeypatch.setattr(copyapply.os, "fstat", fstat)
    assert rig.apply() == ({"keep"}, {})
    assert calls == [(-1, group)]
    assert stat.S_IMODE(host.stat().st_mode) == (0o664 if member else 0o604)


def test_nothing_is_begun_that_has_no_room(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand names of one file are a thousand files once they are taken over."""
    first = rig.put("first", "x" * 100_000)
    for number in range(20):
        os.link(first, rig.upper / f"name{number}")
    before, real = snapshot(rig.tree), os.fstatvfs

    def small(descriptor: int) -> os.statvfs_result:
        facts = list(real(descriptor))
        facts[1], facts[4] = 4096, 300  # f_frsize, f_bavail: 1.2 MB
        return os.statvfs_result(facts)

    monkeypatch.setattr(copyapply.os, "fstatvfs", small)
    with pytest.raises(CopyError) as refused:
        rig.apply()
    assert refused.value.code == "no_room"
    assert snapshot(rig.tree) == before
    assert rig.apply("first", "name3")[0] == {"first", "name3"}


def test_a_file_system_that_says_nothing_of_its_room_is_tried(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put("first", "x" * 100_000)
    monkeypatch.setattr(copyapply.os, "fstatvfs", lambda _: os.statvfs_result([512, *[0] * 8, 255]))
    assert rig.apply() == ({"first"}, {})
