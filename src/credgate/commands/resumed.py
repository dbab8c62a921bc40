"""`credgate run` from where a front has left off (native/run.c): the rest needs Python. Standard library only."""

import os
import signal

from credgate import thinclient
from credgate.commands import run
from credgate.errors import CredgateError
from jail import thinpass
from jail.lent import Standing

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from jail import launcher

OTHER_VERSION = "bad_request"  # the code of a daemon's refusal to speak with a front of another version


class Resumed(run.Launch):
    """A run whose front has asked for it; of a `planned` one there is a jail, which may be `ready` or dead."""

    def __init__(self, options: run.Options, command: list[str], told: list[int]) -> None:
        super().__init__(options, command)
        control, peer, life, planned, ready = told
        for descriptor in (control, peer, life):
            os.set_inheritable(descriptor, False)
        self.control = thinpass.adopted(control)
        self._jail = Standing(thinpass.adopted(peer), thinpass.adopted(life))
        self._planned, self.ready = bool(planned), bool(ready)

    def begin(self) -> "launcher.Started | Standing":
        """The jail that stands, or what the daemon answers with."""
        assert self.control is not None
        if self._planned:
            self.peer = self._jail.peer
            return self._jail
        self._jail.close()
        try:
            answer = thinclient.answer(self.control)
        except CredgateError as error:
            if error.code != OTHER_VERSION:
                raise
            self.control.close()
            return super().begin()
        self.id = str(answer.body["run"])
        from jail import launcher  # noqa: PLC0415

        started = launcher.start(launcher.Handles(answer.fds), self.ttys)
        self.peer = started.peer
        return started

    def catches(self) -> None:
        """What came since the front has left off is taken now."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [getattr(signal, name) for name in run.FORWARDED])


def main(told: str, argv: list[str]) -> int:
    """`told`: descriptors of the sockets to daemon, pid 1 and waiter; whether it is planned, and ready: 0 or 1."""
    options = run.plain(argv)
    numbers = [int(word) for word in told.split(",")]
    assert options is not None
    return run.to_the_end(Resumed(options, options.command, numbers))
