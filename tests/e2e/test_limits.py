"""Limits of a whole jail, by a control group and by pid 1's sums, each with its word, and the host untouched."""

import errno
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OrdinaryUser
from tests.delegated import base_of, delegate, groups, withdraw
from tests.e2e.site import BIN, Site, make_site
from tests.needs import need

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

ROLE = "version = 1\n[role.dev]\n"
SMALL, LARGE = ROLE + 'limits = { memory = "64MiB" }\n', ROLE + 'limits = { memory = "1GiB" }\n'
NOBODY = 65534  # by root a user of its own, so that no other test's runs or groups are moved about


@pytest.fixture(scope="module", params=["cgroup", "pid 1"])
def held(request: pytest.FixtureRequest, ordinary_user: OrdinaryUser) -> Iterator[tuple[str, Site]]:
    """The mechanism, and a site whose runs it holds."""
    uid, gid = (NOBODY, NOBODY) if os.geteuid() == 0 else (ordinary_user.uid, ordinary_user.gid)
    if request.param == "cgroup":
        need(request.node, "cgroup")
        if os.geteuid() == 0:
            assert delegate(uid) == ""
    elif os.geteuid() != 0 and base_of(uid):
        pytest.skip("this user was given a control group, and a run uses it")
    site = make_site(uid, gid)
    try:
        yield request.param, site
    finally:
        site.close()
        if os.geteuid() == 0 and request.param == "cgroup":
            assert groups(uid) == []  # each run took its own away
            withdraw(uid)


def run(site: Site, *command: str | Path) -> tuple[dict[str, Any], str]:
    """The exit line, and what the command said."""
    reader, writer = os.pipe()
    done = site.run(*command, flags=["--status-fd", str(writer)], pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = [json.loads(line) for line in lines]
    assert [line["event"] for line in told] == ["ready", "exit"], done.stderr
    (end,) = site.ledger(ev="run.end", run=told[1]["run"])
    assert (end["reason"], end["status"]) == (told[1]["reason"], told[1]["status"])
    assert done.returncode == told[1]["status"]
    return told[1], done.stdout


def python(site: Site, code: str) -> tuple[dict[str, Any], str]:
    return run(site, site.python(), "-I", "-S", "-c", code)


def test_ledger_and_banner_say_by_what_they_are_held(held: tuple[str, Site]) -> None:
    mechanism, site = held
    site.policy(ROLE)
    done = site.credgate("run", "--policy", site.home / "policy/policy.toml", "--", "true")
    assert f"limits by {mechanism}" in done.stderr
    (start,), (proof,) = site.ledger(ev="run.start")[-1:], site.ledger(ev="proof")[-1:]
    assert start["limits"] == proof["limits"]
    assert [text.split("=")[1].startswith(mechanism) for text in start["limits"][:1]] == [mechanism == "cgroup"]


MAPPED = """
import mmap, time
held = []
for _ in range(32):
    held.append(mmap.mmap(-1, 8 << 20))
    for page in range(0, 8 << 20, 4096): held[-1][page] = 1
    time.sleep(0.02)
print('ate', flush=True)
"""
MEMORY_FILE = """
import os, time
file = os.memfd_create('x')
for _ in range(64): os.write(file, bytes(4 << 20))
print('ate', flush=True)
"""
TMPFS = """
import time
with open('/dev/shm/x', 'wb') as file:
    for _ in range(64): file.write(bytes(4 << 20))
print('ate', flush=True)
"""


# Without a control group the next look of pid 1's ends it.
STAY = "time.sleep(60)\n"


@pytest.mark.parametrize("code", [MAPPED, MEMORY_FILE, TMPFS], ids=["mapped", "memory file", "tmpfs"])
def test_memory(held: tuple[str, Site], code: str) -> None:
    _, site = held
    neighbour = subprocess.Popen(site.as_user(["sleep", "300"]))
    try:
        site.policy(SMALL)
        end, _ = python(site, code + STAY)
        assert (end["reason"], end["status"]) == ("oom", 137)
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()
    site.policy(LARGE)
    end, out = python(site, code)  # control: the same program where there is room
    assert (end["reason"], end["status"], out) == ("exited", 0, "ate\n")


BOMB = """
import os, signal, sys, time
made = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            while True: signal.pause()
        made += 1
except BlockingIOError:
    time.sleep(3)  # a look of pid 1's falls into it
print(made, flush=True)
sys.exit(made < 100 and STATUS)
"""


# As Bun's garbage collector does at its start; where that is refused it takes less, and dies of a later refusal.
RESERVES = """
import mmap, resource
def reserve(): mmap.mmap(-1, 80 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000).close()
reserve()
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
try: reserve()
except OSError as error: print('reserved', error.errno)
"""


def test_what_is_reserved_and_not_used_is_no_memory(held: tuple[str, Site]) -> None:
    _, site = held
    site.policy(SMALL)
    end, out = python(site, RESERVES)
    assert (end["reason"], end["status"], out) == ("exited", 0, f"reserved {errno.ENOMEM}\n")


def test_processes(held: tuple[str, Site]) -> None:
    _, site = held
    others = [subprocess.Popen(site.as_user(["sleep", "300"])) for _ in range(30)]
    try:
        site.policy(ROLE + "limits = { processes = 20 }\n")
        end, out = python(site, BOMB.replace("STATUS", "3"))
        assert (end["reason"], end["status"]) == ("processes", 3)
        assert 10 <= int(out) < 20
        end, _ = python(site, BOMB.replace("STATUS", "0"))
        assert end["reason"] == "exited"  # it did without
        assert all(other.poll() is None for other in others)
        assert subprocess.run(site.as_user(["true"]), check=False).returncode == 0  # this user can fork outside
    finally:
        for other in others:
            other.kill()
            other.wait()
    site.policy(ROLE + "limits = { processes = 200 }\n")
    end, out = python(site, BOMB.replace("STATUS", "3"))  # control
    assert (end["reason"], out) == ("exited", "100\n")


# Each process burns 0.8 s: RLIMIT_CPU lets each of them, and the jail may have 1 s in all.
BURN = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        while time.process_time() < 0.8: pass
        os._exit(0)
    if _ == 1: os.wait()
for _ in range(2): os.wait()
print('burnt', flush=True)
"""


def test_cpu_time_of_all_together(held: tuple[str, Site]) -> None:
    _, site = held
    site.policy(ROLE + 'limits = { cpu = "1s" }\n')
    end, _ = python(site, BURN + STAY)
    assert end["reason"] == "timeout"
    site.policy(ROLE + 'limits = { cpu = "1m" }\n')
    end, out = python(site, BURN)
    assert (end["reason"], out) == ("exited", "burnt\n")


def test_cpu_time_of_one_process(held: tuple[str, Site]) -> None:
    _, site = held
    site.policy(ROLE + 'limits = { cpu = "1s" }\n')
    end, _ = python(site, "while True: pass")  # RLIMIT_CPU or the sum, whichever is first
    assert end["reason"] == "timeout"


@pytest.mark.needs("root")
def test_a_group_that_can_not_be_made_any_more_is_a_refusal(held: tuple[str, Site]) -> None:
    """The right is taken away between the choice (which run.start names) and the making, some 50 ms later."""
    mechanism, site = held
    if mechanism != "cgroup":
        pytest.skip("about the control group")
    site.policy(ROLE)
    assert site.run("true").returncode == 0  # control; and the daemon is up
    before = len(site.ledger(ev="run.start"))
    places = list(Path("/sys/fs/cgroup").glob(f"**/credgate/{NOBODY}"))
    # For a launcher in an outer sandbox nothing of its jail was made ahead, the group neither.
    policy = site.home / "policy/policy.toml"
    argv = ["setpriv", "--no-new-privs", BIN / "credgate", "run", "-q", "--policy", policy, "--", "touch", "ran"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(site.as_user(argv), env=site.environment(), cwd=site.work, text=True, **pipes)
    deadline = time.monotonic() + 90
    while len(site.ledger(ev="run.start")) == before:
        assert time.monotonic() < deadline
    for place in places:
        os.chown(place, 0, 0)
    try:
        _, err = process.communicate(timeout=90)
    finally:
        for place in places:
            os.chown(place, NOBODY, NOBODY)
    assert process.returncode == 125
    assert "could not make a group" in err
    assert not (site.work / "ran").exists()
    assert site.ledger(ev="run.end")[-1]["reason"] == "cgroup_failed"
