"""What everything is asked of: a TLS server on loopback, run as a process. Standard library, and quick.

usage: served.py CERTIFICATE KEY CREDENTIAL [ADDRESS]; prints its port. A request without the credential gets a 401, so
that no contestant is measured that does not do the work.
"""

import asyncio
import ssl
import sys
import time
from typing import Any

SMALL = b'{"id": 1001, "title": "' + b"x" * 160 + b'", "state": "open"}'
PIECE = b"0123456789abcdef" * 4096
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nX-Request-Id: req-1\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Served(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, credential: bytes) -> None:
        self.wanted = b"authorization: " + credential.lower() + b"\r\n"
        self.buffer = b""
        self.left = 0  # of a body that is thrown away
        self.room = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.room.set()

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()

    def data_received(self, data: bytes) -> None:
        if self.left:
            taken = min(self.left, len(data))
            self.left -= taken
            data = data[taken:]
            if not self.left:
                self.transport.write(answer(b"{}"))
        self.buffer += data
        while not self.left and (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head, self.buffer = self.buffer[: end + 4], self.buffer[end + 4 :]
            self.request(head)

    def request(self, head: bytes) -> None:
        lower = head.lower()
        if self.wanted not in lower:
            self.transport.write(answer(b'{"error": "no credential"}', b"401 Unauthorized"))
            return
        method, path, _ = head.split(b" ", 2)
        if method == b"POST":
            length = int(lower.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
            self.left = length - len(self.buffer)
            self.buffer = b""
        elif path.startswith(b"/bytes/"):
            self.background(self.bulk(int(path[7:])))
        elif path.startswith(b"/events/"):
            self.background(self.events(int(path[8:])))
        else:
            self.transport.write(answer(SMALL))

    def background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def bulk(self, size: int) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(PIECE)):
            await self.room.wait()
            self.transport.write(PIECE)

    async def events(self, count: int) -> None:
        """Each holds when it was sent, by the clock that all processes of the machine share."""
        self.transport.write(SSE)
        for _ in range(count):
            await asyncio.sleep(0.005)
            event = b"data: %020d\n\n" % time.monotonic_ns()
            self.transport.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.transport.write(b"0\r\n\r\n")


async def main(certificate: str, key: str, credential: str, address: str = "127.0.0.1") -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    tls.set_alpn_protocols(["http/1.1"])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Served(credential.encode()), address, 0, ssl=tls, backlog=128)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
