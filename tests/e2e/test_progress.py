"""A start that lasts says what it waits for, at a terminal alone, and leaves nothing of that behind."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.place import module_site
from tests.e2e.site import BIN, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

SLOW = 1.3  # seconds that a start is held up
PATIENCE = 90.0
ERASED = re.compile(r"\r +\r")


@dataclass(slots=True)
class Started:
    """`credgate run` on a terminal; `seen` is what it wrote there."""

    pid: int
    fd: int
    seen: str = ""
    status: int = -1

    def read(self, until: float) -> bool:
        """One piece; False at the end of the terminal, or of the time."""
        if not select.select([self.fd], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        try:
            piece = os.read(self.fd, 4096)
        except OSError:
            return False
        self.seen += piece.decode()
        return bool(piece)

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while self.read(until):
            pass
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)


@contextmanager
def held(site: Site) -> Iterator[None]:
    """Have no daemon, and hold the lock under which one is started, as another first run would."""
    assert site.run("true").returncode == 0
    assert site.credgate("gateway", "stop").returncode == 0
    with (site.state / "run/start.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(site: Site, *flags: str, columns: int = 80, stderr: Path | None = None, command: str = "true") -> Started:
    policy = site.home / "policy/policy.toml"
    argv = site.as_user([BIN / "credgate", "run", *flags, "--policy", policy, "--", "sh", "-c", command])
    pid, fd = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.chown(os.ttyname(0), site.uid, -1)
            if stderr is not None:
                os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
            os.chdir(site.work)
            os.execvpe(argv[0], argv, site.environment({"TERM": "dumb"}))
        finally:
            os._exit(99)
    return Started(pid, fd)


def slow(site: Site, *flags: str, columns: int = 80, stderr: Path | None = None, said: str = "") -> Started:
    """A start that is held up until it has said that; for a while, where it is to say nothing."""
    with held(site):
        run = start(site, *flags, columns=columns, stderr=stderr)
        until = time.monotonic() + (PATIENCE if said else SLOW)
        while time.monotonic() < until and not (said and said in run.seen):
            run.read(until)
    run.wait()
    return run


def lines_shown(seen: str) -> list[str]:
    """What stands on the screen in the end: each line as its last writing over left it."""
    shown = []
    for line in seen.split("\n"):
        cells: list[str] = []
        for piece in line.split("\r"):
            cells[: len(piece)] = piece
        shown.append("".join(cells).rstrip())
    return [line for line in shown if line]


def test_a_slow_start_says_what_it_waits_for_and_takes_it_away(place: Site) -> None:
    run = slow(place, said="waiting for the gateway daemon, 1 s")
    assert run.status == 0
    assert "waiting for the gateway daemon, 1 s" in run.seen
    assert ERASED.search(run.seen)
    assert all("waiting" not in line for line in lines_shown(run.seen))
    assert "\x1b" not in run.seen  # a terminal without escapes shows it as well


def test_a_start_that_is_quick_says_nothing(place: Site) -> None:
    assert place.run("true").returncode == 0
    for _ in range(3):  # on a busy machine a start may last
        began = time.monotonic()
        run = start(place)
        run.wait()
        if time.monotonic() - began < 0.5:
            break
    else:
        assert "waiting for the gateway daemon" not in run.seen  # the lock is free: that part is quick
        return
    assert "\r " not in run.seen
    assert all(re.match("credgate: (role|run) ", line) for line in lines_shown(run.seen))


def test_nothing_where_nobody_looks(place: Site) -> None:
    assert "waiting" not in slow(place, "-q").seen
    elsewhere = place.write("err", "")
    run = slow(place, stderr=elsewhere)
    assert "waiting" not in run.seen + elsewhere.read_text()
    assert "guards shown" in elsewhere.read_text()  # the control: this is where it would be


def test_a_narrow_terminal_keeps_it_on_one_line(place: Site) -> None:
    run = slow(place, columns=20, said="waiti")
    said = [piece for piece in re.split(r"[\r\n]", run.seen) if "waiting" in piece or "waitin" in piece]
    assert said
    assert all(len(piece) <= 19 for piece in said)


def test_control_c_ends_a_start_that_lasts(place: Site) -> None:
    with held(place):
        run = start(place)
        until = time.monotonic() + PATIENCE
        while "waiting" not in run.seen and run.read(until):
            pass
        os.write(run.fd, b"\x03")
        run.wait()
    assert run.status == 128 + signal.SIGINT
    assert "Traceback" not in run.seen
