import os
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from resource import (
    RLIMIT_CORE,
    RLIMIT_CPU,
    RLIMIT_DATA,
    RLIMIT_FSIZE,
    RLIMIT_NOFILE,
    RLIMIT_NPROC,
    getrlimit,
    setrlimit,
)

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jail import caps, readback
from jail.readback import CAPABILITIES, NAMESPACES, Expected, Facts, Mount, NotShown, compare, read_facts
from jail.seccomp import compile_filter
from jail.syscalls import prctl
from tests.jail.forked import NOBODY, USERS, become

STATUS = Path("/proc/self/status").read_text()
ROUTE = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "jail0\t0100D50A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0   \n"
)
DEFAULT = "eth0\t00000000\t0100D50A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
REJECT6 = f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 00000001 00000000 00200200       lo\n"
LINK6 = f"fe80{'0' * 28} 40 {'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000 00000001     eth0\n"
MOUNTS = (
    "30 1 0:40 / / ro,nosuid,nodev shared:1 master:2 - tmpfs tmpfs rw,size=1k\n"
    "31 30 0:41 /sub\\040dir /work\\040tree\\134 rw,nosuid - ext4 /dev/sda rw\n"
)


# Parsing


def test_status_is_names_to_values() -> None:
    found = readback.parse_status(STATUS)
    assert found["Pid"].isdigit()
    assert set(CAPABILITIES) <= found.keys()


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="Seccomp"):
        readback.parse_status("Seccomp:\t2\nSeccomp:\t0\n")


def test_a_process_name_can_not_forge_a_line() -> None:
    Path("/proc/self/comm").write_text("x\nSeccomp:\t2")
    try:
        assert readback.parse_status(Path("/proc/self/status").read_text())["Seccomp"] != "x"
    finally:
        Path("/proc/self/comm").write_text("pytest")


def test_start_time_behind_a_name_with_brackets() -> None:
    assert readback.parse_start("7 (a) R 1 (b)) S " + " ".join(str(n) for n in range(4, 53))) == 22


def test_routes() -> None:
    assert readback.parse_routes(ROUTE) == (("jail0", IPv4Network("10.213.0.1/32")),)
    assert ("eth0", IPv4Network("0.0.0.0/0")) in readback.parse_routes(ROUTE + DEFAULT)
    assert readback.parse_routes("") == ()


def test_ipv6() -> None:
    assert readback.parse_routes6(REJECT6) == ()
    assert readback.parse_routes6(REJECT6 + LINK6) == (("eth0", IPv6Network("fe80::/64")),)
    line = "fe800000000000000000000000000001 02 40 20 80     eth0\n"
    assert readback.parse_addresses6(line) == (("eth0", IPv6Address("fe80::1")),)


def test_mounts() -> None:
    root, work = readback.parse_mounts(MOUNTS)
    assert root == Mount(number=30, at="/", root="/", options=frozenset({"ro", "nosuid", "nodev"}), kind="tmpfs")
    assert (work.at, work.root, work.kind) == ("/work tree\\", "/sub dir", "ext4")
    assert readback.parse_mounts(Path("/proc/self/mountinfo").read_text())


def test_limits() -> None:
    found = readback.parse_limits(Path("/proc/self/limits").read_text())
    assert found.keys() == readback.LIMITS.keys()
    with pytest.raises(ValueError, match="Max data size"):
        readback.parse_limits("Max cpu time              unlimited            unlimited            seconds   \n")


PARSERS = [
    readback.parse_status,
    readback.parse_routes,
    readback.parse_addresses6,
    readback.parse_routes6,
    readback.parse_mounts,
    readback.parse_limits,
    readback.parse_map,
    readback.parse_start,
]
noise = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from([STATUS[:400], ROUTE, LINK6, MOUNTS, "0 1000 1\n", "\t", " - ", "ff", "\n"])).map("".join),
)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=noise)
@example(text="")
@example(text="Iface\neth0\tZZ\t\t\t\t\t\t00\n")
def test_any_text_is_parsed_or_not_shown(parse: Callable[[str], object], text: str) -> None:
    got = readback._shown(lambda: parse(text))
    assert not isinstance(got, NotShown) or got.why == "malformed"


# Comparing

SHOWN = Facts(
    pid=4242,
    start=1,
    owner=0,
    seccomp=2,
    filters=1,
    no_new_privs=1,
    capabilities=dict.fromkeys(CAPABILITIES, 0),
    uids=(1000,) * 4,
    gids=(1000,) * 4,
    groups=(),
    ns_pids=(4242, 1),
    namespaces={name: 100 + i for i, name in enumerate(NAMESPACES)},
    routes=(("jail0", IPv4Network("10.213.0.1/32")),),
    addresses6=(),
    routes6=(),
    mounts=readback.parse_mounts(MOUNTS),
    exe="/usr/bin/python3",
    limits=dict.fromkeys(readback.LIMITS, (10, 10)) | {"core": (0, 0)},
    uid_map=((1000, 1000, 1),),
    gid_map=((1000, 1000, 1),),
)
PLANNED = Expected(
    pid_inside=1,
    uid=1000,
    gid=1000,
    groups=(),
    namespaces={"user": 100, "net": 101},
    foreign=dict.fromkeys(NAMESPACES, 7),
    routes=(("jail0", IPv4Network("10.213.0.1/32")),),
    limits=dict.fromkeys(readback.LIMITS, 10),
    writable=frozenset({"/work tree\\"}),
)

WRONG = {
    "owner": 1000,
    "seccomp": 0,
    "filters": 2,
    "no_new_privs": 0,
    "capabilities": dict.fromkeys(CAPABILITIES, 0) | {"CapBnd": 1},
    "uids": (1000, 1000, 0, 1000),
    "gids": (1000, 0, 1000, 1000),
    "groups": (27,),
    "ns_pids": (4242,),
    "routes": (("jail0", IPv4Network("10.213.0.1/32")), ("eth0", IPv4Network("0.0.0.0/0"))),
    "addresses6": (("eth0", IPv6Address("fe80::1")),),
    "routes6": (("eth0", IPv6Network("fe80::/64")),),
    "uid_map": ((0, 0, 4294967295),),
    "gid_map": ((0, 1000, 1),),
}


def named(expected: Expected, facts: Facts) -> set[str]:
    return {difference.field for difference in compare(expected, facts)}


def test_as_planned() -> None:
    assert compare(PLANNED, SHOWN) == ()


@pytest.mark.parametrize("name", WRONG)
def test_each_difference_is_named(name: str) -> None:
    assert named(PLANNED, replace(SHOWN, **{name: WRONG[name]})) == {name}


@pytest.mark.parametrize("name", [f.name for f in fields(Facts) if f.name != "pid"])
def test_what_is_not_shown_is_a_difference(name: str) -> None:
    (difference,) = compare(PLANNED, replace(SHOWN, **{name: NotShown("EACCES")}))
    assert (difference.field, difference.got) == (name, "not shown (EACCES)")


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespaces(name: str) -> None:
    assert isinstance(SHOWN.namespaces, dict)
    assert named(PLANNED, replace(SHOWN, namespaces=SHOWN.namespaces | {name: 7})) >= {f"namespaces.{name}"}
    less = {key: inode for key, inode in SHOWN.namespaces.items() if key != name}
    assert named(PLANNED, replace(SHOWN, namespaces=less)) == {f"namespaces.{name}"}
    workload = readback.beside(PLANNED, SHOWN, pid_inside=2)
    other = replace(SHOWN, namespaces=SHOWN.namespaces | {name: 999}, ns_pids=(4243, 2))
    assert named(workload, other) == {f"namespaces.{name}"}
    assert named(workload, replace(SHOWN, ns_pids=(4243, 2))) == set()


def test_limits_may_be_lower_not_higher_or_absent() -> None:
    assert isinstance(SHOWN.limits, dict)
    for limit, fine in (((5, 10), True), ((10, 11), False), ((None, None), False), ((5, None), False)):
        got = named(PLANNED, replace(SHOWN, limits=SHOWN.limits | {"data": limit}))
        assert got == (set() if fine else {"limits.data"})
    assert named(PLANNED, replace(SHOWN, limits=SHOWN.limits | {"core": (0, 1)})) == {"limits.core"}
    with pytest.raises(KeyError):
        compare(replace(PLANNED, limits={"data": 10}), SHOWN)


def test_mounts_writable_only_where_planned() -> None:
    extra = Mount(number=9, at="/etc", root="/", options=frozenset({"rw"}), kind="ext4")
    assert isinstance(SHOWN.mounts, tuple)
    assert named(PLANNED, replace(SHOWN, mounts=(*SHOWN.mounts, extra))) == {"mounts./etc"}
    assert named(PLANNED, replace(SHOWN, mounts=())) == {"mounts./"}
    held = replace(PLANNED, mounted=frozenset({"/t/.git/hooks"}))
    assert named(held, SHOWN) == {"mounts./t/.git/hooks"}
    there = Mount(number=1, at="/t/.git/hooks", root="/", options=frozenset({"ro"}), kind="ext4")
    assert named(held, replace(SHOWN, mounts=(*SHOWN.mounts, there))) == set()  # control


def test_a_copy_is_the_overlay_of_the_planned_layers_and_nothing_else() -> None:
    line = "7 1 0:9 / /t rw,nosuid - overlay none rw,lowerdir=/t,upperdir=/s/a\\054b,workdir=/s/w,userxattr\n"
    (mount,) = readback.parse_mounts(line)
    wanted = frozenset({"lowerdir=/t", "upperdir=/s/a,b", "workdir=/s/w"})
    planned = replace(PLANNED, overlays={"/t": wanted}, writable=PLANNED.writable | {"/t"})
    assert isinstance(SHOWN.mounts, tuple)
    assert named(planned, replace(SHOWN, mounts=(*SHOWN.mounts, mount))) == set()
    for other in (
        replace(mount, layers=frozenset({"lowerdir=/t", "upperdir=/t/x", "workdir=/s/w"})),
        replace(mount, kind="ext4"),
        replace(mount, at="/u", options=frozenset({"ro"})),
    ):
        assert named(planned, replace(SHOWN, mounts=(*SHOWN.mounts, other))) == {"mounts./t"}
    above = replace(mount, kind="ext4", layers=frozenset())  # the host's own tree over it
    assert named(planned, replace(SHOWN, mounts=(*SHOWN.mounts, mount, above))) == {"mounts./t"}


def test_reused_pid_is_seen_by_its_start() -> None:
    assert named(replace(PLANNED, start=2), SHOWN) == {"start"}


def test_undroppable_groups_are_listed_not_judged() -> None:
    assert named(replace(PLANNED, groups=None), replace(SHOWN, groups=(27, 65534))) == set()


# Reading


def test_of_this_process() -> None:
    facts = read_facts(os.getpid())
    assert not [f.name for f in fields(facts) if isinstance(getattr(facts, f.name), NotShown)]
    assert facts.uids == (os.getuid(), os.geteuid(), os.getuid(), os.geteuid())
    assert facts.exe == os.path.realpath(sys.executable)
    assert facts.namespaces == readback.own_namespaces()
    assert len(compare(PLANNED, facts)) > 10


def test_of_a_dead_process_nothing_is_shown() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    facts = read_facts(pid)
    assert all(isinstance(getattr(facts, f.name), NotShown) for f in fields(facts) if f.name != "pid")
    assert len(compare(PLANNED, facts)) == len(fields(facts)) - 1


@pytest.mark.skipif(USERS[0] != 0, reason="needs a process of another user")
def test_what_another_user_may_not_read_is_not_shown() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        become(NOBODY)
        facts = read_facts(os.getppid())
        os.write(writer, b"1" if isinstance(facts.namespaces, NotShown) and facts.seccomp == 0 else b"0")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 1) == b"1"


PR_SET_DUMPABLE = 4
MOST = 1 << 32
JAILED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from jail import bpf, caps, keyring_kernel
from jail.syscalls import prctl
keyring_kernel.join_anonymous_session()
caps.drop_all()
bpf.no_new_privs()
prctl(4, 0)
bpf.load(bytes.fromhex(sys.argv[2]))
if sys.argv[3] == "dumpable":
    prctl(4, 1)
os.write(1, b"r")
os.read(0, 1)
"""


@dataclass(frozen=True)
class Jailed:
    pid: int
    uid: int


def confined(uid: int, arguments: list[str], wait: int, told: int, pid_told: int) -> None:
    """In a child: new namespaces, and an exec within them with all capabilities of the user namespace."""
    become(uid)
    prctl(PR_SET_DUMPABLE, 1)  # another uid made this process undumpable, and its maps root's
    gid = os.getgid()  # before the new namespace, in which every id is 65534 until it is mapped
    new = os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWIPC
    os.unshare(new | os.CLONE_NEWUTS | os.CLONE_NEWCGROUP)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for kind in (RLIMIT_DATA, RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_CORE):
        most = min(MOST, getrlimit(kind)[1] % 2**64) if kind != RLIMIT_CORE else 0
        setrlimit(kind, (most, most))
    inner = os.fork()
    if inner == 0:
        caps.raise_ambient()
        os.dup2(wait, 0)
        os.dup2(told, 1)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", JAILED, *arguments], {})
    os.write(pid_told, str(inner).encode())
    os.waitpid(inner, 0)


def jailed(uid: int, dumpable: str) -> Iterator[Jailed]:
    """A process as pid 1 will be: exec'd within new namespaces, then confined."""
    source = str(Path(readback.__file__).parents[1])
    arguments = [source, compile_filter(arch=os.uname().machine).bpf.hex(), dumpable]
    (ready, told), (wait, hold), (pids, pid_told) = os.pipe(), os.pipe(), os.pipe()
    outer = os.fork()
    if outer == 0:
        try:
            os.close(hold)
            confined(uid, arguments, wait, told, pid_told)
        finally:
            os._exit(0)
    try:
        assert select.select([pids], [], [], 10)[0]
        inner = int(os.read(pids, 20))
        assert select.select([ready], [], [], 10)[0]
        yield Jailed(pid=inner, uid=uid)
    finally:
        os.close(hold)  # its read ends, and so does it
        os.waitpid(outer, 0)
        for descriptor in (ready, told, wait, pids, pid_told):
            os.close(descriptor)


@pytest.fixture
def undumpable() -> Iterator[Jailed]:
    yield from jailed(USERS[-1], "not")


@pytest.fixture
def dumpable() -> Iterator[Jailed]:
    yield from jailed(USERS[-1], "dumpable")


def planned_for(one: Jailed, facts: Facts) -> Expected:
    """What differs from a real plan is taken as shown: mounts, limits; the rest is judged."""
    assert isinstance(facts.mounts, tuple)
    assert not isinstance(facts.gids, NotShown)
    return replace(
        PLANNED,
        uid=one.uid,
        gid=facts.gids[0],
        groups=None,
        namespaces={},
        foreign=readback.own_namespaces(),
        routes=(),
        limits=dict.fromkeys(readback.LIMITS, MOST),
        writable=frozenset(mount.at for mount in facts.mounts),
    )


@pytest.mark.needs("userns", "netns", "seccomp")
def test_a_confined_process_is_shown_from_outside(undumpable: Jailed) -> None:
    facts = read_facts(undumpable.pid)
    assert compare(planned_for(undumpable, facts), facts) == ()
    assert facts.ns_pids == (undumpable.pid, 1)
    assert compare(replace(planned_for(undumpable, facts), filters=2), facts)


@pytest.mark.needs("userns", "netns", "seccomp")
def test_control_a_dumpable_one_is_told_apart(dumpable: Jailed) -> None:
    facts = read_facts(dumpable.pid)
    assert named(planned_for(dumpable, facts), facts) == {"owner"}
