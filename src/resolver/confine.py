"""What the resolver process gives up before it reads a byte: its network, core dumps, being looked into."""

import ctypes
import os
import resource

from resolver.errors import ResolverError

_MEMORY = 1 << 30  # bytes of address space; a resolver with many runs maps about a quarter of it
_OPEN_FILES = 4096  # two a run, up to four connections each
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9


def confine() -> None:
    """Confine this process, which must have one thread. Raises ResolverError; then it must not serve.

    The fresh network namespace has no interface up and no route: the sockets that are passed in keep working, since a
    socket stays in the namespace where it was made, but whatever this process opened itself could reach nothing.
    """
    try:
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
    except OSError as error:
        raise ResolverError(
            "no_namespace",
            f"can't unshare user and network namespaces: {error.strerror}",
            "allow unprivileged user namespaces; credgate doctor says how",
        ) from error
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_AS, _MEMORY)
    _lower(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    # After the change of credentials, which would clear it. The control socket's EOF covers a parent already dead.
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def _lower(which: int, limit: int) -> None:
    _, hard = resource.getrlimit(which)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise ResolverError("prctl", f"prctl({option}) failed: {os.strerror(number)}")
