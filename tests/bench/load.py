"""The client that asks, in or outside a jail: standard library, blocking sockets, one thread.

usage: load.py HOST ADDRESS PORT CA PROXY CREDENTIAL. PROXY 1: CONNECT first; `env`: likewise, and the address is in
HTTPS_PROXY, the CA in SSL_CERT_FILE. Commands are lines on stdin (`requests C N`, `events N`, `down BYTES`, `up BYTES`,
`connect N`); each is answered by a line of JSON. Its cost is nobody's: measured is the process it speaks to.
"""

import json
import os
import select
import socket
import ssl
import sys
import time


class Link:
    """One connection to the target, through what stands between."""

    def __init__(self, asked: "Asked") -> None:
        plain = socket.create_connection((asked.address, asked.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if asked.proxied:
            name = f"{asked.host}:443".encode()
            plain.sendall(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (name, name))
            head = b""
            while b"\r\n\r\n" not in head:
                head += plain.recv(4096) or b"\r\n\r\n"
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise ConnectionError(head)
        self.tls = asked.tls.wrap_socket(plain, server_hostname=asked.host)
        self.left = b""

    def head(self) -> bytes:
        while (end := self.left.find(b"\r\n\r\n")) < 0:
            self.left += self.more()
        head, self.left = self.left[: end + 4], self.left[end + 4 :]
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(head + self.left)
        return head

    def more(self) -> bytes:
        data = self.tls.recv(65536)
        if not data:
            raise ConnectionError("closed")
        return data

    def answer(self) -> int:
        """Read one answer away; the length of its body."""
        length = int(self.head().lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        left = length - len(self.left)
        self.left = b""
        buffer = bytearray(1 << 18)
        while left > 0:
            left -= self.tls.recv_into(buffer)
        return length


class Asked:
    """The command line, and the commands."""

    def __init__(self, host: str, address: str, port: str, ca: str, proxied: str, credential: str) -> None:
        self.host, self.address, self.proxied = host, address, proxied != "0"
        if proxied == "env":
            place = os.environ["HTTPS_PROXY"].split("//", 1)[1].rstrip("/")
            self.address, _, port = place.rpartition(":")
            ca = os.environ["SSL_CERT_FILE"]
        self.port = int(port)
        self.tls = ssl.create_default_context(cafile=ca)
        self.tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # http-mitm-proxy's leaves have no authority key identifier
        own = f"Authorization: {credential}\r\n" if credential else ""
        self.fields = f"Host: {host}\r\nUser-Agent: bench/1\r\nAccept: */*\r\n{own}".encode()
        self.links: list[Link] = []

    def get(self, path: str, more: bytes = b"") -> bytes:
        return b"GET %s HTTP/1.1\r\n%s%s\r\n" % (path.encode(), self.fields, more)

    def linked(self, count: int) -> list[Link]:
        """That many connections, new ones for those that the other end closed meanwhile."""
        self.links = [link for link in self.links if not select.select([link.tls], [], [], 0)[0]]
        self.links += [Link(self) for _ in range(count - len(self.links))]
        return self.links[:count]

    def requests(self, count: int, number: int) -> dict[str, float]:
        """`number` requests over `count` kept connections: one is always out on each."""
        links, ask, times = self.linked(count), self.get("/small"), []
        began = time.perf_counter()
        for link in links:
            link.tls.sendall(ask)
        for turn in range(number):
            link = links[turn % count]
            asked = time.perf_counter()
            link.answer()
            times.append(time.perf_counter() - asked)
            if turn < number - count:
                link.tls.sendall(ask)
        return {"seconds": time.perf_counter() - began, "p50": sorted(times)[number // 2]}

    def events(self, count: int) -> dict[str, float]:
        """Seconds from an event's sending to its arrival: median and 99th of 100."""
        (link,) = self.linked(1)
        link.tls.sendall(self.get(f"/events/{count}"))
        link.head()
        delays: list[int] = []
        text, link.left = link.left, b""
        while b"0\r\n\r\n" not in text[-5:]:
            text += link.more()
            now = time.monotonic_ns()
            while (at := text.find(b"data: ")) >= 0 and len(text) >= at + 26:
                delays.append(now - int(text[at + 6 : at + 26]))
                text = text[at + 26 :]
        if len(delays) != count:
            raise ConnectionError(f"{len(delays)} events, expected {count}")
        delays.sort()
        return {"p50": delays[count // 2] / 1e9, "p99": delays[count * 99 // 100] / 1e9}

    def down(self, size: int) -> dict[str, float]:
        (link,) = self.linked(1)
        began = time.perf_counter()
        link.tls.sendall(self.get(f"/bytes/{size}"))
        if link.answer() != size:
            raise ConnectionError("short")
        return {"seconds": time.perf_counter() - began}

    def up(self, size: int) -> dict[str, float]:
        (link,) = self.linked(1)
        piece = b"0123456789abcdef" * 4096
        began = time.perf_counter()
        link.tls.sendall(b"POST /sink HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (self.fields, size))
        for _ in range(size // len(piece)):
            link.tls.sendall(piece)
        link.answer()
        return {"seconds": time.perf_counter() - began}

    def close(self) -> None:
        for link in self.links:
            link.tls.close()
        self.links = []

    def connect(self, number: int) -> dict[str, float]:
        """`number` connections one after the other, one request on each."""
        ask = self.get("/small")
        began = time.perf_counter()
        for _ in range(number):
            link = Link(self)
            link.tls.sendall(ask)
            link.answer()
            link.tls.close()
        return {"seconds": time.perf_counter() - began}


def main() -> None:
    asked = Asked(*sys.argv[1:])
    for line in sys.stdin:
        name, *numbers = line.split()
        print(json.dumps(getattr(asked, name)(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
