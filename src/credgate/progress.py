"""What a start waits for, said at a terminal once it lasts; gone when it is done. Standard library, no thread.

A thread would forbid the launcher's setns into a user namespace (measured: EINVAL with a second one), so the line is
drawn by a timer's signal: system calls that it interrupts are taken up again (PEP 475). A fork has no timer of ours.
"""

import os
import signal
import time

PATIENCE = 0.5  # seconds in which nothing is said
TICK = 0.1
MARKS = "|/-\\"


class Progress:
    """One line on standard error. `wanted` false: nothing is ever written, and no timer runs."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted and os.isatty(2)
        self._what = ""
        self._began = 0.0
        self._drawn = 0  # columns of what stands there

    def step(self, what: str) -> None:
        """Say what is waited for from now on. The first step starts the clock."""
        if not self._wanted:
            return
        if not self._what:
            self._began = time.monotonic()
            signal.signal(signal.SIGALRM, self._tick)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE, TICK)
        self._what = what

    def done(self) -> None:
        """Take the line away; may be called again, and from anywhere."""
        if not self._what:
            return
        self._what, self._wanted = "", False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")

    def _tick(self, _number: int, _frame: object) -> None:
        lasted = time.monotonic() - self._began
        mark = MARKS[int(lasted / TICK) % len(MARKS)]
        line = f"credgate: {mark} {self._what}, {lasted:.0f} s"[: self._columns()]
        over = " " * (self._drawn - len(line))
        self._drawn = len(line)
        self._write("\r" + line + over)

    @staticmethod
    def _columns() -> int:
        """All but the last one, in which a line would wrap; nothing that a terminal without escapes can't do."""
        try:
            return max(1, (os.get_terminal_size(2).columns or 80) - 1)
        except OSError:
            return 79

    @staticmethod
    def _write(text: str) -> None:
        """Only in the foreground: where the shell has `stty tostop`, a background job is stopped for it."""
        try:
            if os.tcgetpgrp(2) == os.getpgrp():
                os.write(2, text.encode())
        except OSError:  # hung up, or another session's terminal
            return
