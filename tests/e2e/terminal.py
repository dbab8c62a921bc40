"""A user at a terminal: a command with a controlling terminal of its own, typed at and read from."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.site import BIN, Site

SECONDS = 90.0  # for whatever is waited for


class Terminal:
    """`credgate run -q -- COMMAND` with the site's policy, on an 80 by 24 terminal. Use it in a `with`."""

    def __init__(self, site: Site, *command: str | Path, term: str = "xterm", flags: Sequence[str | Path] = ()) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        policy = site.home / "policy/policy.toml"
        run = [BIN / "credgate", "run", "-q", "--policy", policy, *flags, "--", *command]
        self.process = subprocess.Popen(
            site.as_user(["setsid", "--ctty", "--wait", *run]),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=site.environment({"TERM": term}),
            cwd=site.work,
        )
        os.close(slave)
        self.seen, self._scan = b"", site.scan

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, pattern: str) -> re.Match[bytes]:
        """Read until the pattern is there; what was read up to its end is used up."""
        deadline = time.monotonic() + SECONDS
        while (found := re.search(pattern.encode(), self.seen)) is None:
            assert self._read(deadline), f"no {pattern!r} in {self.seen!r}"
        self.seen = self.seen[found.end() :]
        return found

    def type_until(self, text: str, pattern: str) -> None:
        """Type it each second until the pattern is there: a shell takes what comes before its job has the terminal."""
        for _ in range(int(SECONDS)):
            self.type(text)
            deadline = time.monotonic() + 1.0
            while self._read(deadline):
                if found := re.search(pattern.encode(), self.seen):
                    self.seen = self.seen[found.end() :]
                    return
        raise AssertionError(f"no {pattern!r} in {self.seen!r}")

    def _read(self, deadline: float) -> bool:
        if not select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            chunk = os.read(self.master, 65536)
        except OSError:  # EIO: nobody has the other side open any more
            return False
        self.seen += chunk
        self._scan.printed(chunk)
        return bool(chunk)

    def end(self) -> int:
        """Wait for the launcher's end, reading on so that nothing blocks; its exit status."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(timeout=max(0.1, deadline - time.monotonic()))

    def end_by(self, text: str) -> int:
        """Type it each second until the launcher ends; its exit status. A program may throw away what came before it
        was ready for it (tcflush(3)).
        """
        for _ in range(int(SECONDS)):
            self.type(text)
            deadline = time.monotonic() + 1.0
            while self._read(deadline):
                pass
            if time.monotonic() < deadline:
                break  # nobody has the other side open any more
        return self.process.wait(timeout=SECONDS)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)
