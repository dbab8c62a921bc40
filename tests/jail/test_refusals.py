"""What the jail's code says where a host lacks something: each condition made in a child of its own, with a control."""

import errno
import os
from collections.abc import Callable

import pytest

from jail import firewall, hostcauses, mounts, mounttrial, seccomp
from jail.errors import JailError, Unsupported
from tests.e2e.condition import masked_proc, namespaces, own_mounts, refusing
from tests.jail.forked import USERS, attempt

pytestmark = pytest.mark.needs("userns", "seccomp")


def built() -> str:
    """Pid 1's first steps, which put it into an error whose hint is given back; "" where nothing was refused."""
    try:
        mounttrial.trial()
        mounts._attach_root()
    except JailError as error:
        return error.hint
    except OSError as error:
        return hostcauses.mounting("", error.errno or 0)
    return ""


def fresh_proc() -> str:
    """Mount a /proc as pid 1 of a jail does: one namespace further in, where what covers the outer one is locked."""
    namespaces(os.CLONE_NEWNS | os.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        try:
            mounttrial.trial_proc()
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return hostcauses.mounting("proc", number) if number else ""


@pytest.mark.parametrize("uid", [uid for uid in USERS if uid])
@pytest.mark.parametrize(
    ("guard", "hint"),
    [
        (refusing(errno.EPERM, "acct"), ""),  # the control
        (refusing(errno.EPERM, "fsopen"), hostcauses.OUTER_FILTER),
        (refusing(errno.EPERM, "mount"), hostcauses.OUTER_FILTER),
        (refusing(errno.EPERM, "move_mount"), hostcauses.OUTER_FILTER),
        (refusing(errno.ENOSYS, "mount_setattr"), hostcauses.OUTER_FILTER),
    ],
)
def test_a_filter_on_the_mount_calls_is_named(uid: int, guard: Callable[[], None], hint: str) -> None:
    def within() -> None:
        own_mounts()
        guard()

    assert attempt(built, guards=within, uid=uid).value == hint


@pytest.mark.parametrize("uid", [uid for uid in USERS if uid])
def test_a_covered_proc_is_named(uid: int) -> None:
    assert attempt(fresh_proc, guards=own_mounts, uid=uid).value == ""
    assert attempt(fresh_proc, guards=masked_proc, uid=uid).value == hostcauses.MASKED_PROC


@pytest.fixture
def fresh_library() -> None:
    """The binding is looked for once a process."""
    seccomp._library.cache_clear()
    seccomp.compile_filter.cache_clear()


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("missing", [ImportError("no module"), OSError("no file"), RuntimeError("unable to find it")])
def test_a_missing_libseccomp_is_named(monkeypatch: pytest.MonkeyPatch, missing: Exception) -> None:
    machine = os.uname().machine
    assert seccomp.compile_filter(arch=machine).bpf  # the control
    seccomp._library.cache_clear()
    seccomp.compile_filter.cache_clear()

    def absent(_name: str) -> object:
        raise missing

    monkeypatch.setattr(seccomp.importlib, "import_module", absent)
    with pytest.raises(Unsupported) as told:
        seccomp.compile_filter(arch=machine)
    assert told.value.code == "libseccomp_missing"
    assert "libseccomp2" in told.value.hint


def test_a_missing_way_to_nftables_is_named() -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    assert callable(firewall.find(absent, lambda _name: "/usr/sbin/nft"))  # the control: either will do
    with pytest.raises(Unsupported) as told:
        firewall.find(absent, lambda _name: None)
    assert told.value.code == "nftables_missing"
    assert "nftables" in told.value.hint
