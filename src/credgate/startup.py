"""What the daemon does before it serves: hardening, its lock, its socket, and saying what came of it."""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
import time
from typing import Any

from credgate import hostlimits
from credgate.errors import CredgateError
from credgate.paths import Places, check_private_dir, open_private, private_dir
from resolver.client import ResolverProcess
from resolver.errors import ResolverError

PR_SET_DUMPABLE = 4
EXIT_CANNOT = 3
LOCK_TRIES, LOCK_PAUSE = 5, 0.02
PROBE = 20.0  # seconds for one look at what the host allows


def harden() -> None:
    """No core, not dumpable: another process of this user must not read the vault from our memory."""
    os.umask(0o077)
    os.chdir("/")
    # The soft limit alone: a control of the guard against core dumps has to be able to raise it again.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    hostlimits.raise_open_files()  # keeper and resolver inherit it
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise CredgateError("not_hardened", "PR_SET_DUMPABLE was refused", exit_status=EXIT_CANNOT)


def lock(places: Places) -> int:
    """The one daemon of this user; raises CredgateError where another one lives."""
    descriptor = open_private(private_dir(places.run) / "daemon.lock", os.O_RDWR | os.O_CREAT)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)  # `gateway stop` tries it for a moment, to see that a daemon is gone
        else:
            return descriptor
    os.close(descriptor)
    raise CredgateError("already_running", "a daemon of this user is running", "see `credgate gateway status`")


def listen(places: Places) -> socket.socket:
    """The control socket, in place of one that a dead daemon left."""
    path = places.control
    path.unlink(missing_ok=True)  # ours by the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    listener.setblocking(False)
    return listener


def check_sealed(places: Places) -> None:
    """Raises CredgateError where others could look into the sealed secrets."""
    if os.path.lexists(places.sealed):  # made by the first secret that lies there
        check_private_dir(places.sealed)


async def start_resolver(resolver: ResolverProcess, tasks: asyncio.TaskGroup) -> None:
    """Start the resolver's process. Raises CredgateError, which says what of the host is in the way."""
    try:
        await resolver.start(tasks)
    except ResolverError as error:
        raise await asyncio.to_thread(_host_says, error) from error


def _host_says(error: ResolverError) -> CredgateError:
    """What this host refuses, found out by trying; the resolver's own last words are in the log."""
    for name in ("userns", "netns"):
        argv = [sys.executable, "-I", "-m", "credgate.hostprobes", name]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE, check=False)
        said: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"ok": True}
        if not said["ok"]:
            return CredgateError("namespaces_refused", f"{name}: {said['detail']}", said["mend"], EXIT_CANNOT)
    return CredgateError(error.code, f"the resolver: {error.detail}", "the daemon's log says more", EXIT_CANNOT)


def say(ready: int, body: dict[str, object]) -> None:
    """Tell the one who started us how the start went: a JSON line, and the end of the pipe."""
    with contextlib.suppress(BrokenPipeError):  # whoever started us did not wait
        os.write(ready, json.dumps(body).encode() + b"\n")
    os.close(ready)
