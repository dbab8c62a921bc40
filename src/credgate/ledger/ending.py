"""The end of a segment's file: what is in it for sure."""

import errno
import os
from pathlib import Path

from credgate.ledger.host import SystemCalls


class Unwritten(Exception):
    """Lines could not be written, or what was written of them not be taken back. `verb` says which."""

    def __init__(self, verb: str, error: OSError) -> None:
        super().__init__(verb)
        self.verb = verb
        self.error = error


class Ending:
    """`length` is the offset behind the last whole line in the file. Not thread-safe."""

    __slots__ = ("_calls", "fd", "length")

    def __init__(self, fd: int, length: int, calls: type[SystemCalls]) -> None:
        self.fd = fd
        self.length = length
        self._calls = calls

    def write(self, lines: bytes) -> None:
        """Write whole lines. Raises Unwritten: none of them is in the file then."""
        try:
            written = self._calls.write(self.fd, lines)
            if written != len(lines):  # the disk filled up on the way: the rest would be a torn line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._cut_back()
            raise Unwritten("write", error) from error
        self.length += len(lines)

    def _cut_back(self) -> None:
        try:
            self._calls.ftruncate(self.fd, self.length)
        except OSError as error:
            raise Unwritten("truncate", error) from error

    def last(self, line: bytes, reserve: Path) -> None:
        """Give up the reserve for one line, and sync it; no error matters any more."""
        try:
            reserve.unlink()
            if self._calls.write(self.fd, line) != len(line):
                self._calls.ftruncate(self.fd, self.length)
                return
            self._calls.fdatasync(self.fd)
        except OSError:
            return  # it is closed already, and the error that closed it is the one to tell
        self.length += len(line)

    def turn(self, fd: int) -> int:
        """Go on in another file, which is empty; returns the old descriptor."""
        old, self.fd, self.length = self.fd, fd, 0
        return old
