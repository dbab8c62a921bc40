"""The relay, driven as a person would: a job-control bash in a pseudo terminal, a fake jail as its job."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jail import relay
from jail.relay import BUFFER, EXITED, Relay
from tests.jail.forked import NOBODY, USERS, attempt

PATIENCE = 60.0
FAKE = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('fake_jail.py')))}"
PROMPT = "<ready>"


class Shell:
    """An interactive bash; what it and its jobs write is collected in `seen`."""

    def __init__(self, directory: Path) -> None:
        self.seen = ""
        pid, self.master = pty.fork()
        if pid == 0:
            os.chdir(directory)
            src = str(Path(relay.__file__).parents[1])
            environment = {"PS1": PROMPT, "PATH": os.environ["PATH"], "TERM": "dumb", "PYTHONPATH": src, "HOME": "/"}
            os.execvpe("bash", ["bash", "--norc", "--noediting", "-i"], environment)
        self.pid = pid
        self.expect(PROMPT)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def line(self, text: str) -> None:
        self.type(text + "\r")

    def expect(self, pattern: str, seconds: float = PATIENCE) -> str:
        """Wait for a pattern in what was written since the last match; returns the match."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            left = until - time.monotonic()
            assert left > 0, f"expected {pattern!r}, got {self.seen!r}"
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
                # Two terminals in a row, both cooked, make two carriage returns of one.
                self.seen = self.seen.replace("\r\r\n", "\r\n")
        self.seen = self.seen[found.end() :]
        return found.group()

    def modes(self) -> list[object]:
        """The terminal's modes; a pseudo terminal's master answers for both ends."""
        return termios.tcgetattr(self.master)

    def raw(self) -> bool:
        return not termios.tcgetattr(self.master)[3] & termios.ICANON

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"expected {what}; seen {self.seen!r}"
            time.sleep(0.02)

    def close(self) -> None:
        """Hang up, as a closed terminal window does."""
        if self.master < 0:
            return
        os.close(self.master)
        self.master = -1
        for _ in range(100):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    tmp_path.chmod(0o777)
    made = Shell(tmp_path)
    yield made
    made.close()


def test_keys_and_output_are_copied_and_modes_restored(shell: Shell) -> None:
    before = shell.modes()
    shell.line(f"{FAKE} sh -c 'echo in; read x; echo got:$x; exit 7'; echo status:$?")
    shell.expect("\r\nin\r\n")
    shell.until(shell.raw, "raw mode")
    shell.line("hello")
    shell.expect("hello\r\ngot:hello\r\n")
    shell.expect("status:7\r\n")
    assert shell.modes() == before


def test_jail_has_a_terminal_of_its_own_with_the_users_size_and_modes(shell: Shell) -> None:
    termios.tcsetwinsize(shell.master, (33, 77))
    shell.line(f"stty erase ^B; tty; {FAKE} sh -c 'tty; stty -a'; stty sane")
    outer = shell.expect("\r\n/dev/pts/[0-9]+\r\n")
    assert shell.expect("/dev/pts/[0-9]+\r\n") not in outer
    shell.expect("rows 33; columns 77")
    shell.expect(r"erase = \^B")


def test_resize_reaches_the_jail(shell: Shell) -> None:
    shell.line(f"{FAKE} sh -c 'trap \"stty size; exit\" WINCH; echo up; while :; do sleep 0.05; done'")
    shell.expect("\r\nup\r\n")
    termios.tcsetwinsize(shell.master, (21, 101))
    shell.expect("21 101\r\n")


# `sleep 60` alone would lose a signal that comes before its fork.
TRAP = "sh -c 'trap \"exit 9\" INT TERM; echo up >&2; while :; do sleep 0.05; done'"


def test_ctrl_c_is_a_signal_of_the_jails_terminal(shell: Shell) -> None:
    before = shell.modes()
    shell.line(f"{FAKE} {TRAP}; echo status:$?")
    shell.expect("\r\nup\r\n")
    shell.until(shell.raw, "raw mode")
    shell.type("\x03")
    shell.expect("status:9")
    shell.expect(PROMPT)
    assert shell.modes() == before


# Not a loop of `sleep` in sh: dash forks by vfork, and a child that is stopped before its exec leaves dash unstopped.
COUNT = "import time; [(print(f'n{i}', flush=True), time.sleep(0.05)) for i in range(600)]"
COUNTER = f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(COUNT)}"


def test_ctrl_z_stops_the_job_and_fg_continues_it(shell: Shell) -> None:
    before = shell.modes()
    shell.line(f"{FAKE} {COUNTER}")
    shell.expect("n3\r\n")
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.expect(PROMPT)
    assert shell.modes() == before
    shell.seen = ""
    time.sleep(0.3)
    shell.line("echo at-$((40+2))")
    shell.expect("at-42\r\n")
    assert not re.search(r"n\d+", shell.seen), "a stopped job writes nothing"
    shell.line("fg")
    shell.expect(r"n\d+\r\n")
    shell.until(shell.raw, "raw mode again")
    shell.type("\x03")
    shell.expect(PROMPT)
    assert shell.modes() == before


def test_bg_lets_it_run_and_leaves_the_terminal_to_the_shell(shell: Shell) -> None:
    shell.line(f"{FAKE} {COUNTER}")
    shell.expect("n3\r\n")
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.line("bg")
    shell.expect(r"n\d+\r\n")
    assert not shell.raw()
    shell.line("echo at-$((40+2))")
    shell.expect("at-42")
    shell.line("kill %1; wait")
    shell.expect("Terminated|Exit|Done")


THIEF = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    with open(sys.argv[1], "ab", buffering=0) as loot:
        while data := os.read(0, 1000):
            loot.write(data)
    os._exit(0)
print("up", flush=True)
time.sleep(60)
"""


def stolen(shell: Shell, tmp_path: Path, prefix: str) -> str:
    """Start a program whose child calls setsid and keeps reading the terminal; stop it; type at the shell."""
    (tmp_path / "thief.py").write_text(THIEF)
    shell.line(f"{prefix} {shlex.quote(sys.executable)} thief.py loot")
    shell.expect("\r\nup\r\n")
    time.sleep(0.2)
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.expect(PROMPT)
    for _ in range(6):
        shell.line("password-typed-at-the-shell")
        time.sleep(0.1)
    shell.line("kill -KILL %1")
    time.sleep(0.3)
    return (tmp_path / "loot").read_text()


def test_control_a_child_that_kept_the_terminal_reads_what_is_typed_at_the_shell(shell: Shell, tmp_path: Path) -> None:
    assert "password" in stolen(shell, tmp_path, "")


def test_a_child_that_kept_the_jails_terminal_reads_nothing_typed_at_the_shell(shell: Shell, tmp_path: Path) -> None:
    assert stolen(shell, tmp_path, FAKE) == ""
    shell.expect("password-typed-at-the-shell: command not found")


def test_started_in_the_background(shell: Shell) -> None:
    before = shell.modes()
    shell.line(f"{FAKE} sh -c 'echo from-bg; read x; echo got:$x' &")
    shell.expect("from-bg\r\n")
    assert not shell.raw()
    shell.line("echo at-$((40+2))")
    shell.expect("at-42\r\n")
    shell.line("fg")
    shell.until(shell.raw, "raw mode in the foreground")
    shell.line("word")
    shell.expect("got:word\r\n")
    shell.expect(PROMPT)
    assert shell.modes() == before


def test_background_output_waits_under_tostop(shell: Shell) -> None:
    shell.line(f"stty tostop; {FAKE} sh -c 'sleep 0.3; echo from-bg' &")
    time.sleep(0.8)
    shell.line("jobs; echo at-$((40+2))")
    shell.expect(r"Stopped\(SIGTTOU\)|Stopped \(tty output\)|Stopped")
    shell.expect("at-42")
    assert "\r\nfrom-bg\r\n" not in shell.seen
    shell.line("fg")
    shell.expect("\r\nfrom-bg\r\n")
    shell.line("stty -tostop")


def test_background_output_of_an_ended_jail_waits_too(shell: Shell) -> None:
    """The relay learns of the jail's last words and of its end at once, as under load: the words are not lost."""
    shell.line(f"stty tostop; {FAKE} sh -c 'sleep 0.8; echo from-bg' &")
    time.sleep(0.4)
    shell.line("kill -STOP %1; sleep 1; kill -CONT %1; sleep 0.5; echo at-$((40+2))")
    shell.expect("at-42")
    shell.line("fg")
    shell.expect("\r\nfrom-bg\r\n")
    shell.line("stty -tostop")


def test_typed_ahead_does_not_reach_the_shell(shell: Shell, tmp_path: Path) -> None:
    shell.line(f"{FAKE} sh -c 'echo up; sleep 0.5'")
    shell.expect("\r\nup\r\n")
    shell.until(shell.raw, "raw mode")
    shell.line("touch marker")
    shell.expect(PROMPT)
    shell.line("echo at-$((40+2))")
    shell.expect("at-42")
    assert not (tmp_path / "marker").exists()


def test_terminated_relay_restores_the_modes(shell: Shell) -> None:
    before = shell.modes()
    shell.line(f"{FAKE} {TRAP}; echo status:$?")
    shell.expect("\r\nup\r\n")
    shell.until(shell.raw, "raw mode")
    os.kill(os.tcgetpgrp(shell.master), signal.SIGTERM)
    shell.expect("status:9")
    assert shell.modes() == before


def test_stopped_from_outside_and_continued(shell: Shell) -> None:
    before = shell.modes()
    shell.line(f"{FAKE} {COUNTER}")
    shell.expect("n3\r\n")
    os.kill(os.tcgetpgrp(shell.master), signal.SIGSTOP)
    shell.expect("Stopped")
    shell.expect(PROMPT)
    shell.line("fg")
    shell.until(shell.raw, "raw mode again")
    shell.expect(r"n\d+\r\n")
    shell.type("\x03")
    shell.expect(PROMPT)
    assert shell.modes() == before


def test_pipeline_keeps_the_modes_and_passes_lines(shell: Shell) -> None:
    shell.line(f"{FAKE} cat | tr a-z A-Z; echo status:${{PIPESTATUS[0]}}")
    time.sleep(0.5)
    assert not shell.raw()
    shell.line("hello")
    shell.expect("hello\r\nHELLO\r\n")
    shell.type("\x04")
    shell.expect("status:0")


def test_pipeline_ctrl_c(shell: Shell) -> None:
    shell.line(f"{FAKE} {TRAP} | cat")
    shell.expect("\r\nup\r\n")
    shell.type("\x03")
    shell.expect(PROMPT)
    shell.line("echo status:${PIPESTATUS[0]}")
    shell.expect("status:9")


# Reads late: nobody else takes what is typed at once, so that a relay which would take it does.
ASK = "sh -c 'sleep 0.7; stty -echo </dev/tty; echo ask; sleep 1; read p </dev/tty; stty echo </dev/tty; echo got:$p'"


def test_pipeline_does_not_read_a_password_that_another_program_asks_for(shell: Shell, tmp_path: Path) -> None:
    shell.line(f"{FAKE} sh -c 'cat > loot' | {ASK}")
    shell.expect("ask\r\n")
    shell.line("secret")
    shell.expect("got:secret")
    shell.line("mine")  # the question is over: it reads again
    shell.until(lambda: (tmp_path / "loot").read_text(), "a line for the command")
    shell.type("\x03")
    shell.expect(PROMPT)
    assert (tmp_path / "loot").read_text() == "mine\n"


def test_pipeline_that_starts_late_does_not_read_it_either(shell: Shell, tmp_path: Path) -> None:
    """Echo may be off before the relay looks for the first time: a machine that is busy makes it so (seen)."""
    shell.line(f"stty -echo; {FAKE} sh -c 'cat > loot' | {ASK}")
    shell.expect("ask\r\n")
    shell.line("secret")
    shell.expect("got:secret")
    shell.type("\x03")
    shell.expect(PROMPT)
    assert (tmp_path / "loot").read_text() == ""


def test_redirected_input_is_not_the_terminal(shell: Shell) -> None:
    shell.line(f"echo piped | {FAKE} sh -c 'cat; sleep 0.5'; read y; echo shell:$y")
    shell.expect("\r\npiped\r\n")
    assert not shell.raw()
    shell.line("mine")
    shell.expect("shell:mine")


def test_clipboard_write_is_taken_out(shell: Shell) -> None:
    shell.line(FAKE + r""" printf 'a\033]52;c;aGFjaw==\007b\033[1mc\n'""")
    shell.expect("\r\n")
    assert shell.expect(r"a[^\n]*c\r\n") == "ab\x1b[1mc\r\n"


def test_much_output_arrives_whole(shell: Shell) -> None:
    shell.line(f"{FAKE} seq 1 60000; echo status:$?")
    shell.expect("\r\n60000\r\nstatus:0", 20)


def test_jail_with_a_closed_terminal_may_open_it_again(shell: Shell) -> None:
    again = "exec 0<&- 1>&- 2>&-; sleep 0.6; echo back >/dev/tty"
    shell.line(f"{FAKE} sh -c {shlex.quote(again)}; echo status:$?")
    shell.expect("\r\nback\r\n")
    shell.expect("status:0")


@pytest.mark.skipif(USERS[0] != 0, reason="needs a terminal that belongs to another user")
def test_terminal_of_another_user(shell: Shell) -> None:
    before = shell.modes()
    shell.line(f"FAKE_UID={NOBODY} {FAKE} sh -c 'id -u; read x; echo got:$x'")
    shell.expect(f"\r\n{NOBODY}\r\n")
    shell.line("hello")
    shell.expect("got:hello\r\n")
    shell.expect(PROMPT)
    assert shell.modes() == before


# Without a shell: one process, its own controlling terminal


class Bench:
    """A relay between two pseudo terminals within this process, which is the leader of a session of its own."""

    def __init__(
        self,
        receive: Callable[[], str] | None = None,
        patience: Callable[[], float | None] = lambda: None,
        *,
        controlling: bool = True,
    ) -> None:
        self.user, terminal = pty.openpty()
        if controlling:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        os.dup2(terminal, 0)
        os.dup2(terminal, 1)
        master, self.jail = pty.openpty()
        events, self.tell = os.pipe()
        self.relay = Relay(
            ttys=[0, 1],
            master=master,
            events=events,
            receive=receive or (lambda: EXITED if not os.read(events, 1) else ""),
            patience=patience,
            resume=lambda: None,
            forward=lambda number: None,
        )


def test_modes_are_restored_when_the_launcher_fails() -> None:
    def fail() -> str:
        raise RuntimeError("a fault of the launcher")

    def action() -> list[bool]:
        bench = Bench(fail)
        before = termios.tcgetattr(0)
        os.write(bench.tell, b"x")
        handler = signal.getsignal(signal.SIGTTOU)
        with pytest.raises(RuntimeError):
            bench.relay.run()
        return [termios.tcgetattr(0) == before, signal.getsignal(signal.SIGTTOU) == handler]

    assert attempt(action).value == [True, True]


def test_a_launcher_that_has_waited_for_long_is_asked_and_may_end_it() -> None:
    """Nothing comes: no event, no key, and no word of the jail."""

    def action() -> list[bool]:
        looks = [0.01, 0.01]
        bench = Bench(patience=looks.pop)  # a third one raises
        before = termios.tcgetattr(0)
        with pytest.raises(IndexError):
            bench.relay.run()
        return [termios.tcgetattr(0) == before]

    assert attempt(action).value == [True]


@pytest.mark.parametrize("controlling", [True, False])
def test_only_the_sessions_own_terminal_is_read(controlling: bool) -> None:
    def action() -> list[object]:
        bench = Bench(controlling=controlling)
        before = termios.tcgetattr(0)
        os.write(bench.user, b"typed\n")
        for _ in range(3):
            os.write(bench.tell, b"x")
            bench.relay._turn()
        arrived = bool(select.select([bench.jail], [], [], 0.1)[0])
        return [arrived, termios.tcgetattr(0) != before]

    assert attempt(action).value == [controlling, controlling]


def test_buffers_are_bounded_when_nobody_reads() -> None:
    def action() -> list[int]:
        bench = Bench()
        os.set_blocking(bench.relay._master, False)
        most = [0, 0]
        for descriptor in (bench.user, bench.jail):
            os.set_blocking(descriptor, False)
        modes = termios.tcgetattr(bench.jail)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(bench.jail, termios.TCSANOW, modes)
        for _ in range(400):
            for descriptor in (bench.user, bench.jail):
                with contextlib.suppress(BlockingIOError):
                    os.write(descriptor, b"x" * 4000)
            os.write(bench.tell, b"x")
            bench.relay._turn()
            most = [max(most[0], len(bench.relay._to_jail)), max(most[1], len(bench.relay._to_user))]
        return most

    most = attempt(action).value
    assert isinstance(most, list)
    assert all(BUFFER // 2 < size <= BUFFER for size in most), most


def test_end_of_the_jails_terminal_and_of_the_events_ends_the_relay() -> None:
    def action() -> str:
        bench = Bench()
        os.write(bench.jail, b"last words\n")
        os.close(bench.jail)
        os.close(bench.tell)
        bench.relay.run()
        return os.read(bench.user, 1000).decode()

    assert attempt(action).value == "last words\r\n"


def test_a_terminal_that_takes_nothing_does_not_hold_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "STUCK", 5)

    def action() -> bool:
        bench = Bench()
        os.set_blocking(bench.jail, False)
        for _ in range(100):
            os.write(bench.tell, b"x")
            with contextlib.suppress(BlockingIOError):
                os.write(bench.jail, b"x" * 4000)
            bench.relay._turn()
        os.close(bench.jail)
        os.close(bench.tell)
        started = time.monotonic()
        bench.relay.run()
        return time.monotonic() - started < 30

    assert attempt(action).value is True


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_also_continues_what_is_stopped(number: int) -> None:
    def action() -> list[object]:
        bench, told = Bench(), []
        bench.relay._forward = told.append
        bench.relay._resume = lambda: told.append("continue")
        os.write(bench.relay._waker, bytes([number]))
        bench.relay._turn()
        return told

    assert attempt(action).value == [number] + ["continue"] * (number != signal.SIGINT)


def test_hang_up_is_forwarded_to_the_jail(shell: Shell, tmp_path: Path) -> None:
    hung_up = tmp_path / "hung-up"
    shell.line(f"{FAKE} sh -c 'trap \"touch hung-up; exit\" HUP; echo up; while :; do sleep 0.05; done'")
    shell.expect("\r\nup\r\n")
    shell.until(shell.raw, "raw mode")
    shell.close()
    shell.until(hung_up.exists, "the trap to run")
