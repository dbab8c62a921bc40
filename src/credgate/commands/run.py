"""`credgate run`: start a command in a jail and wait for its end. Standard library only; the daemon thinks."""

import os
import select
import sys
import time

from credgate import thinclient
from credgate.errors import CredgateError, print_error
from credgate.stdio import check_standard, say
from jail import thinpass
from jail.errors import JailError
from jail.lent import CONTINUED, EXITED, STOPPED, Lent

# What else it needs is imported where it is needed: each module costs milliseconds of a run, and a test lists them all.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from credgate.progress import Progress
    from jail import launcher
    from jail.lent import Standing

CANNOT = 125
FORWARDED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # to the command, without a terminal


def main(argv: list[str]) -> int:
    """Parse, become an ordinary user where started by root, run."""
    from credgate import hostlimits  # noqa: PLC0415

    options = plain(argv) or _parsed(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        from credgate.commands.runparser import parser  # noqa: PLC0415

        parser().print_usage(sys.stderr)
        return print_error(CredgateError("no_command", "no command given", "credgate run -- CMD", CANNOT))
    try:
        if os.geteuid() == 0:
            from credgate.becomeuser import become_user  # noqa: PLC0415

            become_user(options.user, argv, "run")
        elif options.user:
            raise CredgateError("not_root", "--user is for root alone", "leave it out", CANNOT)
        hostlimits.raise_open_files()
    except OSError as error:
        return print_error(hostlimits.shown(error, "credgate run"))
    except CredgateError as error:
        return max(print_error(error), CANNOT)
    return to_the_end(Launch(options, command))


def to_the_end(launch: "Launch") -> int:
    """Run it; expected errors end here, said in two lines."""
    from credgate import hostlimits  # noqa: PLC0415

    try:
        try:
            return launch.run()
        finally:
            launch.progress.done()  # before whatever went wrong is said
    except OSError as error:
        print_error(hostlimits.shown(error, "credgate run"))
        return CANNOT
    except (CredgateError, JailError) as error:
        shown = error if isinstance(error, CredgateError) else CredgateError(error.code, error.detail, error.hint)
        print_error(shown)
        return error.exit_status if isinstance(error, CredgateError) and error.exit_status >= CANNOT else CANNOT


class Options:
    """What was asked for on the command line; a flag that was not given has its default here."""

    policy = role = workdir = user = ""
    read_only = quiet = learn = warm = False
    status_fd = -1

    def __init__(self) -> None:
        self.env: list[str] = []
        self.command: list[str] = []


def _parsed(argv: list[str]) -> Options:
    from credgate.commands.runparser import parser  # noqa: PLC0415

    return parser().parse_args(argv, Options())


VALUES = {"--policy": "policy", "--role": "role", "--workdir": "workdir", "--user": "user"}
SWITCHES = {"--read-only": "read_only", "--learn": "learn", "--warm": "warm", "-q": "quiet", "--quiet": "quiet"}


def plain(argv: list[str]) -> Options | None:
    """A command line as it mostly is, read without argparse (11 ms of CPU); None for one that needs that."""
    options, left = Options(), iter(argv)
    for word in left:
        if word == "--" or not word.startswith("-"):
            options.command = [*left] if word == "--" else [word, *left]
            return options if options.command[:1] not in ([], ["--"]) else None
        if word in SWITCHES:
            setattr(options, SWITCHES[word], True)
            continue
        name, equals, value = word.partition("=")
        value = value if equals else next(left, "")
        if not value or value.startswith("-"):
            return None
        if name == "--env":
            options.env.append(value)
        elif name == "--status-fd" and value.isascii() and value.isdecimal():
            options.status_fd = int(value)
        elif name in VALUES:
            setattr(options, VALUES[name], value)
        else:
            return None
    return None


class Launch:
    """One run as its launcher sees it: what the daemon and pid 1 have said so far."""

    def __init__(self, options: Options, command: list[str]) -> None:
        self.options, self.command = options, command
        self.progress = _progress(wanted=not options.quiet)
        self.ttys = [number for number in (0, 1, 2) if os.isatty(number)]
        self.id = ""  # of the run, once the daemon has made one
        self.master = -1  # of the jail's terminal
        self.ready = False
        self.look_at = time.monotonic() + thinclient.PATIENCE  # at a daemon that has not said "ready"
        self.refused: CredgateError | None = None
        self.refusals: thinpass.Json = {}  # what was refused, as `lines` for people and `entries` for the exit line
        self.ended: thinpass.Json = {}
        self.exited: thinpass.Json = {}
        self.control: _socket.socket | None = None  # None once the daemon's end is closed
        self.peer: _socket.socket | None = None  # pid 1; None once it is gone
        self.events = select.epoll()
        self.children: list[int] = []  # launchers of child runs, not yet reaped

    def run(self) -> int:
        """From the request to the confirmed end; returns the exit status."""
        started = self.begin()
        for sock in (self.control, self.peer):
            if sock is not None:
                self.events.register(sock.fileno(), select.EPOLLIN)
        try:
            self._until_exit()
        finally:
            started.peer.close()  # pid 1 ends everything when this goes, whatever became of us
            started.wait()
        self.progress.done()
        from credgate.commands.ended import ended, hear_the_end  # noqa: PLC0415 - only at the end

        hear_the_end(self)
        for pid in self.children:  # their jails are dead: ours is, and the daemon ended them first
            os.waitpid(pid, 0)
        return ended(self)

    def begin(self) -> "launcher.Started | Standing":
        """Ask the daemon for a jail, which is not proven yet."""
        self._check_status_fd()
        check_standard()
        self.progress.step("waiting for the gateway daemon")
        started = thinclient.asked(os.environ, self._start)
        self.progress.step("proving the jail")
        self.peer = started.peer
        return started

    def _check_status_fd(self) -> None:
        if self.options.status_fd < 0:
            return
        try:
            os.set_inheritable(self.options.status_fd, False)
            os.write(self.options.status_fd, b"")  # EBADF where it was opened for reading alone
        except OSError as error:
            detail = f"--status-fd {self.options.status_fd}: {error.strerror}"
            raise CredgateError("bad_status_fd", detail, "open it for writing", CANNOT) from None

    def _start(self, control: "_socket.socket") -> "launcher.Started | Lent":
        """Lend what the daemon's starter needs; where that can't stand in for us, the answer has what we need."""
        self.control = control
        self.progress.step("making the jail, and copying what it gets")
        lent = Lent(self.ttys)
        try:
            answer = self._ask(control, lent.descriptors())
        except BaseException:
            lent.take_back()
            raise
        if not answer.fds:
            lent.passed_on()
            return lent
        if answer.body.get("warm"):
            lent.instead(answer.fds)
            return lent
        lent.take_back()
        from jail import launcher  # noqa: PLC0415

        return launcher.start(launcher.Handles(answer.fds), self.ttys)

    def _ask(self, control: "_socket.socket", lent: list[int]) -> thinpass.Message:
        body = {
            "argv": self.command,
            "cwd": _cwd(),
            "env": dict(os.environ),
            "policy": self.options.policy,
            "role": self.options.role,
            "workdir": self.options.workdir,
            "read_only": self.options.read_only,
            "env_names": self.options.env,
        }
        payload = os.memfd_create("request", os.MFD_CLOEXEC)
        os.write(payload, thinpass.dumps(body))
        question: thinpass.Json = {"op": "run.open", "ttys": self.ttys, "warm": self.options.warm}
        try:
            sent = thinclient.put(control, question, [payload, *lent])
        finally:
            os.close(payload)
        self._prepare()
        answer = thinclient.answer(control, sent=sent)
        self.id = str(answer.body["run"])
        return answer

    def _prepare(self) -> None:
        """Load what comes next while the daemon works: on another core that costs nothing."""
        import signal  # noqa: F401, PLC0415

        if self.ttys:
            import jail.relay  # noqa: F401, PLC0415

    def _until_exit(self) -> None:
        while self.ttys and self.master < 0 and not self._over():
            self.events.poll(self._patience())
            self.receive()
        if self.master >= 0 and not self._over():
            from jail.relay import Relay  # noqa: PLC0415

            Relay(
                ttys=self.ttys,
                master=self.master,
                events=self.events.fileno(),
                receive=self.receive,
                patience=self._patience,
                resume=lambda: self._order({"op": "continue"}),
                forward=lambda number: self._order({"op": "signal", "number": number}),
            ).run()
        else:
            self._wait_without_terminal()

    def _wait_without_terminal(self) -> None:
        import signal  # noqa: PLC0415 - loaded while the daemon thought

        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for forwarded in FORWARDED:
            signal.signal(getattr(signal, forwarded), lambda _number, _frame: None)
        self.catches()
        self.events.register(wake, select.EPOLLIN)
        while not self._over():
            ready = [descriptor for descriptor, _ in self.events.poll(self._patience())]
            if wake in ready:
                for number in os.read(wake, 64):
                    self._order({"op": "signal", "number": number})
            if set(ready) - {wake}:
                self.receive()
        self.events.unregister(wake)

    def _patience(self) -> float | None:
        """Seconds to wait for what comes next. Raises CredgateError where a daemon is stopped for which pid 1 waits."""
        if self.ready or self.control is None:
            return None
        now = time.monotonic()
        if now >= self.look_at:
            thinclient.check_not_stopped(self.control)
            self.look_at = now + thinclient.PATIENCE
        return thinclient.PATIENCE

    def catches(self) -> None:
        """For a subclass: signals are caught from here on."""

    def _over(self) -> bool:
        return self.peer is None or self.control is None or bool(self.exited) or self.refused is not None

    def receive(self) -> str:
        """Take one message of whoever has one; returns an event of the relay's, "" for none."""
        for descriptor, _ in self.events.poll(0):
            if self.peer is not None and descriptor == self.peer.fileno():
                return self._from_pid1(self.peer)
            if self.control is not None and descriptor == self.control.fileno():
                self.from_daemon(self.control)
                return EXITED if self._over() else ""
        return ""

    def _from_pid1(self, peer: "_socket.socket") -> str:
        message = thinclient.receive(peer)
        if message is None:
            self.events.unregister(peer.fileno())
            self.peer = None
            return EXITED
        match message.body.get("ev"):
            case "pty":
                self.master = message.fds[0]
            case "stopped":
                return STOPPED
            case "continued":
                return CONTINUED
            case "exit":
                self.exited = message.body
                return EXITED
        return ""

    def from_daemon(self, control: "_socket.socket") -> None:
        """Take one message of the daemon's, or its end."""
        message = thinclient.receive(control)
        if message is None:
            self.events.unregister(control.fileno())
            self.control = None
            return
        match message.body.get("ev"):
            case "ready":
                self._announce(message.body)
            case "child":
                self._start_child(message)
            case "alarm":
                self._alarm(message.body)
            case "refused":
                self.refused = thinclient.refusal(message.body)
            case "refusals":
                self.refusals = message.body
            case "ended":
                self.ended = message.body

    def _start_child(self, message: thinpass.Message) -> None:
        """A program in the jail asked for a child run and the daemon agreed: it starts from here, and dies with us."""
        from jail import childlaunch  # noqa: PLC0415

        try:
            self.children.append(childlaunch.spawn(message.fds))
        except OSError as error:
            say(f"credgate: a child run could not be started: {error.strerror}\n")  # its sockets close: refused
        finally:
            message.close()
        self.children = [pid for pid in self.children if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _alarm(self, body: "thinpass.Json") -> None:
        from credgate import said  # noqa: PLC0415

        say(said.alarm(body, self._line_end()))

    def _line_end(self) -> str:
        return "\r\n" if 2 in self.ttys else "\n"  # the relay has the terminal in raw mode

    def _announce(self, body: "thinpass.Json") -> None:
        self.ready = True
        self.progress.done()
        keys = ("run", "pid", "proof", "gateway", "ledger")
        self.write_status({"event": "ready", **{key: body[key] for key in keys}})
        if not self.options.quiet:
            from credgate import said  # noqa: PLC0415

            say(said.ready(body, self._line_end()))

    def _order(self, body: "thinpass.Json") -> None:
        if self.peer is not None:
            try:
                thinpass.send(self.peer, body)
            except OSError:
                return  # pid 1 is gone: the next poll says so

    def write_status(self, body: "thinpass.Json") -> None:
        """A line for who started it by a program, on --status-fd."""
        if self.options.status_fd >= 0:
            try:
                os.write(self.options.status_fd, thinpass.dumps(body) + b"\n")
            except OSError:
                return  # the reader left, or its disk is full; the run goes on


class _Silence:
    """In place of a Progress that would never be written: its module costs a start milliseconds."""

    def step(self, what: str) -> None:
        """Nothing."""

    def done(self) -> None:
        """Nothing."""


def _progress(*, wanted: bool) -> "Progress | _Silence":
    if not (wanted and os.isatty(2)):
        return _Silence()
    from credgate.progress import Progress  # noqa: PLC0415

    return Progress(wanted=True)


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise CredgateError("no_cwd", "the current directory is gone", "change into another one", CANNOT) from None
