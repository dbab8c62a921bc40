"""Which program a run started, for the ledger."""

import hashlib
import os
import stat

from credgate.prepare import PrepareError

MAX_PROGRAM = 2 << 30  # bytes; the largest agent CLI known here has 250 MB


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
        return hashlib.file_digest(file, "sha256").hexdigest()
