import ctypes
import errno
import mmap
import os
import struct

import pyseccomp
import pytest

from jail.errors import JailError
from jail.syscalls import NUMBERS, call, number, prctl, syscall

READ = {"x86_64": 0, "aarch64": 63}[os.uname().machine]
ARCHES = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}
# Linux 6.8 and later: newer than libseccomp 2.5. include/uapi/asm-generic/unistd.h has the same numbers.
NEWER = {"statmount": 457, "listmount": 458, "open_tree_attr": 467}


@pytest.mark.needs("seccomp")
@pytest.mark.parametrize("machine", NUMBERS)
def test_numbers_are_those_of_another_table(machine: str) -> None:
    for name, nr in NUMBERS[machine].items():
        theirs = pyseccomp.resolve_syscall(ARCHES[machine], name)
        assert nr == (NEWER[name] if theirs == -1 else theirs), name


def test_unknown_names_and_machines_are_errors() -> None:
    for arguments in (("no_such_call",), ("mount", "riscv64")):
        with pytest.raises(JailError, match="arch_unsupported"):
            number(*arguments)


def test_errno_is_the_kernels_and_not_an_earlier_one() -> None:
    ctypes.set_errno(errno.EXDEV)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        syscall("pidfd_getfd", -1, 0, 0)
    assert caught.value.errno == errno.EBADF


def test_whole_registers_are_passed() -> None:
    memory = mmap.mmap(-1, 8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert address > 0xFFFFFFFF, "control: an address that a C int can't hold"
    reader, writer = os.pipe()
    os.write(writer, b"x")
    assert call(READ, reader, address, 1) == 1
    assert memory[:1] == b"x"
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_buffers_go_by_reference() -> None:
    header, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(b"\xff" * 24)
    assert syscall("capget", header, data) == 0
    assert data.raw[:24] != b"\xff" * 24


def test_prctl_fills_up_with_zeros() -> None:
    assert prctl(47, 1, 0) in (0, 1)  # PR_CAP_AMBIENT_IS_SET: EINVAL unless the last two are 0
    with pytest.raises(OSError, match="Invalid argument"):
        prctl(47, 1, 0, 1, 1)
