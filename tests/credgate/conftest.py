"""Where the gateway under test writes: into memory, where that is no part of the subject.

Each of its records waits for a disk (a tenth of such a test's time, a sixth of its CPU, measured), and what a record is
there for stands in other modules: those of the ledger, and those that kill.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.credgate import gateway_rig

MEMORY = Path("/dev/shm")
ROOM = 1 << 30  # bytes: in a container it may have 64 MiB for all workers, and be one of which nothing is executed
ON_DISK = ("test_gateway_kills", "test_workers", "test_workers_track")


@cache
def _usable() -> bool:
    if not MEMORY.is_dir():
        return False
    facts = os.statvfs(MEMORY)
    return facts.f_bavail * facts.f_frsize >= ROOM and not facts.f_flag & os.ST_NOEXEC


def _in_memory(module: object) -> bool:
    """Whether the module takes something of the gateway's rig, and is none that ends a gateway in its middle."""
    name = str(module.__name__).rpartition(".")[2]
    return name not in ON_DISK and any(
        getattr(value, "__module__", "") == gateway_rig.__name__ for value in vars(module).values()
    )


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory of the test's own."""
    if not (_in_memory(request.module) and _usable()):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="credgate-test-", dir=MEMORY))
    yield made
    shutil.rmtree(made)
