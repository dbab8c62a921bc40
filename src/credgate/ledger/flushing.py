"""A sync of the ledger that no thread waits for: the kernel is asked for it, and says by an eventfd that it has ended.

Linux AIO, IOCB_CMD_FDSYNC (io_submit(2), linux/aio_abi.h; since 4.18): the call returns at once, and a worker of the
kernel does what fdatasync(2) does. A sync by a thread costs two changes of threads and of the interpreter's lock more
(measured: 118 us of CPU, 52).
"""

import ctypes
import errno
import logging
import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, Self

from credgate import compiled

log = logging.getLogger(__name__)

_FDSYNC = 3  # IOCB_CMD_FDSYNC
_RESFD = 1  # IOCB_FLAG_RESFD: the eventfd counts on
_AT_ONCE = 8  # most syncs under way: one, but for a ledger that changes its loop
# io_setup, io_destroy, io_getevents, io_submit: the numbers of asm/unistd_64.h and asm-generic/unistd.h
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}


class _Request(ctypes.Structure):  # struct iocb, of a little-endian machine
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("reqprio", ctypes.c_int16),
        ("fildes", ctypes.c_uint32),
        ("buf", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("resfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):  # struct io_event
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("res", ctypes.c_int64),
        ("res2", ctypes.c_int64),
    )


class Later(Protocol):
    """Syncs that end later. `done`, an eventfd, counts each one that has."""

    @property
    def submit(self) -> Callable[[int, int], None]:
        """Begins to sync what is in the file, by its mark. Raises OSError: nothing was begun."""

    @property
    def landed(self) -> Callable[[], list[tuple[int, int]]]:
        """Says what ended since the last call: its mark, and 0 or an errno."""

    def close(self) -> None:
        """Wait for what is under way, and let go."""


class KernelSyncs:
    """`Later` by the kernel, which native/modules/aio.c asks where it was built, and ctypes else.

    For one thread at a time; no call but `close` lets go of the interpreter's lock.
    """

    def __init__(self, context: int, numbers: tuple[int, int, int, int], done: int) -> None:
        self._context, self._destroy = context, numbers[1]
        module = compiled.load("aio")
        asked = _Asked(context, numbers, done)
        # begins to sync what is in the file now; raises OSError: nothing was begun
        self.submit: Callable[[int, int], None] = asked.submit
        # what ended since the last call: its mark, and 0 or an errno
        self.landed: Callable[[], list[tuple[int, int]]] = asked.landed
        if module is not None:
            self.submit, self.landed = partial(module.submit, context, done), partial(module.landed, context)

    @classmethod
    def open(cls, done: int) -> Self | None:
        """None where the kernel has no place for it: fs.aio-max-nr, a filter, another machine."""
        numbers = _NUMBERS.get(platform.machine())
        context = ctypes.c_ulong(0)
        if numbers is None or ctypes.PyDLL(None).syscall(numbers[0], _AT_ONCE, ctypes.byref(context)) != 0:
            return None
        return cls(context.value, numbers, done)

    def close(self) -> None:
        """Wait for what is under way, and let go."""
        self.landed = list  # what it is read from is no memory of ours any more
        # The one call that may take long: with the lock let go.
        ctypes.CDLL(None).syscall(ctypes.c_long(self._destroy), ctypes.c_ulong(self._context))


class _Asked:
    """The same by ctypes."""

    def __init__(self, context: int, numbers: tuple[int, int, int, int], done: int) -> None:
        self._context = ctypes.c_ulong(context)
        _, _, self._getevents, self._submit = numbers
        self._request = _Request(opcode=_FDSYNC, flags=_RESFD, resfd=done)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._events = (_Event * _AT_ONCE)()
        self._call = _system_call(ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        self._submits = _system_call(ctypes.c_long, ctypes.c_void_p)

    def submit(self, fd: int, mark: int) -> None:
        self._request.fildes, self._request.data = fd, mark
        if self._submits(self._submit, self._context, 1, self._requests) != 1:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def landed(self) -> list[tuple[int, int]]:
        count = self._call(self._getevents, self._context, 0, _AT_ONCE, self._events, None)
        return [(event.data, -event.res) for event in self._events[: max(count, 0)]]


def _system_call(*kinds: type) -> Callable[..., int]:
    call = ctypes.PyDLL(None, use_errno=True).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_ulong, *kinds]
    call.restype = ctypes.c_long
    return call


class Flushing:
    """Syncs of one ledger by a `Later`.

    `write` puts all lines into their file and returns the last one's number, the file's descriptor and the segment's
    number; it raises LedgerError. `lock` keeps all three as they are. `ended` is told what came of a sync: up to which
    number all lines are on the disk or, with an error, may not be.
    """

    def __init__(
        self,
        later: Later,
        lock: AbstractContextManager[object],
        write: Callable[[], tuple[int, int, int]],
        ended: Callable[[int, OSError | None], None],
    ) -> None:
        self._later, self._lock, self._write, self._ended = later, lock, write, ended
        self._segment = self._fd = -1

    def begin(self) -> bool:
        """Begin a sync of all lines so far. False: a thread has to do it, or to learn why not. Raises LedgerError."""
        with self._lock:
            seq, fd, segment = self._write()
            try:
                self._later.submit(self._fd if segment == self._segment else self._own(fd, segment), seq)
            except OSError:
                return False
            return True

    def _own(self, fd: int, segment: int) -> int:
        """The file, opened anew. Raises OSError.

        An error of the disk is told once to each open description (errseq_t): so a sync by a thread and one by the
        kernel, at the same time, both learn of it.
        """
        self._forget()
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
        self._segment = segment
        return self._fd

    def _forget(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._segment = self._fd = -1

    def land(self) -> None:
        """Tell of each sync that has ended."""
        try:
            landed = self._later.landed()
        except MemoryError:  # what the kernel said is gone, maybe an error of the disk, which it tells once
            landed = [(0, errno.ENOMEM)]
        for seq, code in landed:
            self._ended(seq, OSError(code, os.strerror(code)) if code else None)

    def close(self) -> None:
        """Wait for what is under way, which nobody is told of any more."""
        self._later.close()
        self._forget()


def by_kernel(
    later: Callable[[int], Later | None],
    lock: AbstractContextManager[object],
    write: Callable[[], tuple[int, int, int]],
    ended: Callable[[int, OSError | None], None],
) -> Callable[[int], Flushing | None]:
    """Makes a `Flushing` of the eventfd that is to tell of it; None, and a word in the log, where the kernel can't."""

    def made(done: int) -> Flushing | None:
        syncs = later(done)
        if syncs is None:
            log.info("ledger: no asynchronous sync from this kernel, a thread waits for the disk")
            return None
        return Flushing(syncs, lock, write, ended)

    return made
