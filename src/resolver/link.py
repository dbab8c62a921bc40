"""One resolver process and the control socket to it, as the daemon holds them.

Messages are JSON on SOCK_SEQPACKET, one a packet: {"op": "add"|"remove"|"revoke", "run": ID}, with "add" also
"table" (text of rules.names.to_json), "revoked" and two descriptors (datagram socket, listening socket). Replies:
{"ok": true|false, "op", "run"}, then "code" and "detail" where it failed. Events: what Event.to_json gives.
{"event": "ready"} comes first.
"""

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from resolver.errors import ResolverError
from resolver.events import MAX_MESSAGE

_ANSWER_SECONDS = 5.0
_END_SECONDS = 2.0

type OnEvent = Callable[[dict[str, Any]], None]


class Link:
    """A running process. After its end every question fails with code "resolver_died"."""

    def __init__(self, proc: asyncio.subprocess.Process, control: socket.socket, on_event: OnEvent) -> None:
        self._proc = proc
        self._control = control
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[str, str], asyncio.Future[None]] = {}
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(control, self._read)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._proc.pid

    async def ask(
        self, op: str, run: str, *, more: Mapping[str, object] | None = None, fds: Sequence[int] = ()
    ) -> None:
        """Send an order and wait until it is carried out. Raises ResolverError.

        A process that takes no order, or leaves one unanswered, is killed: it may serve what it should no longer.
        """
        data = json.dumps({"op": op, "run": run, **(more or {})}).encode()
        if len(data) > MAX_MESSAGE:
            raise ResolverError("table_too_large", f"got {len(data)} bytes of names, want at most {MAX_MESSAGE}")
        key = (op, run)
        if key in self._waiting:
            raise ResolverError("busy", f"{op} of run {run!r} is under way")
        reply = self._waiting[key] = self._loop.create_future()
        try:
            socket.send_fds(self._control, [data], list(fds))
            await asyncio.wait_for(reply, _ANSWER_SECONDS)
        except (TimeoutError, BlockingIOError):
            self._kill()
            raise ResolverError("resolver_silent", f"no answer to {op} in {_ANSWER_SECONDS} s") from None
        except OSError as error:
            raise ResolverError("resolver_died", f"{op} could not be sent: {error.strerror}") from None
        finally:
            self._waiting.pop(key, None)

    async def ended(self) -> int:
        """Wait for the end of the process; its status (below 0: a signal)."""
        status = await self._proc.wait()
        self._read()
        self._cut()
        return status

    async def close(self) -> None:
        """End the process: it leaves when its control socket closes, or is killed."""
        self._cut()
        try:
            await asyncio.wait_for(self._proc.wait(), _END_SECONDS)
        except TimeoutError:
            self._kill()
            await self._proc.wait()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            self._proc.kill()

    def _cut(self) -> None:
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control)
        self._control.close()
        for future in (self.ready, *self._waiting.values()):
            if not future.done():
                future.set_exception(ResolverError("resolver_died", "the resolver process has ended"))
                future.exception()  # marks it as seen: nobody may be waiting

    def _read(self) -> None:
        while self._control.fileno() >= 0:
            try:
                data = self._control.recv(MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._cut()
                return
            self._take(json.loads(data))

    def _take(self, message: dict[str, Any]) -> None:
        if "ok" in message:
            self._settle(message)
        elif message.get("event") == "ready":
            if not self.ready.done():
                self.ready.set_result(None)
        else:
            self._on_event(message)

    def _settle(self, message: dict[str, Any]) -> None:
        future = self._waiting.get((message["op"], message["run"]))
        if future is None or future.done():
            return
        if message["ok"]:
            future.set_result(None)
        else:
            future.set_exception(ResolverError(message["code"], message["detail"]))


async def open_link(on_event: OnEvent) -> Link:
    """Start a resolver process with nothing of our environment and wait until it has confined itself.

    Raises ResolverError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setblocking(False)
        try:
            proc = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-m", "resolver", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={},
                cwd="/",
            )
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise ResolverError("resolver_start", f"{sys.executable}: {error.strerror}") from error
            raise
    link = Link(proc, ours, on_event)
    try:
        await asyncio.wait_for(asyncio.shield(link.ready), _ANSWER_SECONDS)
    except BaseException as error:
        await link.close()
        if isinstance(error, ResolverError | TimeoutError):
            hint = "its own message stands on stderr, above"
            raise ResolverError("resolver_start", f"not ready, status {proc.returncode}", hint) from error
        raise
    return link
