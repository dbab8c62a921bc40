"""Unix sockets of the host in trees that a jail sees: it could connect to them, which no namespace governs.

Landlock's ABI 7 does not govern connecting by path, so a run is refused where somebody has bound a socket in one of its
trees, and ended where somebody does later. Bound is enough (a datagram socket does not listen; a stream may start to),
and what counts is the file: its name in the kernel's tables may be relative, and those tables stop at the network
namespace. A file that is left over from a server that has gone harms nobody.
"""

import array
import errno
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence

from credgate.apart import LOOKS
from credgate.ticks import tick
from credgate.treewalk import Visit, WalkError, walk
from jail.plan import under

log = logging.getLogger(__name__)

GLANCE = 2.0  # seconds between two looks at the kernel's table
YOUNG = 1.0  # seconds for which one reading of it serves the watches of all runs
REST = 60.0  # seconds at least between two whole looks, which also find other network namespaces' sockets
SHARE = 50  # a whole look takes one part in so many of the time
# linux/sock_diag.h, unix_diag.h
_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP, _ERROR, _DONE = 4, 20, 0x301, 2, 3
_SHOW_NAME, _SHOW_VFS = 1, 2
_NAME, _VFS = 0, 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBHIIIII")
_MESSAGE = 16  # bytes of struct unix_diag_msg, before the attributes
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER = 1 << 18


class HostSocketError(WalkError):
    """The run can't be made with these trees."""


def refuse(trees: Sequence[str], visit: Visit | None = None) -> None:
    """Raise HostSocketError where a socket is bound in a tree, WalkError where the trees can't be looked through.

    visit: is shown each directory of the same walk.
    """
    found = first_bound(trees, visit)
    if found:
        tree = next(tree for tree in trees if under(found, tree))
        raise HostSocketError("host_socket", f"{tree}: the host listens at {found}", "stop it, or choose another tree")


def first_bound(trees: Sequence[str], visit: Visit | None = None) -> str:
    """Path of a socket file that some process has bound; "" for none. Raises WalkError beyond the bounds."""
    outermost = [tree for tree in dict.fromkeys(trees) if not any(under(tree, o) for o in trees if o != tree)]
    return next((path for path in socket_files(outermost, visit) if is_bound(path)), "")


def socket_files(trees: Sequence[str], visit: Visit | None = None) -> Iterator[str]:
    """Every socket file of these trees, those of mounts below included. Raises WalkError beyond the bounds."""
    for directory, directories, others in walk(trees):
        if visit is not None:
            visit(directory, directories, others)
        for entry in others:
            if not (entry.is_file(follow_symlinks=False) or entry.is_symlink()) and _is_socket(entry):
                yield entry.path


def _is_socket(entry: "os.DirEntry[str]") -> bool:
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def is_bound(path: str) -> bool:
    """Whether a process of any network namespace holds the socket of this file.

    A datagram socket asks: connecting sends nothing, and to a socket of another type it ends in EPROTOTYPE before that
    one hears of it. EACCES is a closed door, but for the file's owner, who can change its mode. What else neither
    answers "nobody" nor is gone counts as bound.
    """
    try:
        where = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: PTH120 - surrogates
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            # sun_path has 108 bytes, and a name may have all of a path's: the descriptor makes it short.
            asking.connect(f"/proc/self/fd/{where}/{os.path.basename(path)}")  # noqa: PTH119
    except PermissionError:
        return _is_mine(path)
    except OSError as error:
        return error.errno not in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR)
    finally:
        os.close(where)
    return True


def _is_mine(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


# While it runs


class SocketWatch:
    """Looks for sockets that are bound in the trees later on."""

    def __init__(self, run: str, trees: Sequence[str]) -> None:
        self._run = run
        self._trees = tuple(dict.fromkeys(trees))
        self._known: frozenset[tuple[int, bytes]] = frozenset()  # of the first table everything is looked at
        self._unplaced = False  # a new socket's name does not lead to its file
        self._soon, self._next = 0.0, 0.0  # when a whole look may be, and when it has to be

    async def appears(self) -> str:
        """Return the path of a bound socket once there is one. Raises WalkError where no look is possible."""
        self._next = time.monotonic() + REST
        while True:
            await tick(GLANCE)
            found = await LOOKS.do(self._run, self.look)
            if found:
                return found

    def look(self) -> str:
        """One look: at what is new in the kernel's table, and now and then at the trees; the path found, or ""."""
        known, self._known = self._known, _TABLE.now()
        places = [_place(name, inode) for inode, name in self._known - known]
        self._unplaced |= "" in places
        found = next((p for p in places if p and any(under(p, t) for t in self._trees) and is_bound(p)), "")
        now = time.monotonic()
        if found or now < self._soon or (now < self._next and not self._unplaced):
            return found
        self._unplaced = False
        found = first_bound(self._trees)
        took = time.monotonic() - now
        self._soon, self._next = now + took * SHARE, now + max(REST, took * SHARE)
        return found


class _Table:
    """The kernel's table for all watches: read once a second at most, whatever runs there are. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: frozenset[tuple[int, bytes]] = frozenset()
        self._read = -YOUNG  # when, by the monotonic clock

    def now(self) -> frozenset[tuple[int, bytes]]:
        """The sockets of bound_now, as they were a second ago at most; none where the kernel does not tell."""
        with self._lock:
            began = time.monotonic()
            if began - self._read >= YOUNG:
                self._found = self._dump()
                self._read = began
            return self._found

    @staticmethod
    def _dump() -> frozenset[tuple[int, bytes]]:
        try:
            return frozenset(bound_now())
        except OSError as error:  # a kernel without the module: the whole looks go on
            log.warning("the kernel's table of unix sockets can't be read: %s", error.strerror)
            return frozenset()


_TABLE = _Table()


def _place(name: bytes, inode: int) -> str:
    """Real path of the file that a socket is bound to; "" where its name does not lead there."""
    if not name.startswith(b"/"):
        return ""
    real = os.path.realpath(os.fsdecode(name))
    try:
        return real if os.lstat(real).st_ino & 0xFFFFFFFF == inode else ""
    except OSError:
        return ""


def bound_now() -> set[tuple[int, bytes]]:
    """(inode in 32 bits, name as it was bound) of the sockets of this network namespace that have a file.

    Raises OSError where the kernel has no unix_diag.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(5)
        question = _QUESTION.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_VFS, 0xFFFFFFFF, 0xFFFFFFFF)
        netlink.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + question)
        found: set[tuple[int, bytes]] = set()
        while not parse_dump(netlink.recv(_BUFFER), found):
            pass
        return found


def parse_dump(data: bytes, into: set[tuple[int, bytes]]) -> bool:
    """Add the sockets of one datagram of the dump; True at its end. Raises OSError for the kernel's own error."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + size]
        if kind == _DONE:
            return True
        if kind == _ERROR:
            code = -array.array("i", body[:4])[0] if len(body) >= 4 else errno.EBADMSG
            raise OSError(code, os.strerror(code))
        attributes = dict(_attributes(body[_MESSAGE:]))
        if len(attributes.get(_VFS, b"")) >= 4:
            into.add((struct.unpack_from("=I", attributes[_VFS])[0], attributes.get(_NAME, b"").rstrip(b"\0")))
        if size < _HEADER.size:
            raise OSError(errno.EBADMSG, "a message of the kernel's has no size")
        at += (size + 3) & ~3
    return False


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3
