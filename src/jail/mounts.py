"""Build the jail's root by the plan's mount operations, inside the new mount namespace (pid 1, before it confines).

Sources are opened first, all of them, as detached copies (open_tree): so the new root can be mounted over a directory
of the host without hiding a source, and no path of the host is looked up twice. mount_setattr with AT_RECURSIVE makes
submounts read-only too (measured: `remount,ro` leaves them writable). Targets are walked below the new root with
openat2 RESOLVE_IN_ROOT and no symlinks: a link planted in a work tree can't lead a mount elsewhere.

Standard library only.
"""

import errno
import os
import stat

from jail import hostcauses
from jail.errors import JailError
from jail.mountcalls import (
    AT_FDCWD,
    MNT_DETACH,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_SYMLINKS,
    UNFOLLOWED,
    attach,
    clone,
    filesystem,
    openat2,
    private,
    set_attributes,
)
from jail.overlays import overlay_options
from jail.plantypes import Operation
from jail.syscalls import syscall

MAX_COPIED = 1 << 20  # bytes

VEILS = "/etc/credgate/hidden"  # below the root
STAGE = "/tmp"  # noqa: S108 - any directory of the host: only this mount namespace sees what is mounted on it
AHEAD = "/proc/fs"  # the same where sources are opened afterwards: no jail has any of there, and each kernel has it


class Begun:
    """A root that has its first mounts. seen: path, device and inode of each source that was mounted."""

    __slots__ = ("operations", "root", "seen")

    def __init__(self, root: int, operations: list[Operation], seen: list[list[object]]) -> None:
        self.root, self.operations, self.seen = root, operations, seen


def begin(operations: list[Operation]) -> Begun:
    """Make a root and apply the operations that a plan begins with, before the others are known. Raises JailError."""
    private()
    sources = [_open_source(op) for op in operations]
    seen: list[list[object]] = []
    for op, source in zip(operations, sources, strict=True):
        if source >= 0:
            facts = os.fstat(source)
            seen.append([op["from"], facts.st_dev, facts.st_ino])
    root = _new_root(AHEAD)
    _apply(root, operations, sources)
    return Begun(root, operations, seen)


def build_root(operations: list[Operation], begun: Begun | None = None) -> None:
    """Apply the plan's operations on a new tmpfs root, or on one that was begun, and pivot into it; the host's tree is
    gone afterwards.

    Raises JailError `mount_failed` naming the operation and the kernel's errno.
    """
    if begun is None:
        private()
        sources = [_open_source(op) for op in operations]
        root = _new_root(STAGE)
    else:
        made = len(begun.operations)
        if operations[:made] != begun.operations:
            raise JailError("mount_failed", "the root that was made ahead is not of this plan")
        operations, root = operations[made:], begun.root
        sources = [_open_source(op) for op in operations]
    _apply(root, operations, sources)
    try:
        _seal(root)
        _pivot(root)
    except OSError as error:
        hint = hostcauses.mounting("", error.errno or 0)
        raise JailError("mount_failed", f"pivot: {error.strerror}", hint, error.errno or 0) from None


def _apply(root: int, operations: list[Operation], sources: list[int]) -> None:
    for op, source in zip(operations, sources, strict=True):
        try:
            _APPLY[op["op"]](root, op, source)
        except OSError as error:
            raise _failed(op, error) from None
        if source >= 0:
            os.close(source)


def _failed(op: Operation, error: OSError) -> JailError:
    what = f"{op['op']} at {os.fsencode(op['at'])!r}"
    if "from" in op:
        what += f" from {os.fsencode(op['from'])!r}"
    hint = hostcauses.mounting(op["op"], error.errno or 0)
    if op["op"] == "overlay" and error.errno == errno.EINVAL:
        hint = f"a tree that holds mount points can't be copied: choose a narrower one. {hostcauses.NO_UPPER}"
    if error.errno in (errno.ENOENT, errno.ELOOP):
        hint = "a symlink on the way, or the path vanished after the plan was made"
    return JailError("mount_failed", f"{what}: {error.strerror}", hint, error.errno or 0)


def _open_source(op: Operation) -> int:
    """A detached, private copy of the source's mount tree, restricted already; -1 where there is no source."""
    if op["op"] == "overlay":
        return _open_overlay(op)
    copied = op["op"] == "file" and "from" in op
    if op["op"] not in ("bind", "device") and not copied:
        return -1
    attributes = MOUNT_ATTR_NOSUID
    if op["op"] == "bind":
        attributes |= MOUNT_ATTR_NODEV | (0 if op["write"] else MOUNT_ATTR_RDONLY)
    try:
        found = openat2(AT_FDCWD, op["from"], os.O_RDONLY if copied else os.O_PATH, UNFOLLOWED)
        if copied:
            return found
        try:
            return clone(found, attributes)
        finally:
            os.close(found)
    except OSError as error:
        raise _failed(op, error) from None


def _open_overlay(op: Operation) -> int:
    """A detached overlay of the work tree, made while the host's paths are still there. Its layers are named by path,
    as mountinfo shows them to the read-back; that none became another directory meanwhile is looked at afterwards.
    """
    layers = [op["from"], op["upper"], op["work"]]
    found: list[int] = []
    try:
        found += [_layer(path) for path in layers]
        tree = filesystem("overlay", overlay_options(*layers), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
        found += [_layer(path) for path in layers]
        seen = [(facts.st_dev, facts.st_ino) for facts in map(os.fstat, found)]
    except OSError as error:
        raise _failed(op, error) from None
    finally:
        for descriptor in found:
            os.close(descriptor)
    if seen[:3] != seen[3:]:
        raise JailError("mount_failed", f"overlay at {os.fsencode(op['at'])!r}: a layer was replaced meanwhile")
    return tree


def _layer(path: str) -> int:
    return openat2(AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY, UNFOLLOWED)


def _new_root(stage: str) -> int:
    try:
        return _attach_root(stage)
    except OSError as error:
        hint = hostcauses.mounting("", error.errno or 0)
        raise JailError("mount_failed", f"a new root: {error.strerror}", hint, error.errno or 0) from None


def _attach_root(stage: str = STAGE) -> int:
    tree = filesystem("tmpfs", {"size": "16m", "nr_inodes": "16k", "mode": "755"}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    target = os.open(stage, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    attach(tree, target)
    os.close(target)
    return tree


def _make_directory(root: int, path: str) -> int:
    """An O_PATH descriptor of the directory `path` below root, its parents made where they are missing."""
    current = os.dup(root)
    for name in [part for part in path.split("/") if part]:
        try:
            following = openat2(current, name, os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
        except FileNotFoundError:
            os.mkdir(os.fsencode(name), 0o755, dir_fd=current)
            following = openat2(current, name, os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
        os.close(current)
        current = following
    return current


def _target(root: int, path: str, *, directory: bool) -> int:
    """What to mount on: `path` below root, made where it is missing."""
    if directory:
        return _make_directory(root, path)
    parent, _, name = path.rpartition("/")
    folder = _make_directory(root, parent)
    try:
        return openat2(folder, name, os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    except FileNotFoundError:
        os.close(os.open(os.fsencode(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=folder))
        return openat2(folder, name, os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    finally:
        os.close(folder)


def _mount_at(root: int, tree: int, path: str, *, directory: bool = True) -> None:
    target = _target(root, path, directory=directory)
    attach(tree, target)
    os.close(target)


def _bind(root: int, op: Operation, source: int) -> None:
    _mount_at(root, source, op["at"], directory=stat.S_ISDIR(os.fstat(source).st_mode))


def _device(root: int, op: Operation, source: int) -> None:
    if not stat.S_ISCHR(os.fstat(source).st_mode):
        raise JailError("mount_failed", f"{op['from']}: expected a character device")
    _mount_at(root, source, op["at"], directory=False)


def _tmpfs(root: int, op: Operation, _source: int) -> None:
    options: dict[str, str | None] = {
        "size": str(op["size"]),
        "nr_inodes": str(op["inodes"]),
        "mode": f"{op['mode']:o}",
    }
    tree = filesystem("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    _mount_at(root, tree, op["at"])
    os.close(tree)


def _proc(root: int, op: Operation, _source: int) -> None:
    tree = filesystem("proc", {}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)
    _mount_at(root, tree, op["at"])
    os.close(tree)


def _devpts(root: int, op: Operation, _source: int) -> None:
    # No gid=5: that group is not mapped in this user namespace and the mount would fail (measured).
    tree = filesystem("devpts", {"newinstance": None, "ptmxmode": "0666", "mode": "0620"}, MOUNT_ATTR_NOSUID)
    _mount_at(root, tree, op["at"])
    os.close(tree)


def _existing(root: int, path: str) -> int:
    """An O_PATH descriptor of `path` below root, -1 where this kernel has no such file."""
    try:
        return openat2(root, path.lstrip("/"), os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    except FileNotFoundError:
        return -1


def _mask(root: int, op: Operation, _source: int) -> None:
    target = _existing(root, op["at"])
    if target < 0:
        return
    null = openat2(root, "dev/null", os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    tree = clone(null, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
    attach(tree, target)
    for descriptor in (null, tree, target):
        os.close(descriptor)


def _readonly(root: int, op: Operation, _source: int) -> None:
    target = _existing(root, op["at"])
    if target < 0:
        return
    tree = clone(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    attach(tree, target)
    os.close(tree)
    os.close(target)


def _held(root: int, path: str) -> int:
    """An O_PATH descriptor of what must be there; of a link the link itself. Raises OSError."""
    return openat2(root, path.lstrip("/"), os.O_PATH | os.O_NOFOLLOW, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)


def _cover(root: int, path: str, attributes: int) -> None:
    """Mount what is at `path` on itself: a mount point can be neither renamed nor removed."""
    target = _held(root, path)
    tree = clone(target, attributes)
    attach(tree, target)
    os.close(tree)
    os.close(target)


def _pin(root: int, op: Operation, _source: int) -> None:
    _cover(root, op["at"], MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)


def _island(root: int, op: Operation, _source: int) -> None:
    _cover(root, op["at"], MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)


def _hide(root: int, op: Operation, _source: int) -> None:
    """Cover a file or a directory with one of mode 0 that holds nothing; the read-only mount keeps its owner from
    changing that. A hole of the file's own size takes no room, and with the file's time git takes it for unchanged.
    """
    target = _held(root, op["at"])
    if stat.S_ISLNK(os.fstat(target).st_mode):
        raise JailError("mount_failed", f"{os.fsencode(op['at'])!r}: became a link after the plan was made")
    veil = _veil(root, op)
    tree = clone(veil, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    attach(tree, target)
    for descriptor in (veil, tree, target):
        os.close(descriptor)


def _veil(root: int, op: Operation) -> int:
    """A cover, on the root's own tmpfs: that is read-only by the time anybody else sees it."""
    folder = _make_directory(root, VEILS)
    name = b"%d" % op["number"]
    if op["directory"]:
        os.mkdir(name, 0, dir_fd=folder)
    else:
        made = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0, dir_fd=folder)
        os.ftruncate(made, op["size"])
        os.utime(made, ns=(op["mtime"], op["mtime"]))
        os.close(made)
    veil = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    os.close(folder)
    return veil


def _link(root: int, op: Operation, _source: int) -> None:
    parent, _, name = op["at"].rpartition("/")
    folder = _make_directory(root, parent)
    os.symlink(os.fsencode(op["to"]), os.fsencode(name), dir_fd=folder)
    os.close(folder)


def _file(root: int, op: Operation, source: int) -> None:
    parent, _, name = op["at"].rpartition("/")
    folder = _make_directory(root, parent)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    made = os.open(os.fsencode(name), flags, op.get("mode", 0o444), dir_fd=folder)
    os.write(made, op["text"].encode() if source < 0 else os.read(source, MAX_COPIED))
    os.close(made)
    os.close(folder)


def _seal(root: int) -> None:
    """The root and /dev themselves become read-only; what is mounted on them keeps its own flags."""
    set_attributes(root, MOUNT_ATTR_RDONLY, 0)
    device = openat2(root, "dev", os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    set_attributes(device, MOUNT_ATTR_RDONLY, 0)
    os.close(device)


def _pivot(root: int) -> None:
    # pivot_root(2): with new_root and put_old the same directory the old root is stacked on top and is then detached.
    os.fchdir(root)
    syscall("pivot_root", b".", b".")
    syscall("umount2", b".", MNT_DETACH)
    os.chdir("/")
    os.close(root)


_APPLY = {
    "bind": _bind,
    "overlay": _bind,
    "device": _device,
    "tmpfs": _tmpfs,
    "proc": _proc,
    "devpts": _devpts,
    "mask": _mask,
    "readonly": _readonly,
    "pin": _pin,
    "island": _island,
    "hide": _hide,
    "link": _link,
    "file": _file,
}
