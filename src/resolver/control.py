"""The control socket inside the resolver process: orders with descriptors in, replies and events out."""

import asyncio
import json
import socket
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from resolver.errors import ResolverError
from resolver.events import MAX_MESSAGE, Outbox
from resolver.server import Server
from rules.names import NameTable, from_json
from rules.problems import TableError


class Control:
    """Reads orders until the daemon closes its end; `done` is set then."""

    def __init__(self, sock: socket.socket, tasks: asyncio.TaskGroup) -> None:
        self.done = asyncio.Event()
        self._sock = sock
        self._outbox = Outbox(sock, gone=self.done.set)
        self._server = Server(tasks, self._outbox.post)

    async def serve(self) -> None:
        """Carry out orders one after the other. Raises ResolverError when the daemon no longer reads."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        self._sock.setblocking(False)
        loop.add_reader(self._sock, readable.set)
        self._outbox.reply({"event": "ready"})
        while not self.done.is_set():
            await readable.wait()
            readable.clear()
            while not self.done.is_set() and await self._one():
                pass

    async def _one(self) -> bool:
        """Take one message; False when there is none now."""
        try:
            data, fds, flags, _ = socket.recv_fds(self._sock, MAX_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            data, fds, flags = b"", [], 0
        socks = [socket.socket(fileno=fd) for fd in fds]
        if not data:
            self.done.set()
            return False
        names: dict[str, object] = {}
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ResolverError("cut", "the message or its descriptors did not fit")
            order = _order(data)
            names = {"op": order["op"], "run": order["run"]}
            await self._carry_out(order, socks)
        except (ResolverError, OSError) as error:  # OSError: no more room in the kernel for this run
            for sock in socks:
                sock.close()
            code, detail = (error.code, error.detail) if isinstance(error, ResolverError) else ("os_error", str(error))
            self._outbox.reply({"ok": False, **names, "code": code, "detail": detail})
        else:
            self._outbox.reply({"ok": True, **names})
        return True

    async def _carry_out(self, order: dict[str, Any], socks: list[socket.socket]) -> None:
        match order, socks:
            case {"op": "add", "run": str(run), "table": str(table), "revoked": bool(revoked)}, [udp, tcp]:
                self._server.add(run, _table(table), udp, tcp, revoked=revoked)
            case {"op": "revoke", "run": str(run)}, []:
                self._server.revoke(run)
            case {"op": "table", "run": str(run), "table": str(table)}, []:
                self._server.replace(run, _table(table))
            case {"op": "remove", "run": str(run)}, []:
                await self._server.remove(run)
            case _:
                raise ResolverError("order", f"not an order: {str(order)[:200]} with {len(socks)} descriptors")


def _order(data: bytes) -> dict[str, Any]:
    try:
        order = json.loads(data)
    except ValueError as error:
        raise ResolverError("order", f"not json: {error}") from error
    if not isinstance(order, dict) or not {"op", "run"} <= order.keys():
        raise ResolverError("order", f'got {str(order)[:200]}, want an object with "op" and "run"')
    return order


def _table(text: str) -> NameTable:
    """Read the table, with its address: a bad one would otherwise show at each query."""
    try:
        table = from_json(text)
        IPv4Address(table.gateway_ip)
    except (TableError, AddressValueError) as error:
        raise ResolverError("table", str(error)) from error
    return table
