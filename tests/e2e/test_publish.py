"""A server in a jail, reached from the host at a port that the role publishes."""

import contextlib
import socket
import time

import pytest

from tests.e2e.place import Live, module_site, one_error, wait_for
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
while True:
    peer, _ = listener.accept()
    peer.sendall(b"inside: " + peer.recv(100))
    peer.close()
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def policy(site: Site, *ports: int) -> None:
    publish = f"publish = {list(ports)}\n" if ports else ""
    site.policy(f'version = 1\n[role.dev]\n{publish}tools = ["{site.home}/tools"]\n')
    site.write("tools/server.py", SERVER)


def ask(port: int) -> bytes:
    """What comes back; nothing where the connection is reset, which may be while it is still being made."""
    got = b""
    ended = contextlib.suppress(ConnectionResetError, BrokenPipeError)
    with ended, socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(b"hello")
        while data := sock.recv(100):
            got += data
    return got


def server(site: Site, port: int) -> tuple[str, ...]:
    return ("/usr/bin/python3", str(site.home / "tools/server.py"), str(port))


def test_a_server_on_the_jails_own_loopback(place: Site, port: int) -> None:
    policy(place, port)
    with Live(place, *server(place, port)) as live:
        assert live.line() == "up\n"
        assert ask(port) == b"inside: hello"
        assert ask(port) == b"inside: hello"
        wait_for(lambda: len(place.ledger(ev="tunnel", run=live.run)) == 4, "both connections in the ledger")
        place.credgate("kill", live.run)
        live.end()
    assert {line["via"] for line in place.ledger(ev="tunnel", run=live.run)} == {"publish"}
    with pytest.raises(ConnectionRefusedError):
        ask(port)


def test_a_port_that_is_not_published_is_not_there(place: Site, port: int) -> None:
    policy(place)
    with Live(place, *server(place, port)) as live:
        assert live.line() == "up\n"
        with pytest.raises(ConnectionRefusedError):
            ask(port)


def test_nothing_listens_inside(place: Site, port: int) -> None:
    policy(place, port)
    with Live(place, "sleep", "300"):
        started = time.monotonic()
        assert ask(port) == b""
        assert time.monotonic() - started < 30


def test_a_port_that_is_taken_stops_the_run(place: Site, port: int) -> None:
    policy(place, port)
    with socket.create_server(("127.0.0.1", port)):
        done = place.run("true")
    assert done.returncode == 125
    error, hint = one_error(done.stderr)
    assert str(port) in error and "publish another port" in hint
    assert place.run("true").returncode == 0
