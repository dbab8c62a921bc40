"""Take over what a run changed in its copy: into the host's work tree, a path at a time, and nothing of the host's is
lost. What the host changed since the run began stands, and the path is refused.

A file is written beside its place and put there by one rename(2): with RENAME_NOREPLACE where nothing was, with
RENAME_EXCHANGE where something was, which is looked at once it is out of the way and put back where it is not what the
run began with. No link is followed, on neither side. Taken over are files, directories and links, with permissions and
no other bit, as this user's own. A file in the place of another has that one's group, access list and attributes.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import FileIO

from credgate.beneath import RENAME_EXCHANGE, RENAME_NOREPLACE, Beneath, rename
from credgate.copylook import CHANGED, CHUNK, PERMISSIONS, Change, Kind, ancestors, changes, opened_tree
from credgate.copystore import Copy, CopyError, Entry

MIB = 1 << 20
_ACL = "system.posix_acl_access"
_LAYERS = "user.overlay."  # marks of overlayfs itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """taken: what was taken over. left: what was asked for and was not, each with why. apart: what must be named."""

    taken: tuple[Change, ...]
    left: tuple[tuple[Change, str], ...]
    apart: tuple[Change, ...]
    whole: bool  # nothing is left in the copy


class _Stands(Exception):
    """The host's own stands against it; said in words."""


type _Step = Callable[[Beneath, Beneath, Change], None]


def relative_to(copy: Copy, cwd: str, path: str) -> str:
    """A path of the command line as one of the tree: absolute, below the current directory where that is in the tree,
    or below the tree. Raises CopyError.
    """
    tree = copy.meta.tree
    base = cwd if os.path.commonpath([cwd, tree]) == tree else tree
    whole = os.path.normpath(os.path.join(base, path))  # noqa: PTH118 - surrogates
    if os.path.commonpath([whole, tree]) != tree:
        raise CopyError("path_outside", f"{path}: not in {tree}", "name paths as `credgate diff` does")
    return os.path.relpath(whole, tree)


def assign(copies: Sequence[Copy], cwd: str, path: str) -> tuple[int, str]:
    """Which of a run's copies a path of the command line means, and as one of its tree. Raises CopyError."""
    if len(copies) == 1:
        return 0, _in_tree(copies[0], cwd, path)
    for number, copy in enumerate(copies):
        try:
            relative = _in_tree(copy, cwd, path)
        except CopyError:
            continue
        if any(c.path == relative or c.path.startswith(f"{relative}/") for c in changes(copy)):
            return number, relative
    raise CopyError("path_unchanged", f"{path}: the run changed nothing there", "see `credgate diff`")


def _in_tree(copy: Copy, cwd: str, path: str) -> str:
    """Of an agent's own files the home is what a relative path begins at, as `credgate diff` names them."""
    return relative_to(copy, cwd if copy.meta.state is None else copy.meta.tree, path)


def joined(parts: Sequence[Applied]) -> Applied:
    """What was done with all copies of a run, as one."""
    return Applied(
        taken=tuple(change for part in parts for change in part.taken),
        left=tuple(pair for part in parts for pair in part.left),
        apart=tuple(change for part in parts for change in part.apart),
        whole=all(part.whole for part in parts),
    )


def apply(copy: Copy, paths: Sequence[str]) -> Applied:
    """Take over the paths and what is below them; without any, everything that need not be named.

    Raises CopyError for a path of which nothing was changed, OSError, PlaceError.
    """
    found = changes(copy)
    chosen, apart = _chosen(found, paths)
    taken: list[Change] = []
    left: list[tuple[Change, str]] = []
    with Beneath(str(copy.upper)) as upper, opened_tree(copy) as tree:
        _room(upper, tree, chosen)
        for change, step in _steps(chosen):
            why = change.refused or change.conflict or tried(step, upper, tree, change)
            if why:
                left.append((change, why))
            else:
                taken.append(change)
    whole = not left and not apart and len({id(c) for c in chosen}) == len(found)
    return Applied(taken=tuple(taken), left=tuple(left), apart=tuple(apart), whole=whole)


def _room(upper: Beneath, tree: Beneath, chosen: Sequence[Change]) -> None:
    """Raise CopyError where the tree's file system has less room than all of it takes: a run makes a thousand names of
    one file at no cost, and each of them is written as a file. OSError.
    """
    files = [c.path for c in chosen if c.after is not None and stat.S_ISREG(c.after.mode) and c.kind is not Kind.MODE]
    needed = sum(facts.st_blocks * 512 for facts in map(upper.facts, files) if facts is not None)
    room = os.fstatvfs(tree.root)
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and needed > free:  # a file system of FUSE that says nothing says zeros
        detail = f"to take over: {needed // MIB} MiB, free in the tree: {free // MIB} MiB"
        raise CopyError("no_room", detail, "see the sizes by `credgate diff`, then name paths")


def _chosen(found: Sequence[Change], paths: Sequence[str]) -> tuple[list[Change], list[Change]]:
    """What is to be taken over, and what was passed over since it was not named itself."""
    named = set(paths) - {"."}
    every = not paths or "." in paths
    for path in named:
        if not any(c.path == path or c.path.startswith(path + "/") for c in found):
            raise CopyError("path_unchanged", f"{path}: the run changed nothing there", "see `credgate diff`")
    asked = [c for c in found if every or c.path in named or not named.isdisjoint(ancestors(c.path))]
    apart = [c for c in asked if c.naming and c.path not in named]
    chosen = [c for c in asked if not c.naming or c.path in named]
    # a new directory on the way to what is taken over is made as well, and what stood in its place goes
    needed = {path for c in chosen if c.kind is not Kind.DELETED for path in ancestors(c.path)}
    already = set(map(id, chosen))  # no `in`: a run makes as many directories as it likes
    ways = [c for c in found if c.path in needed and id(c) not in already]
    also = set(map(id, ways))
    return [*chosen, *ways], [c for c in apart if id(c) not in also]


def _steps(chosen: Sequence[Change]) -> list[tuple[Change, _Step]]:
    """Deletions from the inside, directories from the outside, files, then what may close a directory again."""
    depth = {id(c): c.path.count("/") for c in chosen}
    order: list[tuple[Change, _Step]] = []
    gone = [c for c in chosen if c.kind is Kind.DELETED]
    order += [(c, _delete) for c in sorted(gone, key=lambda c: -depth[id(c)])]
    folders = [c for c in chosen if c.kind is Kind.ADDED and _is_directory(c)]
    order += [(c, _make) for c in sorted(folders, key=lambda c: depth[id(c)])]
    order += [(c, put) for c in chosen if c.kind in (Kind.ADDED, Kind.MODIFIED) and not _is_directory(c)]
    modes = [c for c in chosen if c.kind is Kind.MODE]
    order += [(c, _mode) for c in sorted(modes, key=lambda c: -depth[id(c)])]
    return order


def _is_directory(change: Change) -> bool:
    return change.after is not None and stat.S_ISDIR(change.after.mode)


def tried(step: _Step, upper: Beneath, tree: Beneath, change: Change) -> str:
    """Why it could not be done; "" where it was."""
    try:
        step(upper, tree, change)
    except _Stands as error:
        return str(error)
    except FileExistsError:
        return "made on the host since the run began"
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            return "a link or another mount stands on the way"
        return (error.strerror or str(error)).lower()
    return ""


def _beside() -> str:
    return f".credgate-{secrets.token_hex(8)}"


def _delete(_upper: Beneath, tree: Beneath, change: Change) -> None:
    before = _known(change)
    with tree.parent(change.path) as (folder, name):
        if stat.S_ISDIR(before.mode):
            os.rmdir(name, dir_fd=folder)
            return
        aside = _beside()
        rename(folder, name, aside, RENAME_NOREPLACE)
        if not _is_the_old(folder, aside, before):
            rename(folder, aside, name, RENAME_NOREPLACE)  # where that fails it is left beside, and the error says so
            raise _Stands(CHANGED)
        os.unlink(aside, dir_fd=folder)


def _make(_upper: Beneath, tree: Beneath, change: Change) -> None:
    """A directory, which its owner can always write: what is in it comes later."""
    with tree.parent(change.path) as (folder, name):
        os.mkdir(name, 0o700, dir_fd=folder)
    _chmod(tree, change.path, _after(change).mode & PERMISSIONS | 0o700)


def put(upper: Beneath, tree: Beneath, change: Change) -> None:
    """A file or a link into its place; a step of `tried`."""
    with tree.parent(change.path) as (folder, name):
        aside = _beside()
        made = -1
        try:
            _write(upper, tree, folder, aside, change)
            made = os.stat(aside, dir_fd=folder, follow_symlinks=False).st_ino
            if change.before is None:
                rename(folder, aside, name, RENAME_NOREPLACE)
                return
            rename(folder, aside, name, RENAME_EXCHANGE)
            if not _is_the_old(folder, aside, change.before):
                rename(folder, aside, name, RENAME_EXCHANGE)
                raise _Stands(CHANGED)
        except BaseException:
            _drop_own(folder, aside, made)
            raise
        os.unlink(aside, dir_fd=folder)


def _write(upper: Beneath, tree: Beneath, folder: int, name: str, change: Change) -> None:
    """The copy's file, or link, under a name of our own; on the disk before it takes its place."""
    if change.target:
        os.symlink(change.target, name, dir_fd=folder)
        return
    after = _after(change)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        os.fdopen(upper.regular(change.path), "rb", buffering=0) as source,
        os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb", buffering=0) as made,
    ):
        _copy(source, made)
        kept = PERMISSIONS
        if change.before is not None and stat.S_ISREG(change.before.mode):
            kept = _as_the_old(tree, change.path, made.fileno())
        os.fchmod(made.fileno(), after.mode & kept)
        os.utime(made.fileno(), ns=(after.mtime, after.mtime))
        os.fsync(made.fileno())


def _as_the_old(tree: Beneath, path: str, made: int) -> int:
    """Give a file the group, access list and user's attributes of the host's file that it replaces; what of a mode it
    may have then. With another group, or without its list, the same mode lets in whom the old one kept out.
    """
    old = tree.regular(path)
    try:
        names = _attributes(old)
        for name in names:
            os.setxattr(made, name, os.getxattr(old, name))
        if _ACL not in names and _ACL in _attributes(made):  # the directory's default, acl(5), which the old one hasn't
            os.removexattr(made, _ACL)
        group = os.fstat(old).st_gid
        if group == os.fstat(made).st_gid:
            return PERMISSIONS
        os.fchown(made, -1, group)
    except PermissionError:  # a group that this user is not in: nobody has what that one had
        return PERMISSIONS & ~stat.S_IRWXG
    finally:
        os.close(old)
    return PERMISSIONS


def _attributes(descriptor: int) -> list[str]:
    try:
        names = os.listxattr(descriptor)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise
    return [name for name in names if name == _ACL or (name.startswith("user.") and not name.startswith(_LAYERS))]


def _copy(source: FileIO, made: FileIO) -> None:
    """The contents, holes as holes: a file may say that it has more bytes than the disk."""
    end, size = 0, os.fstat(source.fileno()).st_size
    while end < size:
        try:
            start = os.lseek(source.fileno(), end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data behind here, lseek(2)
                raise
            break
        end = os.lseek(source.fileno(), start, os.SEEK_HOLE)
        source.seek(start)
        made.seek(start)
        while (left := end - source.tell()) > 0 and (data := source.read(min(left, CHUNK))):
            while data:
                data = data[made.write(data) :]
    made.truncate(size)


def _drop_own(folder: int, name: str, made: int) -> None:
    """Remove what was written beside, and never the host's own, which could lie there after an exchange."""
    with contextlib.suppress(FileNotFoundError):
        if made in (-1, os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino):
            os.unlink(name, dir_fd=folder)


def _mode(_upper: Beneath, tree: Beneath, change: Change) -> None:
    facts = tree.facts(change.path)
    if facts is None or not _known(change).holds(facts):
        raise _Stands(CHANGED)
    _chmod(tree, change.path, _after(change).mode & PERMISSIONS)


def _chmod(tree: Beneath, path: str, mode: int) -> None:
    descriptor = tree.open(path, os.O_PATH)
    try:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", mode)  # noqa: PTH101 - by the descriptor: no link is followed
    finally:
        os.close(descriptor)


def _is_the_old(folder: int, name: str, before: Entry) -> bool:
    """Whether what was moved aside is what the run began with; its change time is that of the move."""
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return replace(before, ctime=facts.st_ctime_ns) == Entry.of(facts)


def _known(change: Change) -> Entry:
    if change.before is None:
        raise _Stands("nothing was there when the run began")
    return change.before


def _after(change: Change) -> Entry:
    if change.after is None:
        raise _Stands("nothing is in the copy")
    return change.after
