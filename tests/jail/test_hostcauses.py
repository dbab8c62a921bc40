"""Hints on a host whose switches are files of the test's own: this machine has only some of them."""

import errno
from pathlib import Path

import pytest

from jail import hostcauses
from jail.hostcauses import ANY_NAMESPACE, APPARMOR, MASKED_PROC, OLD_KERNEL, OUTER_FILTER, SWITCHES, USED_UP


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a host that closes nothing."""
    for path, closing, _ in SWITCHES:
        switch = tmp_path / "sys" / path
        switch.parent.mkdir(parents=True, exist_ok=True)
        switch.write_text("1\n" if closing == "0" else "0\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tx\nSeccomp:\t0\n")
    return tmp_path


def test_a_host_that_closes_nothing_has_no_switch_to_name(proc: Path) -> None:
    assert hostcauses.switched_off(str(proc)) == ""
    assert hostcauses.namespaces(errno.EPERM, str(proc)) == ANY_NAMESPACE


@pytest.mark.parametrize(("path", "closing", "hint"), SWITCHES, ids=[path for path, _, _ in SWITCHES])
def test_each_switch_has_its_hint(proc: Path, path: str, closing: str, hint: str) -> None:
    (proc / "sys" / path).write_text(f"{closing}\n")
    assert hostcauses.namespaces(errno.EPERM, str(proc)) == hint
    of_this_namespace = path != APPARMOR[0]  # pid 1 sets those itself before it mounts
    assert (hostcauses.mounting("tmpfs", errno.EPERM, str(proc)) != hint) is of_this_namespace


def test_a_kernel_without_the_switches_is_one_that_closes_nothing(tmp_path: Path) -> None:
    assert hostcauses.switched_off(str(tmp_path)) == ""
    assert hostcauses.namespaces(errno.EPERM, str(tmp_path)) == ANY_NAMESPACE


def test_an_outer_filter_is_named(proc: Path) -> None:
    (proc / "self/status").write_text("Name:\tx\nSeccomp:\t2\n")
    for number in (errno.EPERM, errno.ENOSYS):
        assert hostcauses.namespaces(number, str(proc)) == OUTER_FILTER
        assert hostcauses.mounting("tmpfs", number, str(proc)) == OUTER_FILTER


def test_a_limit_that_is_used_up(proc: Path) -> None:
    assert hostcauses.namespaces(errno.ENOSPC, str(proc)) == USED_UP


def test_mounts(proc: Path) -> None:
    assert hostcauses.mounting("proc", errno.EPERM, str(proc)) == MASKED_PROC
    assert hostcauses.mounting("tmpfs", errno.ENOSYS, str(proc)) == OLD_KERNEL
    assert "security module" in hostcauses.mounting("tmpfs", errno.EACCES, str(proc))
    assert hostcauses.mounting("bind", errno.ENOENT, str(proc)) == ""


def test_apparmors_hint_names_the_profile_and_its_place() -> None:
    hint = next(hint for path, _, hint in SWITCHES if "apparmor" in path)
    assert "credgate doctor --apparmor" in hint
    assert "/etc/apparmor.d/credgate" in hint
