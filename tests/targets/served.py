"""Servers of the tests: processes on loopback ports chosen free, stopped by pid, and what they saw."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_TIMEOUT = 90.0


def free_port() -> int:
    """A loopback port that nobody listens on now; whoever binds it next may still be another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def running(
    argv: Sequence[str], *, ready: Callable[[], bool], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts `argv`, waits until it is `ready`, and ends it by pid.

    Raises AssertionError with the end of its log when it does not come up.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd="/", start_new_session=True
        )
    try:
        _await(process, ready, log)
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # Its session is its own, so the group is what it forked: fcgiwrap leaves its children behind.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{process.args!r} did not come up:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def accepts(port: int) -> bool:
    """Whether something listens on the loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as the target recorded it. `authorization` is the header's value, "" where there was none."""

    method: str
    path: str
    host: str
    protocol: str
    authorization: str
    user_agent: str
    status: int


@dataclass(slots=True, kw_only=True)
class Target:
    """A server that tests reach by `host`, through whatever dials 127.0.0.1 at `port`."""

    host: str
    port: int
    ca: Path
    user: str = ""  # of Basic authentication; "" where the credential is a bearer token
    token: str
    witness: Path  # JSON lines, one a request, written by the target
    access_log: Path  # the same in the combined format
    tls: bool = True
    _offset: int = field(default=0)

    def url(self, path: str = "/") -> str:
        """For a client without a jail, which needs no resolver: the certificate holds `localhost` too."""
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}{path}"

    def endpoint(self, name: str, *extra: str) -> str:
        """The `[endpoint.NAME]` table that reaches this target by its name, on the port its clients would use."""
        lines = [
            f"[endpoint.{name}]",
            f'host = "{self.host}"',
            'address = ["127.0.0.1"]',
            f"dial_port = {self.port}",
            f'ca = "{self.ca}"' if self.tls else "port = 80\ntls = false",
        ]
        return "\n".join([*lines, *extra, ""])

    def forget(self) -> None:
        """Leaves what was seen so far out of `seen`."""
        self._offset = self.witness.stat().st_size

    def lines(self) -> list[dict[str, Any]]:
        """What was recorded since `forget`, whole lines only."""
        text = self.witness.read_bytes()[self._offset :]
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def seen(self, *, count: int = 0, timeout: float = 60.0) -> list[Seen]:
        """Requests since `forget`; waits for `count` of them, as a server logs after it has answered."""
        deadline = time.monotonic() + timeout
        while True:
            found = [_seen(line) for line in self.lines() if line["event"] == "request"]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def connections(self) -> int:
        """Connections accepted since `forget`; only the Python target records them."""
        return sum(line["event"] == "connection" for line in self.lines())


def _seen(line: Mapping[str, object]) -> Seen:
    names = ("method", "path", "host", "protocol", "authorization", "user_agent")
    return Seen(status=int(str(line["status"])), **{name: str(line[name]) for name in names})


def clean_env(home: Path, **more: str) -> dict[str, str]:
    """Nothing of the caller's: no proxy, no credential, no configuration file."""
    return {
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        **more,
    }
