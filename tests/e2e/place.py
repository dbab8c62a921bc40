"""One site for a whole module, where its tests need no daemon of their own, and what several modules look at."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import OrdinaryUser
from tests.e2e.site import BIN, TIMEOUT, Site, make_site

PATIENCE = 100.0  # seconds for whatever is waited for: only a test that fails uses them up
CLOSING = 1.0  # seconds for a daemon to close what belonged to a run whose launcher was killed


def module_site(ordinary_user: OrdinaryUser) -> Iterator[Site]:
    """For `pytest.fixture(scope="module")`: a daemon start costs more than all that most tests do with it."""
    made = make_site(ordinary_user.uid, ordinary_user.gid)
    yield made
    made.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A finished command, its output as bytes."""

    status: int
    out: bytes
    err: bytes


def raw_run(
    site: Site,
    *command: str | bytes | Path,
    flags: Sequence[str | bytes | Path] = (),
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | bytes | Path | None = None,
    before: Sequence[str] = (),
) -> Ended:
    """`credgate run -q` with the site's policy; nothing is decoded. `before`: a program that starts it, with words."""
    policy = site.home / "policy/policy.toml"
    argv = [*site.as_user([]), *before, BIN / "credgate", "run", "-q", "--policy", policy, *flags, "--", *command]
    words = [os.fsencode(word) for word in argv]
    place = {"env": site.environment(env), "cwd": cwd or site.work}
    done = subprocess.run(words, input=stdin, capture_output=True, timeout=TIMEOUT, check=False, **place)
    site.scan.printed(done.stdout, done.stderr)
    return Ended(status=done.returncode, out=done.stdout, err=done.stderr)


def one_error(stderr: str) -> tuple[str, str]:
    """The error and the hint: exactly one line each, neither empty, and no traceback beside them."""
    lines = stderr.splitlines()
    assert len(lines) == 2, stderr
    assert lines[0].startswith("error: ") and lines[1].startswith("hint: "), stderr
    error, hint = lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")
    assert error and hint, stderr
    return error, hint


def running(word: str) -> list[int]:
    """Pids, on the host, of processes called so by their argv[0] that are not zombies."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has(pid, os.fsencode(word))]


def _has(pid: int, word: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return word == words[0] and state != b"Z"


def wait_for(true: Callable[[], object], what: str | Callable[[], str], seconds: float = PATIENCE) -> None:
    """Fail unless it becomes true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.02)


class Live:
    """A run that was started and has said ready; killed when its block ends, if it has not ended by then."""

    def __init__(self, site: Site, *command: str, **kw: Any) -> None:
        self._site = site
        reader, writer = os.pipe()
        self.process = site.start(*command, flags=["--status-fd", str(writer)], pass_fds=[writer], **kw)
        os.close(writer)
        self._lines = os.fdopen(reader)
        line = self._lines.readline()
        assert line, self.process.communicate(timeout=90)[1]
        self.ready = json.loads(line)
        self.run = self.ready["run"]

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        killed = self.process.poll() is None
        if killed:
            self.process.kill()
        self.process.communicate(timeout=90)
        self._lines.close()
        # Its daemon is told by the kernel while we are here already; where that one is gone too, nobody ends the run.
        deadline = time.monotonic() + CLOSING
        while killed and time.monotonic() < deadline and not self._site.ledger(ev="run.end", run=self.run):
            time.sleep(0.02)

    @property
    def launcher(self) -> int:
        """Its pid: every program before it execs the next one."""
        return self.process.pid

    def line(self) -> str:
        """The next line that the command writes."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> dict[str, object]:
        """Wait for the launcher's end; its exit line, {} where it could not write one."""
        self.out, self.err = self.process.communicate(timeout=90)
        line = self._lines.readline()
        return json.loads(line) if line else {}


def children(pid: int, *words: str) -> list[int]:
    """Pids of the children, of any of its threads, whose command line holds all the words."""
    found = []
    for each in " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split():
        line = Path(f"/proc/{each}/cmdline").read_bytes().decode()
        if all(word in line for word in words):
            found.append(int(each))
    return found


def daemon_pid(site: Site) -> int:
    done = site.credgate("gateway", "start", "--json")
    return int(json.loads(done.stdout)["pid"])
