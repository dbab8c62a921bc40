import errno
import os
import sys
from pathlib import Path

import pytest

from jail import caps
from jail.bpf import no_new_privs
from jail.syscalls import prctl
from tests.jail.forked import USERS, attempt, run

root_only = pytest.mark.skipif(USERS[0] != 0, reason="an ordinary user holds no capability to drop")


def status_lines() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Cap")}


def test_last_cap_is_the_kernels() -> None:
    assert caps.last_cap() == int(Path("/proc/sys/kernel/cap_last_cap").read_text())


@pytest.mark.parametrize("uid", USERS)
def test_reads_what_proc_shows(uid: int) -> None:
    def read() -> list[object]:
        effective, permitted, inheritable = caps.sets()
        mine = [f"{mask:016x}" for mask in (inheritable, permitted, effective, caps.bounding(), caps.ambient())]
        return [mine, list(status_lines().values())]

    mine, theirs = attempt(read, uid=uid).value
    assert mine == theirs


@root_only
def test_drop_all_leaves_nothing() -> None:
    before = attempt(status_lines).value
    assert isinstance(before, dict)
    assert int(before["CapEff"], 16)
    assert int(before["CapBnd"], 16)
    after = attempt(status_lines, guards=caps.drop_all).value
    assert after == dict.fromkeys(["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"], "0" * 16)


@root_only
def test_uid_0_has_nothing_after_exec_either() -> None:
    show = ["grep", "CapEff", "/proc/self/status"]
    assert run(show)[1].split()[1] != "0" * 16
    assert run(show, guards=caps.drop_all)[1].split()[1] == "0" * 16


@root_only
def test_dropped_means_refused() -> None:
    def chown() -> None:
        descriptor = os.memfd_create("x")
        os.fchown(descriptor, 1, 1)

    assert attempt(chown).errno == 0
    assert attempt(chown, guards=caps.drop_all).errno == errno.EPERM


@root_only
def test_securebits_are_locked() -> None:
    def unlock() -> int:
        bits = prctl(27)
        prctl(28, 0)
        return bits

    assert attempt(unlock).errno == 0
    assert attempt(unlock, guards=caps.drop_all).errno == errno.EPERM
    assert attempt(lambda: prctl(27), guards=caps.drop_all).value == caps.SECUREBITS


@root_only
def test_twice_is_once() -> None:
    assert attempt(caps.drop_all, guards=caps.drop_all).code == ""


def test_an_ordinary_user_can_not_drop_the_bounding_set_and_is_told() -> None:
    got = attempt(caps.drop_all, uid=USERS[-1])
    assert (got.code, got.errno) == ("caps_failed", errno.EPERM)


@root_only
def test_ambient_capabilities_survive_an_exec_as_an_ordinary_user() -> None:
    def keep() -> None:
        prctl(8, 1)  # PR_SET_KEEPCAPS
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)

    show = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        "print(*[l.split()[1] for l in open('/proc/self/status') if l[:3] == 'Cap'])",
    ]
    without = run(show, guards=keep)[1].split()
    assert without[2] == "0" * 16
    kept = run(show, guards=lambda: (keep(), caps.raise_ambient()))[1].split()
    assert kept[1] == kept[2] == kept[4] != "0" * 16
    assert run(show, guards=lambda: (keep(), caps.raise_ambient(), no_new_privs()))[1].split() == kept
