"""The one writer of a ledger: append-only, chained, and closed for good after the first error.

`append` returns once write(2) has taken the whole line; `durable` once fdatasync(2) has. `put` may leave its line in
memory until one of both, so that lines of one moment are one write. No error is retried: after a failed fsync the
kernel may have dropped the dirty pages, and the next fsync would say that all is well.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Self

from credgate.ledger import keys, retain
from credgate.ledger.chain import Head, link
from credgate.ledger.checkpoints import END, FINAL, Checkpoints, Snapshot, sign_missing_ends
from credgate.ledger.ending import Ending, Unwritten
from credgate.ledger.files import RESERVE, segment_name
from credgate.ledger.flushing import by_kernel
from credgate.ledger.form import Form, fragment
from credgate.ledger.host import Clock, HostClock, SystemCalls, host_clock
from credgate.ledger.linking import Given, chain_of
from credgate.ledger.note import origin_by
from credgate.ledger.record import LedgerError, Stamp, clean_fields
from credgate.ledger.recover import Opened, open_tail, settle
from credgate.ledger.scan import header_fields
from credgate.ledger.settings import Settings
from credgate.ledger.syncing import Syncing
from credgate.ledger.tree import Tree
from credgate.ledger.witness import Teller, name_of, said_in, way_to
from credgate.paths import PlaceError, open_private, sync_dir

__all__ = ["Ledger", "SystemCalls", "host_clock"]

log = logging.getLogger(__name__)

type Numbered = Callable[[int], Mapping[str, object]]

_HINT = "free the disk or mend it, see `credgate log verify`, then start the gateway again"


class Ledger(AbstractContextManager["Ledger"]):
    """An open ledger. Safe to use from several threads; `durable` from one event loop at a time."""

    def __init__(
        self, opened: Opened, clock: Clock, calls: type[SystemCalls], key: keys.Key, settings: Settings
    ) -> None:
        self._directory = opened.directory
        self._lock_fd = opened.lock_fd
        self._number = opened.number  # of the segment
        self._file = Ending(opened.fd, opened.length, calls)
        self._chain = chain_of((opened.head.seq, opened.head.sha256), opened.tail.tree)
        self._origin, self._day = opened.tail.origin, opened.tail.day
        self._key, self._settings = key, settings
        self._clock, self._calls = clock, calls
        # of a line that asks the clocks itself; b"": they are others than the host's
        self._boot = fragment("boot", clock.boot) if isinstance(clock, HostClock) else b""
        self._synced = 0
        self._error: LedgerError | None = None
        self._closing = False
        self._write_lock = threading.RLock()
        self._sync_lock = threading.Lock()  # where both are held, this one is taken first
        self._syncing = Syncing(self.sync, by_kernel(calls.later, self._write_lock, self._out, self._ended))
        self.tell = self._syncing.tell  # as `durable` of all lines so far, without a coroutine: told, one asks `has`
        self._checkpoints = Checkpoints(
            opened.directory,
            take=self._moment,
            broke=self._break_note,
            ended=self._tidy,
            every=(settings.every_lines, settings.every_seconds),
            tellers=[Teller(name_of(item), way_to(item), said_in(self.append)) for item in settings.witnesses],
        )

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        clock: Clock | None = None,
        calls: type[SystemCalls] = SystemCalls,
        settings: Settings | None = None,
    ) -> Self:
        """Open the ledger in `directory`, made 0700 where missing, its key in keys.beside(). A torn tail is recorded.

        Raises LedgerError: another writer, a damaged last line, a ledger that isn't what its last checkpoint says, a
        lost key, disk full; PlaceError: owner or mode.
        """
        now = host_clock() if clock is None else clock
        opened = open_tail(directory)
        try:
            key = keys.for_ledger(directory, opened.tail.key)
        except BaseException:
            os.close(opened.fd)
            os.close(opened.lock_fd)
            raise
        ledger = cls(opened, now, calls, key, settings or Settings())
        try:
            if not opened.length and opened.number > 1:
                ledger._head_segment(now())
            ledger._sign_ends()
            ledger._record_recovery(opened)
        except BaseException:
            ledger._release()
            raise
        return ledger

    def _sign_ends(self) -> None:
        try:
            sign_missing_ends(self._directory, self._key)
        except OSError as error:
            raise self._break("sign", error) from error

    def _record_recovery(self, opened: Opened) -> None:
        for fields in opened.recovered:
            self.append("recovered", **fields)
            self.sync()
            if "torn" in fields:
                try:
                    settle(self._directory, str(fields["torn"]))
                except OSError as error:
                    raise self._break("rename a torn tail in", error) from error

    @property
    def directory(self) -> Path:
        """Where the ledger lies."""
        return self._directory

    @property
    def seq(self) -> int:
        """Sequence number of the last line, 0 for none."""
        return self._chain.seq

    @property
    def broken(self) -> LedgerError | None:
        """The error that closed the ledger for good, if there was one."""
        return self._error

    def append(self, ev: str, numbered: Numbered | None = None, /, **fields: object) -> int:
        """Write one line and return its sequence number once write(2) has taken it whole.

        `numbered` gives more fields, made of that number; it is called once, while nobody else may write.
        Raises LedgerError when it can't be written (then and for ever after), TypeError for a field that
        record.FIELDS doesn't know or of a wrong type (nothing is written, the ledger stays open).
        """
        return self._add(partial(self._link, ev, clean_fields(ev, fields), numbered=numbered), held=False)

    def put(self, form: Form, values: Given, *, held: bool = False) -> int:
        """As append, of a line whose fields are mostly known; `values` are the holes', or are made of its number.

        `held`: it may stay in memory until `durable` of it returns, and nothing may be forwarded by it before.
        """
        with self._write_lock:
            if self._error is not None or self._closing:
                self._check()
            begun = self._boot and self._file.length < self._settings.max_bytes
            if begun and (seq := self._chain.put(form.template, values, self._boot, self._day, None, 0)):
                if not held:
                    self._flush()
                self._checkpoints.saw()
                return seq
        return self._add(lambda stamp: form.put(self._chain, values, stamp), held=held)

    def _link(self, ev: str, cleaned: Mapping[str, object], stamp: Stamp, numbered: Numbered | None = None) -> None:
        more = {} if numbered is None else clean_fields(ev, numbered(self._chain.seq + 1))
        self._chain.add(link(Head.of(self._chain.end), ev, {**cleaned, **more}, stamp)[0])

    def _add(self, make: Callable[[Stamp], object], *, held: bool) -> int:
        with self._write_lock:
            self._check()
            stamp = self._clock()
            if not self._is_over(stamp):
                return self._take(make, stamp, held=held)
        with self._sync_lock, self._write_lock:
            self._check()
            if self._is_over(stamp):  # another thread may have been faster
                self._turn(stamp)
            return self._take(make, stamp, held=held)

    def _put(self, ev: str, cleaned: Mapping[str, object], stamp: Stamp) -> None:
        self._take(partial(self._link, ev, cleaned), stamp, held=False)

    def _take(self, make: Callable[[Stamp], object], stamp: Stamp, *, held: bool) -> int:
        """Chain and tree go on with a line, which is in the file when this returns, or is `held`."""
        make(stamp)
        if not held:
            self._flush()
        seq, sha256 = self._chain.end
        if seq == 1:
            self._origin = origin_by(sha256)
        self._day = self._day or stamp.ts[:10]
        self._checkpoints.saw()
        return seq

    def _is_over(self, stamp: Stamp) -> bool:
        """Whether the segment has ended, by size or by day. A clock that goes back ends nothing."""
        return self._file.length >= self._settings.max_bytes or (self._day != "" and stamp.ts[:10] > self._day)

    def _turn(self, stamp: Stamp) -> None:
        """Go on in a new segment, whose name and header are on the disk before another line. Both locks are held."""
        self._to_disk()
        ended = self._snapshot(END)
        path = self._directory / segment_name(self._number + 1)
        try:
            fd = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        except (OSError, PlaceError) as error:
            raise self._break("begin a segment of", error) from error
        old = self._file.turn(fd)
        self._number += 1
        try:
            self._head_segment(stamp)
        finally:
            os.close(old)
        self._checkpoints.add(ended)

    def _to_disk(self) -> None:
        """Put all lines so far on the disk. Both locks are held."""
        self._flush()
        try:
            self._calls.fdatasync(self._file.fd)
        except OSError as error:
            raise self._break("sync", error) from error
        self._synced = self._chain.seq

    def _head_segment(self, stamp: Stamp) -> None:
        """Write a segment's first line, which says all that the lines before it come to, and put it on the disk."""
        tree = Tree(self._chain.seq, self._chain.nodes)
        fields = header_fields(origin=self._origin, segment=self._number, tree=tree, public=self._key.public)
        self._put("checkpoint", clean_fields("checkpoint", fields), stamp)
        try:
            os.fsync(self._file.fd)
            sync_dir(self._directory)
        except OSError as error:
            raise self._break("sync", error) from error
        self._synced = self._chain.seq
        self._day = stamp.ts[:10]

    def _flush(self) -> None:
        """Write all lines that are held. When it fails none is any more."""
        if not (lines := self._chain.take()):
            return
        try:
            self._file.write(lines)
        except Unwritten as why:
            raise self._break(why.verb, why.error) from why
        except MemoryError as error:  # nobody knows how much of them is in the file
            raise self._break("write", OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))) from error
        self._chain.wrote()

    def _break(self, verb: str, error: OSError | PlaceError) -> LedgerError:
        """Close the ledger for good and return the error that says so."""
        if self._error is None:
            why = error.detail if isinstance(error, PlaceError) else (error.strerror or str(error)).lower()
            self._error = LedgerError("ledger_unavailable", f"can't {verb} ledger {self._directory}: {why}", _HINT)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._last_words(why)
        return self._error

    def _last_words(self, why: str) -> None:
        """Give up the reserve for one line that says why the ledger ends here."""
        fields = clean_fields("alarm", {"reason": "ledger_unavailable", "detail": f"can't write ledger: {why}"})
        line, _ = link(Head.of(self._chain.written), "alarm", fields, self._clock())
        self._file.last(line, self._directory / RESERVE)

    def _break_note(self, error: OSError | PlaceError) -> None:
        """A checkpoint that can't be written: no line may come that nobody signs."""
        with self._write_lock:
            self._break("sign", error)

    def _snapshot(self, mark: str = "") -> Snapshot:
        return Snapshot(
            segment=self._number,
            origin=self._origin,
            size=self._chain.seq,
            nodes=self._chain.nodes,
            last_sha256=self._chain.end[1],
            key=self._key,
            mark=mark,
        )

    def _moment(self) -> Snapshot:
        """The ledger as it is now, once that is on the disk. Raises LedgerError."""
        with self._write_lock:
            self._check()
            snapshot = self._snapshot()
        if snapshot.size > self._synced:
            self.sync()
        return snapshot

    def _tidy(self) -> None:
        """Pack and remove old segments as the settings say, once a segment's end is signed."""
        try:
            retain.tidy(self._directory, self._settings.keep, self._settings.pack, self.record_pruned)
        except (OSError, LedgerError, PlaceError) as error:
            # nothing is lost by a segment that stays; the next end of one tries again
            log.warning("ledger: old segments stay: %s", error)

    def record_pruned(self, fields: Mapping[str, object]) -> None:
        """Say in the ledger, on the disk, which segments go: they may be removed then. Raises LedgerError."""
        self.append("pruned", **fields)
        self.sync()

    def change_key(self) -> bytes:
        """Sign with a new key from here on, and return its public half. The old one is gone. Raises LedgerError."""
        place = keys.beside(self._directory)
        with self._sync_lock, self._write_lock:
            self._check()
            if not self._chain.seq:
                raise LedgerError("ledger_empty", f"ledger {self._directory} has no line yet", "run something first")
            new = keys.make_next(place)
            fields = keys.change_fields(self._origin, self._key, new)
            self._put("key_change", clean_fields("key_change", fields), self._clock())
            try:
                self._calls.fdatasync(self._file.fd)
                keys.use_next(place)
            except OSError as error:
                raise self._break("change the key of", error) from error
            self._synced = self._chain.seq
            self._key = new
        return new.public

    def sync(self) -> None:
        """Put all lines so far on the disk; blocks. Raises LedgerError."""
        with self._sync_lock:
            with self._write_lock:
                target, _, _ = self._out()
            if target <= self._synced:
                return
            try:
                self._calls.fdatasync(self._file.fd)
            except OSError as error:
                with self._write_lock:
                    raise self._break("sync", error) from error
            self._ended(target, None)  # the kernel's own may have come further meanwhile

    def _out(self) -> tuple[int, int, int]:
        """All lines so far are in the file: the last one's number, the file, its segment. The write lock is held."""
        if self._error is not None or self._closing:
            self._check()
        self._flush()
        return self._chain.seq, self._file.fd, self._number

    def _ended(self, seq: int, error: OSError | None) -> None:
        """What came of a sync: of the kernel's, or of a thread's that went well."""
        with self._write_lock:
            if error is not None:
                self._break("sync", error)
            elif seq > self._synced:
                self._synced = seq

    async def durable(self, seq: int) -> None:
        """Return once line `seq` is on the disk; callers at the same time share one fdatasync. Raises LedgerError."""
        while self._synced < seq:
            self._check()
            if seq > self._chain.seq:
                raise ValueError(f"ledger: line {seq} was never written, the last one is {self._chain.seq}")
            await self._syncing.ask()
        self._check()

    def has(self, seq: int) -> bool:
        """Whether line `seq` is on the disk, of a ledger that is open."""
        return self._synced >= seq and self._error is None and not self._closing

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise LedgerError("ledger_closed", f"ledger {self._directory} is closed", "start the gateway again")

    def close(self) -> None:
        """Write `final`, sign, sync and let go. Raises LedgerError when that fails; a broken ledger is just let go."""
        with self._sync_lock, self._write_lock:
            if self._closing:
                return
            self._closing = True
            sound = self._error is None
        try:
            if sound:
                with self._sync_lock, self._write_lock:
                    self._put("final", {}, self._clock())
                    self._to_disk()
                    self._checkpoints.add(self._snapshot(FINAL))
        finally:
            self._release()
        if sound and self._error is not None:  # the last checkpoint was not written
            raise self._error

    def _release(self) -> None:
        self._closing = True
        self._syncing.stop()
        self._checkpoints.stop()
        with self._write_lock:
            os.close(self._file.fd)
            os.close(self._lock_fd)  # lets the lock go

    def __exit__(self, *_: object) -> None:
        self.close()
