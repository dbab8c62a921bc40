"""The thread that signs: a checkpoint a second or every 256 lines while there are any, and where something ends.

It stands beside the writer and holds none of its locks while it signs and writes: no line waits for a checkpoint.
A checkpoint is made of lines that are on the disk already: one that promises more than a power cut left would accuse
an honest writer.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from credgate.ledger.chain import parse_line
from credgate.ledger.files import notes_name, segment_lines, segments
from credgate.ledger.keys import Key
from credgate.ledger.note import Checkpoint, NoteError
from credgate.ledger.record import LedgerError
from credgate.ledger.scan import notes_of, read_header
from credgate.ledger.tree import fold
from credgate.ledger.witness import Teller
from credgate.paths import PlaceError, open_private, sync_dir

END = "end"  # of a segment
FINAL = "final"
EXPORT = "export"  # of a copy that was cut here on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The ledger at one moment. `mark`: "", or the extension line that says why this one was made."""

    segment: int
    origin: str
    size: int
    nodes: tuple[bytes, ...]
    last_sha256: str
    key: Key
    mark: str = ""

    def checkpoint(self) -> Checkpoint:
        """What is signed of it."""
        extra = (f"segment {self.segment}", f"last {self.last_sha256}", *((self.mark,) if self.mark else ()))
        return Checkpoint(origin=self.origin, size=self.size, root=fold(self.nodes), extra=extra)


def sign_missing_ends(directory: Path, key: Key) -> None:
    """Sign ends of segments that a crash left unsigned: what the next segment begins with says all that is needed.

    So each boundary can bear a removal. One of before a change of key stays as it is. Raises LedgerError, OSError.
    """
    for number, path in reversed(segments(directory)[1:]):
        line = next(segment_lines(path), b"")
        header = read_header(line)
        if header is None or header.key != key.public:
            return
        try:
            notes, _, _ = notes_of(directory, number - 1)
        except NoteError as error:
            raise LedgerError("ledger_damaged", f"{notes_name(number - 1)}: {error}", "credgate log verify") from error
        if notes and notes[-1].checkpoint.size >= header.tree.size:
            return
        extra = (f"segment {number - 1}", f"last {parse_line(line)['prev']}", END)
        checkpoint = Checkpoint(origin=header.origin, size=header.tree.size, root=header.root, extra=extra)
        fd = open_private(directory / notes_name(number - 1), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            _write_whole(fd, key.note(checkpoint).data())
            os.fdatasync(fd)
        finally:
            os.close(fd)


def _write_whole(fd: int, data: bytes) -> None:
    if os.write(fd, data) != len(data):  # the rest of the note has no room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Checkpoints:
    """The signing thread of one open ledger. `take` gives the present moment, synced; `broke` closes the ledger;
    `ended` is called once the end of a segment is signed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        take: Callable[[], Snapshot],
        broke: Callable[[OSError | PlaceError], object],
        ended: Callable[[], None],
        every: tuple[int, float],
        tellers: Sequence[Teller] = (),
    ) -> None:
        self._directory, self._take, self._broke, self._ended = directory, take, broke, ended
        self._lines, self._seconds = every
        self._tellers = tellers
        self._pending = 0
        self._queue: list[Snapshot] = []
        self._stop = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._files: tuple[int, int] | None = None  # number of the segment, descriptor of its notes

    def saw(self) -> None:
        """A line was written: it counts, and wakes the thread where that matters. The ledger's lock is held.

        Without a lock of its own in between: the thread sets the count to 0 before it asks the ledger where it is, for
        which it needs the ledger's lock. A number written over that 0 is there when it looks again, before it waits.
        """
        if self._thread is not None and 0 < self._pending < self._lines - 1:
            self._pending += 1
            return
        with self._wake:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="ledger-sign", daemon=True)
                self._thread.start()
            elif self._pending in (1, self._lines):
                self._wake.notify()

    def add(self, snapshot: Snapshot) -> None:
        """Sign this moment: the end of a segment, whose lines are synced."""
        with self._wake:
            self._queue.append(snapshot)
            self._wake.notify()

    def stop(self) -> None:
        """Sign what is queued, and end; the witnesses hear of it."""
        with self._wake:
            self._stop = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._drain()
        for teller in self._tellers:
            teller.stop()
        if self._files is not None:
            os.close(self._files[1])
            self._files = None

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._queue or self._stop)
                self._wake.wait_for(lambda: self._pending >= self._lines or self._queue or self._stop, self._seconds)
                pending, stop = self._pending, self._stop
                self._pending = 0  # before the look at the ledger: a line that comes in meanwhile counts for the next
            self._drain()
            if stop:
                return
            try:
                if pending:
                    self._sign(self._take())
            except LedgerError:
                return  # it is closed, and whoever writes next is told

    def _drain(self) -> None:
        while self._queue:
            snapshot = self._queue.pop(0)
            self._sign(snapshot)
            if snapshot.mark == END:
                self._ended()

    def _sign(self, snapshot: Snapshot) -> None:
        checkpoint = snapshot.checkpoint()
        try:
            self._write(snapshot, snapshot.key.note(checkpoint).data())
        except (OSError, PlaceError) as error:
            self._broke(error)
            return
        if self._tellers:
            bare = Checkpoint(origin=checkpoint.origin, size=checkpoint.size, root=checkpoint.root)
            note = snapshot.key.note(bare)
            for teller in self._tellers:
                teller.tell(note)

    def _write(self, snapshot: Snapshot, data: bytes) -> None:
        fd = self._notes(snapshot.segment)
        _write_whole(fd, data)
        if snapshot.mark:
            os.fdatasync(fd)

    def _notes(self, segment: int) -> int:
        if self._files is not None and self._files[0] == segment:
            return self._files[1]
        path = self._directory / notes_name(segment)
        fd = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if self._files is not None:
            os.close(self._files[1])
        self._files = (segment, fd)
        sync_dir(self._directory)
        return fd
