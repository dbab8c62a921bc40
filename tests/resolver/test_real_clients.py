"""What real stub resolvers make of the answers, in a network namespace with nothing but loopback.

Times matter as much as results: an answer that a client doesn't like costs it 5 to 15 seconds.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.features import find

CHECKOUT = Path(__file__).parent.parent.parent
SLOW = 1.0  # seconds; the shortest time-out of any client is a second

# The child that asks is started beside the server, in the same namespaces; resolv.conf is bound over the host's.
HOUSE = """
import asyncio, ctypes, fcntl, json, os, pathlib, socket, struct, sys, tempfile
sys.path.insert(0, sys.argv[1])
from resolver.server import Server
from rules.policy import Unlisted
from tests.resolver.bench import table

uid, gid = os.getuid(), os.getgid()
os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    pathlib.Path("/proc/self", name).write_text(text)
with socket.socket() as sock:  # SIOCSIFFLAGS, IFF_UP
    fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 1))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(None, b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
files = {"/etc/resolv.conf": sys.argv[3], "/etc/nsswitch.conf": "hosts: files dns\\n"}
files["/etc/hosts"] = "127.0.0.1 localhost\\n"
for path, text in files.items():
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    assert libc.mount(file.name.encode(), os.path.realpath(path).encode(), None, 0x1000, None) == 0  # MS_BIND
    os.unlink(file.name)

class Done(Exception):
    pass

async def main():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 53))
    tcp = socket.create_server(("127.0.0.1", 53))
    events = []
    try:
        async with asyncio.TaskGroup() as tasks:
            Server(tasks, events.append).add("r1", table(Unlisted(sys.argv[2])), udp, tcp)
            child = await asyncio.create_subprocess_exec(*sys.argv[4:], stdout=asyncio.subprocess.PIPE)
            out, _ = await asyncio.wait_for(child.communicate(), 60)
            assert child.returncode == 0
            records = sorted({(e.code.value, e.name, e.qtype) for e in events})
            print(json.dumps({"client": json.loads(out), "records": records}))
            raise Done
    except* Done:
        pass

asyncio.run(main())
"""

NAMES = ("api.github.com", "API.github.COM", "evil.example", "metadata.google.internal", "foo.localhost", "printer")

GLIBC = """
import json, socket, sys, time
found = {}
for name in sys.argv[1:]:
    start = time.perf_counter()
    try:
        got = sorted({entry[4][0] for entry in socket.getaddrinfo(name, 443)})
    except socket.gaierror as error:
        got = socket.EAI_NONAME == error.errno and "not found" or error.strerror
    found[name] = [got, time.perf_counter() - start]
print(json.dumps(found))
"""

NODE = """
const dns = require("dns").promises;
(async () => {
  const found = {};
  for (const name of process.argv.slice(1)) {
    const start = performance.now();
    let got;
    try { got = (await dns.lookup(name, {all: true})).map((e) => e.address).sort(); }
    catch (e) { got = e.code === "ENOTFOUND" ? "not found" : e.code; }
    found[name] = [got, (performance.now() - start) / 1000];
    try { found["c-ares " + name] = [(await dns.resolve4(name)).sort(), 0]; }
    catch (e) { found["c-ares " + name] = [e.code === "ENOTFOUND" ? "not found" : e.code, 0]; }
  }
  console.log(JSON.stringify(found));
})();
"""


def house(
    unlisted: str, *command: str, conf: str = "nameserver 127.0.0.1\noptions ndots:1 timeout:1 attempts:2\n"
) -> Any:
    """What the client printed, and the resolver's records."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", HOUSE, str(CHECKOUT), unlisted, conf, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
        env={"PATH": os.environ["PATH"], "HOME": "/"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wanted(unlisted: str) -> dict[str, object]:
    """What every client must come to."""
    return {
        "api.github.com": ["10.99.0.1"],
        "API.github.COM": ["10.99.0.1"],
        "evil.example": ["10.99.0.1"] if unlisted == "gateway" else "not found",
        "metadata.google.internal": "not found",
        "printer": "not found",
    }


def check(found: dict[str, list[Any]], unlisted: str) -> None:
    """Results and times."""
    for name, result in wanted(unlisted).items():
        assert found[name][0] == result, name
    assert set(found["foo.localhost"][0]) <= {"127.0.0.1", "::1"}
    assert all(seconds < SLOW for _, seconds in found.values()), found


@pytest.mark.needs("netns")
@pytest.mark.parametrize("unlisted", ["gateway", "nxdomain"])
def test_glibc(unlisted: str) -> None:
    """getaddrinfo of both families; records hold what was denied."""
    told = house(unlisted, sys.executable, "-I", "-c", GLIBC, *NAMES)
    check(told["client"], unlisted)
    assert ["dns.deny", "evil.example", "A"] in told["records"]
    assert ["dns.deny.metadata", "metadata.google.internal", "A"] in told["records"]


@pytest.mark.needs("netns")
@pytest.mark.parametrize("unlisted", ["gateway", "nxdomain"])
def test_glibc_goes_through_a_search_list_to_the_bare_name(unlisted: str) -> None:
    """A listed name with each suffix must be NXDOMAIN, or the client stops there."""
    conf = "nameserver 127.0.0.1\nsearch corp.example lab.example\noptions ndots:5 timeout:1 attempts:2\n"
    told = house(unlisted, sys.executable, "-I", "-c", GLIBC, "api.github.com", conf=conf)
    (result,) = told["client"].values()
    assert result[0] == ["10.99.0.1"]
    assert result[1] < SLOW
    assert told["records"] == [["dns.allow", "api.github.com", "A"]]


@pytest.mark.needs("netns")
def test_glibc_over_tcp() -> None:
    """`use-vc`: both families pipelined on one connection."""
    conf = "nameserver 127.0.0.1\noptions use-vc timeout:1 attempts:2\n"
    told = house("nxdomain", sys.executable, "-I", "-c", GLIBC, *NAMES, conf=conf)
    check(told["client"], "nxdomain")


@pytest.mark.needs("netns", "node")
@pytest.mark.parametrize("unlisted", ["gateway", "nxdomain"])
def test_node_by_libc_and_by_c_ares(unlisted: str) -> None:
    """Its lookup() is getaddrinfo, its resolve4() is c-ares."""
    node = find("node")
    assert node is not None
    told = house(unlisted, node, "-e", NODE, *NAMES)
    check(told["client"], unlisted)
    for name, result in wanted(unlisted).items():
        assert told["client"]["c-ares " + name][0] == result, name
