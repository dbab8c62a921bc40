"""What a launcher lends the daemon's starter, which then forks the jail in its place. Standard library only."""

import os

from jail import thinpass

STOPPED, CONTINUED, EXITED = "stopped", "continued", "exited"  # what pid 1 says of the workload


class Standing:
    """A jail that the starter forked: `peer` is the socket to pid 1.

    The kernel closes the launcher's end of `life` with the launcher, which ends the jail; the waiter's end is closed
    once the jail is dead.
    """

    def __init__(self, peer: "thinpass.Socket", life: "thinpass.Socket") -> None:
        self.peer, self._life = peer, life

    def wait(self) -> None:
        """Block until the waiter has ended, which reaps pid 1 before: nothing of the jail lives then."""
        while self._life.recv(1):  # it has nothing to say
            pass
        self._life.close()

    def close(self) -> None:
        """End it, where it is one; wait for nothing."""
        self.peer.close()
        self._life.close()


class Lent(Standing):
    """A jail that the starter is asked to fork, and what is lent for it."""

    def __init__(self, ttys: list[int], standard: tuple[int, int, int] = (0, 1, 2)) -> None:
        """Make both pairs. ttys: which of 0, 1, 2 are the user's terminal, which is lent to nobody. standard: what
        becomes the jail's 0, 1, 2.
        """
        peer, self._theirs = thinpass.pair()
        life, self._waiters = thinpass.pair()
        super().__init__(peer, life)
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._ttys, self._standard = ttys, standard

    def descriptors(self) -> list[int]:
        """In the order of `credgate.standin.Borrowed`."""
        standard = [self._null if n in self._ttys else own for n, own in enumerate(self._standard)]
        return [self._theirs.fileno(), self._waiters.fileno(), *standard]

    def passed_on(self) -> None:
        """Close what is the jail's from now on: its end is told by the last copy's."""
        self._theirs.close()
        self._waiters.close()
        os.close(self._null)

    def take_back(self) -> None:
        """Close all: this launcher forks its jail itself."""
        self.passed_on()
        self.close()

    def instead(self, fds: list[int]) -> None:
        """Take the launcher's ends of a jail that was made before: its daemon held them, and these die with us now."""
        peer, life = fds
        self.take_back()
        self.peer, self._life = thinpass.adopted(peer), thinpass.adopted(life)
