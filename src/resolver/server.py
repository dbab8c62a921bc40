"""The sockets: for each run a UDP and a listening TCP socket, made elsewhere, in the namespace of that run's gate.

One loop, one thread. A run that asks too fast is paused, not refused: its own kernel queue fills and drops, and the
other runs are served meanwhile. Nothing here opens a socket but by accept().
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

from resolver.answer import Answer, Kind, answer, servfail
from resolver.errors import ResolverError
from resolver.events import Code, Event
from resolver.limits import Guard, Pace
from resolver.query import MAX_QUERY
from rules.names import NameTable

TCP_CONNECTIONS = 4  # a run; more wait in the kernel's backlog
TCP_SECONDS = 2.0  # the whole life of a connection
_BATCH = 32  # datagrams of one run before the loop looks at the others
_PREFIX = 2
_ACCEPT_PAUSE = 0.5  # seconds, when descriptors have run out

type Report = Callable[[Event], None]


class Server:
    """All runs. `report` must not block; `tasks` outlives the server's use."""

    def __init__(self, tasks: asyncio.TaskGroup, report: Report) -> None:
        self._tasks = tasks
        self._report = report
        self._runs: dict[str, _RunServer] = {}

    def add(self, run: str, table: NameTable, udp: socket.socket, tcp: socket.socket, *, revoked: bool = False) -> None:
        """Serve a run; the sockets are the server's from here on. Raises ResolverError."""
        if run in self._runs:
            raise ResolverError("run_known", f"run {run!r} is served already")
        if udp.type != socket.SOCK_DGRAM or not tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ResolverError("wrong_sockets", f"want a datagram and a listening socket, got {udp.type}, {tcp.type}")
        server = self._runs[run] = _RunServer(run, table, udp, tcp, self._tasks, self._report)
        server.revoked = revoked

    def revoke(self, run: str) -> None:
        """From the next query on every name of this run is NXDOMAIN. Raises ResolverError."""
        self._find(run).revoked = True

    def replace(self, run: str, table: NameTable) -> None:
        """From the next query on this table counts; what was counted so far stays. Raises ResolverError."""
        self._find(run).table = table

    async def remove(self, run: str) -> None:
        """Close the run's sockets and report its totals. Raises ResolverError."""
        server = self._find(run)
        del self._runs[run]
        await server.close()

    def _find(self, run: str) -> "_RunServer":
        if run not in self._runs:
            raise ResolverError("run_unknown", f"no run {run!r} is served")
        return self._runs[run]


class _RunServer:
    def __init__(
        self,
        run: str,
        table: NameTable,
        udp: socket.socket,
        tcp: socket.socket,
        tasks: asyncio.TaskGroup,
        report: Report,
    ) -> None:
        self.revoked = False
        self._closing = False
        self._run, self.table = run, table
        self._udp, self._tcp = udp, tcp
        self._tasks, self._report = tasks, report
        self._loop = asyncio.get_running_loop()
        self._guard, self._pace = Guard(run), Pace()
        self._connections: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        udp.setblocking(False)
        tcp.setblocking(False)
        self._loop.add_reader(udp, self._datagrams)
        self._loop.add_reader(tcp, self._accept)

    async def close(self) -> None:
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        for sock in (self._udp, self._tcp):
            self._loop.remove_reader(sock)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._udp.close()
        self._tcp.close()
        for event in self._guard.totals():
            self._report(event)

    # UDP

    def _datagrams(self) -> None:
        for _ in range(_BATCH):
            wait = self._pace.wait(time.monotonic())
            if wait:
                self._pause(self._udp, self._datagrams, wait)
                return
            try:
                data, peer = self._udp.recvfrom(MAX_QUERY + 1)
            except OSError:
                # Nothing left, or an ICMP error that the kernel kept for us: neither ends the service.
                return
            reply = self._reply(data)
            if reply is not None:
                self._send(reply, peer)

    def _send(self, reply: bytes, peer: tuple[Any, ...]) -> None:
        try:
            self._udp.sendto(reply, peer)
        except OSError:
            # Full buffer or a peer out of reach: the client asks again. Nobody else waits for this answer.
            self._guard.counted(Code.UNSENT)

    def _pause(self, sock: socket.socket, reader: Callable[[], None], seconds: float) -> None:
        self._loop.remove_reader(sock)

        def resume() -> None:
            self._timers.discard(timer)
            self._loop.add_reader(sock, reader)

        timer = self._loop.call_later(seconds, resume)
        self._timers.add(timer)

    # TCP

    def _accept(self) -> None:
        if len(self._connections) >= TCP_CONNECTIONS:
            self._loop.remove_reader(self._tcp)
            return
        now = time.monotonic()
        if wait := self._pace.wait(now):
            self._pause(self._tcp, self._accept, wait)
            return
        self._pace.take(now, 0.0)  # connections that ask for nothing cost more than messages
        try:
            conn, _ = self._tcp.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            # EMFILE and the like: the socket stays readable, so looking again at once would spin.
            self._pause(self._tcp, self._accept, _ACCEPT_PAUSE)
            return
        conn.setblocking(False)
        task = self._tasks.create_task(self._serve(conn))
        self._connections.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if not self._closing:
            self._loop.add_reader(self._tcp, self._accept)

    async def _serve(self, conn: socket.socket) -> None:
        try:
            async with asyncio.timeout(TCP_SECONDS):
                while (data := await self._message(conn)) is not None:
                    reply = self._reply(data)
                    if reply is None:
                        return
                    await self._loop.sock_sendall(conn, len(reply).to_bytes(_PREFIX, "big") + reply)
        except (OSError, TimeoutError):
            # The peer went away or took too long; what it asked before has been answered.
            self._guard.counted(Code.TCP_ENDED)
        finally:
            conn.close()

    async def _message(self, conn: socket.socket) -> bytes | None:
        """One message without its prefix; of a too long one the first MAX_QUERY + 1 bytes, which the parser refuses."""
        prefix = await self._exactly(conn, _PREFIX)
        if prefix is None:
            return None
        size = int.from_bytes(prefix, "big")
        data = await self._exactly(conn, min(size, MAX_QUERY + 1))
        rest = size - MAX_QUERY - 1
        while data is not None and rest > 0:
            rest -= len(await self._exactly(conn, min(rest, 4096)) or bytes(rest))
        return data

    async def _exactly(self, conn: socket.socket, size: int) -> bytes | None:
        """`size` bytes in as many pieces as they come (RFC 7766 section 8); None where the stream ends before."""
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(conn, size - len(data))
            if not piece:
                return None
            data += piece
            self._pace.take(time.monotonic(), 0.0)  # a read for a byte costs what a message does
            await asyncio.sleep(self._pace.wait(time.monotonic()))
        return data

    # Both

    def _reply(self, data: bytes) -> bytes | None:
        began = time.thread_time()
        try:
            result = answer(self.table, data, revoked=self.revoked, admit=self._guard.wildcard)
        except Exception as error:  # noqa: BLE001  outermost frame of a query: whatever it was, no name is answered
            code, detail = Code.ERROR, type(error).__name__
            result = Answer(reply=servfail(data), kind=Kind.SERVFAIL, code=code, detail=detail)
        now = time.monotonic()
        self._record(result, now)
        self._pace.take(now, time.thread_time() - began)
        return result.reply

    def _record(self, result: Answer, now: float) -> None:
        if result.code is None:
            return
        event = Event(run=self._run, code=result.code, name=result.name, qtype=result.qtype, detail=result.detail)
        events: list[Event] = []
        match result.code:
            case Code.ALLOW:
                events = self._guard.allowed(event)
            case Code.SUFFIX:
                self._guard.counted(Code.SUFFIX)
            case _:
                events = self._guard.denied(event, now)
        for each in events:
            self._report(each)
