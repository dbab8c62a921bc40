"""What a ledger takes from its host: clocks, and the system calls that can fail on a disk."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from credgate.ledger.flushing import KernelSyncs
from credgate.ledger.record import LedgerError, Stamp

type Clock = Callable[[], Stamp]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemCalls:
    """The system calls that can fail on a disk: the seam through which tests make them fail."""

    write = staticmethod(os.write)
    fdatasync = staticmethod(os.fdatasync)
    ftruncate = staticmethod(os.ftruncate)
    later = staticmethod(KernelSyncs.open)  # syncs that no thread waits for; None: by fdatasync alone


class HostClock:
    """The host's clocks. Raises LedgerError when the boot id can't be read."""

    def __init__(self) -> None:
        try:
            self.boot = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError as error:
            raise LedgerError("no_boot_id", f"can't read {_BOOT_ID}: {error.strerror}", "mount /proc") from error

    def __call__(self) -> Stamp:
        """This moment."""
        ts, mono_ns = moment()
        return Stamp(ts=ts, boot=self.boot, mono_ns=mono_ns)


def host_clock() -> Clock:
    """The host's clocks. Raises LedgerError when the boot id can't be read."""
    return HostClock()


_second = (0, "")  # the text of a second, which many lines share


def moment() -> tuple[str, int]:
    """As Stamp's `ts` and `mono_ns`."""
    global _second  # noqa: PLW0603 - a value that each thread may replace by one that is as good
    seconds, nanos = divmod(time.time_ns(), 10**9)
    known, text = _second
    if known != seconds:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _second = (seconds, text)
    return f"{text}.{nanos // 1000:06d}Z", time.clock_gettime_ns(time.CLOCK_BOOTTIME)
