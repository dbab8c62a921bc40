"""What moves events through mitmproxy's layers on one connection, without a task and a lock for each of them.

mitmproxy's own engine starts a task for every hook and comes back to the layers by the event loop, twice a request.
Here a hook begins at once, and one that has nothing to wait for is over before the next command is looked at. The
order is the same: one event after the other, none inside another.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from mitmproxy.proxy import commands, events
from mitmproxy.proxy.server import ConnectionIO, LiveConnectionHandler


class Engine(LiveConnectionHandler):
    """mitmproxy's connection handler with our way to run it. Raises nothing: what fails in a layer goes to `log`."""

    dead = False  # no event reaches a layer any more

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._waiting: deque[events.Event] = deque()
        self._moving = False
        self._tasks: set[asyncio.Task[None]] = set()  # the loop keeps weak references alone
        super().__init__(*args, **kwargs)

    async def run_hook(self, hook: commands.StartHook) -> None:
        """Do what a hook asks for."""
        raise NotImplementedError

    def held(self) -> AbstractContextManager[None]:
        """Read nothing more while a hook waits for something."""
        raise NotImplementedError

    # -- events -------------------------------------------------------------------------------------------------------

    async def server_event(self, event: events.Event) -> None:
        """Pass an event to the layers and do what they say. Never waits."""
        self.feed(event)

    def feed(self, event: events.Event) -> None:
        """As server_event. Called from inside itself it leaves the event for the call that is at work."""
        self._waiting.append(event)
        if self._moving:
            return
        self._moving = True
        try:
            while self._waiting:
                self._pass(self._waiting.popleft())
        finally:
            self._moving = False

    def _pass(self, event: events.Event) -> None:
        if self.dead:
            return
        self.timeout_watchdog.register_activity()  # type: ignore[no-untyped-call]
        try:
            for command in self.layer.handle_event(event):
                self._do(command)
        except Exception:  # noqa: BLE001 - the outermost frame of the layers: it ends the connection
            self.log("a layer failed", exc_info=True)

    def _do(self, command: commands.Command) -> None:
        if isinstance(command, commands.StartHook):
            self._start(command)
        elif isinstance(command, commands.RequestWakeup):
            self.wakeup_timer.add(self._spawn(self.wakeup(command)))
        elif isinstance(command, commands.OpenConnection):
            task = self._spawn(self.open_connection(command))
            self.transports[command.connection] = ConnectionIO(handler=task)
        elif isinstance(command, commands.ConnectionCommand):
            self._on_connection(command)
        elif not isinstance(command, commands.Log):
            raise TypeError(f"unexpected command {type(command).__name__}")

    def _on_connection(self, command: commands.ConnectionCommand) -> None:
        transport = self.transports.get(command.connection)
        if transport is None:  # closed already
            return
        if isinstance(command, commands.SendData):
            writer = transport.writer
            if writer is None:
                raise RuntimeError("bytes for a connection that is not open")
            if not writer.is_closing():
                writer.write(command.data)
        elif isinstance(command, commands.CloseConnection):
            half = isinstance(command, commands.CloseTcpConnection) and command.half_close
            self.close_connection(command.connection, half)
        else:
            raise TypeError(f"unexpected command {type(command).__name__}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- hooks --------------------------------------------------------------------------------------------------------

    async def handle_hook(self, hook: commands.StartHook) -> None:
        """Run a hook for who waits for it; nothing more is read meanwhile."""
        with self.held(), self.timeout_watchdog.disarm():
            await self.run_hook(hook)

    def _start(self, hook: commands.StartHook) -> None:
        """Begin a hook. Its layer goes on at once, or when the hook is done with waiting."""
        loop = asyncio.get_running_loop()
        task = asyncio.Task(self.run_hook(hook), loop=loop, eager_start=True)
        if task.done():
            self._finished(hook, task)
            return
        stack = ExitStack()
        stack.enter_context(self.held())
        stack.enter_context(self.timeout_watchdog.disarm())
        self._tasks.add(task)
        task.add_done_callback(partial(self._came_back, hook, stack.close))

    def _came_back(self, hook: commands.StartHook, release: Callable[[], None], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        release()
        self._finished(hook, task)

    def _finished(self, hook: commands.StartHook, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:  # run_hook ends its own in a denial: what comes to here is a fault of ours
            self.log("a hook failed", exc_info=(type(error), error, error.__traceback__))
        elif hook.blocking:
            self.feed(events.HookCompleted(hook))

    # -- writing ------------------------------------------------------------------------------------------------------

    async def drain_writers(self) -> None:
        """Wait until what was written has room again; nothing to wait for is the common case."""
        for transport in self.transports.values():
            writer = transport.writer
            if isinstance(writer, asyncio.StreamWriter) and not _drained(writer):
                await super().drain_writers()  # type: ignore[no-untyped-call]
                return


def _drained(writer: asyncio.StreamWriter) -> bool:
    return not writer.is_closing() and not writer.transport.get_write_buffer_size()
