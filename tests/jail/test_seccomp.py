"""The filter is judged three ways: by a model over an interpreter of its bytes, by the kernel, and by real programs."""

import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import platform
import pty
import re
import resource
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pyseccomp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jail import seccomp
from jail.argrules import Rule, no_set_id, spare_pid1
from jail.bpf import load, no_new_privs
from jail.errors import JailError, Unsupported
from jail.seccomp import ABSENT, CALLS, CLONE_NEW, FAMILIES, IOCTLS, OFTEN, PROTOCOLS, compile_filter
from jail.syscalls import call
from tests.jail import own
from tests.jail.forked import USERS, attempt, run

MACHINE = platform.machine()
KILL, ALLOW = 0x80000000, 0x7FFF0000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
x86_only = pytest.mark.skipif(MACHINE != "x86_64", reason="x86_64 has these numbers and instructions")


def number(name: str) -> int:
    found = seccomp._number(MACHINE, name)
    assert found is not None
    return found


LISTED = {name: code for code, names in CALLS for name in names.split() if name not in seccomp.ABSENT[MACHINE]}
NUMBERS = {name: number(name) for name in LISTED}
STAYS = """
shutdown getsockopt setsockopt memfd_create personality prctl seccomp shmget futex_waitv rseq
landlock_create_ruleset landlock_add_rule landlock_restrict_self
"""
MUST_STAY = STAYS.split()
TARGETED = "sched_setscheduler sched_setparam sched_setattr sched_setaffinity prlimit64 setpgid setpriority ioprio_set"
WITH_MODE = "chmod fchmod fchmodat fchmodat2 creat mkdir mkdirat mknod mknodat open openat"
BY_ARGUMENT = {number(name): name for name in f"{TARGETED} {WITH_MODE}".split() if name not in seccomp.ABSENT[MACHINE]}


def guards() -> None:
    no_new_privs()
    load(compile_filter(arch=MACHINE).bpf)


# The model


def verdict(nr: int, args: tuple[int, ...], arch: int = AUDIT_ARCH[MACHINE], bpf: bytes = b"") -> int:
    """What the kernel would do with the compiled bytes: classic BPF over struct seccomp_data."""
    data = struct.pack("=iIQ6Q", nr - (1 << 32) if nr >= 1 << 31 else nr, arch, 0, *args)
    program = list(struct.iter_unpack("=HBBI", bpf or compile_filter(arch=MACHINE).bpf))
    at, acc = 0, 0
    for _ in range(len(program)):  # jumps only go forward
        code, jt, jf, k = program[at]
        at += 1
        match code:
            case 0x20:
                acc = struct.unpack_from("=I", data, k)[0]
            case 0x54:
                acc &= k
            case 0x05:
                at += k
            case 0x15:
                at += jt if acc == k else jf
            case 0x25:
                at += jt if acc > k else jf
            case 0x35:
                at += jt if acc >= k else jf
            case 0x06:
                return int(k)
            case _:
                pytest.fail(f"instruction {code:#x} is not one that libseccomp makes")
    pytest.fail("the filter has no end")


def refused(code: int) -> int:
    return 0x00050000 | code


def wanted(nr: int, args: tuple[int, ...]) -> set[int]:
    """The same from jail.md's table: the actions that may come out (several rules may refuse one call)."""
    if nr >= X32:
        return {KILL} if MACHINE == "x86_64" else {ALLOW}
    for name, code in LISTED.items():
        if nr == NUMBERS[name]:
            return {refused(code)}
    low = tuple(a & 0xFFFFFFFF for a in args)
    if nr == number("clone") and any(low[0] & flag for flag in CLONE_NEW):
        return {refused(errno.EPERM)}
    if nr == number("ioctl") and low[1] in IOCTLS.values():
        return {refused(errno.EPERM)}
    if nr in (number("socket"), number("socketpair")):
        return wanted_of_socket(*low[:3]) or {ALLOW}
    name = BY_ARGUMENT.get(nr, "")
    return {refused(errno.EPERM)} if name and (reaches_pid1(name, low) or sets_id(name, low)) else {ALLOW}


def reaches_pid1(name: str, low: tuple[int, ...]) -> bool:
    match name:
        case "sched_setscheduler" | "sched_setparam" | "sched_setattr" | "sched_setaffinity" | "prlimit64":
            return low[0] == 1
        case "setpgid":
            return low[1] == 1
        case "setpriority":
            return low[0] in (1, 2) or low[:2] == (0, 1)
        case "ioprio_set":
            return low[0] in (2, 3) or low[:2] == (1, 1)
    return False


def sets_id(name: str, low: tuple[int, ...]) -> bool:
    match name:
        case "chmod" | "fchmod" | "creat" | "mkdir" | "mknod":
            return bool(low[1] & 0o6000)
        case "fchmodat" | "fchmodat2" | "mkdirat" | "mknodat":
            return bool(low[2] & 0o6000)
        case "open" | "openat":
            flags, mode = low[1:3] if name == "open" else low[2:4]
            return bool(flags & (os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY) and mode & 0o6000)
    return False


def wanted_of_socket(family: int, kind: int, protocol: int) -> set[int]:
    if family not in FAMILIES:
        return {refused(errno.EAFNOSUPPORT)}
    found = set()
    if family in (2, 10) and kind & 0xF in (3, 10):
        found.add(refused(errno.EPERM))
    if (family in (2, 10) and protocol in PROTOCOLS.values()) or (family == 16 and protocol):
        found.add(refused(errno.EPROTONOSUPPORT))
    return found


words = st.one_of(
    st.sampled_from([0, 1, 2, 3, 10, 16, 17, 31, 32, 40, 41, 44, 45, 46, 63, 64, 255, 256, 33, 132, 136, 262]),
    st.sampled_from([*IOCTLS.values(), *CLONE_NEW, 0x5413, 0x80802, 2**31, 2**32 - 1]),
    st.sampled_from([0o4755, 0o2755, 0o755, 0o1777, os.O_CREAT, os.O_TMPFILE, os.O_CREAT | os.O_WRONLY]),
    st.integers(0, 2**32 - 1),
)
registers = st.builds(lambda low, high: low | high << 32, words, st.sampled_from([0, 0, 1, 0x80000000, 0xFFFFFFFF]))
calls = st.one_of(
    st.sampled_from([number(n) for n in ("socket", "socketpair", "clone", "ioctl")]),
    st.sampled_from(sorted(BY_ARGUMENT)),
    st.integers(0, 480),
    st.integers(X32, X32 + 600),
    st.integers(0, 2**32 - 2),  # -1 is a tracer's "skip this call", which libseccomp lets through
)


@given(calls, st.tuples(*[registers] * 6))
@example(number("socket"), (1 << 32 | 40, 1, 0, 0, 0, 0))
@example(number("ioctl"), (0, 1 << 32 | 0x5412, 0, 0, 0, 0))
@example(number("clone"), (1 << 32 | 0x10000000, 0, 0, 0, 0, 0))
@example(number("setpriority"), (1 << 32, 1 << 32 | 1, 19, 0, 0, 0))
@example(number("fchmodat"), (0, 0, 1 << 32 | 0o4755, 0, 0, 0))
def test_bytes_do_what_the_table_says(nr: int, args: tuple[int, ...]) -> None:
    assert verdict(nr, args) in wanted(nr, args)


def test_every_socket_of_small_numbers() -> None:
    for family in range(64):
        for kind in (1, 2, 3, 5, 10, 0x80001, 0x80803):
            for protocol in (0, 1, 6, 15, 17, 33, 132, 136, 256, 262):
                args = (family, kind, protocol, 0, 0, 0)
                assert verdict(number("socket"), args) in wanted(number("socket"), args), args


@pytest.mark.parametrize("name", MUST_STAY)
def test_what_agents_need_stays_allowed(name: str) -> None:
    nr = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    assert nr > 0
    assert verdict(nr, (0,) * 6) == ALLOW


def test_foreign_architectures_are_killed() -> None:
    for arch in (0x40000003, 0xC00000B7, 0xC000003E, 0x40000028, 0):
        if arch != AUDIT_ARCH[MACHINE]:
            assert verdict(39, (0,) * 6, arch) == KILL


def test_libc_opens_netlink_as_raw() -> None:
    assert verdict(number("socket"), (16, 3 | 0x80000, 0, 0, 0, 0)) == ALLOW


# Compiling


def test_compiled_once_with_its_digest_and_readable_form() -> None:
    made = compile_filter(arch=MACHINE)
    assert made is compile_filter(arch=MACHINE)
    assert made.sha256 == hashlib.sha256(made.bpf).hexdigest()
    assert len(made.bpf) % 8 == 0
    assert "action KILL_PROCESS" in made.pfc


def test_calls_that_programs_make_all_the_time_are_compared_first() -> None:
    compared = re.findall(r'# filter for syscall "(\w+)"', compile_filter(arch=MACHINE).pfc)
    often = [name for name in OFTEN if name not in ABSENT[MACHINE]]
    assert compared[: len(often)] == often
    assert len(compared) > 50


SWITCHES = [{"debug": True}, {"userns": True}, {"debug": True, "userns": True}]
NEWUSER, NEWTIME = 0x10000000, 0x80


def test_each_switch_makes_a_filter_of_its_own() -> None:
    digests = {compile_filter(arch=MACHINE, **switches).sha256 for switches in [{}, *SWITCHES]}
    assert len(digests) == 4
    assert compile_filter(arch=MACHINE, debug=False, userns=False).bpf == compile_filter(arch=MACHINE).bpf


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_a_switch_opens_its_calls_and_nothing_else(switches: dict[str, bool]) -> None:
    bpf = compile_filter(arch=MACHINE, **switches).bpf
    opened = {name for name, nr in NUMBERS.items() if verdict(nr, (0,) * 6, bpf=bpf) == ALLOW}
    debug = {"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"}
    assert opened == (debug if "debug" in switches else set()) | (
        {"unshare", "chroot"} if "userns" in switches else set()
    )
    for flag in CLONE_NEW:
        mount = flag == seccomp.NEWNS
        allowed = "userns" in switches and not mount
        assert (verdict(number("clone"), (flag, *(0,) * 5), bpf=bpf) == ALLOW) is allowed
        assert (verdict(number("unshare"), (flag, *(0,) * 5), bpf=bpf) == ALLOW) is allowed
    for flags in (NEWUSER | seccomp.NEWNS, 1 << 32 | seccomp.NEWNS, NEWTIME, NEWUSER | NEWTIME):
        assert verdict(number("unshare"), (flags, *(0,) * 5), bpf=bpf) == refused(errno.EPERM)


def test_same_bytes_each_time() -> None:
    first = compile_filter(arch=MACHINE)
    compile_filter.cache_clear()
    assert compile_filter(arch=MACHINE) == first


def argrules() -> list[Rule]:
    return [*spare_pid1(), *no_set_id()]


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_name_has_a_number_or_is_listed_as_absent(arch: str) -> None:
    names = [name for _, names in CALLS for name in names.split()] + [name for _, name, _ in argrules()]
    none = {name for name in names if seccomp._number(arch, name) is None}
    assert none == seccomp.ABSENT[arch]


def test_a_name_without_a_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_filter.cache_clear()
    monkeypatch.setattr(seccomp, "CALLS", (*CALLS, (errno.EPERM, "open_tree_attr no_such_call")))
    with pytest.raises(JailError, match="no_such_call"):
        compile_filter(arch=MACHINE)


def test_a_name_of_another_architecture_is_an_error() -> None:
    with pytest.raises(JailError, match="socketcall"):
        seccomp._number(MACHINE, "socketcall")


def test_another_architecture_is_refused() -> None:
    for arch in {"x86_64", "aarch64", "riscv64"} - {MACHINE}:
        with pytest.raises(Unsupported):
            compile_filter(arch=arch)


# The kernel: marked by the module, as compiling needs libseccomp as well

pytestmark = pytest.mark.needs("seccomp")


def each_errno() -> dict[str, int]:
    """Errno of each listed call with all arguments -1, which none of them can act upon."""
    return {name: errno_of(lambda nr=nr: call(nr, *[-1] * 6)) for name, nr in NUMBERS.items()}


def errno_of(action: Callable[[], object]) -> int:
    try:
        action()
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.parametrize("uid", USERS)
def test_each_listed_call_gets_its_errno(uid: int) -> None:
    got = attempt(each_errno, guards=guards, uid=uid).value
    assert got == LISTED


def test_control_each_listed_call_reaches_the_kernel_without_the_filter() -> None:
    got = attempt(each_errno, uid=USERS[0]).value
    assert isinstance(got, dict)
    same = {name for name, code in got.items() if code == LISTED[name]}
    # An ordinary user is refused by capabilities as well: the errno alone can't tell then.
    assert not same if USERS[0] == 0 else not same & {"unshare", "keyctl", "kcmp", "mbind", "clone3", "io_uring_setup"}


def families() -> dict[str, int]:
    return {str(f): errno_of(lambda f=f: os.close(call(number("socket"), f, 2, 0))) for f in range(1, 50)}


@pytest.mark.parametrize("uid", USERS)
def test_socket_families(uid: int) -> None:
    free = attempt(families, uid=uid).value
    held = attempt(families, guards=guards, uid=uid).value
    assert isinstance(free, dict)
    assert isinstance(held, dict)
    assert {f for f, code in held.items() if code != errno.EAFNOSUPPORT} == {str(f) for f in FAMILIES}
    reached = {f for f, code in free.items() if code != errno.EAFNOSUPPORT}
    assert reached > {str(f) for f in FAMILIES}, "control: the kernel has more families than the filter leaves"


SOCKETS = [
    ((2, 3, 1), errno.EPERM),
    ((10, 3, 58), errno.EPERM),
    ((2, 3 | 0x80000, 255), errno.EPERM),
    ((2, 10, 0x300), errno.EPERM),
    ((17, 3, 0x300), errno.EAFNOSUPPORT),
    ((2, 1, 262), errno.EPROTONOSUPPORT),
    ((10, 1, 262), errno.EPROTONOSUPPORT),
    ((1 << 32 | 2, 1, 1 << 32 | 262), errno.EPROTONOSUPPORT),
    ((2, 2, 136), errno.EPROTONOSUPPORT),
    ((2, 1, 132), errno.EPROTONOSUPPORT),
    ((2, 6, 33), errno.EPROTONOSUPPORT),
    ((2, 1, 256), errno.EPROTONOSUPPORT),
    ((16, 3, 9), errno.EPROTONOSUPPORT),
    ((16, 3, 4), errno.EPROTONOSUPPORT),
    ((1 << 32 | 40, 1, 0), errno.EAFNOSUPPORT),
    ((16, 3, 0), 0),
    ((2, 1, 6), 0),
    ((10, 2, 17), 0),
    ((1, 1, 0), 0),
    ((1, 5, 0), 0),
]


@pytest.mark.parametrize(("args", "code"), SOCKETS)
def test_socket(args: tuple[int, int, int], code: int) -> None:
    got = attempt(lambda: errno_of(lambda: os.close(call(number("socket"), *args))), guards=guards)
    assert got.value == code


@pytest.mark.parametrize("args", [(2, 3, 1), (2, 1, 262), (2, 2, 136), (16, 3, 9), (17, 3, 0)])
def test_control_these_sockets_open_without_the_filter(args: tuple[int, int, int]) -> None:
    if USERS[0] != 0 and args[1] == 3 and args[0] in (2, 17):
        pytest.skip("raw sockets need root")
    assert attempt(lambda: os.close(call(number("socket"), *args))).errno == 0


def pushed(request: int) -> object:
    """Type one byte into a terminal of our own and see if it can be read there."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, 0x540E, 1)  # TIOCSCTTY: TIOCSTI works on one's own terminal alone
    code = errno_of(lambda: call(number("ioctl"), slave, request, b"X"))
    os.set_blocking(slave, False)
    os.write(master, b"\n")
    return [code, os.read(slave, 10).decode()]


@pytest.mark.parametrize("request_", [0x5412, 1 << 32 | 0x5412, 0xFFFFFFFF00005412])
@pytest.mark.parametrize("uid", USERS)
def test_nothing_can_be_typed_into_a_terminal(request_: int, uid: int) -> None:
    assert attempt(lambda: pushed(request_), guards=guards, uid=uid).value == [errno.EPERM, "\n"]


@pytest.mark.skipif(USERS[0] != 0, reason="dev.tty.legacy_tiocsti may be off: root alone can always push")
@pytest.mark.parametrize("request_", [0x5412, 1 << 32 | 0x5412])
def test_control_root_types_into_a_terminal_without_the_filter(request_: int) -> None:
    assert attempt(lambda: pushed(request_)).value == [0, "X\n"]


def test_tioclinux_is_refused_by_the_filter() -> None:
    def paste() -> int:
        _, slave = pty.openpty()
        return errno_of(lambda: call(number("ioctl"), slave, 0x541C, b"\x03"))

    assert attempt(paste).value == errno.ENOTTY
    assert attempt(paste, guards=guards).value == errno.EPERM


def beside_pid1(act: Callable[[], object], *, filtered: bool) -> list[object]:
    """What `act` returned or its errno, in a child of a pid 1 of the same user, and what that pid 1 then is."""

    def action() -> object:
        own.user_namespace()
        os.unshare(os.CLONE_NEWPID)
        reader, writer = os.pipe()
        init = os.fork()
        if init == 0:
            os.setsid()
            child = os.fork()
            if child == 0:
                if filtered:
                    guards()
                code = errno_of(act)
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            state = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), len(os.sched_getaffinity(0)) > 1]
            os.write(writer, json.dumps([code, *state, list(resource.getrlimit(resource.RLIMIT_CORE))]).encode())
            os._exit(0)
        os.waitpid(init, 0)
        return json.loads(os.read(reader, 4096))

    made = attempt(action, uid=USERS[-1])
    assert isinstance(made.value, list), made
    return made.value


def into_its_group() -> None:
    os.setpgid(0, 1)
    os.setpriority(os.PRIO_PGRP, 0, 19)


SLOWING: dict[str, Callable[[], object]] = {
    "scheduler": lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
    "param": lambda: os.sched_setparam(1, os.sched_param(0)),
    "affinity": lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(0))}),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "group": lambda: os.setpriority(os.PRIO_PGRP, 1, 19),
    "user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
    "joined group": into_its_group,
    "io priority": lambda: call(number("ioprio_set"), 1, 1, 3 << 13),
    "high bits": lambda: call(number("setpriority"), 1 << 32, 1 << 32 | 1, 19),
    "limits": lambda: resource.prlimit(1, resource.RLIMIT_CORE, (0, 0)),
}


@pytest.mark.needs("userns")
@pytest.mark.parametrize("act", SLOWING.values(), ids=SLOWING)
def test_pid_1_can_not_be_slowed_down(act: Callable[[], object]) -> None:
    code, *state = beside_pid1(act, filtered=True)
    assert code == errno.EPERM
    assert state == beside_pid1(lambda: None, filtered=True)[1:]


@pytest.mark.needs("userns")
@pytest.mark.parametrize("act", SLOWING.values(), ids=SLOWING)
def test_control_pid_1_is_slowed_down_without_the_filter(act: Callable[[], object]) -> None:
    assert beside_pid1(act, filtered=False)[0] == 0


def test_a_program_changes_itself_and_its_children() -> None:
    def changed() -> list[object]:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.setpriority(os.PRIO_PROCESS, child, 7)
        os.sched_setscheduler(child, os.SCHED_BATCH, os.sched_param(0))
        os.sched_setaffinity(child, os.sched_getaffinity(0))
        resource.prlimit(child, resource.RLIMIT_CORE, (0, 0))
        os.setpgid(child, child)
        seen = [os.getpriority(os.PRIO_PROCESS, child), os.sched_getscheduler(child), os.nice(3)]
        os.kill(child, signal.SIGKILL)
        return seen

    assert attempt(changed, guards=guards).value == [7, os.SCHED_BATCH, os.getpriority(os.PRIO_PROCESS, 0) + 3]


def marked(how: str, where: Path) -> int:
    """Make a file or directory with a set-ID bit one way or another; returns the bits that it has in the end."""
    path = where / how
    match how:
        case "creat":
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o6755))
        case "tmpfile":
            descriptor = os.open(where, os.O_TMPFILE | os.O_WRONLY, 0o4755)
            return os.fstat(descriptor).st_mode & 0o6000
        case "openat2":
            how_ = struct.pack("=QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0)
            call(number("openat2"), -100, bytes(path), ctypes.create_string_buffer(how_, 24), 24)
        case "mkdir":  # the kernel itself drops both bits of mkdir's mode
            path.mkdir()
            path.chmod(0o2755)
        case "mknod":
            os.mknod(path, 0o104755)
        case "chmod" | "fchmod":
            path.touch()
            path.chmod(0o6755) if how == "chmod" else os.chmod(os.open(path, os.O_RDONLY), 0o6755)
        case "fchmodat2":
            path.touch()
            call(452, -100, bytes(path), 0o6755, 0)
    return path.stat().st_mode & 0o6000


SET_ID = ["creat", "tmpfile", "openat2", "mkdir", "mknod", "chmod", "fchmod", "fchmodat2"]


@pytest.mark.parametrize("how", SET_ID)
def test_no_file_gets_a_set_id_bit(how: str, tmp_path: Path) -> None:
    outcome = attempt(lambda: marked(how, tmp_path), guards=guards)
    assert outcome.errno == (errno.ENOSYS if how == "openat2" else errno.EPERM)
    assert not any(path.stat().st_mode & 0o6000 for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("how", SET_ID)
def test_control_a_set_id_bit_without_the_filter(how: str, tmp_path: Path) -> None:
    outcome = attempt(lambda: marked(how, tmp_path))
    if how == "fchmodat2" and outcome.errno == errno.ENOSYS:
        pytest.skip("the kernel has no fchmodat2")
    assert outcome.value


def test_git_tar_and_ordinary_modes(tmp_path: Path) -> None:
    script = (
        "umask 022; mkdir -m 1777 d; touch d/x; chmod 755 d/x; git init -q r && git -C r status -s && "
        "tar cf t.tar d && mkdir e && tar xpf t.tar -C e && nice -n 3 true && stat -c %a e/d e/d/x"
    )
    done = run(["sh", "-c", f"cd {tmp_path} && {script}"], guards=guards)
    assert done == (0, "1777\n755\n")


def cloned(flags: int) -> object:
    """A plain fork by the old call, which glibc no longer uses for it."""
    pid = call(number("clone"), flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("flag", CLONE_NEW)
@pytest.mark.parametrize("uid", USERS)
def test_clone_into_a_new_namespace(flag: int, uid: int) -> None:
    assert attempt(lambda: cloned(flag), guards=guards, uid=uid).errno == errno.EPERM
    assert attempt(lambda: cloned(flag | 1 << 32), guards=guards, uid=uid).errno == errno.EPERM


@pytest.mark.skipif(USERS[0] != 0, reason="only a user namespace can be made without root")
@pytest.mark.parametrize("flag", CLONE_NEW)
def test_control_clone_into_a_new_namespace(flag: int) -> None:
    assert attempt(lambda: cloned(flag)).value == 0


def test_plain_clone_still_works() -> None:
    assert attempt(lambda: cloned(0), guards=guards).value == 0


@x86_only
def test_int_0x80_is_killed() -> None:
    def getpid_of_i386() -> bool:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 ; int 0x80 ; ret
        at = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return bool(ctypes.CFUNCTYPE(ctypes.c_int)(at)() == os.getpid())

    control = attempt(getpid_of_i386)
    assert control.value is True or control.signal == signal.SIGSEGV, "works, or the kernel has no 32-bit entry"
    held = attempt(getpid_of_i386, guards=guards)
    assert held.signal == (signal.SIGSYS if control.value is True else signal.SIGSEGV)


@x86_only
def test_x32_numbers_are_killed() -> None:
    control = attempt(lambda: call(X32 + 39))
    assert control.signal == 0
    assert attempt(lambda: call(X32 + 39), guards=guards).signal == signal.SIGSYS
    assert attempt(lambda: call(X32 + NUMBERS["unshare"], 0), guards=guards).signal == signal.SIGSYS


# Real programs


def test_python_threads_start() -> None:
    def ran() -> bool:
        told: list[bool] = []
        thread = threading.Thread(target=lambda: told.append(True))
        thread.start()
        thread.join()
        return told == [True]

    assert attempt(ran, guards=guards).value is True


def test_a_fresh_python_starts_threads_and_children() -> None:
    code = (
        "import subprocess, threading, multiprocessing as m; t = threading.Thread(target=print, args=('thread',)); "
        "t.start(); t.join(); print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout.strip()); "
        "print(m.get_context('fork').Manager().dict(a=1))"
    )
    assert run([sys.executable, "-I", "-c", code], guards=guards) == (0, "thread\nchild\n{'a': 1}\n")


@pytest.mark.needs("node")
def test_node_starts_spawns_and_lists_interfaces() -> None:
    code = (
        "const {Worker} = require('worker_threads'); const cp = require('child_process');"
        "const r = cp.spawnSync('echo', ['child']); if (r.error) throw r.error;"
        "require('os').networkInterfaces(); new WebAssembly.Memory({initial: 1});"
        "new Worker('process.exit(7)', {eval: true}).on('exit', c => console.log('worker', c, String(r.stdout).trim()))"
    )
    assert run(["node", "-e", code], guards=guards) == (0, "worker 7 child\n")


def test_what_must_stay_allowed_works() -> None:
    def ordinary() -> list[object]:
        a, b = socket.socketpair()
        a.shutdown(socket.SHUT_WR)
        fd = os.memfd_create("x")
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        return [b.recv(1).decode(), os.write(fd, b"x"), os.waitstatus_to_exitcode(os.system("exit 3"))]

    assert attempt(ordinary, guards=guards).value == ["", 1, 3]
