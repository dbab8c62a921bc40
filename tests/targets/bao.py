"""OpenBao itself, in memory, behind TLS of the tests' own authority; and a stand-in of RabbitMQ's management API, which
its engine of that name makes users at: the one leased engine that needs no database.
"""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.targets import clients
from tests.targets.pki import Authority
from tests.targets.served import accepts, clean_env, free_port, running

HOST = "vault.acme.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bao:
    """A running server: its TLS port at HOST on loopback, its root token, and what the broker saw of users."""

    port: int
    ca: Path
    token: str
    plain: int
    users: list[tuple[str, str]] = field(default_factory=list)

    def api(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """One call with the root token, around the gateway, over the plain port."""
        argv = ["curl", "-sS", "--fail-with-body", "-H", f"X-Vault-Token: {self.token}"]
        argv += ["-d", json.dumps(body)] if body is not None else []
        url = f"http://127.0.0.1:{self.plain}/v1/{path}"
        done = subprocess.run(
            [*argv, url], capture_output=True, text=True, timeout=30, check=False, env={"PATH": os.environ["PATH"]}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, object] = json.loads(done.stdout or "{}")
        return found


@contextlib.contextmanager
def serving(state: Path) -> Iterator[Bao]:
    """Serves until the block ends: KV version 2 at secret/, version 1 at kv1/, AppRole, and rabbitmq/."""
    authority = Authority(state, "vault-ca")
    pair = authority.issue(HOST)
    port, plain, token = free_port(), free_port(), f"root-{os.urandom(8).hex()}"
    (state / "bao.hcl").write_text(
        f'listener "tcp" {{\n  address = "127.0.0.1:{port}"\n  tls_cert_file = "{pair.certificate}"\n'
        f'  tls_key_file = "{pair.key}"\n}}\n'
    )
    argv = [
        *(str(clients.bao()), "server", "-dev", "-dev-no-store-token", f"-dev-root-token-id={token}"),
        *(f"-dev-listen-address=127.0.0.1:{plain}", f"-config={state}/bao.hcl"),
    ]
    with (
        running(argv, ready=lambda: accepts(port) and accepts(plain), log=state / "bao.log", env=clean_env(state)),
        _broker() as (broker, users),
    ):
        bao = Bao(port=port, ca=authority.ca, token=token, plain=plain, users=users)
        bao.api("sys/mounts/kv1", {"type": "kv", "options": {"version": "1"}})
        bao.api("sys/mounts/rabbitmq", {"type": "rabbitmq"})
        bao.api("sys/auth/approle", {"type": "approle"})
        connection = {"connection_uri": f"http://127.0.0.1:{broker}", "username": "a", "password": "b"}
        bao.api("rabbitmq/config/connection", {**connection, "verify_connection": False})
        yield bao


@contextlib.contextmanager
def _broker() -> Iterator[tuple[int, list[tuple[str, str]]]]:
    users: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path.startswith("/api/users/"):
                users.append((self.command, self.path.rpartition("/")[2]))
            self.send_response(204)
            self.end_headers()

        do_GET = do_PUT = do_POST = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], users
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
