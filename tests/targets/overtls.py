"""HTTP/1.1 over TLS on loopback for stand-ins of real services: a thread for each connection."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    context: ssl.SSLContext

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    """The handshake is its own thread's."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Nothing: what arrived is kept, and says it."""


class Served:
    """Serves at `port` until `stop`."""

    def __init__(self, tls: ssl.SSLContext, handler: type[Handler]) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.context = tls
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
