"""Who waits for the disk: all who ask in one turn of the loop share one sync, the kernel's (`flushing`) or a thread's.
Where the last one had a single caller the next one begins at once, which is a turn of the loop less; who comes
meanwhile shares the one behind it.

The thread, where the kernel can't, is our own: the default executor may be full of look-ups that hang. It tells the
loop by an eventfd, which costs a third of what an executor's future and the loop's own pipe do (measured: 100 us of CPU
a sync in all, 175).
"""

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from credgate.ledger.flushing import Flushing
from credgate.ledger.landing import Landing
from credgate.ledger.record import LedgerError
from credgate.loops import add_edge, watches

type Told = Callable[[LedgerError | None], object]


class Syncing:
    """For callers of one event loop at a time.

    `sync` blocks, and raises LedgerError alone. `by_kernel` makes, of the eventfd that is to tell of it, what has the
    kernel do the same; None where it can't, and then a thread runs `sync`.
    """

    def __init__(
        self, sync: Callable[[], None], by_kernel: Callable[[int], Flushing | None] = lambda _done: None
    ) -> None:
        self._sync = sync
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._kernel = by_kernel(self._done)
        self._error: LedgerError | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: list[Told] = []  # for the sync that is to begin
        self._flying: list[Told] = []  # for the one that is at work
        self._alone = False  # the last sync had one caller: there is nobody to wait for
        self._stopped = False
        self._by_edge = False  # nobody has to take back what the descriptor counts

    def ask(self) -> Landing:
        """Done once a sync has ended that began after this call. Whoever cancels it takes it from nobody else."""
        future = Landing(loop=asyncio.get_running_loop())
        self.tell(future.land)
        return future

    def tell(self, told: Told) -> None:
        """The same without a future: the loop calls `told`, which must not raise, with the error of a thread's sync."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._move(loop)
        first = not (self._asked or self._flying)
        self._asked.append(told)
        if first and self._alone:
            self._begin()
        elif first:
            loop.call_soon(self._begin)

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have another loop wait from here on. The descriptor stays with it: adding and removing it for each sync is
        two system calls, and more of the selector's own.
        """
        if self._loop is not None and not self._loop.is_closed():
            watches(self._loop).remove_reader(self._done)
        self._loop, self._asked, self._flying = loop, [], []
        self._by_edge = add_edge(loop, self._done, self._landed)

    def _begin(self) -> None:
        if self._stopped or self._loop is None or self._flying or not self._asked:
            return
        self._flying, self._asked = self._asked, []
        self._alone = len(self._flying) == 1
        try:
            begun = self._kernel is not None and self._kernel.begin()
        except (LedgerError, MemoryError):
            begun = False  # `sync` raises the same
        if not begun:
            self._begin_by_thread()

    def _begin_by_thread(self) -> None:
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ledger-sync")
                thread.start()
                self._thread = thread
            self._jobs.put(True)
        except (RuntimeError, MemoryError) as error:  # no thread, as where the user may have no more processes
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Those who wait learn that there was no sync; the next one is tried all the same."""
        detail = f"can't sync: {type(error).__name__}"
        self._error = LedgerError("ledger_unavailable", detail, "start the gateway again")
        os.eventfd_write(self._done, 1)

    def _run(self) -> None:
        while self._jobs.get():
            try:
                self._sync()
            except LedgerError as error:
                self._error = error
            except Exception as error:  # noqa: BLE001 - the thread's outermost frame: who waits must learn of it
                self._fail(error)
                continue
            os.eventfd_write(self._done, 1)

    def _landed(self) -> None:
        if not self._by_edge:
            os.eventfd_read(self._done)
        if self._kernel is not None:
            self._kernel.land()
        landed, self._flying = self._flying, []
        error, self._error = self._error, None  # of these alone: the next sync may be the kernel's
        if self._asked:
            self._begin()  # first: who waited goes on within `land`
        for told in landed:
            told(error)

    def stop(self) -> None:
        """Wait for the sync at work, and end the thread; who still waits goes on. Nobody may ask any more."""
        self._stopped = True
        if self._thread is not None:
            self._jobs.put(False)
            self._thread.join()
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
        waiting, self._flying, self._asked = [*self._flying, *self._asked], [], []  # the last sync may be told of still
        if self._loop is not None:  # it has the descriptor, which must leave it before it is closed
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._let_go, waiting)
                return
        os.close(self._done)

    def _let_go(self, waiting: list[Told]) -> None:
        if self._loop is not None:
            watches(self._loop).remove_reader(self._done)
        os.close(self._done)
        for told in waiting:
            told(None)
