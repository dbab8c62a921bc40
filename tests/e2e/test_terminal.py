"""A terminal outside, driven by the test, with a real job-control shell in it, from which runs are started."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import termios
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.place import daemon_pid, module_site, running, wait_for
from tests.e2e.site import BIN, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

PROMPT = "outside> "
PATIENCE = 90.0


class Terminal:
    """A pty with `bash -i` of the site's user on it."""

    def __init__(self, site: Site) -> None:
        self.seen = ""
        self._at = 0
        home = site.environment(
            {"PS1": PROMPT, "TERM": "xterm", "HISTFILE": "", "BASH_SILENCE_DEPRECATION_WARNING": "1"}
        )
        argv = site.as_user(["bash", "--norc", "--noprofile", "-i"])
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chown(os.ttyname(0), site.uid, -1)
                os.chdir(site.work)
                os.execvpe(argv[0], argv, home)
            finally:
                os._exit(99)
        self.size(24, 80)
        policy = site.home / "policy/policy.toml"
        self.run_word = f"{BIN / 'credgate'} run -q --policy {policy} --"
        self.expect(PROMPT)

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def line(self, text: str) -> None:
        """Type a line at the shell, and swallow its echo."""
        self.type(text + "\n")
        self.expect("\n")

    def run(self, command: str) -> None:
        """Type a run at the shell."""
        self.line(f"{self.run_word} {command}")

    def expect(self, pattern: str, *, patience: float = PATIENCE) -> "re.Match[str]":
        """Read until it appears after what was expected last."""
        deadline = time.monotonic() + patience
        while True:
            found = re.compile(pattern).search(self.seen, self._at)
            if found:
                self._at = found.end()
                return found
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.seen[self._at :]!r}"
            self.read(left)

    def read(self, patience: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], patience)
        if ready:
            with contextlib.suppress(OSError):
                self.seen += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")
        return bool(ready)

    def insist(self, text: str, pattern: str) -> None:
        """Type it each second until the pattern appears: what has the terminal by then is not seen from here."""
        for _ in range(int(PATIENCE)):
            self.type(text)
            deadline = time.monotonic() + 1.0
            while (left := deadline - time.monotonic()) > 0:
                self.read(left)
                if found := re.compile(pattern).search(self.seen, self._at):
                    self._at = found.end()
                    return
        raise AssertionError(f"no {pattern!r} in {self.seen[self._at :]!r}")

    def quiet(self, seconds: float) -> str:
        """All that comes in that time."""
        before = len(self.seen)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.read(left)
        return self.seen[before:]

    def modes(self) -> list[object]:
        return termios.tcgetattr(self.fd)[:4]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def wait(true: Callable[[], object]) -> None:
    wait_for(true, "what the test waits for", PATIENCE)


@pytest.fixture
def terminal(place: Site) -> Iterator[Terminal]:
    place.policy("version = 1\n[role.dev]\n")
    wait(lambda: '"run":' not in place.credgate("ps", "--json").stdout)  # another file's run may be ending
    made = Terminal(place)
    yield made
    made.close()


def test_the_jail_has_a_terminal_of_its_own(terminal: Terminal) -> None:
    terminal.line("tty")
    outside = terminal.expect(r"/dev/pts/\d+\n").group()
    terminal.run("sh -c 'test -t 0 && test -t 1 && test -t 2 && echo all; tty; ls /dev/pts; ps -o tty= -p $$'")
    terminal.expect(r"all\n/dev/pts/0\n0\s+ptmx\n")
    terminal.expect("pts/0")
    terminal.expect(PROMPT)
    assert outside.startswith("/dev/pts/")


def test_a_pipe_beside_the_terminal_stays_a_pipe(terminal: Terminal) -> None:
    terminal.run("sh -c 'test -t 1 || echo piped; test -t 2 && echo seen >&2' | tr a-z A-Z")
    terminal.expect("PIPED|seen")
    terminal.expect("PIPED|seen")
    terminal.expect(PROMPT)


def test_resize(terminal: Terminal) -> None:
    terminal.size(31, 97)
    terminal.run("sh -c 'trap \"stty size\" WINCH; stty size; while :; do sleep 0.05; done'")
    terminal.expect(r"31 97\n")
    terminal.size(44, 120)
    terminal.expect(r"44 120\n")
    terminal.type("\x03")
    terminal.expect(PROMPT)


def test_control_c_reaches_the_command_alone(terminal: Terminal) -> None:
    terminal.run("sh -c 'trap \"echo caught; exit 5\" INT; echo up; while :; do sleep 0.05; done'; echo status $?")
    terminal.expect("up\n")
    terminal.type("\x03")
    terminal.expect(r"caught\n(.*\n)*?status 5\n")
    terminal.expect(PROMPT)


def test_control_c_ends_a_command_without_a_handler(terminal: Terminal) -> None:
    terminal.run("sh -c 'echo up; exec sleep 300'; echo status $?")
    terminal.expect("up\n")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    terminal.line("echo after $?")
    terminal.expect(r"after (130|0)\n")


def test_control_backslash(terminal: Terminal) -> None:
    terminal.run("sh -c 'echo up; exec sleep 300'")
    terminal.expect("up\n")
    terminal.type("\x1c")
    terminal.expect(PROMPT)
    terminal.line("echo after $?")
    terminal.expect(r"after 131\n")


def test_control_z_and_fg(terminal: Terminal) -> None:
    before = terminal.modes()
    terminal.run("sh -c 'echo up; read line; echo got $line'")
    terminal.expect("up\n")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.expect(PROMPT)
    assert terminal.modes()[3] == before[3]  # c_lflag
    terminal.line("echo at the shell")
    terminal.expect("at the shell\n")
    terminal.line("fg")
    terminal.expect("credgate run")
    terminal.type("words\n")
    terminal.expect(r"got words\n")
    terminal.expect(PROMPT)


def test_control_z_and_bg(terminal: Terminal, place: Site) -> None:
    place.policy('version = 1\n[role.dev]\nworkdir = "write"\n')
    # No child of its own: a shell that is stopped between vfork and exec of one is not told of as stopped, jail or not.
    pause = "read -t 0.05 -u 9"
    terminal.run(
        f"bash -c 'exec 9<>/dev/ptmx; echo up; for ((i = 0; i < 400; i++)); do echo $i > count; {pause}; done'"
    )
    terminal.expect("up\n")
    count = place.work / "count"
    wait(count.exists)
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.expect(PROMPT)
    time.sleep(0.2)
    stopped = count.read_text()
    time.sleep(0.5)
    assert count.read_text() == stopped
    terminal.line("bg")
    terminal.expect(PROMPT)
    deadline = time.monotonic() + PATIENCE
    while count.read_text() == stopped and time.monotonic() < deadline:
        time.sleep(0.05)
    assert count.read_text() != stopped
    terminal.line("kill %1; wait %1; echo ended $?")
    terminal.expect(r"ended \d+\n")


def test_a_job_control_shell_inside(terminal: Terminal) -> None:
    terminal.run("env PS1='inside> ' bash --norc --noprofile -i")
    terminal.expect("inside> ")
    assert "job control" not in terminal.seen
    terminal.line("sh -c 'echo up; exec sleep 300'")
    terminal.expect("up\n")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.expect("inside> ")
    terminal.line("bg; jobs")
    terminal.expect("Running")
    terminal.line("fg")
    terminal.expect("sleep 300'\n")
    terminal.insist("\x03", "inside> ")
    terminal.type("exit\n")
    terminal.expect(PROMPT)


@pytest.mark.skipif(not shutil.which("less"), reason="no less")
def test_a_pager(terminal: Terminal, place: Site) -> None:
    place.write("work/long", "".join(f"row {number}\n" for number in range(500)))
    before = terminal.modes()
    terminal.run("less long")
    terminal.expect("row 5")
    terminal.type("G")
    terminal.expect("row 499")
    terminal.type("q")
    terminal.expect(PROMPT)
    assert terminal.modes() == before


@pytest.mark.skipif(not shutil.which("vim"), reason="no vim")
def test_an_editor(terminal: Terminal, place: Site) -> None:
    place.policy('version = 1\n[role.dev]\nworkdir = "write"\n')
    terminal.run("vim -u NONE -n written")
    terminal.expect("~")
    terminal.type("iby the editor\x1b:wq\r")
    terminal.expect(PROMPT)
    assert (place.work / "written").read_text() == "by the editor\n"


# Reads the terminal from a session of its own, as an agent's helper might, and keeps what it got.
THIEF = """
import os, signal, sys
signal.alarm(60)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    signal.alarm(60)
    with open('stolen', 'wb', buffering=0) as out:
        out.write(b'[')
        print('up', flush=True)
        while data := os.read(0, 100):
            out.write(data)
    os._exit(0)
signal.pause()
"""


def test_nothing_that_is_typed_at_the_shell_is_read_by_the_jail(terminal: Terminal, place: Site) -> None:
    place.policy('version = 1\n[role.dev]\nworkdir = "write"\n')
    place.write("work/thief.py", THIEF)
    stolen = place.work / "stolen"
    terminal.run(f"{place.python()} -I -S thief.py")
    terminal.expect("up\n")
    terminal.type("to the jail\n")
    wait(lambda: stolen.exists() and b"to the jail" in stolen.read_bytes())  # control: it does read
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.expect(PROMPT)
    terminal.line("read -s secret")
    for each in ("hunter2", "-more", "\n"):
        terminal.type(each)
        terminal.quiet(0.3)
    terminal.line("echo length ${#secret}")
    terminal.expect(r"length 12\n")
    terminal.line("fg")
    terminal.quiet(0.3)
    assert b"hunter2" not in stolen.read_bytes()
    terminal.insist("\x03", PROMPT)
    assert b"hunter2" not in stolen.read_bytes()


def test_control_a_child_that_keeps_the_shells_own_terminal_does_read(terminal: Terminal, place: Site) -> None:
    place.write("work/thief.py", THIEF)
    stolen = place.work / "stolen"
    stolen.unlink(missing_ok=True)
    terminal.line(f"{place.python()} -I -S thief.py")
    terminal.expect("up\n")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.expect(PROMPT)
    wait(stolen.exists)
    for _ in range(100):
        terminal.type("hunter2\n")
        terminal.quiet(0.1)
        if b"hunter2" in stolen.read_bytes():
            break
    assert b"hunter2" in stolen.read_bytes()


@pytest.mark.parametrize(("whom", "number", "status"), [("command", 15, 143), ("command", 9, 137), ("jail", 9, 137)])
def test_modes_are_restored(terminal: Terminal, whom: str, number: int, status: int) -> None:
    before = terminal.modes()
    mark = sleeper()
    terminal.run(f"bash -c 'stty raw -echo; echo up; exec -a {mark} sleep 300'")
    terminal.expect("up")
    wait(lambda: running(mark))
    assert terminal.modes() != before  # control: the relay has it raw
    (pid,) = running(mark)
    os.kill(pid if whom == "command" else parent(pid), number)
    terminal.expect(PROMPT)
    assert terminal.modes() == before
    terminal.line("echo after $?")
    terminal.expect(f"after {status}\n")


def sleeper() -> str:
    """A name that no other process has: one that is found by it is this test's own."""
    return f"sleeper-{uuid.uuid4().hex}"


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def test_modes_are_restored_when_the_daemon_is_killed(terminal: Terminal, place: Site) -> None:
    before = terminal.modes()
    terminal.run("sh -c 'echo up; exec sleep 300'")
    terminal.expect("up\n")
    os.kill(daemon_pid(place), signal.SIGKILL)
    terminal.expect("error: ")
    terminal.expect(PROMPT)
    assert terminal.modes() == before
    terminal.line("echo after $?")
    terminal.expect(r"after 137\n")


def test_a_hang_up_ends_the_run(place: Site) -> None:
    place.policy("version = 1\n[role.dev]\n")
    terminal = Terminal(place)
    mark = sleeper()
    terminal.run(f"bash -c 'echo up; exec -a {mark} sleep 300'")
    terminal.expect("up\n")
    wait(lambda: running(mark))  # control
    terminal.close()
    wait(lambda: not running(mark))
