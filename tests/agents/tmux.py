"""A full-screen program in a tmux of its own: typed at by keys, read by what the screen shows."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.site import Site

SECONDS = 90.0  # opencode's prompt took 50 on a machine with load 13


class Screen:
    """`argv` on a screen of that `size`, as the site's user. Use it in a `with`: its end ends the program."""

    def __init__(self, site: Site, argv: Sequence[str | Path], size: tuple[int, int] = (120, 40)) -> None:
        self._site, self._socket = site, site.home / "tmux"
        words = [str(word) for word in argv]
        columns, lines = map(str, size)
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", lines, "-c", str(site.work), *words)

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self.tmux("kill-server", check=False)

    def tmux(self, *words: str, check: bool = True) -> str:
        """A command of tmux's about this screen; what it prints."""
        argv = self._site.as_user(["tmux", "-S", self._socket, *words])
        env = self._site.environment({"TERM": "xterm-256color"})
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False, cwd="/")
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def shown(self) -> str:
        """What is on the screen, blanks at the ends of lines left out."""
        return self.tmux("capture-pane", "-p", check=False)

    def type(self, text: str) -> None:
        """Type a line, a moment before its Enter: what comes in one piece is taken for pasted, its Enter for text."""
        self.tmux("send-keys", "-l", text)
        time.sleep(1.5)
        self.tmux("send-keys", "Enter")

    def until(self, *texts: str) -> str:
        """Wait until one of the texts is on the screen; the screen."""
        deadline = time.monotonic() + SECONDS
        while not any(text in (shown := self.shown()) for text in texts):
            assert time.monotonic() < deadline, f"none of {texts} within {SECONDS:.0f} s:\n{shown}"
            time.sleep(0.2)
        return shown
