"""The launcher's end of the jail's terminal. Standard library only.

The jail has a pseudo terminal of its own; this copies between its master and the user's terminal. Keys go as bytes:
Ctrl-C and Ctrl-Z become signals in the line discipline of the *jail's* terminal. The user's terminal is read only
while this process group is its foreground (measured: whoever reads it otherwise gets what is typed at the shell), and
only if it is this session's controlling terminal, for there alone the kernel guards that rule too.

Three ways, by which of 0, 1 and 2 are the terminal:
  0 and 1       raw: keys are copied, the terminal is in raw mode while in the foreground
  0 without 1   lines: a pipeline; others of it may use the terminal, so its modes stay, whole lines are copied, and
                nothing is read while another program has changed the modes (a password prompt, a pager)
  1 or 2 alone  output: keys belong to whoever else reads the terminal
"""

import errno
import fcntl
import os
import select
import signal
import termios
import time
import tty

from jail.answerfilter import AnswerFilter
from jail.errors import JailError
from jail.lent import EXITED, STOPPED
from jail.ready import readable
from jail.termfilter import OutputFilter

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    type Attributes = list[int | list[bytes | int]]

BUFFER = 64 << 10  # bytes each way; a full buffer stops the reading, so that a slow side slows the other down
CHUNK = 512  # bytes a write to a terminal whose description is shared with the shell, and so can't be non-blocking
TICK = 0.25  # seconds between two looks at what no descriptor tells: the foreground, its modes, a slave opened anew
HOLD = 0.05  # seconds after which a byte that could begin an answer was a key; a terminal writes an answer at once
READ = 512  # bytes of the terminal that are read at least, however full the buffer: a jail can't cut answers small
QUIET = 0.1  # seconds without output after the end, before the rest is given up
STUCK = 20  # times so long that a terminal may take nothing, at the end
_LFLAG = 3  # index in termios attributes
_FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_HANDLED = (*_FORWARDED, signal.SIGWINCH, signal.SIGCONT)
_IGNORED = (signal.SIGTTOU, signal.SIGTTIN)  # else restoring would stop us; a background read gets EIO instead


def _noop(_number: int, _frame: "FrameType | None") -> None:
    """For signals that are read from the wake-up descriptor."""


class Relay:
    """Copies until the jail has exited. `run` blocks; use it in the main thread, once.

    ttys: which of 0, 1, 2 are the user's terminal (not empty). master: the jail's; the caller keeps no slave open.
    events: a descriptor that is readable when `receive` has something; that returns STOPPED, CONTINUED, EXITED (also
    at its end of file), or "" for anything else. patience: how many seconds a wait may last (None: any), asked before
    each; what it raises ends the relay. resume: tells pid 1 to continue the workload. forward: to signal it.
    """

    def __init__(
        self,
        *,
        ttys: list[int],
        master: int,
        events: int,
        receive: "Callable[[], str]",
        patience: "Callable[[], float | None]",
        resume: "Callable[[], None]",
        forward: "Callable[[int], None]",
        filtered: bool = True,
    ) -> None:
        self._raw_wanted = 0 in ttys and 1 in ttys
        self._reads = 0 in ttys
        self._tty, self._chunk = _own_descriptor(ttys)
        self._master, self._events = master, events
        self._receive, self._patience, self._resume, self._forward = receive, patience, resume, forward
        self._answers = AnswerFilter() if filtered else None
        self._held_since = 0.0
        self._output = OutputFilter().feed if filtered else bytes
        self._to_jail, self._to_user = bytearray(), bytearray()
        self._saved: Attributes | None = None  # the user's modes, while ours are set
        self._seen = 0  # the terminal's local modes when a pipeline first came to the foreground
        self._alive = True  # the user's terminal has not hung up
        self._open = True  # somebody holds the slave
        self._exited = False
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        """Relay to the end. The terminal's modes are restored on every way out, typed-ahead input is discarded."""
        os.set_blocking(self._master, False)
        before = {number: signal.getsignal(number) for number in (*_HANDLED, *_IGNORED)}
        waker = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            for number in _HANDLED:
                signal.signal(number, _noop)
            for number in _IGNORED:
                signal.signal(number, signal.SIG_IGN)
            self._dress_jail()
            while not self._exited:
                self._turn()
            self._finish()
        finally:
            self._leave_raw()
            signal.set_wakeup_fd(waker)
            for number, handler in before.items():
                signal.signal(number, handler)
            for descriptor in (self._wake, self._waker, self._tty):
                os.close(descriptor)

    # The user's terminal

    def _owner(self) -> int:
        """The foreground process group; 0 where the terminal is not our session's, or has hung up."""
        try:
            return os.tcgetpgrp(self._tty) if self._alive else 0
        except OSError:
            return 0

    def _foreground(self) -> bool:
        return self._owner() == os.getpgrp()

    def _lflag(self) -> int:
        """Local modes of the terminal now; 0 where it has hung up."""
        try:
            return int(termios.tcgetattr(self._tty)[_LFLAG])
        except termios.error:
            self._alive = False
            return 0

    def _dress_jail(self) -> None:
        """Give the jail's terminal the user's modes and size."""
        self._resize()
        if not self._foreground():
            return  # the modes are those of the shell's line editor now
        try:
            modes = termios.tcgetattr(self._tty)
        except termios.error:
            self._alive = False
            return
        if not self._raw_wanted:
            modes[_LFLAG] &= ~termios.ECHO  # the user's terminal echoes already
        if modes[_LFLAG] & termios.ICANON:
            termios.tcsetattr(self._master, termios.TCSANOW, modes)

    def _resize(self) -> None:
        try:
            termios.tcsetwinsize(self._master, termios.tcgetwinsize(self._tty))
        except termios.error:
            self._alive = False

    def _enter_raw(self) -> None:
        """Raw mode, if it is wanted and ours to set. Modes saved once are kept: those found later may be our own."""
        if not self._raw_wanted or not self._foreground():
            return
        try:
            modes = termios.tcgetattr(self._tty)
            self._saved = self._saved or termios.tcgetattr(self._tty)
            tty.cfmakeraw(modes)
            termios.tcsetattr(self._tty, termios.TCSANOW, modes)
        except termios.error:
            self._alive = False

    def _leave_raw(self) -> None:
        saved, self._saved = self._saved, None
        if saved is None or not self._foreground():
            return
        try:
            termios.tcsetattr(self._tty, termios.TCSANOW, saved)
            # A late answer to a query of the jail would be typed at the shell.
            termios.tcflush(self._tty, termios.TCIFLUSH)
        except termios.error:
            self._alive = False

    def _may_read(self, *, foreground: bool) -> bool:
        if not self._reads or not foreground or len(self._to_jail) >= BUFFER:
            return False
        if self._raw_wanted:
            return True
        now = self._lflag()
        self._seen = self._seen or now
        # Who asks for a password turns echo off, and may have done so before this look, which is the first (seen).
        return now == self._seen and bool(now & termios.ECHO)

    def _held_back(self) -> bool:
        """True where a background job must not write (stty tostop)."""
        return self._owner() not in (0, os.getpgrp()) and bool(self._lflag() & termios.TOSTOP)

    # One turn of the loop

    def _turn(self) -> None:
        foreground = self._foreground()
        if foreground and self._saved is None:
            self._enter_raw()
        elif not foreground:
            self._saved = None  # another job's terminal now: nothing to restore
        ready = dict(self._poll(foreground=foreground))
        if self._wake in ready:
            self._on_signals()
        if self._events in ready:
            self._on_event()
        self._copy(ready)
        self._release_keys()

    def _poll(self, *, foreground: bool) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._events, select.POLLIN)
        reads = self._may_read(foreground=foreground)
        tick = not self._open or (self._alive and not (foreground and (reads or not self._reads)))
        self._register(poll, self._master, self._open, len(self._to_user) < BUFFER, bool(self._to_jail))
        if self._alive:
            writes = bool(self._to_user)
            if writes and self._held_back():
                self._suspend(signal.SIGTTOU)
                return []
            self._register(poll, self._tty, self._alive, reads, writes)
        waiting = self._answers is not None and self._answers.waiting
        patience = self._patience()
        seconds = HOLD if waiting else TICK if tick else patience
        ready = poll.poll(None if seconds is None else seconds * 1000)
        self._open = self._open or not ready
        return ready

    @staticmethod
    def _register(poll: "select.poll", descriptor: int, alive: bool, reads: bool, writes: bool) -> None:
        wanted = (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)
        if alive and wanted:
            poll.register(descriptor, wanted)

    def _copy(self, ready: dict[int, int]) -> None:
        reading = select.POLLIN | select.POLLHUP | select.POLLERR
        if ready.get(self._master, 0) & reading and len(self._to_user) < BUFFER:
            self._read_jail()
        # Asked again: the wait may have begun before another program asked for a password.
        if ready.get(self._tty, 0) & reading and self._may_read(foreground=self._foreground()):
            self._read_user()
        if self._to_jail and self._open:
            self._write_jail()
        if self._to_user and ready.get(self._tty, 0) & (select.POLLOUT | select.POLLERR):
            self._write_user()

    def _read_jail(self) -> None:
        try:
            self._to_user += self._output(os.read(self._master, BUFFER - len(self._to_user)))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._open = False  # nobody holds the slave; the workload may open /dev/tty anew
        if not self._alive:
            self._to_user.clear()

    def _read_user(self) -> None:
        try:
            data = os.read(self._tty, max(READ, min(4096, BUFFER - len(self._to_jail))))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._alive = self._alive and not self._foreground()  # in the background EIO is the kernel's guard
            return
        if data:
            self._to_jail += self._answers.feed(data) if self._answers else data
            self._held_since = time.monotonic()
        elif self._raw_wanted:
            self._alive = False  # raw mode has no end of file but a hang-up
        else:
            self._to_jail += b"\x04"

    def _release_keys(self) -> None:
        """Let go what was held as the start of an answer, once the terminal has nothing more to say."""
        if self._answers is None or not self._answers.waiting or time.monotonic() - self._held_since < HOLD:
            return
        if not (self._alive and self._foreground() and readable(self._tty, 0)):
            self._to_jail += self._answers.flush()

    def _write_jail(self) -> None:
        try:
            del self._to_jail[: os.write(self._master, self._to_jail)]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._open = False

    def _write_user(self) -> None:
        try:
            del self._to_user[: os.write(self._tty, self._to_user[: self._chunk])]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._alive = False
            self._to_user.clear()

    # What the launcher and the kernel tell

    def _on_signals(self) -> None:
        for number in os.read(self._wake, 4096):
            if number == signal.SIGWINCH:
                self._resize()
            elif number == signal.SIGCONT:
                self._enter_raw()  # stopped by SIGSTOP: the shell has set its own modes since
                self._resize()
            elif number in _FORWARDED:
                self._alive = self._alive and number != signal.SIGHUP
                self._forward(number)
                if number in _ENDING:
                    self._resume()  # a stopped process takes it only then; the kernel's own hang-up does the same

    def _on_event(self) -> None:
        event = self._receive()
        if event == EXITED:
            self._exited = True
        elif event == STOPPED:
            self._empty(1)
            self._suspend(signal.SIGTSTP)
            self._resume()

    def _suspend(self, number: int) -> None:
        """Stop this job as the terminal would have; returns when it is continued, or at once in an orphaned group."""
        self._leave_raw()
        signal.signal(number, signal.SIG_DFL)
        os.kill(0, number)
        signal.signal(number, signal.SIG_IGN if number in _IGNORED else _noop)
        self._enter_raw()
        self._resize()

    def _finish(self) -> None:
        """What the jail wrote before its end is still in the pty. A background job that must not write keeps it."""
        self._open = True
        while self._empty(STUCK):
            began = time.monotonic()
            self._suspend(signal.SIGTTOU)
            if time.monotonic() - began < QUIET and self._held_back():
                return  # an orphaned group is not stopped, and the kernel refuses what it writes (EIO)

    def _empty(self, waits: int) -> bool:
        """Copy what there is to the user until the jail is quiet, or the terminal took nothing for `waits` of QUIET.

        Waits are counted, not seconds: somebody else may have the CPU for longer. What was written before is there to
        be read, for the kernel ends its own copying first (n_tty_read and n_tty_poll, tty_buffer_flush_work).
        True where something is left that this job must not write now.
        """
        while self._alive and waits > 0:
            if self._open and len(self._to_user) < BUFFER:
                self._read_jail()
            if self._held_back():
                return bool(self._to_user)
            if not self._to_user and not self._wait(self._master if self._open else -1, select.POLLIN):
                return False
            if self._to_user and self._wait(self._tty, select.POLLOUT):
                self._write_user()
            elif self._to_user:
                waits -= 1
        return False

    @staticmethod
    def _wait(descriptor: int, what: int) -> bool:
        if descriptor < 0:
            return False
        poll = select.poll()
        poll.register(descriptor, what)
        return bool(poll.poll(QUIET * 1000))


def _own_descriptor(ttys: list[int]) -> tuple[int, int]:
    """A descriptor of the terminal, and how many bytes to write at once.

    O_NONBLOCK belongs to the open description, which the shell shares; so the terminal is opened anew. It may belong
    to another user (su, `--user`): then a copy serves, blocking, and written in pieces that the kernel takes at once.
    """
    try:
        flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{ttys[0]}", flags), BUFFER
    except OSError as error:
        for descriptor in ttys:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                return os.dup(descriptor), CHUNK
        hint = "start it from a terminal of your own, or with its input and output redirected"
        raise JailError(
            "terminal_open", f"can't open the terminal: {error.strerror}", hint, error.errno or 0
        ) from error
