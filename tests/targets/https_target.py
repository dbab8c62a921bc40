"""A small HTTP/1.1 target with TLS that behaves as it is asked to, and records each credential it is sent.

python -I https_target.py --state DIR [--certificate PEM --key PEM]

Reads DIR/token (what /private/... wants). Writes DIR/port, DIR/witness.jsonl (a line when a connection is accepted, one
when a request's head was read, before anything is answered) and DIR/access.log in the combined format. Paths:

/echo               200, JSON: method, path, headers as received, size and sha256 of the body
/private/...        200 with `Authorization: Bearer TOKEN`, else 401
/status/N           N
/slow/MS            200 after MS milliseconds
/sse/N/MS           N events, MS milliseconds apart, chunked
/large/BYTES        200 with that many bytes
/reflect            200, the received Authorization in a header and in the body
/redirect?TO        302 to TO
/reset              the connection is reset once the head was read
/truncated          a Content-Length of 1000, 100 bytes, end of stream
/hang               no answer for a minute
/unread             401 while the body is left unread, connection closed
/place/PLACE/...    200 where the token stands in that place and nowhere else, else 401: see PLACES
"""

import argparse
import base64
import hashlib
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

HANG = 60.0


class Witness:
    """Appends lines; a line is whole in the file before the request is answered."""

    def __init__(self, state: Path) -> None:
        self._lock = threading.Lock()
        self._witness = (state / "witness.jsonl").open("a", buffering=1)
        self._access = (state / "access.log").open("a", buffering=1)

    def write(self, **fields: object) -> None:
        with self._lock:
            self._witness.write(json.dumps(fields) + "\n")

    def access(self, line: str) -> None:
        with self._lock:
            self._access.write(line + "\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, witness: Witness, token: str, context: ssl.SSLContext | None) -> None:
        self.witness = witness
        self.token = token
        self.context = context
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that goes away or refuses the certificate is what some tests are about.
        print(f"{client_address}: {sys.exception()!r}", file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "target"
    sys_version = ""

    def setup(self) -> None:
        self.server.witness.write(event="connection", peer=self.client_address[1])
        if self.server.context is not None:
            # Here and not in accept(): a client that never finishes its handshake blocks its own thread alone.
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def _serve(self) -> None:
        name, _, rest = self.path.partition("?")[0].lstrip("/").partition("/")
        self._answered = False
        BEHAVIOURS.get(name, Handler.missing)(self, rest)
        if not self._answered:
            self._record(0)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

    def _record(self, status: int) -> None:
        """Once a request, before its answer; a status of 0 says that there was none."""
        self._answered = True
        header = self.headers.get
        self.server.witness.write(
            event="request",
            method=self.command,
            path=self.path,
            host=header("Host", ""),
            protocol=self.request_version,
            authorization=header("Authorization", ""),
            user_agent=header("User-Agent", ""),
            status=status,
            headers=self.headers.items(),
        )
        stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
        agent = header("User-Agent", "-")
        self.server.witness.access(
            f'{self.client_address[0]} - - [{stamp}] "{self.requestline}" {status} - "-" "{agent}"'
        )

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self._record(status)
        self.send_response(status)
        for name, value in {"Content_Type": "text/plain", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def missing(self, rest: str) -> None:
        self._body()
        self._answer(404, b"no such path\n")

    def echo(self, rest: str) -> None:
        body = self._body()
        said = {
            "method": self.command,
            "path": self.path,
            "headers": self.headers.items(),
            "size": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        self._answer(200, json.dumps(said).encode(), Content_Type="application/json")

    def private(self, rest: str) -> None:
        self._body()
        if self.headers.get_all("Authorization") == [f"Bearer {self.server.token}"]:
            self._answer(200, b"welcome\n")
        else:
            self._answer(401, b"who are you\n", WWW_Authenticate='Bearer realm="target"')

    def status(self, rest: str) -> None:
        self._body()
        self._answer(int(rest), b"as asked\n")

    def slow(self, rest: str) -> None:
        self._body()
        time.sleep(min(int(rest) / 1000, HANG))
        self._answer(200, b"at last\n")

    def sse(self, rest: str) -> None:
        count, pause = (int(part) for part in rest.split("/"))
        self._body()
        self._record(200)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(min(count, 1000)):
            self._chunk(b"data: %d %.6f\n\n" % (number, time.time()))
            time.sleep(min(pause / 1000, HANG))
        self._chunk(b"")

    def large(self, rest: str) -> None:
        left = int(rest)
        self._body()
        self._record(200)
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        while left and self.command != "HEAD":
            left -= self.wfile.write(bytes(min(left, 65536)))

    def reflect(self, rest: str) -> None:
        self._body()
        value = self.headers.get("Authorization", "")
        self._answer(200, f"you sent {value}\n".encode(), X_Received=value)

    def redirect(self, rest: str) -> None:
        self._body()
        self._answer(302, Location=self.path.partition("?")[2])

    def reset(self, rest: str) -> None:
        self._record(0)
        raw = self.connection
        # A linger of zero makes close() send RST in place of FIN (socket(7)).
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.wfile.close()
        socket.socket(fileno=raw.detach()).close()

    def truncated(self, rest: str) -> None:
        self._body()
        self._record(200)
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(bytes(100))
        self.close_connection = True

    def hang(self, rest: str) -> None:
        self._record(0)
        self.connection.settimeout(HANG)
        while self.connection.recv(65536):  # ends when the client gives up
            pass
        self.close_connection = True

    def unread(self, rest: str) -> None:
        self.close_connection = True
        self._answer(401, b"not read\n", Connection="close")

    def place(self, rest: str) -> None:
        body, token = self._body(), self.server.token
        values = PLACES[rest.partition("/")[0]](self, body)
        inside = [value for _, value in self.headers.items() if token in value]
        here = (self.path, *inside, body.decode("latin-1"))
        once = sum(text.count(token) for text in here) <= 1  # inside base64 it does not show
        if values == [token] and once:
            self._answer(200, b"welcome\n")
        else:
            self._answer(401, b"who are you\n")

    def log_message(self, *args: object) -> None:
        """The access log is written by _record."""


def _query(handler: Handler, body: bytes) -> list[str]:
    return parse_qs(handler.path.partition("?")[2]).get("api_key", [])


def _cookie(handler: Handler, body: bytes) -> list[str]:
    return [m.value for n, m in SimpleCookie(handler.headers.get("Cookie", "")).items() if n == "session"]


def _basic(handler: Handler, body: bytes) -> list[str]:
    values = handler.headers.get_all("Authorization") or []
    return [base64.b64decode(v.removeprefix("Basic ")).decode().removeprefix("agent:") for v in values]


def _path(handler: Handler, body: bytes) -> list[str]:
    return [part.removeprefix("bot") for part in handler.path.split("/")[3:4]]


# Where each place is looked for, as a server of its kind does.
PLACES: dict[str, Callable[[Handler, bytes], list[str]]] = {
    "scheme": lambda h, _: [v.removeprefix("Token token=") for v in h.headers.get_all("X-Odd") or []],
    "basic": _basic,
    "query": _query,
    "cookie": _cookie,
    "path": _path,
    "json": lambda _, body: [json.loads(body)["auth"]["token"]],
    "form": lambda _, body: parse_qs(body.decode()).get("client_secret", []),
}
BEHAVIOURS: dict[str, Callable[[Handler, str], None]] = {
    name: getattr(Handler, name)
    for name in (
        "echo", "private", "status", "slow", "sse", "large", "reflect", "redirect", "reset", "truncated", "hang",
        "unread", "place",
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    args = parser.parse_args()
    context = None
    if args.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(args.certificate, args.key)
        context.set_alpn_protocols(["http/1.1"])
    with Server(Witness(args.state), (args.state / "token").read_text(), context) as server:
        (args.state / "port").write_text(str(server.server_port))
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
