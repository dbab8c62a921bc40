"""Full-screen programs in a real terminal emulator (tmux), and terminals that can do little or are none."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.tmux import Screen
from tests.e2e.place import module_site, wait_for
from tests.e2e.site import BIN, Site
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

# Asks for everything that an agent's interface asks for, and shows what it gets.
PROGRAM = r"""
import os, signal, sys, termios, tty
saved = termios.tcgetattr(0)
def size(*_):
    rows, columns = os.get_terminal_size(1).lines, os.get_terminal_size(1).columns
    os.write(1, b'\x1b[2;1Hsize %dx%d   ' % (columns, rows))
def on():
    signal.signal(signal.SIGWINCH, size)
    tty.setraw(0)
    os.write(1, b'\x1b[?1049h\x1b[?1002h\x1b[?1006h\x1b[?2004h\x1b[2J\x1b[1;1H\x1b[31mred\x1b[0m \xe2\x96\x88')
    size()
def off():
    signal.signal(signal.SIGWINCH, signal.SIG_DFL)  # it would write on the shell's screen when it goes on
    os.write(1, b'\x1b[?2004l\x1b[?1006l\x1b[?1002l\x1b[?1049l')
    termios.tcsetattr(0, termios.TCSADRAIN, saved)
on()
row, got = 4, b''
while True:
    try:
        data = os.read(0, 1000)
    except InterruptedError:
        continue
    got += data
    os.write(1, b'\x1b[%d;1H\x1b[K%s' % (row, repr(data)[:100].encode()))
    row = row + 1 if row < 8 else 4
    if data == b'\x1a':
        off(); os.kill(0, signal.SIGTSTP); on()
    if data == b'q':
        break
off()
print('the end')
"""


@pytest.fixture
def screen(place: Site) -> Iterator[Screen]:
    place.policy("version = 1\n[role.dev]\n")
    program = place.write("work/program.py", PROGRAM)
    policy = place.home / "policy/policy.toml"
    place.write("work/go", f"exec {BIN / 'credgate'} run -q --policy {policy} -- {place.python()} -I -S {program}\n")
    assert place.run("true").returncode == 0  # the daemon is up
    with Screen(place, ["env", "PS1=outside> ", "bash", "--norc", "--noprofile", "-i"]) as shown:
        shown.until("outside>")
        shown.tmux("send-keys", "-l", "sh go\n")
        yield shown


def modes(screen: Screen) -> str:
    """What tmux believes the program asked for."""
    asked = "#{alternate_on} #{mouse_button_flag} #{mouse_sgr_flag}"
    return screen.tmux("display-message", "-p", asked).strip()


def until_modes(screen: Screen, wanted: str) -> None:
    wait_for(lambda: modes(screen) == wanted, lambda: f"modes {wanted}, got {modes(screen)} of\n{screen.shown()}")


def until_prompt(screen: Screen) -> None:
    """The shell has its terminal back: what is typed before, while the launcher ends, is thrown away with its input."""
    wait_for(lambda: screen.shown().split()[-1:] == ["outside>"], lambda: f"a prompt at the end of\n{screen.shown()}")


@pytest.mark.needs("tmux")
def test_a_full_screen_program(screen: Screen) -> None:
    screen.until("size 120x40")
    until_modes(screen, "1 1 1")
    assert "red █" in screen.shown()
    assert "\x1b[31m" in screen.tmux("capture-pane", "-p", "-e")

    screen.tmux("send-keys", "-l", "\x1b[<0;10;5M")  # as the terminal tells of a click
    screen.until(r"b'\x1b[<0;10;5M'")
    screen.tmux("set-buffer", "two\nlines")
    screen.tmux("paste-buffer", "-p")  # brackets only where the program asked for them
    screen.until(r"b'\x1b[200~two\rlines\x1b[201~'")
    screen.tmux("send-keys", "C-c")
    screen.until(r"b'\x03'")
    screen.tmux("send-keys", "Up")
    screen.until(r"b'\x1b[A'")

    screen.tmux("resize-window", "-x", "20", "-y", "10")
    screen.until("size 20x10")

    screen.tmux("send-keys", "C-z")
    screen.until("Stopped")
    until_modes(screen, "0 0 0")
    until_prompt(screen)
    screen.tmux("resize-window", "-x", "100", "-y", "30")
    screen.tmux("send-keys", "-l", "fg\n")
    screen.until("size 100x30")  # the size that the terminal got meanwhile
    until_modes(screen, "1 1 1")

    screen.tmux("send-keys", "q")
    screen.until("the end")
    until_modes(screen, "0 0 0")
    until_prompt(screen)
    screen.tmux("send-keys", "-l", "echo back at $((40 + 2))\n")
    screen.until("back at 42")


# Little of a terminal, or none


@pytest.mark.parametrize("term", ["dumb", "", "no-such-terminal"])
def test_a_terminal_that_can_do_nothing(place: Site, term: str) -> None:
    place.policy('version = 1\n[role.dev]\nenv = ["TERM"]\n')
    with Terminal(place, "sh", "-c", "echo [$TERM]; read line; echo got $line", term=term) as terminal:
        terminal.expect(rf"\[{term}\]")
        terminal.type("words\n")
        terminal.expect("got words")
        assert b"\x1b" not in terminal.seen
        assert terminal.end() == 0


def test_no_controlling_terminal_and_no_terminal_at_all(place: Site, tmp_path: Path) -> None:
    """As under cron, or in a service: pipes stay pipes, and /dev/tty opens nothing."""
    place.policy("version = 1\n[role.dev]\n")
    code = "import os, json; print(json.dumps([os.isatty(n) for n in (0, 1, 2)])); open('/dev/tty')"
    policy = place.home / "policy/policy.toml"
    words = [BIN / "credgate", "run", "--policy", policy, "--", place.python(), "-I", "-c", code]
    done = subprocess.run(
        ["setsid", "--wait", *place.as_user(words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, cwd=place.work,
        env=place.environment({"TERM": "xterm"}),
    )  # fmt: skip
    assert json.loads(done.stdout) == [False, False, False]
    assert "No such device or address" in done.stderr
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr


def test_streams_that_are_closed(place: Site) -> None:
    """A caller without a standard stream gets a sentence, and no descriptor of ours in its place."""
    policy = place.home / "policy/policy.toml"
    words = [str(word) for word in place.as_user([BIN / "credgate", "run", "-q", "--policy", policy, "--", "true"])]
    for closed in (0, 1, 2):
        pid = os.fork()
        if pid == 0:
            try:
                os.chdir(place.work)
                os.close(closed)
                os.execvpe(words[0], words, place.environment())
            finally:
                os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 125, closed
