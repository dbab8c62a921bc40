"""All attempts by the id of their guard, and the runner: forked children, a time limit, one word for each outcome.

A word is "done", an errno's name, a signal's name (a filter that kills), or "crashed: WHY". Most attempts share one
child: a fork costs a millisecond. Those that change the process, or die of it, have one of their own; some of them only
where they succeed, and follow the others in that child until one does. Words are told by shared memory: each that came
by a pipe would wake whoever waits for the last (measured: sixty changes of processes a launch).
"""

import errno
import mmap
import os
import signal

from jail.probes import DONE, Context, files, kernel, limits, neighbour, network, processes, sockets, terminal
from jail.ready import readable

ATTEMPTS = {
    **files.ATTEMPTS,
    **processes.ATTEMPTS,
    **kernel.ATTEMPTS,
    **sockets.ATTEMPTS,
    **network.ATTEMPTS,
    **terminal.ATTEMPTS,
    **limits.ATTEMPTS,
    **neighbour.ATTEMPTS,
}
# Of the signals that end an attempt only these are the kernel's answer to it; another is a fault of the attempt's.
ANSWERS = (signal.SIGSYS, signal.SIGSEGV)
ALONE = frozenset(
    [
        "foreign_arch",
        "x32",
        "userns",
        "userns_clone",
        "mount",
        "setns",
        "chroot",
        "root_user",
        "network_admin",
        "tiocsti",
        "tioclinux",
        "ptrace_host",
        "processes",
        "open_files",
        "file_size",
        "core",
        "kill_tree",
        "ipv6_late",
        "memory",
        "memory_shared",
    ]
)
# Of those, what changes nothing that the next one looks at while it is refused; the last one dies of a refusal.
CHAIN = ("memory", "core", "network_admin", "userns", "tiocsti", "foreign_arch")
SECONDS = 8.0  # for one child
LONGEST = 200  # characters of a word


def run(ids: list[str], context: Context) -> dict[str, str]:
    """Try each; the result has a word for every id."""
    words: dict[str, str] = {}
    together = [name for name in ids if name not in ALONE]
    chain = [name for name in CHAIN if name in ids and name in ALONE]
    while left := [name for name in (*together, *chain) if name not in words]:
        words |= _child([name for name in left if name in together], [name for name in left if name in chain], context)
    for name in ids:
        if name not in words:
            words |= _child([name], [], context)
    return words


def _child(together: list[str], chain: list[str], context: Context) -> dict[str, str]:
    """Words of all of the first, and of those of the chain that were come to: after a success or a death no other is
    tried there.
    """
    told = Told()
    pid = os.fork()
    if pid == 0:
        _try_all(together, chain, {"_fds": [], **context}, told)
    ended = _wait(pid)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return _words(together, chain, told.read(), None if not ended else status)


class Told:
    """Lines that a child writes and its parent reads once that has ended. `SPACE` holds a word of every attempt."""

    SPACE = 1 << 16

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, self.SPACE)
        self._at = 0

    def add(self, name: str, word: str) -> None:
        """Note one word. Raises IndexError where there is no room: the child ends, and what is left is not shown."""
        line = f"{name}\t{word}\n".encode()
        self._shared[self._at : self._at + len(line)] = line  # a page holds NULs until it is written
        self._at += len(line)

    def read(self) -> dict[str, str]:
        """All of them, in order."""
        text = self._shared[: self._shared.find(b"\0")].decode()
        self._shared.close()
        return dict(line.split("\t", 1) for line in text.splitlines())


def _wait(pid: int) -> bool:
    """Whether the child ended in time."""
    child = os.pidfd_open(pid)
    try:
        return readable(child, SECONDS)
    finally:
        os.close(child)


def _words(together: list[str], chain: list[str], told: dict[str, str], status: int | None) -> dict[str, str]:
    """Of those that were told of, of those that share a child with one that was not, and of the one of a chain that
    the child died or hung in. status: None for a child that didn't end in time.
    """
    begun = [*together]
    if all(name in told for name in together):
        begun += [name for name in chain if name in told]
        if len(begun) < len(together) + len(chain) and (not begun or begun[-1] not in chain or told[begun[-1]] != DONE):
            begun.append(chain[len(begun) - len(together)])
    words = {name: told[name] for name in begun if name in told}
    for name in begun:
        if name in told:
            continue
        if status is None:
            words[name] = f"crashed: no answer in {SECONDS:.0f} s"
        elif os.WIFSIGNALED(status) and (len(begun) == 1 or name in chain) and os.WTERMSIG(status) in ANSWERS:
            words[name] = signal.Signals(os.WTERMSIG(status)).name
        else:
            words[name] = f"crashed: wait status {status}"
    return words


def _try_all(together: list[str], chain: list[str], context: Context, told: Told) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        for name in together:
            told.add(name, outcome(name, context))
        for name in chain:
            word = outcome(name, context)
            told.add(name, word)
            if word == DONE:
                break
    finally:
        os._exit(0)


def outcome(name: str, context: Context) -> str:
    """The word of one attempt, made in this process."""
    try:
        return ATTEMPTS[name](context)
    except OSError as error:
        code = error.errno or (errno.ETIMEDOUT if isinstance(error, TimeoutError) else 0)
        return errno.errorcode.get(code) or f"crashed: {error!r}"[:LONGEST]
    except MemoryError:
        return "ENOMEM"
    except Exception as error:  # noqa: BLE001 - a fault of the attempt's: it is said, and shows nothing
        return f"crashed: {type(error).__name__}: {error}".replace("\n", " ")[:LONGEST]
