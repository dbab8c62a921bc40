"""What a jail tried outside its one route is counted and told: during the run, at its end, in the ledger."""

import json
import os

import pytest

from tests.e2e.place import Live, module_site
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)


@pytest.fixture
def site(place: Site) -> Site:
    """The module's site, its policy as at the start."""
    place.policy("version = 1\n[role.dev]\n")
    return place


# Documentation addresses (RFC 5737) and the gateway's own, from inside: none of them leaves the jail's namespaces.
OFF_ROUTE = """
import socket
for address in ("192.0.2.1", "198.51.100.7"):
    try: socket.socket().connect((address, 80))
    except OSError as error: print(error.errno)
"""
WRONG_PORT = """
import socket
for _ in range(3):
    try: socket.socket().connect(("10.213.0.1", 2222))
    except OSError as error: print(error.errno)
"""
ENETUNREACH, ECONNREFUSED = "101", "111"
FOREIGN_CALL = """
import ctypes, mmap, os
held, holds = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3]))  # mov eax, getpid of i386; int 0x80; ret
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    os._exit(0)
os.close(holds)
os.wait()
os.read(held, 1)  # until it has died
"""


def ended(site: Site, code: str, *flags: str) -> tuple[dict[str, object], str, str]:
    """The exit line of a run of `code`, its output and its stderr."""
    reader, writer = os.pipe()
    policy = site.home / "policy/policy.toml"
    words = ["--policy", policy, "--status-fd", str(writer), *flags, "--", site.python(), "-I", "-c", code]
    try:
        done = site.credgate("run", *words, pass_fds=[writer])
    finally:
        os.close(writer)
    with os.fdopen(reader) as lines:
        return json.loads(lines.readlines()[-1]), done.stdout, done.stderr


def test_a_run_that_tries_nothing_leaves_no_evidence(site: Site) -> None:
    """The control of all that follow: the same run, without the attempt."""
    line, _, err = ended(site, "pass")
    assert (line["off_route"], line["filter_kills"]) == (0, 0)
    assert {name for name, count in line["counters"].items() if count} <= {"accepted", "invalid", "leaving"}
    assert "off route 0 (IPv6 is off and leaves no count)" in err.splitlines()[-1]
    assert site.ledger(ev="off_route", run=line["run"]) == []


def test_attempts_at_other_addresses_are_counted(site: Site) -> None:
    line, out, err = ended(site, OFF_ROUTE)
    assert out.split() == [ENETUNREACH] * 2
    assert line["off_route"] == 2
    summary = err.splitlines()[-1]
    assert summary.startswith(f"credgate: run {line['run']}: 0 requests allowed, 0 refused; off route 2 ")
    (record,) = site.ledger(ev="off_route", run=line["run"])
    assert record["count"] == 2
    assert "IPv6 is off and leaves no count" in record["detail"]
    (end,) = site.ledger(ev="run.end", run=line["run"])
    assert end["count"] == 2


def test_attempts_at_other_ports_of_the_gateway_are_counted(site: Site) -> None:
    line, out, err = ended(site, WRONG_PORT)
    assert out.split() == [ECONNREFUSED] * 3
    assert (line["off_route"], line["counters"]["refused"]) == (0, 3)
    assert "refused 3" in err.splitlines()[-1]
    (record,) = site.ledger(ev="off_route", run=line["run"])
    assert record["counters"] == {"refused": "3"}


def test_quiet_says_nothing(site: Site) -> None:
    line, _, err = ended(site, OFF_ROUTE, "-q")
    assert (line["off_route"], err) == (2, "")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="int 0x80 is of x86")
def test_a_process_that_the_filter_killed_is_counted_where_pid_1_reaps_it(site: Site) -> None:
    line, _, err = ended(site, FOREIGN_CALL)
    assert (line["status"], line["filter_kills"]) == (0, 1)
    assert "killed by the filter 1 (of those that pid 1 reaped)" in err
    (record,) = site.ledger(ev="off_route", run=line["run"])
    assert record["filter_kills"] == 1


def test_ps_tells_while_the_run_lives(site: Site) -> None:
    wait = 'import time\nprint("up", flush=True)\ntime.sleep(300)'
    with Live(site, site.python(), "-I", "-c", OFF_ROUTE + WRONG_PORT + wait) as run:
        assert [run.line() for _ in range(6)][-1] == "up\n"
        (row,) = json.loads(site.credgate("ps", "--json").stdout)["runs"]
        table = site.credgate("ps").stdout.splitlines()
    assert (row["run"], row["off_route"], row["counters"]["refused"]) == (run.run, 2, 3)
    assert table[0].split()[:6] == ["RUN", "ROLE", "ALLOW", "DENY", "OFF", "ROUTE"]
    assert table[1].split()[:6] == [run.run, "dev", "0", "0", "2", "3"]
