"""Paths below one directory that no link leads out of: each is resolved by the kernel from that directory's descriptor
(openat2(2): RESOLVE_BENEATH, no links, no other mount). What lies there may be hostile.
"""

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterator

from jail.syscalls import syscall

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2


class Beneath:
    """A directory, held by its descriptor. Relative paths, "" for itself; every method raises OSError."""

    def __init__(self, directory: str) -> None:
        how = struct.pack("QQQ", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _NO_SYMLINKS | _NO_MAGICLINKS)
        self.root = syscall("openat2", _AT_FDCWD, os.fsencode(directory), how, len(how))

    def __enter__(self) -> "Beneath":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.root)

    def open(self, path: str, flags: int) -> int:
        """A descriptor; of a link only with O_PATH, and then of the link itself."""
        how = struct.pack("QQQ", flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _RESOLVE)
        return syscall("openat2", self.root, os.fsencode(path or "."), how, len(how))

    def facts(self, path: str) -> os.stat_result | None:
        """Of the path itself; None where nothing is there."""
        try:
            descriptor = self.open(path, os.O_PATH)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def target(self, path: str) -> str:
        """Of a link."""
        with self.parent(path) as (folder, name):
            return os.readlink(name, dir_fd=folder)

    def regular(self, path: str) -> int:
        """A descriptor to read a regular file by; a FIFO or a device is not waited for, and refused."""
        descriptor = self.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return descriptor

    @contextlib.contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The descriptor (O_PATH) of the directory that it lies in, and its name there."""
        folder, _, name = path.rpartition("/")
        descriptor = self.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)


def rename(folder: int, old: str, new: str, flags: int) -> None:
    """renameat2(2) within one directory. Raises OSError."""
    syscall("renameat2", folder, os.fsencode(old), folder, os.fsencode(new), flags)
