"""Limits that the kernel keeps per user of the host, and that a jail of the same user shares. Standard library only.

Descriptors in flight (unix(7): a sender is refused once its user has more than the sender's own RLIMIT_NOFILE), epoll
watches and open files can be used up by anybody of this user. What runs out of them fails alone, and says so.
"""

import errno
import os
import resource

from credgate.errors import CredgateError

EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS, errno.EAGAIN}
)
CANNOT = 125


def raise_open_files() -> int:
    """The soft limit of open files up to the hard one; returns it. A jail has its own, lower one: see jail.pid1."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def shown(error: OSError, doing: str) -> CredgateError:
    """An OSError as what the user reads; exit_status 125."""
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
    detail = f"{doing}: {error.strerror or error}{where}"
    if error.errno not in EXHAUSTED:
        return CredgateError("system_error", detail, "`credgate doctor` says what this host can do", CANNOT)
    hint = (
        "a limit of your user on this host is used up (open files, descriptors in flight, watches): end what holds them"
    )
    return CredgateError("host_exhausted", detail, hint, CANNOT)
