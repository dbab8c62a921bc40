"""Room on the file system that copies lie on: what a run writes into its copies lands in our state directory.

No quota is open to an ordinary user, and a sum over a layer is blind to files without a name (decision 0041). Free room
is seen by statvfs(3) whatever takes it, so there is a floor: below it no copy is begun, and a run with one is ended.
"""

import asyncio
import logging
import os
from pathlib import Path

from credgate.errors import CredgateError
from credgate.ticks import tick

log = logging.getLogger(__name__)

FLOOR = 512 << 20  # bytes that stay free for everything else of this user's, our ledger among it
SAMPLE = 0.25  # seconds between two looks, as of a run's counters
MIB = 1 << 20


def free(folder: Path) -> int:
    """Bytes that this user may still take there. Raises OSError."""
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def check(folder: Path) -> None:
    """Raises CredgateError, a refusal before the start, where there is less than the floor; OSError."""
    left = free(folder)
    if left < FLOOR:
        raise CredgateError(
            "no_room",
            f"room for a copy at {folder}: got {left // MIB} MiB free, expected {FLOOR // MIB} MiB",
            "make room there; `credgate ps` names copies that are kept, `credgate discard RUN` throws one away",
            125,
        )


async def runs_out(folder: Path) -> None:
    """Return once there is less than the floor, or where that can't be read any more."""
    while True:
        await tick(SAMPLE)
        try:
            left = await asyncio.to_thread(free, folder)  # a file server may be slow
        except OSError as error:
            log.error("%s: the room there can't be read any more: %s", folder, error)
            return
        if left < FLOOR:
            log.warning("%s: %d MiB are free", folder, left // MIB)
            return
