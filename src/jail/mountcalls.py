"""The kernel's calls that a root is built with: mount trees by descriptor, new file systems, paths walked below a root.

Numbers of linux/mount.h, linux/fcntl.h and linux/openat2.h. Standard library only.
"""

import os
import struct

from jail import hostcauses
from jail.errors import JailError
from jail.syscalls import syscall

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 0, 1, 6
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_IN_ROOT = 0x02, 0x04, 0x10
UNFOLLOWED = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MNT_DETACH = 2


def private() -> None:
    """The host's mounts and those of this namespace show nothing of each other any more. Raises JailError."""
    # The host's mounts must not see ours, nor the other way round once the tree is built.
    try:
        syscall("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    except OSError as error:
        hint = hostcauses.mounting("", error.errno or 0)
        raise JailError("mount_failed", f"make / private: {error.strerror}", hint, error.errno or 0) from None


def openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """A descriptor of `path` below another, close-on-exec. Raises OSError."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)
    return syscall("openat2", directory, os.fsencode(path), how, len(how))


def clone(found: int, attributes: int) -> int:
    """A detached copy of the mount tree at a descriptor, restricted. Raises OSError."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_EMPTY_PATH
    tree = syscall("open_tree", found, b"", flags)
    set_attributes(tree, attributes, AT_RECURSIVE)
    return tree


def set_attributes(tree: int, attributes: int, flags: int) -> None:
    """Add attributes to a mount tree, and make it private. Raises OSError."""
    attr = struct.pack("QQQQ", attributes, 0, MS_PRIVATE, 0)
    syscall("mount_setattr", tree, b"", AT_EMPTY_PATH | flags, attr, len(attr))


def filesystem(kind: str, options: dict[str, str | None], attributes: int) -> int:
    """A new, detached file system; `options` value None is a flag. Raises OSError."""
    context = syscall("fsopen", kind.encode(), FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            command = FSCONFIG_SET_FLAG if value is None else FSCONFIG_SET_STRING
            syscall("fsconfig", context, command, key.encode(), None if value is None else os.fsencode(value), 0)
        syscall("fsconfig", context, FSCONFIG_CMD_CREATE, None, None, 0)
        return syscall("fsmount", context, FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(context)


def attach(tree: int, target: int) -> None:
    """Mount a detached tree on what a descriptor shows. Raises OSError."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    syscall("move_mount", tree, b"", target, b"", flags)
