"""A real client's WebSocket from a jail: its handshake gets the secret, its frames pass, and a revocation ends it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.credgate.gateway_rig import Target, server_tls
from tests.credgate.test_websocket import echo
from tests.e2e.place import Live, module_site
from tests.e2e.site import Site
from tests.targets.pki import Authority

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "node")
place = pytest.fixture(scope="module")(module_site)
HOST, VALUE = "ws.acme.test", "sk-acme-websocket-0123456789abcdef"

CLIENT = """
const socket = new WebSocket(process.argv[1]);
let heard = 0;
socket.onopen = () => socket.send("x".repeat(100000));
socket.onmessage = (event) => {
  console.log(event.data.length);
  if (process.argv[2] === "close") socket.close(1000);
};
socket.onerror = () => console.log("error");
socket.onclose = (event) => console.log("closed", event.code);
"""
NODE = ("node", "--no-warnings", "--experimental-websocket", "-e", CLIENT)


@dataclass
class Echo:
    """The echo of the gateway's tests on a loop of its own."""

    target: Target
    ca: Path
    loop: asyncio.AbstractEventLoop


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Echo]:
    ca = Authority(tmp_path, "ws-ca")
    target = Target(server_tls(ca, HOST))
    target.script = echo
    loop = asyncio.new_event_loop()
    loop.run_until_complete(target.__aenter__())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield Echo(target, ca.ca, loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(_ended(target))
    loop.close()


async def _ended(target: Target) -> None:
    await target.__aexit__()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*others, return_exceptions=True)


def policy(site: Site, server: Echo, *, upgrade: bool = True) -> None:
    site.secret("ws", VALUE)
    site.policy(
        f'version = 1\n[secret.ws]\nsource = "keyring:credgate/ws"\n[endpoint.ws]\nhost = "{HOST}"\n'
        f'dial_port = {server.target.port}\naddress = ["127.0.0.1"]\nca = "ca.pem"\n'
        f'[[endpoint.ws.allow]]\nid = "all"\nmethods = ["GET"]\npaths = ["/ws"]\nupgrade = {str(upgrade).lower()}\n'
        '[binding.ws]\nsecret = "ws"\nendpoint = "ws"\nrules = ["all"]\nplace = "header:authorization"\n'
        '[role.dev]\nbindings = ["ws"]\n',
        server.ca,
    )


def test_node_sends_and_hears_a_large_message(place: Site, server: Echo) -> None:
    policy(place, server)
    done = place.run(*NODE, f"wss://{HOST}/ws", "close")
    assert done.stdout.splitlines() == ["100000", "closed 1000"], done.stdout + done.stderr
    [seen] = server.target.seen
    assert seen.values(b"authorization") == [b"Bearer " + VALUE.encode()]
    assert seen.values(b"sec-websocket-extensions") == []  # node offers compression
    run = place.ledger(ev="run.end")[-1]["run"]
    [outcome] = place.ledger(ev="outcome", run=run)
    assert (outcome["status"], outcome["req_bytes"] > 100000) == (101, True)


def test_without_upgrade_the_client_is_told(place: Site, server: Echo) -> None:
    policy(place, server, upgrade=False)
    done = place.run(*NODE, f"wss://{HOST}/ws", "close")
    assert "error" in done.stdout
    assert server.target.seen == []
    assert place.ledger(ev="deny", reason="upgrade_refused")


def test_a_revocation_ends_it(place: Site, server: Echo) -> None:
    policy(place, server)
    with Live(place, *NODE, f"wss://{HOST}/ws", "stay") as live:
        assert live.line() == "100000\n"
        assert place.credgate("revoke", live.run).returncode == 0
        assert live.line() in ("error\n", "closed 1006\n")
    [outcome] = place.ledger(ev="outcome", run=live.run)
    assert outcome["status"] == 101
