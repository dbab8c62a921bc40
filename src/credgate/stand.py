"""The daemon's side of a stand (`jail.probes.stand`): stand-ins for attempts, and the controls of the guards.

Blocking calls, meant for `asyncio.to_thread`. A control says something about this host, not about a jail: the words of
the cheap ones are kept for the daemon's lifetime. `credgate prove` starts a stand of its own and runs them anew.
"""

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from credgate.errors import CredgateError
from credgate.paths import Places, private_dir
from jail import fdpass
from jail.errors import JailError
from jail.guards import Guard, Where
from jail.plan import CANARY_AT, MIB, JailSpec, rlimit_data
from jail.probes import Context
from jail.probes import stand as script
from rules.policy import Limits

TIMEOUT = 60.0  # seconds for an answer; all controls together take about four
SMALL = "/run"  # the smallest tmpfs of a jail, and its size
SMALL_SIZE = 64 * MIB
BURST = 192 * MIB  # of memory that `credgate prove` really uses, in a jail that may have half of it
TRIED = 64  # islands, pins and hidden files that attempts are made at, of each
PREFIX = "s"  # of the stand's directory: as short as "control", whose path a unix socket can take


class StandProcess:
    """A running stand. `context` is what its stand-ins are reached by, as an ordinary process sees them."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, context: Context) -> None:
        self._process, self._sock = process, sock
        self._lock = threading.Lock()
        self._words: dict[str, str] = {}
        self.context = context

    @classmethod
    def start(cls, places: Places, *, canary: str = "", full: bool = False, policy: Path | None = None) -> Self:
        """Start one with its stand-ins below the daemon's own directory. Raises CredgateError."""
        canary = canary or secrets.token_hex(16)
        directory = private_dir(places.run) / f"{PREFIX}{secrets.token_hex(2)}"
        ours, theirs = fdpass.pair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", script.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"LC_ALL": "C.UTF-8", "CREDGATE_CANARY": canary},
                cwd="/",
                start_new_session=True,
            )
        ours.settimeout(TIMEOUT)
        own = {
            "policy": str(policy or directory / "host/secret"),
            "ledger": str(places.ledger),
            "ca": str(places.ca),
            "socket": str(places.control),
        }
        request: fdpass.Json = {
            "op": "open",
            "dir": str(directory),
            "canary": canary,
            "full": full,
            "own": own,
            "small_size": SMALL_SIZE,
            "burst": BURST,
            "limits": {},
        }
        context = _ask(ours, request)["context"]
        return cls(process, ours, context)

    def controls(self, guards: Sequence[Guard], limits: Mapping[str, int]) -> Mapping[str, str]:
        """The word of each guard's control; one that was run before is not run again. Raises CredgateError."""
        with self._lock:
            self._check_alive()
            new = [guard for guard in guards if guard.id not in self._words]
            if new:
                host, lab = ([g.id for g in new if g.where is where] for where in (Where.HOST, Where.LAB))
                request: fdpass.Json = {"op": "control", "host": host, "lab": lab, "limits": dict(limits)}
                self._words |= _ask(self._sock, request)["words"]
            return dict(self._words)

    def known(self, guards: Sequence[Guard]) -> Mapping[str, str]:
        """The same without waiting; empty where one was not run yet. Raises CredgateError."""
        if not self._lock.acquire(blocking=False):
            return {}
        try:
            self._check_alive()
            return dict(self._words) if all(guard.id in self._words for guard in guards) else {}
        finally:
            self._lock.release()

    def _check_alive(self) -> None:
        if self._process.poll() is not None:  # what the attempts were aimed at went with it
            raise _failed("it has died")

    def stop(self) -> None:
        """End it; its stand-ins are cleared away."""
        with contextlib.suppress(OSError):  # closed after a failure
            self._sock.shutdown(socket.SHUT_RDWR)  # a thread may be waiting for an answer
        self._sock.close()
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _ask(sock: socket.socket, request: fdpass.Json) -> dict[str, Any]:
    try:
        fdpass.send(sock, request)
        got = fdpass.recv(sock)
    except (OSError, JailError) as error:
        sock.close()  # its next answer would be this request's
        raise _failed(str(error)) from error
    if got is None:
        raise _failed("it has died")
    got.close()
    if got.body.get("ok") is not True:
        raise _failed(str(got.body.get("detail")))
    return got.body


def _failed(detail: str) -> CredgateError:
    hint = "no control, no proof: see the daemon's log, then credgate gateway stop"
    return CredgateError("stand_failed", f"the process that controls run in: {detail}", hint, 125)


def clear_left(places: Places) -> None:
    """Remove directories of stands that were killed; the caller is the only daemon."""
    if places.run.is_dir():
        for path in places.run.glob(f"{PREFIX}????"):
            shutil.rmtree(path)


def limits_of(limits: Limits) -> dict[str, int]:
    """The limits as attempts need them."""
    return {
        "data": rlimit_data(limits.memory),
        "processes": limits.processes,
        "open_files": limits.open_files,
        "file_size": limits.file_size,
    }


def inside(context: Context, spec: JailSpec, limits: Limits, writable: frozenset[str]) -> Context:
    """The same stand-ins as the jail has to look for them: by their names on the host, from its own places."""
    kept = spec.protected
    return context | {
        "init": 1,
        "tree": spec.workdir,
        "islands": list(kept.islands)[:TRIED] or [spec.workdir],
        "pins": [*kept.pins, *kept.islands][:TRIED] or [spec.workdir],
        "hidden": [CANARY_AT, *(h.path for h in kept.hidden)][:TRIED],
        "scratch": "/tmp",  # noqa: S108 - inside the jail
        "small": SMALL,
        "writable": sorted(writable),
        "limits": limits_of(limits),
    }


def words(told: object) -> dict[str, str]:
    """What a jail said of its attempts: only text by text counts, anything else is as good as not tried."""
    if not isinstance(told, dict):
        return {}
    return {str(key): value for key, value in told.items() if isinstance(value, str)}


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(b")")[2].split()[0] != b"Z"


def survivors(namespace: int) -> list[int]:
    """Pids of live processes in the pid namespace with this inode: after a jail's end there must be none."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if _in(pid, namespace) and alive(pid)]


def _in(pid: int, namespace: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino == namespace
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or another user's
        return False
