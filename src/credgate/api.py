"""Jails from a process that lives: one call a command, no interpreter's start. Standard library only.

    from credgate.api import Launcher

    tools = Launcher(policy="/etc/tools.toml", role="tool", workdir="/srv/project")
    done = tools.run(["grep", "-rn", "TODO", "."], capture=True)
    print(done.status, done.stdout.decode())

A call is a run as `credgate run --warm` makes it: the same daemon, policy, proof and ledger; after the first the jail
is there already, and gets a command. Calls may come from several threads at a time.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from credgate import thinclient
from credgate.errors import CredgateError
from jail import thinpass
from jail.errors import JailError
from jail.lent import Lent
from jail.ready import readable

__all__ = ["CredgateError", "Ended", "Launcher"]

SAID = 1 << 20  # bytes of an output that are kept for the caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: `status` as a shell says it (128+n for a signal), `reason` of `credgate run`'s exit line.

    stdout, stderr: what it wrote, where the call captured that, at most the first MiB of each; else empty.
    """

    run: str
    status: int
    reason: str
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Runs of one kind. Empty: as `credgate run` chooses without the flag.

    env: what secrets of the caller's environment and the role's `env` are taken from; None: os.environ at each call.
    """

    policy: str = ""
    role: str = ""
    workdir: str = ""
    read_only: bool = False
    env: Mapping[str, str] | None = None
    env_names: Sequence[str] = field(default_factory=tuple)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        capture: bool = False,
        timeout: float | None = None,
    ) -> Ended:
        """Run a command in a jail to its confirmed end.

        stdin, stdout, stderr: descriptors of files or pipes; None: /dev/null. capture: keep what it writes instead.
        timeout: seconds after which the jail is killed; the result's reason is "killed" then. Raises CredgateError
        where the run is refused or the daemon fails.
        """
        with _Streams(stdin, stdout, stderr, capture=capture) as streams:
            try:
                ended = _Call(self, [*argv], streams.standard).end(timeout)
            except (JailError, OSError) as error:
                raise CredgateError("launch_failed", str(error), thinclient.HINT) from error
            said, complained = streams.captured()
        return Ended(
            run=str(ended["run"]),
            status=int(str(ended["status"])),
            reason=str(ended["reason"]),
            stdout=said,
            stderr=complained,
        )

    def request(self, argv: list[str]) -> dict[str, object]:
        """What the daemon is asked, as `credgate run` asks it."""
        return {
            "argv": argv,
            "cwd": os.path.abspath(self.workdir or "."),  # noqa: PTH100
            "env": dict(os.environ if self.env is None else self.env),
            "policy": self.policy,
            "role": self.role,
            "workdir": self.workdir,
            "read_only": self.read_only,
            "env_names": [*self.env_names],
        }


class _Streams:
    """The command's 0, 1, 2: the caller's, /dev/null, or files in memory that are read afterwards."""

    def __init__(self, stdin: int | None, stdout: int | None, stderr: int | None, *, capture: bool) -> None:
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdout", "stderr")] if capture else []
        out, err = self._files or (stdout, stderr)
        zero, one, two = (self._null if each is None else each for each in (stdin, out, err))
        self.standard = (zero, one, two)

    def __enter__(self) -> "_Streams":
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._null, *self._files):
            os.close(descriptor)

    def captured(self) -> tuple[bytes, bytes]:
        """What was written."""
        if not self._files:
            return b"", b""
        said, complained = (os.pread(descriptor, SAID, 0) for descriptor in self._files)
        return said, complained


def _settle(lent: Lent, answer: thinpass.Message) -> None:
    if not answer.fds:
        lent.passed_on()
    elif answer.body.get("warm"):
        lent.instead(answer.fds)
    else:  # a process with threads can't join a user namespace, and this one may have some
        answer.close()
        raise CredgateError(
            "not_standing_in",
            "the daemon can't start jails for this process: its groups, limits or sandbox are not the daemon's",
            "stop the daemon (credgate gateway stop) and start it from where this process was started",
        )


class _Call:
    """One run, from the request to the daemon's last word."""

    def __init__(self, launcher: Launcher, argv: list[str], standard: tuple[int, int, int]) -> None:
        self._launcher, self._argv, self._standard = launcher, argv, standard
        self._runs = False  # else what comes next is for the daemon to say
        self._lent, self._control = thinclient.asked(os.environ, self._asked)

    def _asked(self, control: "thinpass.Socket") -> "tuple[Lent, thinpass.Socket]":
        lent, payload = Lent([], self._standard), os.memfd_create("request", os.MFD_CLOEXEC)
        try:
            os.write(payload, thinpass.dumps(self._launcher.request(self._argv)))
            question: thinpass.Json = {"op": "run.open", "ttys": [], "warm": True}
            sent = thinclient.put(control, question, [payload, *lent.descriptors()])
            _settle(lent, thinclient.answer(control, sent=sent))
        except BaseException:
            lent.take_back()
            raise
        finally:
            os.close(payload)
        return lent, control

    def end(self, timeout: float | None) -> "thinpass.Json":
        """Wait for the end. Raises CredgateError for a refusal."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = deadline - time.monotonic()
                wait = left if self._runs else min(left, thinclient.PATIENCE)
                if readable(self._control, None if wait == math.inf else wait):
                    told = self._told()
                    if told is not None:
                        return told
                elif wait < left:
                    thinclient.check_not_stopped(self._control)
                else:
                    self._lent.peer.close()  # pid 1 ends everything when this goes
                    self._runs, deadline = False, math.inf
        finally:
            self._lent.peer.close()
            self._lent.wait()
            self._control.close()

    def _told(self) -> "thinpass.Json | None":
        message = thinclient.receive(self._control)
        if message is None:
            raise CredgateError("gateway_gone", "the gateway daemon ended; the run was ended with it", thinclient.HINT)
        message.close()
        if message.body.get("ev") == "refused":
            raise thinclient.refusal(message.body)
        self._runs |= message.body.get("ev") == "ready"
        return message.body if message.body.get("ev") == "ended" else None
