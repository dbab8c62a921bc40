"""Which program a run started, for the ledger."""

import hashlib
import os
import stat
import time

from credgate.prepare import PrepareError

MAX_PROGRAM = 2 << 30  # bytes; the largest agent CLI known here has 250 MB
_SETTLED = 2 * 10**9  # nanoseconds; change times are those of a tick, and a file system may keep whole seconds
_MAX_KEPT = 64

type _Facts = tuple[int, ...]
_kept: dict[_Facts, str] = {}  # 80 ms of CPU for 100 MB, which each launch of an agent would wait for


def _facts(facts: os.stat_result) -> _Facts:
    """What differs once a file was written: no call sets a change time to anything but the present."""
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def program_digest(exe: str) -> str:
    """sha256, hex, of the file that will be exec'd; "" where the user may execute but not read it.

    Raises PrepareError for one that is no regular file, or over MAX_PROGRAM: it is read here, on the host.
    """
    try:
        descriptor = os.open(exe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except PermissionError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_PROGRAM:
            raise PrepareError("program_refused", f"{exe}: no regular file of at most {MAX_PROGRAM} bytes")
        key, began = _facts(facts), time.time_ns()
        if key in _kept:
            return _kept[key]
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if key == _facts(os.fstat(descriptor)) and facts.st_ctime_ns < began - _SETTLED:
            if len(_kept) >= _MAX_KEPT:
                _kept.clear()
            _kept[key] = digest
        return digest
