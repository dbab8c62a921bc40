"""The berth keeper: `python -I -m jail.keeper FD`, FD a SOCK_SEQPACKET socket to the daemon.

Exec'd before the daemon has loaded a secret, with a clean environment; single-threaded. It has each berth built by a
fork, holds it by its descriptors, and keeps some ready. The daemon's first message is {"op": "start", "berths": N,
"parent": PID or 0}; then claim, facts, socket and release, each answered in order (`jail.keeper_client` is
the other side). When the socket ends, all berths end.
"""

import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from ctypes import CDLL
from dataclasses import dataclass

from jail import builder, fdpass, firewall, immortal
from jail.errors import JailError, from_json
from jail.fdpass import Json, Received
from jail.held import Held

# Seconds a builder may take (measured: 15 ms, tenths of a second on a loaded machine). Two in a row, one for a berth on
# its way and one for the next, stay below the client's own patience.
TIMEOUT = 12.0
GONE = "berth_gone"
MAX_BERTHS = 16
# Seconds after a claim until the next berth is built: the run that took it has the CPU until its command runs.
AFTER = 0.25
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, kw_only=True)
class _Berth:
    """One berth, from the fork that builds it. held: it stands. claimed: it belongs to a run, and is never reused."""

    pid: int
    sock: socket.socket
    held: Held | None = None
    claimed: bool = False

    def built(self) -> Received:
        """Wait for the builder and reap it; raises the JailError that it tells, or one that says that it is gone."""
        try:
            got = fdpass.recv(self.sock)
        except OSError as error:
            raise JailError(GONE, f"the berth's builder does not answer: {error}") from error
        if got is None:
            raise JailError(GONE, "the berth's builder has died")
        if got.body.get("ok") is not True:
            got.close()
            raise from_json(got.body)
        self._reap()
        return got

    def standing(self) -> Held:
        """The berth's descriptors; raises JailError where it isn't built."""
        if self.held is None:
            raise JailError(GONE, "the berth is not built")
        return self.held

    def end(self) -> None:
        """Let go of it, or end its builder."""
        if self.held is not None:
            self.held.close()
        elif self.pid:
            self._reap()

    def _reap(self) -> None:
        """Not reaped before, so the pid is still its own. It has nothing left to do, or nothing that is wanted."""
        self.sock.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0


class Keeper:
    """All berths of one daemon."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._berths: dict[int, _Berth] = {}
        self._last = 0
        self._want = 0
        self._open: firewall.Open | None = None
        self._wording = firewall.Wording()
        self._user = self._home = -1  # of the namespaces that all berths lie in, and that this process rests in
        self._due: float | None = None  # when berths that were taken are made up for

    def serve(self) -> None:
        """Answer until the daemon's end is closed; then end every berth."""
        try:
            while self._turn():
                pass
        finally:
            for number in list(self._berths):
                self._drop(number)

    def _turn(self) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        for berth in self._berths.values():
            if berth.held is None:
                poll.register(berth.sock, select.POLLIN)
        readable = {fd for fd, _ in poll.poll(self._patience())}
        for number, berth in list(self._berths.items()):
            if berth.held is None and berth.sock.fileno() in readable:
                self._hear(number, berth)
        if self._due is not None and time.monotonic() >= self._due:
            self._refill()
        return self._control.fileno() not in readable or self._serve_one()

    def _patience(self) -> int | None:
        """Milliseconds until something is due; None for ever."""
        return None if self._due is None else max(0, int((self._due - time.monotonic()) * 1000) + 1)

    def _hear(self, number: int, berth: _Berth) -> None:
        try:
            self._settle(berth)
        except JailError:
            # Told to the next claim, which has a berth of its own built and reports what that meets.
            self._drop(number)

    def _settle(self, berth: _Berth) -> None:
        if self._open is None:
            raise JailError("keeper_request", "got a berth before start")
        got = berth.built()
        try:
            berth.held = Held(got, self._open, self._home, self._wording)
        finally:
            got.close()

    def _serve_one(self) -> bool:
        request = fdpass.recv(self._control)
        if request is None:
            return False
        request.close()
        try:
            body, fds = self._answer(request.body)
        except JailError as error:
            body, fds = error.to_json(), []
        try:
            self._reply(body, fds)
        finally:
            for fd in fds:
                os.close(fd)
        if request.body.get("op") in ("start", "release"):
            self._due = time.monotonic()
        elif request.body.get("op") == "claim":
            self._due = time.monotonic() + AFTER
        return True

    def _reply(self, body: Json, fds: list[int]) -> None:
        try:
            fdpass.send(self._control, body, fds)
        except OSError as error:
            if not fds or error.errno == errno.EPIPE:
                raise
            # unix(7): the user has too many descriptors in flight. This berth can't be handed out, the others live.
            detail = f"the berth's descriptors: {error.strerror}"
            hint = "a program of your user passes very many descriptors: end it"
            number = body.get("berth")
            if type(number) is int:
                self._drop(number)
            refused = JailError("berth_not_passed", detail, hint, error.errno or 0)
            fdpass.send(self._control, refused.to_json())

    def _answer(self, request: Json) -> tuple[Json, list[int]]:
        match request.get("op"):
            case "start":
                return self._start(request), []
            case "claim":
                return self._claim(request)
            case "facts" | "socket":
                return self._berth(request)[1].standing().answer(request)
            case "release":
                self._drop(self._berth(request)[0])
                return {"ok": True}, []
            case other:
                raise JailError("keeper_request", f"got op {other!r}, expected start, claim, facts, socket or release")

    def _start(self, request: Json) -> Json:
        if 0 in os.getresuid():
            raise JailError(
                "keeper_root",
                "got uid 0, expected an ordinary user: a berth maps the keeper's own uid, and no jail holds uid 0",
                "start the daemon as the user that the run belongs to (credgate run --user NAME)",
            )
        berths, parent = request.get("berths"), request.get("parent")
        if type(berths) is not int or not 0 <= berths <= MAX_BERTHS or type(parent) is not int:
            raise JailError("keeper_request", f"got berths {berths!r} and parent {parent!r}, expected two numbers")
        if parent:
            _die_with(parent)
        self._open = firewall.find()
        self._want = berths
        return {"ok": True}

    def _claim(self, request: Json) -> tuple[Json, list[int]]:
        number = self._berth(request)[0] if "berth" in request else self._next()
        berth = self._berths[number]
        try:
            body, fds = berth.standing().answer({"op": "claim", "ports": request.get("ports", [])})
        except JailError:
            self._drop(number)  # a berth that is not as asked is never handed out
            raise
        berth.claimed = True
        return {**body, "berth": number}, fds

    def _next(self) -> int:
        """A berth that is ready, the oldest first; else a new one, whose failure is raised."""
        for number in [number for number, berth in self._berths.items() if not berth.claimed]:
            if self._berths[number].held is None:
                self._hear(number, self._berths[number])  # it is on its way: waits, and drops it where that fails
            if number in self._berths:
                return number
        number = self._fork()
        try:
            self._settle(self._berths[number])
        except JailError:
            self._drop(number)
            raise
        return number

    def _refill(self) -> None:
        """Have as many built as are to be ready. What can't be is told to the next claim, which tries again."""
        self._due = None
        try:
            while self._open and sum(not berth.claimed for berth in self._berths.values()) < self._want:
                self._fork()
        except JailError:
            return

    def _enter(self) -> None:
        """Once: a user namespace that those of all berths lie in, and a network namespace that nothing is in.

        Where the user namespace of a berth were a child of the host's, entering it would give up the way to any other.
        """
        try:
            if self._user < 0:
                self._user = builder.new_user_namespace()
            if self._home < 0:
                self._home = builder.new_network_namespace()
        except JailError as error:
            raise builder.explained(error) from error

    def _fork(self) -> int:
        if self._open is None:
            raise JailError("keeper_request", "got a claim before start")
        self._enter()
        keeper = os.getpid()
        ours, theirs = fdpass.pair()
        try:
            pid = os.fork()
        except OSError as error:
            ours.close()
            raise JailError("berth_fork", f"fork: {error.strerror}", "", error.errno or 0) from error
        finally:
            if os.getpid() == keeper:
                theirs.close()
        if pid == 0:
            _child(theirs, self._open, keeper)
        ours.settimeout(TIMEOUT)
        self._last += 1
        self._berths[self._last] = _Berth(pid=pid, sock=ours)
        return self._last

    def _berth(self, request: Json) -> tuple[int, _Berth]:
        number = request.get("berth")
        berth = self._berths.get(number) if type(number) is int else None
        if type(number) is not int or berth is None or not berth.claimed:
            raise JailError("berth_unknown", f"got berth {number!r}, expected one that is claimed and alive")
        return number, berth

    def _drop(self, number: int) -> None:
        self._berths.pop(number).end()


def _child(sock: socket.socket, open_firewall: firewall.Open, keeper: int) -> None:
    """The builder's outermost frame: it never returns into the keeper's code."""
    status = 1
    try:
        builder.build(sock, open_firewall, keeper)
        status = 0
    except Exception as error:  # noqa: BLE001 - outermost frame: the berth is refused
        told = JailError("berth_internal", f"{type(error).__name__}: {error}")
        fdpass.send(sock, told.to_json())
    finally:
        os._exit(status)


def _die_with(parent: int) -> None:
    # The signal follows the parent's *thread* that started us: the client asks for it only from its main thread.
    CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise JailError("keeper_request", f"got parent {parent}, expected {os.getppid()}")


def main(arguments: list[str]) -> int:
    """Serve the socket whose number is the one argument; 2 for anything else."""
    if len(arguments) != 1 or not arguments[0].isdecimal():
        sys.stderr.write("error: got no descriptor, expected python -I -m jail.keeper FD\n")
        return 2
    with socket.socket(fileno=int(arguments[0])) as control:
        control.set_inheritable(False)
        immortal.forever()
        gc.freeze()  # a collection in a builder would write to, and so copy, every page that holds an object
        try:
            Keeper(control).serve()
        except JailError as error:
            sys.stderr.write(f"error: berth keeper: {error.detail}\n")
            return 1
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # of what was made at its start nothing can be taken down
