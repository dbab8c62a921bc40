"""A session keyring of the jail's own. Standard library only: runs in pid 1 and the workload.

Keyrings are inherited over fork, exec and every namespace but the user keyrings': a key in the session keyring that
the user's login made is otherwise readable inside (bubblewrap, nsjail and others leak it).
"""

from jail.errors import JailError
from jail.syscalls import syscall

_KEYCTL_GET_KEYRING_ID, _KEYCTL_JOIN_SESSION_KEYRING = 0, 1
_SESSION = -3


def join_anonymous_session() -> int:
    """Leave the inherited session keyring for a new, empty one; returns its serial. Raises JailError."""
    try:
        return syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        raise JailError(
            "keyring_join",
            f"could not get a session keyring of the jail's own: {error.strerror}",
            "see kernel.keys.maxkeys; a kernel without CONFIG_KEYS is not supported",
            error.errno or 0,
        ) from error


def session() -> int:
    """Serial of this process's session keyring (without one: the user session keyring's, which stands in), else 0."""
    try:
        return syscall("keyctl", _KEYCTL_GET_KEYRING_ID, _SESSION, 0)
    except OSError:
        return 0  # the daemon takes it for not shown
