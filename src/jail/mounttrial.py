"""Each kind of mount that a jail's root is made of, once: for a look at what the host allows."""

import os

from jail import mountcalls
from jail.mountcalls import MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY


def trial() -> None:
    """For a look at the host, in a mount namespace of the caller's own: each kind of call once. Raises JailError,
    OSError.
    """
    mountcalls.private()
    os.close(mountcalls.filesystem("tmpfs", {"size": "64k"}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV))
    os.close(mountcalls.filesystem("devpts", {"newinstance": None, "ptmxmode": "0666"}, MOUNT_ATTR_NOSUID))
    found = mountcalls.openat2(mountcalls.AT_FDCWD, "/usr", os.O_PATH, mountcalls.UNFOLLOWED)
    tree = mountcalls.clone(found, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY)
    mountcalls.attach(tree, found)
    os.close(tree)
    os.close(found)


def trial_proc() -> None:
    """The same for a fresh /proc, by the first process of a new pid namespace. Raises OSError."""
    os.close(mountcalls.filesystem("proc", {}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC))
