"""Rights of a live run: taken back, given back after a pause, read anew; told by the clients inside and the ledger."""

import base64
import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.place import Live, module_site
from tests.e2e.site import Site, bound
from tests.targets.pki import Authority

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

HOST = "stream.api.test"
SECRET = "a-secret-of-the-stream-0123456789"
WITHIN = 30.0  # seconds from the command's return to the last end: at once, where there is a CPU for it


@dataclass
class Streams:
    """A TLS server: `/stream` never ends, an upgrade gets a WebSocket that stays, everything else is "ok"."""

    ca: Path
    port: int = 0


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    where = tmp_path_factory.mktemp("streams")
    authority = Authority(where, "streams")
    pair = authority.issue(HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)

        def serve() -> None:
            while not over.is_set():
                try:
                    plain, _ = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=one, args=(context, plain, over), daemon=True).start()

        thread = threading.Thread(target=serve)
        thread.start()
        yield Streams(authority.ca, listener.getsockname()[1])
        over.set()
        thread.join()


def agreed(key: bytes) -> bytes:
    """RFC 6455, 4.2.2."""
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    fields = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept
    return b"HTTP/1.1 101 Switching Protocols\r\n" + fields + b"\r\n\r\n"


def one(context: ssl.SSLContext, plain: Any, over: threading.Event) -> None:
    try:
        plain.settimeout(20)
        with context.wrap_socket(plain, server_side=True) as sock:
            reader = sock.makefile("rb")
            while line := reader.readline():
                fields = {}
                while (field := reader.readline()) not in (b"\r\n", b""):
                    name, _, value = field.partition(b":")
                    fields[name.lower()] = value.strip()
                if b"upgrade" in fields:
                    sock.sendall(agreed(fields[b"sec-websocket-key"]) + b"\x81\x02hi")
                    over.wait(20)
                    return
                if b"/stream" not in line:
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    continue
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
                while not over.wait(0.05):
                    sock.sendall(b"data: x\n\n")
                return
    except OSError:
        return


POLICY = """\
version = 1
default_role = "dev"
{secret}
[endpoint.api]
host = "{host}"
dial_port = {port}
address = ["127.0.0.1"]
ca = "ca.pem"
[[endpoint.api.allow]]
id = "all"
methods = ["GET"]
paths = ["/bound/**"]
upgrade = true
[[endpoint.api.allow]]
id = "free"
methods = ["GET"]
paths = ["/free/**"]
[role.dev]
bindings = ["api"]
{role}
"""

INSIDE = """
import json, os, select, socket, ssl, sys, time
gateway = socket.gethostbyname("HOST")
def tls():
    return ssl.create_default_context().wrap_socket(
        socket.create_connection((gateway, 443), timeout=60), server_hostname="HOST")
def known():
    try:
        return socket.gethostbyname("HOST") == gateway
    except OSError:
        return False
def get(sock, path, **more):
    lines = ["GET %s HTTP/1.1" % path, "Host: HOST"] + ["%s: %s" % kv for kv in more.items()]
    sock.sendall(("\\r\\n".join(lines) + "\\r\\n\\r\\n").encode())
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        more = sock.recv(1)
        if not more:
            raise ConnectionResetError
        head += more
    length = [l for l in head.lower().split(b"\\r\\n") if l.startswith(b"content-length")]
    body = b""
    while length and len(body) < int(length[0].split(b":")[1]):
        body += sock.recv(4096)
    return int(head.split()[1]), body
def code(path, **more):
    status, body = get(tls(), path, **more)
    return "" if status == 200 else json.loads(body)["error"]["code"]
def say(value):
    print(json.dumps(value), flush=True)
def ends(socks):
    "When each of them is at its end, in the host's own clock."
    when = {}
    while len(when) < len(socks):
        for sock in select.select([s for s in socks.values() if s.fileno() >= 0], [], [], 0.01)[0]:
            name = [n for n, s in socks.items() if s is sock][0]
            try:
                more = sock.recv(4096)
            except OSError:
                more = b""
            if not more:
                when[name] = time.time()
                sock.close()
    return when
""".replace("HOST", HOST)


@pytest.fixture
def live(place: Site, streams: Streams) -> Callable[..., Live]:
    """Start a run of a program that has INSIDE before it."""

    def start(program: str, role: str = "", binding: str = "") -> Live:
        secret = bound().replace('rules = ["all"]', 'rules = ["all"]\nmode = "placeholder"\nplaceholder = PLACEHOLDER')
        secret = secret.replace("PLACEHOLDER", '{ env = "API_TOKEN", shape = "tok_{36}" }')
        text = POLICY.format(secret=secret + binding, host=HOST, port=streams.port, role=role)
        place.policy(text, streams.ca)
        place.secret("api", SECRET)
        return Live(place, place.python(), "-c", INSIDE + program)

    return start


OPEN = """
socks = {"keep-alive": tls(), "stream": tls(), "websocket": tls(), "tunnel": tls()}
token = {"Authorization": "Bearer " + os.environ["API_TOKEN"]}
assert get(socks["keep-alive"], "/bound/a", **token)[0] == 200
assert get(socks["stream"], "/bound/stream", **token)[0] == 200
upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
assert get(socks["websocket"], "/bound/ws", **token, **upgrade)[0] == 101
assert socks["websocket"].recv(4)[-2:] == b"hi"
free = tls()
assert get(free, "/free/a")[0] == 200
"""


def heard(run: Live) -> Any:
    line = run.line()
    assert line, run.process.communicate(timeout=30)
    return json.loads(line)


def test_what_is_open_ends_within_a_second_of_revoke(place: Site, live: Callable[..., Live]) -> None:
    program = (
        OPEN
        + """
say("open")
say(ends({**socks, "free": free}))
say([code("/bound/a"), code("/free/a"), known()])
"""
    )
    with live(program) as run:
        assert heard(run) == "open"
        time.sleep(1.2)  # the control: by themselves they stay open
        began = time.time()
        done = place.credgate("revoke", run.run, "--json")
        returned = time.time()
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["revoked"][0]["closed"] == 5
        when = heard(run)
        assert set(when) == {"keep-alive", "stream", "websocket", "tunnel", "free"}
        assert all(began < end < returned + WITHIN for end in when.values()), (began, returned, when)
        assert heard(run) == ["revoked", "revoked", False]
        assert run.end()["reason"] == "exited"
    (line,) = place.ledger(ev="revoke", run=run.run)
    assert line["count"] == 5
    verified = place.credgate("log", "verify")
    assert verified.returncode == 0, verified.stderr


def test_a_binding_ends_alone(place: Site, live: Callable[..., Live]) -> None:
    program = (
        OPEN
        + """
say("open")
tunnel = socks.pop("tunnel")
say(ends(socks))
say([get(free, "/free/a")[0], json.loads(get(tunnel, "/bound/a")[1])["error"]["code"], code("/free/a")])
"""
    )
    with live(program) as run:
        assert heard(run) == "open"
        began = time.time()
        done = place.credgate("revoke", "api", "--run", run.run)
        returned = time.time()
        assert done.returncode == 0, done.stderr
        assert f"{run.run}: binding api revoked, 3 connections closed" in done.stderr
        assert all(began < end < returned + WITHIN for end in heard(run).values())
        assert heard(run) == [200, "revoked", ""]


def test_a_reload_counts_at_once_and_a_broken_one_changes_nothing(place: Site, live: Callable[..., Live]) -> None:
    program = (
        OPEN
        + """
say("open")
say(ends({**socks, "free": free}))
say([code("/free/a"), code("/other/a")])
"""
    )
    with live(program) as run:
        assert heard(run) == "open"
        policy = place.home / "policy/policy.toml"
        text = policy.read_text()
        place.policy(text + "[polcy]\n")
        broken = place.credgate("gateway", "reload")
        assert broken.returncode == 1
        assert f"error: run {run.run} keeps its policy" in broken.stderr
        assert "polcy" in broken.stderr
        place.policy(text.replace("/free/**", "/other/**").replace("[role.dev]\n", '[role.dev]\nenv = ["TERM"]\n'))
        began = time.time()
        done = place.credgate("gateway", "reload", "--json")
        returned = time.time()
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["runs"]
        assert (row["run"], row["changed"], row["later"]) == (run.run, True, ["env"])
        assert all(began < end < returned + WITHIN for end in heard(run).values())
        assert heard(run) == ["no_rule", ""]
        run.end()
        assert f"credgate: alarm in run {run.run}: reload_failed" in run.err
    hashes = [line["policy_sha256"] for line in place.ledger(ev="intent", run=run.run)]
    assert len(dict.fromkeys(hashes)) == 2
    assert place.ledger(ev="alarm", run=run.run)[0]["reason"] == "reload_failed"


MISPLACE = 'token = os.environ["API_TOKEN"]\nsay(code("/free/a", Authorization="Bearer " + token))\n'


def test_an_alarm_is_told_to_whoever_started_the_run(place: Site, live: Callable[..., Live]) -> None:
    with live(MISPLACE + 'say(code("/free/a"))') as run:
        assert [heard(run), heard(run)] == ["placeholder_misplaced", ""]
        run.end()
        assert run.err.count(f"credgate: alarm in run {run.run}: placeholder_misplaced") == 1


def test_a_paused_run_goes_on_when_it_is_resumed(place: Site, live: Callable[..., Live]) -> None:
    wait = """
def again():
    try:
        return code("/free/a")
    except OSError:
        return "paused"  # a moment behind an alarm all that is open is cut, this one too where it is open just then
while again() == "paused":
    time.sleep(0.1)
say("on")
"""
    with live(MISPLACE + 'say(code("/free/a"))\n' + wait, 'on_alarm = "pause"') as run:
        assert [heard(run), heard(run)] == ["placeholder_misplaced", "paused"]
        (row,) = [r for r in json.loads(place.credgate("ps", "--json").stdout)["runs"] if r["run"] == run.run]
        assert row["state"] == "paused"
        assert "(paused)" in place.credgate("ps").stdout
        done = place.credgate("resume", run.run)
        assert (done.returncode, done.stderr) == (0, f"{run.run}: resumed\n")
        assert heard(run) == "on"
        assert place.credgate("resume", run.run).returncode == 1


def test_an_alarm_may_kill(place: Site, live: Callable[..., Live]) -> None:
    with live(MISPLACE + "time.sleep(60)", 'on_alarm = "kill"') as run:
        end = run.end()
        assert (end["reason"], end["status"]) == ("alarm", 143)
        assert "the run was ended: alarm" in run.err


def test_a_child_run_spends_what_its_parent_has_and_loses_it_with_it(place: Site, live: Callable[..., Live]) -> None:
    program = """
import subprocess
token = lambda: {"Authorization": "Bearer " + os.environ["API_TOKEN"]}
if len(sys.argv) > 1:
    say([code("/bound/a", **token()) for _ in range(3)])
    say("open")
    say(sorted(ends({"tunnel": tls()})))
    say(code("/free/a"))
    sys.exit()
say(code("/bound/a", **token()))
command = ["credgate-child", "--role", "kid", "--", sys.executable, "-c", sys.orig_argv[2], "child"]
subprocess.run(command)
"""
    family = 'children = ["kid"]\n[role.kid]\nbindings = ["api"]\n'
    with live(program, family, "max_uses = 3\n") as run:
        assert heard(run) == ""
        assert heard(run) == ["", "", "uses_exhausted"]
        assert heard(run) == "open"
        done = place.credgate("revoke", run.run, "--json")
        assert len(json.loads(done.stdout)["revoked"]) == 2
        assert heard(run) == ["tunnel"]
        assert heard(run) == "revoked"


def test_a_name_that_nothing_has(place: Site) -> None:
    done = place.credgate("revoke", "nothing")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "hint: " in done.stderr
