"""An opaque endpoint end to end: a client in a jail talks to a server of the host that speaks no HTTP."""

import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.e2e.place import Live, module_site, wait_for
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)
HOST = "db.corp.example"


class Shouts(socketserver.StreamRequestHandler):
    """Answers each line in capitals."""

    server: "Server"

    def handle(self) -> None:
        for line in self.rfile:
            self.server.lines.append(line)
            self.wfile.write(line.upper())
        self.server.ended.append(time.monotonic())


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Shouts)
        self.lines: list[bytes] = []
        self.ended: list[float] = []


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def policy(site: Site, server: Server, *, address: str = "127.0.0.1") -> None:
    site.policy(
        f'version = 1\n[endpoint.db]\nhost = "{HOST}"\nport = {server.server_address[1]}\naddress = ["{address}"]\n'
        'protocol = "tcp"\nlisten = 5432\n[role.dev]\nendpoints = ["db"]\n'
    )


def talk(host: str = HOST, port: int = 5432) -> list[str]:
    """A client of bash alone: one line there and one back."""
    return ["bash", "-c", f'exec 3<>/dev/tcp/{host}/{port} && echo hello >&3 && read -r -t 10 -u3 got && echo "$got"']


def test_a_line_there_and_back(place: Site, server: Server) -> None:
    policy(place, server)
    done = place.run(*talk())
    assert (done.returncode, done.stdout) == (0, "HELLO\n"), done.stderr
    assert server.lines == [b"hello\n"]
    run = place.ledger(ev="run.end")[-1]["run"]
    first, last = place.ledger(ev="tunnel", run=run)
    assert (first["verdict"], first["rule"], first["host"], first["pin"]) == ("allow", "db", HOST, "127.0.0.1")
    assert (last["req_bytes"], last["resp_bytes"], last["intent_seq"]) == (6, 6, first["seq"])


@pytest.mark.parametrize(("host", "port"), [(HOST, 5433), ("other.example", 5433), (HOST, 22)])
def test_no_other_port_leads_anywhere(host: str, port: int, place: Site, server: Server) -> None:
    policy(place, server)
    done = place.run(*talk(host, port))
    assert done.returncode != 0
    assert "Connection refused" in done.stderr
    assert server.lines == []


def test_the_port_is_not_there_for_a_role_without_it(place: Site, server: Server) -> None:
    policy(place, server)
    place.policy((place.home / "policy/policy.toml").read_text().replace('endpoints = ["db"]\n', ""))
    done = place.run(*talk())
    assert done.returncode != 0
    assert server.lines == []


def test_http_through_the_proxy_does_not_reach_it(place: Site, server: Server) -> None:
    policy(place, server)
    port = server.server_address[1]
    done = place.run("curl", "-sS", "-m", "10", f"http://{HOST}:{port}/")
    assert "credgate_denied" in done.stdout, done.stderr
    assert server.lines == []


def test_a_closed_address(place: Site, server: Server) -> None:
    """A range that does not hold what the name resolves to: it resolves to nothing here, and nothing is dialled."""
    policy(place, server, address="10.0.0.0/8")
    done = place.run(*talk())
    assert done.returncode != 0
    assert server.lines == []
    assert place.ledger(ev="deny", host=HOST)[-1]["reason"] in ("resolve_failed", "address_blocked")


def test_it_ends_with_its_run(place: Site, server: Server) -> None:
    policy(place, server)
    hold = f"exec 3<>/dev/tcp/{HOST}/5432 && echo hello >&3 && read -r -u3 got && echo $got && sleep 60"
    with Live(place, "bash", "-c", hold) as live:
        assert live.line() == "HELLO\n"
        at = time.monotonic()
        assert place.credgate("kill", live.run).returncode == 0
        wait_for(lambda: server.ended, "the server's connection to end")
        live.end()
    assert server.ended[0] - at < 8
    _, last = place.ledger(ev="tunnel", run=live.run)
    assert last["req_bytes"] == 6
