"""Where a group of a run can be made, told from texts and a tree of plain files; then the kernel's own."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jail import cgroups
from jail.cgroups import Base, Group, Place, choose, groups_of, hierarchies, settle
from jail.errors import JailError
from tests.delegated import base_of, delegated, groups
from tests.jail.forked import USERS, attempt

OWNER = 65530  # a user whom no other test gives a control group

UID = 1000
MEBI = 1 << 20
OWN1 = "4:memory:/x\n8:pids:/\n2:cpuacct,cpu:/\n0::/\n"


def mounts(root: Path, *, version: int, shown: str = "/") -> str:
    if version == 2:
        return f"30 1 0:26 {shown} {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    names = ("memory", "pids", "cpu,cpuacct")
    lines = [f"3{n} 1 0:2{n} {shown} {root}/{name} rw - cgroup cgroup rw,{name}\n" for n, name in enumerate(names)]
    return "".join(lines) + f"39 1 0:30 / {root}/unified rw - cgroup2 cgroup2 rw\n22 1 8:1 / / rw - ext4 /dev/sda rw\n"


def make(directory: Path, *, controllers: str = "memory pids", processes: str = "") -> Path:
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text(processes)
    (directory / "cgroup.subtree_control").write_text(controllers)
    return directory


# Parsing


def test_hierarchies_and_groups_are_read_from_proc() -> None:
    v1, v2 = mounts(Path("/sys/fs/cgroup"), version=1), mounts(Path("/c"), version=2)
    assert [sorted(h.controllers) for h in hierarchies(v1)] == [["memory"], ["pids"], ["cpu", "cpuacct"], []]
    assert hierarchies(v2)[0].at == "/c"
    assert groups_of(OWN1) == {"memory": "/x", "pids": "/", "cpuacct": "/", "cpu": "/", "": "/"}
    assert groups_of("0::/a:b/c\n") == {"": "/a:b/c"}
    with pytest.raises(ValueError, match="unpack"):
        groups_of("nonsense")


def test_a_mount_whose_root_lies_outside_our_namespace_is_left_alone() -> None:
    assert hierarchies(mounts(Path("/c"), version=2, shown="/../..")) == ()


# Version 1


def test_version_1_takes_what_root_left_for_this_user(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu,cpuacct"):
        make(tmp_path / name / "credgate" / str(UID))
    base = choose(UID, mounts(tmp_path, version=1), OWN1, OWN1)
    assert base is not None
    assert [(p.controller, p.shown) for p in base.places] == [
        (c, "/credgate/1000") for c in ("memory", "pids", "cpuacct")
    ]
    assert (base.name, base.counts_cpu) == ("cgroup v1", True)
    assert choose(UID + 1, mounts(tmp_path, version=1), OWN1, OWN1) is None


def test_version_1_takes_a_subtree_that_the_user_may_write(tmp_path: Path) -> None:
    make(tmp_path / "memory/x")
    make(tmp_path / "pids/y")
    base = choose(UID, mounts(tmp_path, version=1), "4:memory:/x\n8:pids:/y\n", "")
    assert base is not None
    assert [p.shown for p in base.places] == ["/x", "/y"]
    assert not base.counts_cpu


@pytest.mark.parametrize("missing", ["memory", "pids"])
def test_version_1_needs_both(tmp_path: Path, missing: str) -> None:
    for name in {"memory", "pids"} - {missing}:
        make(tmp_path / name / "credgate" / str(UID))
    assert choose(UID, mounts(tmp_path, version=1), OWN1, OWN1) is None


# Version 2


def test_version_2_takes_the_delegated_group_where_the_launcher_is_below_it(tmp_path: Path) -> None:
    make(tmp_path / "credgate/1000")
    (tmp_path / "cgroup.procs").touch(mode=0o444)
    own, text = "0::/credgate/1000/launchers\n", mounts(tmp_path, version=2)
    base = choose(UID, text, own, own)
    assert base is not None
    assert (base.version, base.places[0].shown, base.unit) == (2, "/credgate/1000", "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
def test_version_2_refuses_a_move_that_the_kernel_would_refuse(tmp_path: Path) -> None:
    make(tmp_path / "credgate/1000")
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.procs").chmod(0o444)
    text = mounts(tmp_path, version=2)
    assert choose(UID, text, "0::/credgate/1000/launchers\n", "0::/session\n") is None


def test_version_2_needs_the_controllers_handed_down(tmp_path: Path) -> None:
    make(tmp_path / "mine", controllers="pids")
    assert choose(UID, mounts(tmp_path, version=2), "0::/mine\n", "0::/mine\n") is None
    (tmp_path / "mine/cgroup.subtree_control").write_text("cpu memory pids")
    assert choose(UID, mounts(tmp_path, version=2), "0::/mine\n", "0::/mine\n") is not None


def test_version_2_inside_a_container_is_told_from_the_mounts_root(tmp_path: Path) -> None:
    make(tmp_path / "mine")
    base = choose(UID, mounts(tmp_path, version=2, shown="/docker/7"), "0::/docker/7/mine\n", "0::/docker/7/mine\n")
    assert base is not None
    assert base.places[0].directory == str(tmp_path / "mine")
    assert choose(UID, mounts(tmp_path, version=2, shown="/docker/7"), "0::/elsewhere\n", "0::/elsewhere\n") is None


SCOPE = "/user.slice/user@1000.service/app.slice/credgate-7.scope"


def test_a_scope_of_ours_is_settled_and_its_manager_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = make(tmp_path / SCOPE[1:], controllers="", processes="71\n72\n")
    make(scope / "daemon")
    text, session = mounts(tmp_path, version=2), "0::/user.slice/session-1.scope\n"
    assert settle(text, f"0::{SCOPE}\n")
    assert (scope / "daemon/cgroup.procs").read_text() == "72"  # one write each; the kernel keeps them all
    assert (scope / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert not settle(text, session)  # somebody else's is left alone
    (scope / "cgroup.subtree_control").write_text("memory pids")
    monkeypatch.setattr(cgroups.os, "access", lambda path, mode: str(path).startswith(str(scope)))
    base = choose(UID, text, f"0::{SCOPE}/daemon\n", session)
    assert base is not None
    assert (base.unit, base.places[0].shown) == ("credgate-7.scope", SCOPE)


def test_the_manager_is_asked_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    stand_in = tmp_path / "busctl"
    stand_in.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\n[ ! -e {tmp_path}/no ] || {{ echo denied >&2; exit 1; }}\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    group = made(tmp_path, monkeypatch, unit="credgate-7.scope")
    group.enter(4711)
    words = said.read_text().split("\n")
    assert words[-7:-1] == ["AttachProcessesToUnit", "ssau", "credgate-7.scope", "/r1", "1", "4711"]
    (tmp_path / "no").touch()
    with pytest.raises(JailError, match="denied"):
        group.enter(4711)


# A group of plain files: what is written, what is read back


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, unit: str = "", lack: str = "", version: int = 2) -> Group:
    """A group whose directory the "kernel" fills as it is made; `lack` is a file that it leaves out."""
    names = {
        2: {"memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cgroup.procs", "cgroup.kill"},
        1: {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max", "cgroup.procs"},
    }[version]
    plain = os.mkdir

    def mkdir(path: str, mode: int = 0o777) -> None:
        plain(path, mode)
        for name in names - {lack}:
            Path(path, name).touch()

    monkeypatch.setattr(cgroups.os, "mkdir", mkdir)
    place = Place(controller="", directory=str(tmp_path), shown="/base")
    places = (
        (place,)
        if version == 2
        else tuple(Place(controller=c, directory=str(tmp_path / c), shown="/base") for c in ("memory", "pids"))
    )
    for each in places:
        Path(each.directory).mkdir(exist_ok=True, parents=True)
    return Group(Base(version=version, places=places, unit=unit), "r1", memory=64 * MEBI + 7, processes=20)


def test_version_2_sets_memory_swap_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(tmp_path, monkeypatch)
    wrote = {path.name: path.read_text() for path in (tmp_path / "r1").iterdir() if path.read_text()}
    assert wrote == {
        "memory.max": str(64 * MEBI),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "20",
    }
    assert group.closes_swap
    group.enter(12)
    assert (tmp_path / "r1/cgroup.procs").read_text() == "12"
    group.kill()
    assert (tmp_path / "r1/cgroup.kill").read_text() == "1"


@pytest.mark.parametrize(
    ("version", "lack"),
    [(2, "memory.max"), (2, "pids.max"), (2, "memory.oom.group"), (1, "pids.max"), (1, "memory.limit_in_bytes")],
)
def test_a_limit_that_cannot_be_set_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, lack: str
) -> None:
    with pytest.raises(JailError) as caught:
        made(tmp_path, monkeypatch, version=version, lack=lack)
    assert (caught.value.code, caught.value.errno) == ("cgroup_failed", errno.ENOENT)


def test_a_host_that_does_not_account_swap_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not made(tmp_path, monkeypatch, lack="memory.swap.max").closes_swap


def test_whatever_reads_back_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(tmp_path, monkeypatch)
    (found,) = group.wrong([os.getpid()])
    assert found.startswith(f"cgroup of process {os.getpid()}: expected /base/r1, got /")
    (tmp_path / "r1/pids.max").write_text("max\n")
    (tmp_path / "r1/memory.max").unlink()
    assert {text.rpartition("/")[2] for text in group.wrong([])} == {
        "pids.max: expected 20, got max",
        f"memory.max: expected {64 * MEBI}, got not shown",
    }
    assert "not shown" in group.wrong([2**22])[0]  # no such process


def test_counters_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(tmp_path, monkeypatch)
    files = {
        "memory.events": "low 0\noom 3\noom_kill 2\n",
        "pids.events": "max 5\n",
        "cpu.stat": "usage_usec 2500000\n",
    }
    for name, text in files.items():
        (tmp_path / "r1" / name).write_text(text)
    counted = group.counters()
    assert (counted.oom_kills, counted.refused_forks, counted.cpu) == (2, 5, 2.5)
    (tmp_path / "r1/memory.events").write_text("low 0\n")
    with pytest.raises(ValueError, match="no oom_kill"):
        group.counters()  # not shown is not zero


# The kernel

EAT = "import os,sys; sys.stdin.readline(); f = os.memfd_create('x'); [os.write(f, bytes(4 << 20)) for _ in range(40)]"
FORK = """
import os, sys, signal
sys.stdin.readline()
made = 0
try:
    for _ in range(40):
        if os.fork() == 0: signal.pause()
        made += 1
except BlockingIOError: pass
print(made, flush=True)
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture
def uid() -> Iterator[int]:
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    with delegated(OWNER):
        yield OWNER
    assert groups(OWNER) == []


def held(code: str, memory: int) -> list[object]:
    """Run a program in a group of its own; its status, its output, and what the kernel counted."""
    base = base_of(os.geteuid())
    assert base is not None
    group = Group(base, f"rtest{os.getpid()}", memory=memory, processes=20)
    try:
        argv = [sys.executable, "-I", "-S", "-c", code]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        outside = group.wrong([child.pid])
        group.enter(child.pid)
        inside = group.wrong([child.pid])
        out, _ = child.communicate(b"\n", timeout=60)
        counted = group.counters()
    finally:
        group.close()
    left = [place.directory for place in group.places if os.path.exists(place.directory)]
    return [child.returncode, out.decode(), counted.oom_kills, counted.refused_forks, len(outside) > 0, inside, left]


@pytest.mark.needs("cgroup")
def test_memory_files_that_nobody_maps_are_held(uid: int) -> None:
    assert attempt(lambda: held(EAT, 64 * MEBI), uid=uid).value == [-9, "", 1, 0, True, [], []]
    assert attempt(lambda: held(EAT, 512 * MEBI), uid=uid).value == [0, "", 0, 0, True, [], []]  # control


@pytest.mark.needs("cgroup")
def test_what_a_killed_daemon_left_is_swept(uid: int) -> None:
    def left() -> object:
        base = base_of(os.geteuid())
        assert base is not None
        old, new, used = (Group(base, f"rtest{os.getpid()}{n}", memory=64 * MEBI, processes=9) for n in range(3))
        child = subprocess.Popen(["sleep", "60"])
        used.enter(child.pid)
        for group in (old, used):
            for place in group.places:
                os.utime(place.directory, (1, 1))
        cgroups.sweep(base)
        there = [os.path.exists(group.places[0].directory) for group in (old, new, used)]
        child.kill()
        child.wait()
        for group in (new, used):
            group.close()
        return there

    assert attempt(left, uid=uid).value == [False, True, True]


@pytest.mark.needs("cgroup")
def test_forks_are_refused_and_counted(uid: int) -> None:
    got = attempt(lambda: held(FORK, 512 * MEBI), uid=uid).value
    assert isinstance(got, list)
    assert (got[1], got[3] >= 1, got[5:]) == ("19\n", True, [[], []])


@pytest.mark.needs("cgroup")
def test_what_still_lives_keeps_a_group_from_being_removed(uid: int) -> None:
    def alive() -> object:
        base = base_of(os.geteuid())
        assert base is not None
        group = Group(base, f"rtest{os.getpid()}", memory=64 * MEBI, processes=20)
        cgroups.PATIENCE = 0.1
        child = subprocess.Popen(["sleep", "60"])
        group.enter(child.pid)
        try:
            group.close()
        except JailError as error:
            code = error.code
        started = time.monotonic()
        child.kill()
        child.wait()
        cgroups.PATIENCE = 60.0
        group.close()
        return [code, time.monotonic() - started < 30]

    assert attempt(alive, uid=uid).value == ["cgroup_failed", True]


@pytest.mark.needs("cgroup")
@pytest.mark.skipif(USERS[0] != 0, reason="the other user's tree is made by root")
def test_another_user_cannot_use_it(uid: int) -> None:
    def steal() -> object:
        return base_of(OWNER) is None

    assert attempt(steal, uid=OWNER - 1).value is True
