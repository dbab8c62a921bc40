"""All attempts by the id of their guard, and the runner: forked children, a time limit, one word for each outcome.

A word is "done", an errno's name, a signal's name (a filter that kills), or "crashed: WHY". Most attempts share one
child: a fork costs a millisecond. Those that change the process, or die of it, have one of their own; some of them only
where they succeed, and follow each other in one until one does.
"""

import errno
import os
import select
import signal
import time

from jail.probes import DONE, Context, files, kernel, limits, neighbour, network, processes, sockets, terminal

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
    together = [name for name in ids if name not in ALONE]
    words = _child(together, context) if together else {}
    words |= _chained([name for name in CHAIN if name in ids and name in ALONE], context)
    for name in ids:
        if name in ALONE and name not in words:
            words |= _child([name], context)
    return words


def _chained(ids: list[str], context: Context) -> dict[str, str]:
    """One after the other in one child, and the rest in a new one after a success or a death."""
    words: dict[str, str] = {}
    while left := [name for name in ids if name not in words]:
        words |= _child(left, context, chained=True)
    return words


def _child(ids: list[str], context: Context, *, chained: bool = False) -> dict[str, str]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _try_all(ids, context | {"_fds": [*context.get("_fds", ()), writer]}, writer, chained=chained)
    os.close(writer)
    text, in_time = _read_all(reader)
    os.close(reader)
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return _words(_reached(ids, text) if chained else ids, text, status, in_time=in_time)


def _reached(ids: list[str], text: str) -> list[str]:
    """Those of a chain that its child has come to: what it told of, and the one that it died or hung in, if any.

    The word of each is written before the next is begun.
    """
    told = [line.split("\t", 1) for line in text.splitlines()]
    over = bool(told) and told[-1][1] == DONE
    return ids[: len(told) + (not over)]


def _read_all(reader: int) -> tuple[str, bool]:
    deadline = time.monotonic() + SECONDS
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            chunk = os.read(reader, 65536)
            if not chunk:
                return text.decode(), True
            text += chunk
    return text.decode(), False


def _words(ids: list[str], text: str, status: int, *, in_time: bool) -> dict[str, str]:
    told = dict(line.split("\t", 1) for line in text.splitlines())
    words = {}
    for name in ids:
        if name in told:
            words[name] = told[name]
        elif not in_time:
            words[name] = f"crashed: no answer in {SECONDS:.0f} s"
        elif os.WIFSIGNALED(status) and (len(ids) == 1 or name in CHAIN) and os.WTERMSIG(status) in ANSWERS:
            words[name] = signal.Signals(os.WTERMSIG(status)).name
        else:
            words[name] = f"crashed: wait status {status}"
    return words


def _try_all(ids: list[str], context: Context, writer: int, *, chained: bool) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        for name in ids:
            word = outcome(name, context)
            os.write(writer, f"{name}\t{word}\n".encode())
            if chained and word == DONE:
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
