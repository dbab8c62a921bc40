"""What the tests of the resolver share: queries, loopback sockets, a client that doesn't parse with our code."""

import asyncio
import itertools
import socket

from dnslib import DNSRecord

from rules.hosts import HostPattern
from rules.names import NameTable
from rules.policy import Unlisted

GATEWAY = "10.99.0.1"
NXDOMAIN, SERVFAIL, FORMERR = 3, 2, 1
_idents = itertools.count(1)


def table(unlisted: Unlisted = Unlisted.NXDOMAIN) -> NameTable:
    """One exact name and one wildcard."""
    return NameTable(
        gateway_ip=GATEWAY,
        unlisted=unlisted,
        exact=frozenset({("api", "github", "com")}),
        wildcards=(HostPattern.parse("*.cdn.example"),),
    )


def sockets() -> tuple[socket.socket, socket.socket]:
    """A bound datagram socket and a listening one, on loopback."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.bind(("127.0.0.1", 0))
    tcp.listen(64)
    return udp, tcp


def query(name: str, qtype: str = "A") -> bytes:
    """The bytes of a query, as another implementation writes them."""
    record = DNSRecord.question(name, qtype)
    record.header.id = next(_idents) & 0xFFFF
    return bytes(record.pack())


def framed(data: bytes) -> bytes:
    """With the length prefix of TCP."""
    return len(data).to_bytes(2, "big") + data


def rcode(reply: bytes) -> int:
    """The code of an answer."""
    return reply[3] & 0x0F


def answers(reply: bytes) -> list[str]:
    """The data of the answer records."""
    return [str(record.rdata) for record in DNSRecord.parse(reply).rr]


class Client:
    """A connected datagram socket for use in a loop."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._sock.connect(server)

    def send(self, data: bytes) -> None:
        """Send and wait for nothing."""
        self._sock.send(data)

    async def receive(self, seconds: float = 5.0) -> bytes:
        """The next answer. Raises TimeoutError."""
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._sock, 65535), seconds)

    async def ask(self, data: bytes, seconds: float = 5.0) -> bytes:
        """One query, its answer."""
        self.send(data)
        reply = await self.receive(seconds)
        assert reply[:2] == data[:2]
        return reply

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
