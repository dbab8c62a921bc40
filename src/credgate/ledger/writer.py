"""The one writer of a ledger: append-only, chained, and closed for good after the first error.

`append` returns once write(2) has taken the whole line; `durable` once fdatasync(2) has. No error is retried: after a
failed fsync the kernel may have dropped the dirty pages, and the next fsync would say that all is well.
"""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from credgate.ledger.chain import link
from credgate.ledger.files import RESERVE
from credgate.ledger.record import LedgerError, Stamp, clean_fields
from credgate.ledger.recover import Opened, open_tail, settle

type Clock = Callable[[], Stamp]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_HINT = "free the disk or mend it, see `credgate log verify`, then start the gateway again"


class SystemCalls:
    """The system calls that can fail on a disk: the seam through which tests make them fail."""

    write = staticmethod(os.write)
    fdatasync = staticmethod(os.fdatasync)
    ftruncate = staticmethod(os.ftruncate)


def host_clock() -> Clock:
    """The host's clocks. Raises LedgerError when the boot id can't be read."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise LedgerError("no_boot_id", f"can't read {_BOOT_ID}: {error.strerror}", "mount /proc") from error

    def now() -> Stamp:
        seconds, nanos = divmod(time.time_ns(), 10**9)
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)
        return Stamp(
            ts=moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), boot=boot, mono_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        )

    return now


class Ledger:
    """An open ledger. Safe to use from several threads; `durable` from one event loop at a time."""

    def __init__(self, opened: Opened, clock: Clock, calls: type[SystemCalls]) -> None:
        self._directory = opened.directory
        self._lock_fd = opened.lock_fd
        self._fd = opened.fd
        self._good = opened.length  # offset behind the last whole line
        self._head = opened.head
        self._clock = clock
        self._calls = calls
        self._synced = 0
        self._error: LedgerError | None = None
        self._closed = False
        self._write_lock = threading.RLock()
        self._sync_lock = threading.Lock()
        # a thread of our own: the default executor may be full of look-ups that hang
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-sync")
        self._flight: asyncio.Future[None] | None = None

    @classmethod
    def open(cls, directory: Path, *, clock: Clock | None = None, calls: type[SystemCalls] = SystemCalls) -> Self:
        """Open the ledger in `directory`, made 0700 where missing. A torn tail is moved away and recorded.

        Raises LedgerError: another writer, a damaged last line, disk full; PlaceError: owner or mode.
        """
        now = host_clock() if clock is None else clock
        opened = open_tail(directory)
        ledger = cls(opened, now, calls)
        try:
            ledger._record_recovery(opened)
        except BaseException:
            ledger._release()
            raise
        return ledger

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
        return self._head.seq

    @property
    def broken(self) -> LedgerError | None:
        """The error that closed the ledger for good, if there was one."""
        return self._error

    def append(self, ev: str, **fields: object) -> int:
        """Write one line and return its sequence number once write(2) has taken it whole.

        Raises LedgerError when it can't be written (then and for ever after), TypeError for a field that
        record.FIELDS doesn't know or of a wrong type (nothing is written, the ledger stays open).
        """
        cleaned = clean_fields(ev, fields)
        with self._write_lock:
            self._check()
            line, head = link(self._head, ev, cleaned, self._clock())
            self._write(line)
            self._head = head
            return head.seq

    def _write(self, line: bytes) -> None:
        try:
            written = self._calls.write(self._fd, line)
            if written != len(line):  # the disk filled up on the way: the rest would be a torn line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._cut_back()
            raise self._break("write", error) from error
        self._good += len(line)

    def _cut_back(self) -> None:
        try:
            self._calls.ftruncate(self._fd, self._good)
        except OSError as error:
            raise self._break("truncate", error) from error

    def _break(self, verb: str, error: OSError) -> LedgerError:
        """Close the ledger for good and return the error that says so."""
        if self._error is None:
            why = (error.strerror or str(error)).lower()
            self._error = LedgerError("ledger_unavailable", f"can't {verb} ledger {self._directory}: {why}", _HINT)
            if verb == "write" and error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._last_words(why)
        return self._error

    def _last_words(self, why: str) -> None:
        """Give up the reserve for one line that says why the ledger ends here."""
        fields = clean_fields("alarm", {"reason": "ledger_unavailable", "detail": f"can't write ledger: {why}"})
        line, head = link(self._head, "alarm", fields, self._clock())
        try:
            (self._directory / RESERVE).unlink()
            if self._calls.write(self._fd, line) != len(line):
                self._calls.ftruncate(self._fd, self._good)
                return
            self._calls.fdatasync(self._fd)
        except OSError:
            return  # it is closed already, and the error that closed it is the one to tell
        self._good += len(line)
        self._head = head

    def sync(self) -> None:
        """Put all lines so far on the disk; blocks. Raises LedgerError."""
        with self._sync_lock:
            with self._write_lock:
                self._check()
                target = self._head.seq
            if target <= self._synced:
                return
            try:
                self._calls.fdatasync(self._fd)
            except OSError as error:
                with self._write_lock:
                    raise self._break("sync", error) from error
            self._synced = target

    async def durable(self, seq: int) -> None:
        """Return once line `seq` is on the disk; callers at the same time share one fdatasync. Raises LedgerError."""
        while self._synced < seq:
            self._check()
            if seq > self._head.seq:
                raise ValueError(f"ledger: line {seq} was never written, the last one is {self._head.seq}")
            if self._flight is None or self._flight.done():
                self._flight = asyncio.get_running_loop().run_in_executor(self._thread, self.sync)
            # shielded: a caller that is cancelled mustn't take the sync away from the others
            await asyncio.shield(self._flight)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise LedgerError("ledger_closed", f"ledger {self._directory} is closed", "start the gateway again")

    def close(self) -> None:
        """Write `final`, sync and let go. Raises LedgerError when that fails; a broken ledger is just let go."""
        with self._write_lock:
            if self._closed:
                return
        try:
            if self._error is None:
                self.append("final")
                self.sync()
        finally:
            self._release()

    def _release(self) -> None:
        self._thread.shutdown(wait=True)
        with self._write_lock:
            self._closed = True
            os.close(self._fd)
            os.close(self._lock_fd)  # lets the lock go

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
