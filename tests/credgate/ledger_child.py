"""A writer that is made to be killed: `python -I ledger_child.py DIR`, then a line "NAME STEP HOW SYNC" a
child on stdin.

Imports once and forks for each line. The child writes the ledger DIR/NAME as the gateway does, and kills itself at
its STEP-th system call that can fail: `before` it, `half` of its bytes later, or `after` it. Each line that it
may rely on it reports first: "written N", "durable N". At the end of a child there is a line "ended", or "survived".
SYNC: by the `kernel`, which is no call that fails, or by a `thread`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from credgate.ledger.flushing import KernelSyncs, Later
from credgate.ledger.form import Form, fragment
from credgate.ledger.settings import Settings
from credgate.ledger.writer import Ledger, SystemCalls

INTENT = Form("intent", {"run": "r-1", "host": "a.example", "verdict": "allow", "secret": "token"}, ("path",))
OUTCOME = Form("outcome", {"run": "r-1"}, ("intent_seq", "status"))
SMALL = Settings(max_bytes=4000, every_lines=4)


class Dying:
    """The kernel's syncs, one of which is the last thing that happens."""

    def __init__(self, syncs: KernelSyncs, due: Callable[[], bool], how: str) -> None:
        self._syncs, self._due, self._how = syncs, due, how
        self.landed, self.close = syncs.landed, syncs.close

    def submit(self, fd: int, mark: int) -> None:
        due = self._due()
        if not due or self._how != "before":
            self._syncs.submit(fd, mark)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)


def killing(step: int, how: str, sync: str) -> type[SystemCalls]:
    """The system calls, of which the `step`-th kills."""
    left = step

    def due() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Calls(SystemCalls):
        @staticmethod
        def write(fd: int, data: bytes) -> int:
            if not due():
                return os.write(fd, data)
            if how != "before":
                os.write(fd, data[: len(data) // 2] if how == "half" else data)
            die()
            return 0

        @staticmethod
        def fdatasync(fd: int) -> None:
            if due():
                if how == "after":
                    os.fdatasync(fd)
                die()
            os.fdatasync(fd)

        @staticmethod
        def later(done: int) -> Later | None:
            syncs = KernelSyncs.open(done) if sync == "kernel" else None
            return None if syncs is None else Dying(syncs, due, how)

    return Calls


def report(word: str, seq: int) -> None:
    os.write(1, b"%b %d\n" % (word.encode(), seq))


async def request(ledger: Ledger, n: int) -> None:
    """As a request with a secret: its line waits in memory for the disk, and its outcome takes along what waits."""
    intent = ledger.put(INTENT, (fragment("path", f"/{n}"),), held=True)
    await ledger.durable(intent)
    report("durable", intent)
    report("written", ledger.put(OUTCOME, (intent, 200)))


async def work(ledger: Ledger) -> None:
    for n in range(3):
        tasks = [asyncio.ensure_future(request(ledger, 10 * n + k)) for k in range(3)]
        await asyncio.sleep(0)
        report("written", ledger.append("deny", run="r-1", host="a.example", reason="no_rule"))
        await asyncio.gather(*tasks)
    ledger.close()


def main() -> None:
    for line in sys.stdin:
        name, step, how, sync = line.split()
        child = os.fork()
        if not child:
            calls = killing(int(step), how, sync)
            asyncio.run(work(Ledger.open(Path(sys.argv[1]) / name, calls=calls, settings=SMALL)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, b"survived\n" if status == 0 else b"ended\n" if os.WTERMSIG(status) == signal.SIGKILL else b"?\n")


if __name__ == "__main__":
    main()
