import errno
import os
import struct
from pathlib import Path

import pytest

from jail.bpf import load, no_new_privs
from jail.errors import JailError
from tests.jail.forked import USERS, attempt

# LD nr; JEQ getppid (x86_64 110, aarch64 173) -> ERRNO(EXDEV); else ALLOW
GETPPID = {"x86_64": 110, "aarch64": 173}[os.uname().machine]
FILTER = b"".join(
    struct.pack("=HBBI", *line)
    for line in ((0x20, 0, 0, 0), (0x15, 0, 1, GETPPID), (0x06, 0, 0, 0x50000 | errno.EXDEV), (0x06, 0, 0, 0x7FFF0000))
)


def shown() -> dict[str, str]:
    names = ("NoNewPrivs", "Seccomp", "Seccomp_filters")
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(names)}


@pytest.mark.parametrize("uid", USERS)
def test_loaded_filter_answers_and_shows(uid: int) -> None:
    assert isinstance(attempt(os.getppid, uid=uid).value, int)
    held = attempt(lambda: [os.getppid(), shown()], guards=lambda: (no_new_privs(), load(FILTER)), uid=uid)
    # libc takes getppid for a call that can't fail and hands the kernel's value through.
    assert held.value == [-errno.EXDEV, {"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "1"}]


@pytest.mark.parametrize("uid", USERS)
def test_without_no_new_privs_nothing_is_loaded(uid: int) -> None:
    assert attempt(lambda: load(FILTER), uid=uid).code == "no_new_privs"


@pytest.mark.parametrize("data", [b"", b"x", FILTER[:-1], FILTER * 1025])
def test_bytes_that_are_no_filter(data: bytes) -> None:
    with pytest.raises(JailError, match="seccomp_filter"):
        load(data)


def test_a_filter_that_the_kernel_refuses() -> None:
    got = attempt(lambda: load(FILTER[:8]), guards=no_new_privs)  # it does not end in a return
    assert (got.code, got.errno) == ("seccomp_load", errno.EINVAL)
