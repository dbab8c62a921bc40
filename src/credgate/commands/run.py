"""`credgate run`: start a command in a jail and wait for its end. Standard library only; the daemon thinks."""

import argparse
import contextlib
import json
import os
import pwd
import select
import signal
import socket
import sys

from credgate import controlclient, hostlimits
from credgate.errors import CredgateError, print_error
from credgate.paths import Places
from credgate.progress import Progress
from credgate.stdio import check_standard
from credgate.text import escape
from jail import childlaunch, fdpass, launcher
from jail.errors import JailError
from jail.lent import Lent
from jail.relay import CONTINUED, EXITED, STOPPED, Relay

CANNOT = 125
LAST_WORD = 60.0  # seconds for the daemon to close what belonged to the run
EXAMPLE = (
    "example:\n  credgate run --role dev -- claude\n  credgate run --policy p.toml -- sh -c 'curl https://api.example'"
)
FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
EXITS = "exit status: the command's own; 125 refused or failed before its start, 126, 127, 128+n by a signal"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="credgate run",
        description="Run CMD in a jail whose only route is the gateway. Flags only narrow what the role allows.",
        epilog=f"{EXAMPLE}\n\n{EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--policy", metavar="FILE", default="", help="the policy (default: search order of docs/policy.md)"
    )
    parser.add_argument(
        "--role", metavar="NAME", default="", help="default: the policy's default_role, or its only one"
    )
    parser.add_argument("--workdir", metavar="DIR", default="", help="the work tree (default: the current directory)")
    parser.add_argument("--read-only", action="store_true", help="the work tree read-only, whatever the role says")
    parser.add_argument(
        "--env", metavar="NAME", action="append", default=[], help="pass only these of the role's names"
    )
    parser.add_argument("--user", metavar="NAME", default="", help="for root: the ordinary user the run belongs to")
    parser.add_argument("--status-fd", metavar="N", type=int, default=-1, help="JSON lines `ready` and `exit` go there")
    parser.add_argument(
        "--learn", action="store_true", help="at the end, print the rules that would allow what was refused"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no banner, no summary at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] CMD...")
    return parser


def main(argv: list[str]) -> int:
    """Parse, become an ordinary user where started by root, run."""
    parser = _parser()
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.print_usage(sys.stderr)
        return print_error(CredgateError("no_command", "no command given", "credgate run -- CMD", CANNOT))
    try:
        if os.geteuid() == 0:
            become_user(options.user, argv, "run")
        elif options.user:
            raise CredgateError("not_root", "--user is for root alone", "leave it out", CANNOT)
        hostlimits.raise_open_files()
        launch = Launch(options, command)
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


def become_user(name: str, argv: list[str], command: str) -> None:
    """Root starts nothing itself: drop to the named user (or SUDO_UID) with no groups left, and begin anew."""
    entry = _ordinary(name)
    _enter_delegated(entry.pw_uid)
    os.setgroups([])  # before any setns: after it the kernel refuses (measured)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("SUDO_", "XDG_", "DBUS_"))}
    env = {**keep, "HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    again = [sys.executable, "-I", "-m", "credgate", command, *_without_user(argv)]
    try:
        os.execve(sys.executable, again, env)
    except OSError as error:
        raise CredgateError(
            "interpreter_closed",
            f"{sys.executable}: {entry.pw_name} can't execute it: {error.strerror}",
            "run scripts/setup as root: it places an interpreter where ordinary users can run it",
            CANNOT,
        ) from None


def _enter_delegated(uid: int) -> None:
    """On cgroup v2 a process moves only below a group of the mover's own: so begin in the one that set-up made.

    See scripts/lib/cgroup.sh.
    """
    path = f"/sys/fs/cgroup/credgate/{uid}/launchers/cgroup.procs"
    if os.path.exists(path):
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write("0")
        except OSError as error:
            hint = "run scripts/setup as root again"
            raise CredgateError("cgroup_closed", f"{path}: {error.strerror}", hint, CANNOT) from None


def _ordinary(name: str) -> pwd.struct_passwd:
    hint = "credgate run --user NAME -- CMD, or start it with sudo"
    try:
        if name:
            entry = pwd.getpwnam(name)
        elif os.environ.get("SUDO_UID", "").isdigit():
            entry = pwd.getpwuid(int(os.environ["SUDO_UID"]))
        else:
            raise CredgateError("root_needs_user", "started by root without --user", hint, CANNOT)
    except KeyError:
        raise CredgateError("no_such_user", f"no user {name or os.environ['SUDO_UID']!r}", hint, CANNOT) from None
    if entry.pw_uid == 0:
        raise CredgateError("root_needs_user", f"got {entry.pw_name}, expected a user other than root", hint, CANNOT)
    return entry


def _without_user(argv: list[str]) -> list[str]:
    """The arguments again, without --user: the flag is for root alone, and the second start is not root's."""
    kept: list[str] = []
    skip = False
    for number, word in enumerate(argv):
        if word == "--" or (not word.startswith("-") and not skip and not _takes_value(argv[number - 1 : number])):
            return [*kept, *argv[number:]]
        if skip or word == "--user":
            skip = not skip
        elif not word.startswith("--user="):
            kept.append(word)
    return kept


def _takes_value(before: list[str]) -> bool:
    return bool(before) and before[0] in (
        "--policy",
        "--role",
        "--workdir",
        "--env",
        "--user",
        "--status-fd",
        "--record",
    )


class Launch:
    """One run as its launcher sees it: what the daemon and pid 1 have said so far."""

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self.options, self.command = options, command
        self.progress = Progress(wanted=not options.quiet)
        self.ttys = [number for number in (0, 1, 2) if os.isatty(number)]
        self.id = ""  # of the run, once the daemon has made one
        self.master = -1  # of the jail's terminal
        self.ready = False
        self.refused: CredgateError | None = None
        self.ended: fdpass.Json = {}
        self.exited: fdpass.Json = {}
        self.control: socket.socket | None = None  # None once the daemon's end is closed
        self.peer: socket.socket | None = None  # pid 1; None once it is gone
        self.events = select.epoll()
        self.children: list[int] = []  # launchers of child runs, not yet reaped

    def run(self) -> int:
        """From the request to the confirmed end; returns the exit status."""
        self._check_status_fd()
        check_standard()
        self.progress.step("waiting for the gateway daemon")
        self.control = controlclient.connect_or_start(Places.from_env(os.environ))
        self.progress.step("making the jail, and copying what it gets")
        started = self._start(self.control)
        self.progress.step("proving the jail")
        self.peer = started.peer
        for sock in (self.control, self.peer):
            self.events.register(sock.fileno(), select.EPOLLIN)
        try:
            self._until_exit()
        finally:
            started.peer.close()  # pid 1 ends everything when this goes, whatever became of us
            started.wait()
        self.progress.done()
        self._hear_the_end()
        for pid in self.children:  # their jails are dead: ours is, and the daemon ended them first
            os.waitpid(pid, 0)
        return self._status()

    def _check_status_fd(self) -> None:
        if self.options.status_fd < 0:
            return
        try:
            os.set_inheritable(self.options.status_fd, False)
            os.write(self.options.status_fd, b"")  # EBADF where it was opened for reading alone
        except OSError as error:
            raise CredgateError(
                "bad_status_fd",
                f"--status-fd {self.options.status_fd}: {error.strerror}",
                "open it for writing",
                CANNOT,
            ) from None

    def _start(self, control: socket.socket) -> launcher.Started | Lent:
        """Lend what the daemon's starter needs; where that can't stand in for us, the answer has what we need."""
        lent = Lent(self.ttys)
        answer = self._ask(control, lent.descriptors())
        if not answer.fds:
            lent.passed_on()
            return lent
        lent.take_back()
        return launcher.start(launcher.Handles(answer.fds), self.ttys)

    def _ask(self, control: socket.socket, lent: list[int]) -> fdpass.Received:
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
        os.write(payload, json.dumps(body).encode())
        try:
            answer = controlclient.exchange(control, {"op": "run.open", "ttys": self.ttys}, [payload, *lent])
        finally:
            os.close(payload)
        self.id = str(answer.body["run"])
        return answer

    def _until_exit(self) -> None:
        while self.ttys and self.master < 0 and not self._over():
            self.events.poll()
            self.receive()
        if self.master >= 0 and not self._over():
            Relay(
                ttys=self.ttys,
                master=self.master,
                events=self.events.fileno(),
                receive=self.receive,
                resume=lambda: self._order({"op": "continue"}),
                forward=lambda number: self._order({"op": "signal", "number": number}),
            ).run()
        else:
            self._wait_without_terminal()

    def _wait_without_terminal(self) -> None:
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for forwarded in FORWARDED:
            signal.signal(forwarded, lambda _number, _frame: None)
        self.events.register(wake, select.EPOLLIN)
        while not self._over():
            ready = [descriptor for descriptor, _ in self.events.poll()]
            if wake in ready:
                for number in os.read(wake, 64):
                    self._order({"op": "signal", "number": number})
            if set(ready) - {wake}:
                self.receive()
        self.events.unregister(wake)

    def _over(self) -> bool:
        return self.peer is None or self.control is None or bool(self.exited) or self.refused is not None

    def receive(self) -> str:
        """Take one message of whoever has one; returns an event of the relay's, "" for none."""
        for descriptor, _ in self.events.poll(0):
            if self.peer is not None and descriptor == self.peer.fileno():
                return self._from_pid1(self.peer)
            if self.control is not None and descriptor == self.control.fileno():
                self._from_daemon(self.control)
                return EXITED if self._over() else ""
        return ""

    def _from_pid1(self, peer: socket.socket) -> str:
        message = controlclient.receive(peer)
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

    def _from_daemon(self, control: socket.socket) -> None:
        message = controlclient.receive(control)
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
                self.refused = controlclient.refusal(message.body)
            case "ended":
                self.ended = message.body

    def _start_child(self, message: fdpass.Received) -> None:
        """A program in the jail asked for a child run and the daemon agreed: it starts from here, and dies with us."""
        try:
            self.children.append(childlaunch.spawn(message.fds))
        except OSError as error:
            _say(f"credgate: a child run could not be started: {error.strerror}\n")  # its sockets close: refused
        finally:
            message.close()
        self.children = [pid for pid in self.children if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _alarm(self, body: fdpass.Json) -> None:
        """Said with -q too: the role chose that the user hears of it."""
        what = escape(f"{body['kind']}: {body['detail']} ({body['action']})")
        _say(f"credgate: alarm in run {body['run']}: {what}" + ("\r\n" if 2 in self.ttys else "\n"))

    def _announce(self, body: fdpass.Json) -> None:
        self.ready = True
        self.progress.done()
        keys = ("run", "pid", "proof", "gateway", "ledger")
        self._write_status({"event": "ready", **{key: body[key] for key in keys}})
        if not self.options.quiet:
            line = (
                f"credgate: role {body['role']}, {body['guards']} guards shown, {body['endpoints']} endpoints, "
                f"limits by {body['limits']}, {body['opened']}{escape(str(body['files']))}"
                f"run {body['run']}, ledger {escape(str(body['ledger']))}"
            )
            end = "\r\n" if 2 in self.ttys else "\n"  # the relay has the terminal in raw mode
            _say(line + end)

    def _order(self, body: fdpass.Json) -> None:
        if self.peer is not None:
            with contextlib.suppress(OSError):  # pid 1 is gone: the next poll says so
                fdpass.send(self.peer, body)

    def _hear_the_end(self) -> None:
        """The daemon confirms the death on its own and closes what belonged to the run; wait for its last word."""
        while self.control is not None and not self.ended:
            if not select.select([self.control], [], [], LAST_WORD)[0]:
                raise CredgateError(
                    "daemon_silent", f"no end from the daemon in {LAST_WORD:.0f} s", "see its log", CANNOT
                )
            self._from_daemon(self.control)

    def _status(self) -> int:
        if self.refused is not None:
            return print_error(self.refused)
        status: int
        if not self.ended:
            where = controlclient.log_file(Places.from_env(os.environ))
            print_error(
                CredgateError(
                    "gateway_gone", "the gateway daemon ended; the run was ended with it", f"{where} may say why"
                )
            )
            status, reason = (137, "gateway") if self.ready else (CANNOT, "gateway")  # 137: ended by SIGKILL
        else:
            status, reason = int(str(self.ended["status"])), str(self.ended["reason"])
        if self.ready:
            # null where it could not be read, or the daemon is gone: that is not zero
            keys: tuple[str, ...] = ("off_route", "counters", "filter_kills", "files", "refusals")
            keys = (*keys, "copy") if "copy" in self.ended else keys
            counts = {"requests": self.ended.get("requests", {}), **{key: self.ended.get(key) for key in keys}}
            self._write_status({"event": "exit", "run": self.id, "status": status, "reason": reason} | counts)
        if self.ended and reason not in ("exited", "signaled"):
            _say(f"credgate: the run was ended: {reason}\n")
        self._summarise()
        if self.ready and self.options.learn:
            self._propose()
        return status

    def _propose(self) -> None:
        """Let `policy learn` print: nothing was allowed beyond the policy, and nothing is written."""
        chosen = ["--policy", os.path.abspath(self.options.policy)] if self.options.policy else []
        os.chdir(self.options.workdir or ".")
        argv = [sys.executable, "-I", "-m", "credgate", "policy", "learn", *chosen, self.id]
        to_stderr = [(os.POSIX_SPAWN_DUP2, 2, 1)]
        os.waitpid(os.posix_spawn(sys.executable, argv, os.environ, file_actions=to_stderr), 0)

    def _summarise(self) -> None:
        requests = self.ended.get("requests")
        if not self.ready or self.options.quiet or not isinstance(requests, dict):
            return
        allowed, denied = requests.get("allow"), requests.get("deny")
        _say(f"credgate: run {self.id}: {allowed} requests allowed, {denied} refused; {self.ended.get('seen')}\n")
        for told in (None if self.options.learn else self.ended.get("refused"), self.ended.get("left")):
            for line in told if isinstance(told, list) else ():  # what is indented goes on with the line before
                _say(("" if str(line).startswith("    ") else "credgate: ") + f"{escape(str(line))}\n")

    def _write_status(self, body: fdpass.Json) -> None:
        if self.options.status_fd >= 0:
            with contextlib.suppress(OSError):  # the reader left, or its disk is full; the run goes on
                os.write(self.options.status_fd, json.dumps(body).encode() + b"\n")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads our messages; the run goes on
        os.write(2, text.encode(errors="backslashreplace"))


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise CredgateError("no_cwd", "the current directory is gone", "change into another one", CANNOT) from None
