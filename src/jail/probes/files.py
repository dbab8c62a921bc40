"""Attempts on files: of the host, of trees that are bound read-only, of Credgate's own state, of /proc and /sys."""

import contextlib
import errno
import os
import socket
import stat

from jail.probes import DONE, Attempt, Context, refuse
from jail.probes.unixpath import below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _scratch(context: Context) -> str:
    """A new file of the attempt's own, where it may write (the jail's private tmpfs, the stand's directory)."""
    path = f"{context['scratch']}/{context['canary']}-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return path


def _opened(path: str, flags: int) -> str:
    os.close(os.open(os.fsencode(path), flags | os.O_CLOEXEC, 0o600))
    return DONE


def file_read(context: Context) -> str:
    """Read a secret of the user's by its path on the host."""
    with open(context["secret"], "rb") as file:
        if context["canary"].encode() not in file.read():
            raise refuse(errno.ENODATA)
    return DONE


def file_write(context: Context) -> str:
    """Write to a file of the host that exists."""
    return _opened(context["victim_file"], os.O_WRONLY)


def file_create(context: Context) -> str:
    """Make a file in a directory of the host."""
    path = f"{context['dir']}/new-{os.getpid()}"
    _opened(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.unlink(path)
    return DONE


def file_truncate(context: Context) -> str:
    """Empty a file of the host."""
    os.truncate(context["victim_file"], 0)
    return DONE


def _move(context: Context, to: str) -> str:
    source = _scratch(context)
    try:
        os.rename(source, to)
    except OSError:
        os.unlink(source)
        raise
    os.unlink(to)
    return DONE


def _link(context: Context, to: str) -> str:
    source = _scratch(context)
    try:
        os.link(source, to)
    finally:
        os.unlink(source)
    os.unlink(to)
    return DONE


def file_rename_out(context: Context) -> str:
    """Move a file of the jail's own into a directory of the host."""
    return _move(context, f"{context['dir']}/moved-{os.getpid()}")


def file_link_out(context: Context) -> str:
    """Give a file of the jail's own a second name on the host."""
    return _link(context, f"{context['dir']}/linked-{os.getpid()}")


def readonly_write(context: Context) -> str:
    """Write to a file of a tree that is bound read-only."""
    return _opened(f"{context['readonly']}/file", os.O_WRONLY)


def readonly_create(context: Context) -> str:
    """Make a file in a tree that is bound read-only."""
    path = f"{context['readonly']}/new-{os.getpid()}"
    _opened(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.unlink(path)
    return DONE


def readonly_truncate(context: Context) -> str:
    """Empty a file of a tree that is bound read-only."""
    os.truncate(f"{context['readonly']}/file", 0)
    return DONE


def readonly_rename(context: Context) -> str:
    """Rename a file within a tree that is bound read-only."""
    old = f"{context['readonly']}/file"
    new = f"{old}-{os.getpid()}"
    os.rename(old, new)
    os.rename(new, old)
    return DONE


def readonly_link(context: Context) -> str:
    """Give a file of a tree that is bound read-only a second name in it."""
    name = f"{context['readonly']}/linked-{os.getpid()}"
    os.link(f"{context['readonly']}/file", name)
    os.unlink(name)
    return DONE


def readonly_meta(context: Context) -> str:
    """Change mode, times and an attribute: Landlock doesn't govern them (measured), the mount must."""
    path = f"{context['readonly']}/file"
    refused = refuse(errno.EROFS)
    changes: tuple[Callable[[], None], ...] = (
        lambda: os.chmod(path, 0o600),
        lambda: os.utime(path),
        lambda: os.setxattr(path, "user.credgate", b"1"),
    )
    for change in changes:
        try:
            change()
        except OSError as error:
            refused = error
        else:
            return DONE
    raise refused


def readonly_mounts(context: Context) -> str:
    """Find a mount that may be written and is none of those that may: submounts of what is bound among them."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = file.read().splitlines()
    allowed = {os.fsencode(path) for path in context["writable"]}
    for line in lines:
        cells = line.split()
        if b"ro" not in cells[5].split(b",") and _unescaped(cells[4]) not in allowed:
            return DONE
    raise refuse(errno.EROFS)


def _unescaped(path: bytes) -> bytes:
    # proc(5): these four by three octal digits. No codec: Python would load it, and its files need not be bound.
    for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        path = path.replace(code, byte)
    return path


def landlock_device(context: Context) -> str:
    """Make a whiteout (character device 0:0): the kernel lets anybody, only Landlock's MAKE_CHAR refuses it here."""
    path = f"{context['scratch']}/whiteout-{os.getpid()}"
    os.mknod(path, stat.S_IFCHR | 0o600, 0)
    os.unlink(path)
    return DONE


def tree_socket(context: Context) -> str:
    """Listen on a socket in the work tree: over it another jail could be lent a connected descriptor."""
    with below(context["tree"], f".{context['canary'][:16]}.sock") as path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.bind(path)
        os.unlink(path)
    return DONE


def tree_fifo(context: Context) -> str:
    """Make a FIFO in the work tree."""
    path = os.fsencode(context["tree"]) + f"/.{context['canary'][:16]}.fifo".encode()
    os.mkfifo(path)
    os.unlink(path)
    return DONE


def _each(paths: list[str], tried: "Callable[[str], object]") -> str:
    """Try at each path; of several refusals the first one that is not EROFS is the word, since it tells more."""
    refused = refuse(errno.ENOENT)
    for path in paths:
        try:
            tried(path)
        except OSError as error:
            if refused.errno in (errno.ENOENT, errno.EROFS):
                refused = error
        else:
            return DONE
    raise refused


def _written_in(path: str) -> None:
    if os.path.islink(path):
        os.utime(path, follow_symlinks=False)
    elif os.path.isdir(path):
        name = f"{path}/.credgate-{os.getpid()}"
        _opened(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.unlink(name)
    else:
        _opened(path, os.O_WRONLY)


def island_write(context: Context) -> str:
    """Write in what the host executes: hooks, configuration, CI; in a read-only work tree anywhere in it."""
    return _each(context["islands"], _written_in)


def _moved(path: str) -> None:
    aside = f"{path}-{os.getpid()}"
    os.rename(path, aside)
    os.rename(aside, path)


def island_rename(context: Context) -> str:
    """Move such a thing aside, or a directory that leads to it, to make another in its place."""
    return _each(context["pins"], _moved)


def _seen(path: str) -> None:
    if os.path.isdir(path):
        seen: object = os.listdir(path)
    else:
        with open(path, "rb") as file:
            seen = file.read(1)
    if not seen:
        raise refuse(errno.ENODATA)


def hidden_read(context: Context) -> str:
    """Read a file that is hidden: each one of the work tree, and one that was bound in to be hidden."""
    return _each(context["hidden"], _seen)


def hidden_write(context: Context) -> str:
    """Write to a hidden file, or move it aside to make another in its place."""

    def change(path: str) -> None:
        try:
            _written_in(path)
        except OSError:
            _moved(path)

    return _each(context["hidden"], change)


def copied_name(context: Context) -> str:
    """What copy_write makes in the work tree, and leaves there until somebody has looked for it in the host's."""
    return f".{context['canary'][:16]}.copy"


def copy_write(context: Context) -> str:
    """Write into the host's work tree through the copy of it.

    Nobody inside can tell whether it came there: the host is looked at afterwards.
    """
    return _opened(f"{context['tree']}/{copied_name(context)}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def copy_clear(context: Context) -> None:
    """Remove what copy_write left."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.fsencode(f"{context['tree']}/{copied_name(context)}"))


def own_policy(context: Context) -> str:
    """Open the policy file."""
    return _opened(context["own"]["policy"], os.O_RDONLY)


def own_ledger(context: Context) -> str:
    """Open the ledger's directory."""
    return _opened(context["own"]["ledger"], os.O_RDONLY | os.O_DIRECTORY)


def own_ca_key(context: Context) -> str:
    """Open what holds the CA key."""
    return _opened(context["own"]["ca"], os.O_RDONLY)


def own_socket(context: Context) -> str:
    """Connect to the daemon's control socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(os.fsencode(context["own"]["socket"]))
    return DONE


def proc_sys(_context: Context) -> str:
    """Open a kernel setting for writing that an owner of the network namespace may change.

    Without a capability the file's mode refuses that before the mount would; so the mount is looked at as well.
    """
    try:
        return _opened("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY)
    except PermissionError:
        if os.statvfs("/proc/sys/net/ipv4").f_flag & os.ST_RDONLY:
            raise refuse(errno.EROFS) from None
        return DONE


def proc_masks(_context: Context) -> str:
    """Read what /proc tells of the kernel and of the host's keys."""
    for name in ("kallsyms", "keys", "key-users", "vmallocinfo", "timer_list"):
        try:
            with open(f"/proc/{name}", "rb") as file:
                if file.read(1):
                    return DONE
        except (FileNotFoundError, PermissionError):
            continue
    raise refuse(errno.ENODATA)


def sysfs(_context: Context) -> str:
    """List /sys."""
    return _opened("/sys/kernel", os.O_RDONLY | os.O_DIRECTORY)


ATTEMPTS: dict[str, Attempt] = {
    "file_read": file_read,
    "file_write": file_write,
    "file_create": file_create,
    "file_truncate": file_truncate,
    "file_rename_out": file_rename_out,
    "file_link_out": file_link_out,
    "readonly_write": readonly_write,
    "readonly_create": readonly_create,
    "readonly_truncate": readonly_truncate,
    "readonly_rename": readonly_rename,
    "readonly_link": readonly_link,
    "readonly_meta": readonly_meta,
    "readonly_mounts": readonly_mounts,
    "landlock": landlock_device,
    "tree_socket": tree_socket,
    "tree_fifo": tree_fifo,
    "island_write": island_write,
    "island_rename": island_rename,
    "hidden_read": hidden_read,
    "hidden_write": hidden_write,
    "copy_write": copy_write,
    "own_policy": own_policy,
    "own_ledger": own_ledger,
    "own_ca_key": own_ca_key,
    "own_socket": own_socket,
    "proc_sys": proc_sys,
    "proc_masks": proc_masks,
    "sysfs": sysfs,
}
