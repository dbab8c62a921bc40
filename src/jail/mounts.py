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
import struct

from jail import hostcauses
from jail.errors import JailError
from jail.overlays import overlay_options
from jail.plantypes import Operation
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
MAX_COPIED = 1 << 20  # bytes

VEILS = "/etc/credgate/hidden"  # below the root
STAGE = "/tmp"  # noqa: S108 - any directory of the host: only this mount namespace sees what is mounted on it


def build_root(operations: list[Operation]) -> None:
    """Apply the plan's operations on a new tmpfs root and pivot into it; the host's tree is gone afterwards.

    Raises JailError `mount_failed` naming the operation and the kernel's errno.
    """
    _private()
    sources = [_open_source(op) for op in operations]
    try:
        root = _attach_root()
    except OSError as error:
        hint = hostcauses.mounting("", error.errno or 0)
        raise JailError("mount_failed", f"a new root: {error.strerror}", hint, error.errno or 0) from None
    for op, source in zip(operations, sources, strict=True):
        try:
            _APPLY[op["op"]](root, op, source)
        except OSError as error:
            raise _failed(op, error) from None
        if source >= 0:
            os.close(source)
    try:
        _seal(root)
        _pivot(root)
    except OSError as error:
        hint = hostcauses.mounting("", error.errno or 0)
        raise JailError("mount_failed", f"pivot: {error.strerror}", hint, error.errno or 0) from None


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


def trial() -> None:
    """For a look at the host, in a mount namespace of the caller's own: each kind of call once. Raises JailError,
    OSError.
    """
    _private()
    os.close(filesystem("tmpfs", {"size": "64k"}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV))
    os.close(filesystem("devpts", {"newinstance": None, "ptmxmode": "0666"}, MOUNT_ATTR_NOSUID))
    found = _openat2(AT_FDCWD, "/usr", os.O_PATH, UNFOLLOWED)
    tree = _clone(found, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY)
    _attach(tree, found)
    os.close(tree)
    os.close(found)


def trial_proc() -> None:
    """The same for a fresh /proc, by the first process of a new pid namespace. Raises OSError."""
    os.close(filesystem("proc", {}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC))


def _private() -> None:
    # The host's mounts must not see ours, nor the other way round once the tree is built.
    try:
        syscall("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    except OSError as error:
        hint = hostcauses.mounting("", error.errno or 0)
        raise JailError("mount_failed", f"make / private: {error.strerror}", hint, error.errno or 0) from None


def _openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)
    return syscall("openat2", directory, os.fsencode(path), how, len(how))


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
        found = _openat2(AT_FDCWD, op["from"], os.O_RDONLY if copied else os.O_PATH, UNFOLLOWED)
        if copied:
            return found
        try:
            return _clone(found, attributes)
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
    return _openat2(AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY, UNFOLLOWED)


def _clone(found: int, attributes: int) -> int:
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_EMPTY_PATH
    tree = syscall("open_tree", found, b"", flags)
    _setattr(tree, attributes, AT_RECURSIVE)
    return tree


def _setattr(tree: int, attributes: int, flags: int) -> None:
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


def _attach(tree: int, target: int) -> None:
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    syscall("move_mount", tree, b"", target, b"", flags)


def _attach_root() -> int:
    tree = filesystem("tmpfs", {"size": "16m", "nr_inodes": "16k", "mode": "755"}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    target = os.open(STAGE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _attach(tree, target)
    os.close(target)
    return tree


def _make_directory(root: int, path: str) -> int:
    """An O_PATH descriptor of the directory `path` below root, its parents made where they are missing."""
    current = os.dup(root)
    for name in [part for part in path.split("/") if part]:
        try:
            following = _openat2(current, name, os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
        except FileNotFoundError:
            os.mkdir(os.fsencode(name), 0o755, dir_fd=current)
            following = _openat2(current, name, os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
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
        return _openat2(folder, name, os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    except FileNotFoundError:
        os.close(os.open(os.fsencode(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=folder))
        return _openat2(folder, name, os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    finally:
        os.close(folder)


def _mount_at(root: int, tree: int, path: str, *, directory: bool = True) -> None:
    target = _target(root, path, directory=directory)
    _attach(tree, target)
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
        return _openat2(root, path.lstrip("/"), os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    except FileNotFoundError:
        return -1


def _mask(root: int, op: Operation, _source: int) -> None:
    target = _existing(root, op["at"])
    if target < 0:
        return
    null = _openat2(root, "dev/null", os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    tree = _clone(null, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
    _attach(tree, target)
    for descriptor in (null, tree, target):
        os.close(descriptor)


def _readonly(root: int, op: Operation, _source: int) -> None:
    target = _existing(root, op["at"])
    if target < 0:
        return
    tree = _clone(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    _attach(tree, target)
    os.close(tree)
    os.close(target)


def _held(root: int, path: str) -> int:
    """An O_PATH descriptor of what must be there; of a link the link itself. Raises OSError."""
    return _openat2(root, path.lstrip("/"), os.O_PATH | os.O_NOFOLLOW, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)


def _cover(root: int, path: str, attributes: int) -> None:
    """Mount what is at `path` on itself: a mount point can be neither renamed nor removed."""
    target = _held(root, path)
    tree = _clone(target, attributes)
    _attach(tree, target)
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
    tree = _clone(veil, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    _attach(tree, target)
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
    _setattr(root, MOUNT_ATTR_RDONLY, 0)
    device = _openat2(root, "dev", os.O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT)
    _setattr(device, MOUNT_ATTR_RDONLY, 0)
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
