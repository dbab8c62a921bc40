"""The control socket against orders that make no sense: a refusal each, no descriptor kept, the next order works."""

import array
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resolver.events import MAX_MESSAGE
from rules.names import to_json
from tests.resolver.bench import sockets, table

pytestmark = pytest.mark.needs("netns")

ADD = {"op": "add", "run": "r1", "table": to_json(table()), "revoked": False}


@pytest.fixture
def control() -> Iterator[socket.socket]:
    """Our end of a running process's control socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = theirs.fileno()
    process = subprocess.Popen([sys.executable, "-I", "-m", "resolver", str(number)], pass_fds=(number,))
    theirs.close()
    ours.settimeout(10)
    assert json.loads(ours.recv(4096)) == {"event": "ready"}
    yield ours
    ours.close()
    assert process.wait(10) == 0


def order(control: socket.socket, data: bytes, fds: list[int]) -> Any:
    """Send a packet, read the reply."""
    # socket.send_fds refuses an empty list on some versions
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    control.sendmsg([data], rights)
    return json.loads(control.recv(MAX_MESSAGE))


@pytest.mark.parametrize(
    ("message", "count", "code"),
    [
        ({"op": "add", "run": "r1"}, 2, "order"),
        (ADD, 0, "order"),
        (ADD, 1, "order"),
        (ADD | {"revoked": 1}, 2, "order"),
        (ADD | {"run": 5}, 2, "order"),
        (ADD | {"table": "{}"}, 2, "table"),
        (ADD | {"table": "not json"}, 2, "table"),
        (ADD | {"table": to_json(table()).replace("10.99.0.1", "not an address")}, 2, "table"),
        ({"op": "remove", "run": "r1"}, 2, "order"),
        ({"op": "remove", "run": "r1"}, 0, "run_unknown"),
        ({"op": "revoke", "run": "r1"}, 0, "run_unknown"),
        ({"op": "table", "run": "r1", "table": to_json(table())}, 0, "run_unknown"),
        ({"op": "table", "run": "r1", "table": "{}"}, 0, "table"),
        ({"op": "table", "run": "r1", "table": to_json(table())}, 1, "order"),
        ({"op": "fly", "run": "r1"}, 0, "order"),
        ({"op": "add"}, 2, "order"),
        ([], 0, "order"),
        (7, 2, "order"),
    ],
)
def test_refused(control: socket.socket, message: object, count: int, code: str) -> None:
    """By its code; the sockets that came with it are closed there."""
    udp, tcp = sockets()
    fds = [udp.fileno(), tcp.fileno()]
    port = tcp.getsockname()
    reply = order(control, json.dumps(message).encode(), fds[:count])
    assert (reply["ok"], reply["code"]) == (False, code)
    udp.close()
    tcp.close()
    if os.geteuid() == 0:
        # a listening socket that someone still holds would take the connection
        with socket.socket() as probe:
            assert probe.connect_ex(port) != 0
    udp, tcp = sockets()
    assert order(control, json.dumps(ADD).encode(), [udp.fileno(), tcp.fileno()]) == {
        "ok": True,
        "op": "add",
        "run": "r1",
    }
    udp.close()
    tcp.close()


@pytest.mark.parametrize("data", [b"\xff", b"{", b"x" * (MAX_MESSAGE + 1), b"\x00"])
def test_no_json(control: socket.socket, data: bytes) -> None:
    """Neither bytes that aren't text nor a packet that is cut ends the process."""
    reply = order(control, data, [])
    assert reply["ok"] is False
    udp, tcp = sockets()
    assert order(control, json.dumps(ADD).encode(), [udp.fileno(), tcp.fileno()])["ok"] is True
    udp.close()
    tcp.close()


def test_more_descriptors_than_an_order_has(control: socket.socket) -> None:
    """The kernel closes those that find no room, and says so."""
    held = [*sockets(), *sockets()]
    reply = order(control, json.dumps(ADD).encode(), [sock.fileno() for sock in held])
    assert (reply["ok"], reply["code"]) == (False, "cut")
    for sock in held:
        sock.close()


def test_module_is_started_without_the_work_tree(tmp_path: Path) -> None:
    """-I: a resolver.py in the current directory is not ours and isn't run."""
    (tmp_path / "resolver.py").write_text("print('hijacked')\n")
    done = subprocess.run(
        [sys.executable, "-I", "-m", "resolver"], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "")
