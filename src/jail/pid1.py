"""pid 1 of a jail: builds the root, confines itself, forks the workload, reaps, forwards, ends everything.

Forked by the starter (`jail.starter`), or exec'd by a launcher that the starter can't stand in for. The daemon reads it
in /proc while only our own code runs in the jail; then, at the daemon's word ("seal"), it gives up being dumpable:
otherwise the workload reads environment and heap of pid 1 (measured). In that order, for a forked process that is not
dumpable can be read by nobody of the user's: its memory is of the host's user namespace (ptrace_may_access). It holds
three sockets, and after the workload has started two: the daemon's channel and the launcher's. The end of either ends
the jail.

Exec'd as `python -I -S pid1.py PLAN DAEMON WORKLOAD LAUNCHER TTYS`: descriptors, and which of 0, 1, 2 were the user's
terminal (a digit each, "-" for none). Standard library only. Everything is imported before the host's tree is gone.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
import time

if __name__ == "__main__":  # -S and -I: nothing but the standard library is on the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120

import contextlib

from jail import bpf, caps, fdpass, keyring_kernel, landlock, mounts, terminal, title, usage, workload
from jail.errors import JailError
from jail.plantypes import Plan
from jail.syscalls import prctl

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
STOPPED, CONTINUED = "stopped", "continued"
GRACE = 3.0  # seconds between TERM and KILL
LINGER = 0.5  # the same, for what the command left behind when it ended by itself
SAMPLE = 0.25  # seconds between two looks at what the jail uses
REAPED = 64  # children looked at in a row: a workload that changes state faster than we look must not hold the rest up
LAST_WORD = 1.0  # seconds that the daemon may take nothing, for the report of the end
PRECISE = 4  # each so many looks also the memory files are counted
NESTED_EACH = 4  # namespaces of each kind for each nested user namespace
INOTIFY, INOTIFY_WATCHES = 32, 65536  # of a jail at most, and no more than a quarter of the user's
OUTSIDE = 4  # tasks that RLIMIT_NPROC counts and this /proc doesn't show: the berth's, and the launcher's child


def main(arguments: list[str]) -> int:
    """The entry of the one that was exec'd."""
    return begin([int(text) for text in arguments[:4]], [int(digit) for digit in arguments[4] if digit != "-"])


def begin(descriptors: list[int], ttys: list[int], begun: mounts.Begun | None = None) -> int:
    """Build, confine, fork, supervise. The outermost frame of pid 1: whatever goes wrong ends in death of the jail.
    descriptors: of the plan, the daemon's channel, the workload's, the launcher's socket. ttys: as above. begun: a root
    that was made ahead.
    """
    plan_fd, daemon_fd, workload_fd, launcher_fd = descriptors
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # they had to survive one exec, not the workload's
    daemon = socket.socket(fileno=daemon_fd)
    launcher = socket.socket(fileno=launcher_fd)
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        plan = _read_plan(plan_fd)
        inherited = keyring_kernel.session()
        slave, joined = prepare(plan, launcher, ttys, descriptors, begun)
        child = _fork_workload(plan, socket.socket(fileno=workload_fd), slave, ttys, (daemon_fd, launcher_fd))
    except JailError as error:
        tell(daemon, {"ev": "failed", "code": error.code, "detail": error.detail, "hint": error.hint})
        return 1
    except Exception as error:  # noqa: BLE001 - outermost frame of this process: it reports and the jail dies
        tell(daemon, {"ev": "failed", "code": "internal", "detail": f"pid 1: {type(error).__name__}: {error}"})
        return 1
    tell(daemon, {"ev": "pid1", "child": child, "keyring": [inherited, joined]})
    os._exit(Supervisor(plan, daemon, launcher, child).run())  # the run's end waits for what a return takes down


def _read_plan(descriptor: int) -> Plan:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        plan: Plan = json.loads(file.read())
        return plan


def prepare(
    plan: Plan, launcher: socket.socket, ttys: list[int], descriptors: list[int], begun: mounts.Begun | None
) -> tuple[int, int]:
    """Everything up to the fork, in the order of docs/jail.md. Nothing but 0, 1, 2 and `descriptors` is kept open.
    Returns the pty's slave, -1 without a terminal, and the serial of the session keyring.
    """
    close_others(descriptors if begun is None else [*descriptors, begun.root])
    socket.sethostname(plan["hostname"])
    bound_user_namespaces(plan["user_namespaces"])
    bound_watches()
    mount_namespaces = _opened("max_mnt_namespaces")
    mounts.build_root(plan["mounts"], begun)  # open_tree(2) makes one for each copy
    _write(mount_namespaces, 0)
    bring_limits(plan["limits"])
    # The session is pid 1's: were the workload its leader, its group would be orphaned, and Ctrl-Z would do nothing.
    os.setsid()
    slave = terminal.open_pty(launcher) if ttys else -1
    if slave >= 0:
        terminal.adopt(slave)
    return slave, confine(plan)


def close_others(named: list[int]) -> None:
    """Nothing inherited beyond 0, 1, 2 and the descriptors that were named."""
    keep = {0, 1, 2, *named}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib costs 14 ms here
        if int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is gone by now
                os.close(int(name))


def bound_user_namespaces(most: int) -> None:
    """A second layer under seccomp: no nested namespace even where the filter had a hole (`most` 0).

    The sysctls are per user namespace and found by the opener's own; written before /proc/sys becomes read-only. The
    namespaces that the jail is made of are counted already and stay. A nested user namespace (a browser's) brings
    others with it; mount and time namespaces the filter refuses in any case (those of mounts are bounded later).
    """
    _bound("max_user_namespaces", most)
    for kind in ("cgroup", "ipc", "net", "pid", "uts"):
        _bound(f"max_{kind}_namespaces", most * NESTED_EACH)
    _bound("max_time_namespaces", 0)


def bound_watches() -> None:
    """A part of what the kernel gives the user as a whole: or a jail takes the last, and the host's editors get none.

    fanotify is refused by the filter. Epoll's watches are counted outside of any namespace and can't be bound so.
    """
    _bound("max_fanotify_groups", 0)
    _bound("max_fanotify_marks", 0)
    for name, most in (("instances", INOTIFY), ("watches", INOTIFY_WATCHES)):
        with open(f"/proc/sys/fs/inotify/max_user_{name}", "rb") as file:  # noqa: PTH123 - pathlib costs 14 ms here
            _bound(f"max_inotify_{name}", min(most, int(file.read()) // 4))


def _bound(name: str, most: int) -> None:
    _write(_opened(name), most)


def _opened(name: str) -> int:
    try:
        return os.open(f"/proc/sys/user/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a kernel built without it, or older than it: nothing to bound
        if name == "max_user_namespaces":
            raise
        return -1


def _write(descriptor: int, most: int) -> None:
    if descriptor >= 0:
        os.write(descriptor, b"%d" % most)
        os.close(descriptor)


def bring_limits(limits: Plan) -> None:
    """Per-process limits, inherited by the workload. RLIMIT_AS is left alone: it kills every JIT (measured)."""
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_DATA, limits["data"]),
        (resource.RLIMIT_CPU, limits["cpu"]),
        # A login may have been given some of these two: pid 1 would wait for whoever uses them.
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        _, hard = resource.getrlimit(kind)
        if kind == resource.RLIMIT_NOFILE and hard != resource.RLIM_INFINITY:
            # unix(7): the user's descriptors in flight are compared with the sender's own limit. Where a jail's is
            # the daemon's, a jail can use up what the daemon may.
            hard -= hard // 4
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def confine(plan: Plan) -> int:
    """Keyring, capabilities, no_new_privs, Landlock, seccomp: what the workload inherits by the fork.

    Returns the serial of the session keyring, asked for while the filter doesn't refuse it yet.
    """
    keyring_kernel.join_anonymous_session()
    serial = keyring_kernel.session()
    caps.drop_all()
    bpf.no_new_privs()
    landlock.restrict(plan["landlock"])
    bpf.load(bytes.fromhex(plan["seccomp"]))
    return serial


def seal() -> None:
    """No longer dumpable: from here on no other process of the jail's user reads this one's memory or environment."""
    title.blank()  # everybody reads that
    prctl(PR_SET_DUMPABLE, 0)


def _fork_workload(plan: Plan, channel: socket.socket, slave: int, ttys: list[int], mine: tuple[int, int]) -> int:
    child = os.fork()
    if child == 0:
        for descriptor in mine:
            os.close(descriptor)
        workload.run(plan, channel, slave, ttys)  # never returns
    with contextlib.suppress(PermissionError):  # it has exec'd, and so did it itself
        os.setpgid(child, child)
    channel.close()
    if slave >= 0:
        os.close(slave)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    return child


def tell(peer: socket.socket, body: fdpass.Json) -> None:
    """Say it to whoever may be gone."""
    with contextlib.suppress(OSError):  # a peer that is gone is noticed by the poll, which ends the jail
        fdpass.send(peer, body)


class Supervisor:
    """The loop of pid 1: waits for the workload, the launcher, the daemon and the clock."""

    def __init__(self, plan: Plan, daemon: socket.socket, launcher: socket.socket, child: int) -> None:
        self.daemon, self.launcher, self.child = daemon, launcher, child
        self.limits = plan["limits"]
        self.tmpfs = [op["at"] for op in plan["mounts"] if op["op"] == "tmpfs" and op["at"] != "/dev"]
        self.looks = 0
        self.crowded = False  # a look found as many tasks as there may be
        self._set_deadline()
        self.status: int | None = None  # wait status of the workload
        self.reason = ""
        self.kill_at: float | None = None
        self.told, self.state = CONTINUED, CONTINUED  # of the workload, as the launcher knows it and as it is
        self.unreaped = False
        # A launcher that is stopped reads nothing: whoever waits for room in its queue no longer looks at the clock.
        daemon.setblocking(False)
        launcher.setblocking(False)
        self.filter_kills = 0  # of those reaped here; a process whose parent lives is reaped by that one
        self.wake, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> int:
        """Supervise to the end; returns when no other process of this pid namespace is left, or after the last KILL."""
        poll = select.poll()
        for source in (self.daemon, self.launcher, self.wake):
            poll.register(source, select.POLLIN)
        while not self._all_gone():
            self._tell_state()
            poll.modify(self.launcher, select.POLLIN | (select.POLLOUT if self.state != self.told else 0))
            for descriptor, _ in poll.poll(0 if self.unreaped else int(SAMPLE * 1000)):
                self._handle(descriptor)
            self._watch()
        self._report()
        return 0

    def _handle(self, descriptor: int) -> None:
        if descriptor == self.wake:
            os.read(self.wake, 4096)
            return
        peer = self.daemon if descriptor == self.daemon.fileno() else self.launcher
        try:
            message = fdpass.recv(peer)
        except BlockingIOError:  # it was ready to be written
            return
        except (OSError, JailError):
            message = None
        if message is None:
            self._end("gateway" if peer is self.daemon else "killed", grace=0)
            return
        message.close()
        self._obey(message.body)

    def _obey(self, body: fdpass.Json) -> None:
        match body.get("op"):
            case "signal":
                number = int(str(body["number"]))
                with contextlib.suppress(ProcessLookupError):  # it ended in this moment
                    os.killpg(self.child, number)
                    if number in (signal.SIGTERM, signal.SIGHUP):  # a stopped process takes them once it goes on
                        os.killpg(self.child, signal.SIGCONT)
            case "continue":
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.child, signal.SIGCONT)
            case "end":
                reason = str(body["reason"])
                self._end(reason, grace=0 if reason in ("oom", "disk") else GRACE)
            case "begin":  # of a jail that was made before its command was asked for
                self._set_deadline()
            case "seal":
                seal()
                tell(self.daemon, {"ev": "sealed"})
            case other:
                self._end("killed", grace=0)
                tell(self.daemon, {"ev": "failed", "code": "internal", "detail": f"pid 1: unknown op {other!r}"})

    def _set_deadline(self) -> None:
        deadline = self.limits["deadline"]
        self.deadline = time.monotonic() + deadline if deadline is not None else None

    def _end(self, reason: str, *, grace: float) -> None:
        """Begin the end once: TERM and CONT to all, KILL after `grace` seconds."""
        self.reason = self.reason or reason
        due = time.monotonic() + grace
        if self.kill_at is None and grace > 0:
            self._everyone(signal.SIGTERM)
            self._everyone(signal.SIGCONT)
        self.kill_at = due if self.kill_at is None else min(self.kill_at, due)

    def _everyone(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # nobody left but pid 1 itself
            os.kill(-1, number)

    def _watch(self) -> None:
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            self._end("timeout", grace=GRACE)
        if self.kill_at is None and self.limits["sums"]:
            self._sum()
        if self.kill_at is not None and now >= self.kill_at:
            self._everyone(signal.SIGKILL)

    def _sum(self) -> None:
        """Without a cgroup: add up what the jail uses, and end it where that is more than it may."""
        sums, used = self.limits["sums"], usage.look(self.tmpfs)
        self.looks += 1
        if "memory" in sums and self._over(used.memory):
            self._end("oom", grace=0)
        if used.cpu > self.limits["cpu"]:
            self._end("timeout", grace=0)
        self.crowded |= "processes" in sums and used.tasks > self.limits["processes"] - OUTSIDE

    def _over(self, mapped: int) -> bool:
        """Whether memory ran out: the cheap sum, at times with memory files that nobody maps, says perhaps."""
        most: int = self.limits["memory"]
        perhaps = mapped if self.looks % PRECISE else mapped + usage.in_memory_files()
        return perhaps > most and usage.precise(self.tmpfs) > most

    def _all_gone(self) -> bool:
        """Reap whatever ended; True when nothing is left to wait for."""
        self.unreaped = False
        for _ in range(REAPED):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self.filter_kills += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS
            if pid == self.child:
                self._workload_changed(status)
        self.unreaped = True
        return False

    def _workload_changed(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self.state = STOPPED
        elif os.WIFCONTINUED(status):
            self.state = CONTINUED
        else:
            self.status = status
            self._end(self._why(status), grace=LINGER)

    def _tell_state(self) -> None:
        """Say whether the workload is stopped: the last state alone, once there is room for it."""
        if self.state == self.told:
            return
        with contextlib.suppress(BlockingIOError):
            with contextlib.suppress(ConnectionError):  # as in tell
                fdpass.send(self.launcher, {"ev": self.state})
            self.told = self.state

    def _why(self, status: int) -> str:
        """The reason of the command's own end; with a cgroup the daemon judges by its counters."""
        if status and self.limits["sums"]:
            if usage.look([]).cpu >= self.limits["cpu"]:  # RLIMIT_CPU was quicker than our look
                return "timeout"
            if self.crowded:
                return "processes"
        return "signaled" if os.WIFSIGNALED(status) else "exited"

    def _report(self) -> None:
        code = 128 + signal.SIGKILL
        if self.status is not None:
            code = os.waitstatus_to_exitcode(self.status)
            code = 128 - code if code < 0 else code
        reason = self.reason or "killed"
        body = {"ev": "exit", "status": code, "reason": reason, "filter_kills": self.filter_kills}
        self.daemon.settimeout(LAST_WORD)
        tell(self.daemon, body)
        tell(self.launcher, body)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # nothing is left to be flushed, and taking an interpreter down takes its time
