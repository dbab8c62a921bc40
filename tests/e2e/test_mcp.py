"""MCP servers, by the official SDK's server and client: behind `credgate run` in a configuration, and inside a jail.

The client is what an agent has for it. It takes a line that is no message of the protocol for a fault and says so.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import credgate
from tests.e2e.place import module_site, one_error
from tests.e2e.site import BIN, Site, bound, endpoint
from tests.targets import clients
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "clients")
place = pytest.fixture(scope="module")(module_site)
SERVER = (Path(__file__).parents[1] / "targets/notes_server.py").read_text()

CLIENT = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

async def main():
    server, calls = json.loads(sys.argv[2]), json.loads(sys.argv[3])
    by_port = isinstance(server, str)
    opened = streamable_http_client(server) if by_port else stdio_client(StdioServerParameters(**server))
    async with opened as streams, ClientSession(*streams[:2]) as session:
        said = [(await session.initialize()).server_info.name]
        for name, arguments in calls:
            said.append((await session.call_tool(name, arguments)).content[0].text)
    print(json.dumps(said))

asyncio.run(main())
"""


def policy(target: Target) -> str:
    """`notes` is the server's role; `agent` that of an agent in a jail, which may ask for it."""
    placed = 'mode = "placeholder"\nplaceholder = { env = "NOTES_TOKEN", shape = "nt-{32}" }\n'
    program = str(Path(credgate.__file__).parents[1])  # so that the jail has the host's own, first on PATH, as well
    trees = json.dumps([str(clients.home()), sys.prefix, sys.base_prefix, program])
    return (
        'version = 1\ndefault_role = "alone"\n'
        + endpoint(target, "notes")
        + bound("notes")
        + placed
        + f'[role.notes]\nbindings = ["notes"]\ntools = {trees}\n'
        + f'[role.agent]\nbindings = ["notes"]\nchildren = ["notes"]\ntools = {trees}\n'
        + f"[role.alone]\ntools = {trees}\n"
    )


@pytest.fixture
def site(place: Site, https_target: Target) -> Site:
    """The module's site, and in its work tree the server and its client."""
    place.policy(policy(https_target), https_target.ca)
    place.secret("notes", https_target.token)
    place.write("work/server.py", SERVER)
    place.write("work/client.py", CLIENT)
    return place


def server(site: Site, *words: str) -> list[str]:
    return [site.python(), "-I", "server.py", str(clients.home()), *words]


def asked(site: Site, server: object, *calls: tuple[str, dict[str, str]]) -> list[str]:
    """The client's command line."""
    return [site.python(), "-I", "client.py", str(clients.home()), json.dumps(server), json.dumps(calls)]


def calls(target: Target) -> Sequence[tuple[str, dict[str, str]]]:
    return (
        ("read", {"url": f"https://{target.host}/private/notes"}),
        ("read", {"url": "https://elsewhere.acme.example/"}),
        ("where", {}),
    )


def judged(site: Site, target: Target, said: list[str], run: str) -> dict[str, str]:
    """What the server said of a page that it may read, of one that it may not, and where it is; held to the ledger."""
    name, page, refused, where = said
    assert (name, page) == ("notes", "welcome\n")
    error = json.loads(refused)["error"]
    assert (error["type"], error["code"]) == ("credgate_denied", "host_unlisted")
    denied = site.ledger(ev="deny", run=run, host="elsewhere.acme.example")
    assert [line["request_id"] for line in denied] == [error["request_id"]]
    assert [line["secret"] for line in site.ledger(ev="intent", run=run)] == ["notes"]
    env: dict[str, str] = json.loads(where)
    assert env["NOTES_TOKEN"].startswith("nt-") and target.token not in where
    return env


def outside(site: Site, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """A command of the user's own, in no jail."""
    streams = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    place = {"env": site.environment(), "cwd": site.work}
    done = subprocess.run(site.as_user(argv), timeout=60, check=False, **streams, **place)
    site.scan.printed(done.stdout, done.stderr)
    return done


def last_run(site: Site) -> str:
    return str(site.ledger(ev="run.start")[-1]["run"])


@pytest.mark.parametrize("quiet", [True, False])
def test_behind_credgate_run_with_a_role_and_a_secret_of_its_own(site: Site, https_target: Target, quiet: bool) -> None:
    """The agent has no jail here, as a user's has not; its configuration starts the server by `credgate run`."""
    flags = ["-q"] if quiet else []
    words = ["run", *flags, "--policy", str(site.home / "policy/policy.toml"), "--role", "notes", "--", *server(site)]
    client = asked(site, {"command": str(BIN / "credgate"), "args": words}, *calls(https_target))
    done = subprocess.run(
        site.as_user(client),
        env=site.environment(),
        cwd=site.work,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    site.scan.printed(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    env = judged(site, https_target, json.loads(done.stdout), last_run(site))
    assert env["FILES"] == "client.py server.py"
    assert [seen.authorization for seen in https_target.seen()] == [f"Bearer {https_target.token}"]
    told = "role notes" in done.stderr and "1 requests allowed, 1 refused" in done.stderr
    assert told is not quiet, done.stderr
    # The client closes its standard input, and two seconds later ends it: a busy machine takes longer.
    assert site.ledger(ev="run.end")[-1]["reason"] in ("exited", "signaled")


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.mark.parametrize("end", ["eof", signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_its_client_and_says_nothing_but_messages(site: Site, end: signal.Signals | str) -> None:
    run = site.start(*server(site), flags=("--role", "notes"), stdin=subprocess.PIPE)
    assert run.stdin is not None and run.stdout is not None
    run.stdin.write(json.dumps(HELLO) + "\n")
    run.stdin.flush()
    first = run.stdout.readline()
    assert json.loads(first)["result"]["serverInfo"]["name"] == "notes"
    begun = time.monotonic()
    if isinstance(end, signal.Signals):
        run.send_signal(end)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for its stdin's end
            run.wait(timeout=2)
    said, told = run.communicate(timeout=60)
    assert said == "", said
    assert run.returncode == (0 if end == "eof" else 128 + int(end)), told
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("program", ["credgate", "/run/credgate/credgate"])
def test_inside_a_jail_credgate_run_is_a_child_run(site: Site, https_target: Target, program: str) -> None:
    """The same words in the agent's configuration, its agent in a jail this time."""
    words = ["run", "-q", "--role", "notes", "--", *server(site)]
    client = asked(site, {"command": program, "args": words}, *calls(https_target))
    done = site.run(*client, flags=("--role", "agent"))
    assert done.returncode == 0, done.stderr
    child = last_run(site)
    assert site.ledger(ev="run.start", run=child)[0]["parent"]
    judged(site, https_target, json.loads(done.stdout), child)


REFUSED_INSIDE = {
    "run --policy p.toml -- true": "got --policy",
    "run -q -- true": "no role, or no command",
    "run --role stranger -- true": "this run's role does not list that role",
    "secret list": "got credgate secret: this is a jail, and the rest is the host's",
}


def test_what_credgate_refuses_inside_a_jail(site: Site) -> None:
    script = "; ".join(f"/run/credgate/credgate {words}; echo $? >&2" for words in REFUSED_INSIDE)
    told = site.run("sh", "-c", script, flags=("--role", "agent")).stderr.splitlines()
    assert len(told) == 3 * len(REFUSED_INSIDE), told
    for number, said in enumerate(REFUSED_INSIDE.values()):
        error, hint, status = told[3 * number : 3 * number + 3]
        assert said in one_error(f"{error}\n{hint}")[0]
        assert status == "125"


def test_without_children_nothing_starts_from_inside(site: Site) -> None:
    """Neither by a name on PATH nor by the host's own program, where the jail can see it."""
    done = site.run("sh", "-c", f"credgate run -- true; echo $?; {site.python()} -I -m credgate run -- true")
    assert (done.returncode, done.stdout) == (125, "127\n"), done.stderr
    assert "credgate run: this is the inside of a jail" in done.stderr.splitlines()[-2]
    assert done.stderr.splitlines()[-1].startswith("hint: a role with children")


def test_a_server_on_a_port_inside_is_reached_past_the_gateway(site: Site, https_target: Target) -> None:
    url = "http://localhost:8000/mcp"
    begin = " ".join(server(site, "streamable-http"))
    client = asked(site, url, *calls(https_target))
    wait = "for n in $(seq 100); do bash -c ': < /dev/tcp/127.0.0.1/8000' 2>/dev/null && break; sleep 0.1; done"
    done = site.run("sh", "-c", f'{begin} >/dev/null 2>&1 & {wait}; "$@"', "sh", *client, flags=("--role", "notes"))
    assert done.returncode == 0, done.stderr
    run = last_run(site)
    judged(site, https_target, json.loads(done.stdout), run)
    hosts = {line.get("host") for line in site.ledger(run=run, ev="deny")}
    assert hosts == {"elsewhere.acme.example", "credgate-check.invalid"}
