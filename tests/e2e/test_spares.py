"""Half a jail that waits for its run: used once, not used where what it was made of changed, gone with its daemon."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from jail import starter
from tests.e2e.place import Live, daemon_pid, module_site, raw_run, wait_for
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

EXTRA = """version = 1
[endpoint.other]
host = "api.other.test"
port = 8443
[[endpoint.other.allow]]
id = "read"
methods = ["GET"]
paths = ["/**"]
[role.dev]
endpoints = ["other"]
"""


@pytest.fixture
def site(place: Site) -> Site:
    place.policy("version = 1\n[role.dev]\n")
    daemon_pid(place)
    return place


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def starter_of(site: Site) -> int:
    name = os.fsencode(starter.__file__)
    return next(p for p in children(daemon_pid(site)) if name in Path(f"/proc/{p}/cmdline").read_bytes())


def waiting(site: Site) -> int:
    """The pid 1 that waits, once it does."""
    wait_for(lambda: halves(site), "half a jail")
    return halves(site)[0]


def stands(site: Site) -> list[int]:
    """Each pid 1 that the starter has forked."""
    return [pid for waiter in children(starter_of(site)) for pid in children(waiter)]


def halves(site: Site) -> list[int]:
    """Those whose root has begun, and is not yet all that they see."""
    return [pid for pid in stands(site) if _staged(pid) > 20]


def _staged(pid: int) -> int:
    with contextlib.suppress(OSError):  # it has ended
        return sum("/proc/fs" in line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return 0


def used(site: Site) -> int:
    """Host pid of pid 1 of a run, which is looked at while it lives."""
    with Live(site, "sh", "-c", "echo up; exec sleep 300") as run:
        assert run.line() == "up\n"
        found: int = run.ready["pid"]
        run.process.terminate()
    return found


def test_each_run_has_one_of_its_own(site: Site) -> None:
    hits = []
    for _ in range(8):  # a mount of another test, made between both looks, has it thrown away
        pid = waiting(site)
        hits += [pid] if used(site) == pid else []
        if len(hits) == 2:
            break
    assert len(set(hits)) == 2


@pytest.mark.needs("root")
def test_a_mount_made_since_is_there_for_the_next_run(site: Site) -> None:
    """Its mount namespace is older than that mount: it would bind what lies below."""
    tree = site.home / "mounted"
    tree.mkdir(exist_ok=True)
    site.own(tree)
    before = waiting(site)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"uid={site.uid},mode=700", "tmpfs", tree], check=True)
    try:
        site.own(site.write("mounted/inside", "of the new file system"))
        done = raw_run(site, "cat", "inside", cwd=tree)
        assert (done.status, done.out) == (0, b"of the new file system"), done.err
        wait_for(lambda: not Path(f"/proc/{before}").exists(), "the end of the one that was not used")
    finally:
        subprocess.run(["umount", "-l", tree], check=True)


@pytest.mark.parametrize("who", ["pid 1", "waiter"])
def test_one_that_was_killed_costs_no_run(site: Site, who: str) -> None:
    pid = waiting(site)
    waiter = next(w for w in children(starter_of(site)) if pid in children(w))
    os.kill(pid if who == "pid 1" else waiter, signal.SIGKILL)
    assert raw_run(site, "true").status == 0
    assert used(site) != pid


def test_ports_beyond_the_usual_are_in_its_berth(site: Site) -> None:
    waiting(site)
    site.policy(EXTRA)
    assert any(waiting(site) == used(site) for _ in range(5))  # but for mounts of other tests, as above


def test_a_jail_that_waits_for_its_command_holds_no_other_up(site: Site) -> None:
    """The one that `--warm` makes ahead takes what waits, and may itself never be asked for."""
    first = waiting(site)
    assert raw_run(site, "true", flags=["--warm"]).status == 0
    wait_for(lambda: first not in stands(site) and len(stands(site)) == 2 and halves(site), "a warm jail, half of one")
    (half,) = halves(site)
    assert used(site) == half


def test_it_ends_with_its_daemon(site: Site) -> None:
    pid = waiting(site)
    assert site.credgate("gateway", "stop").returncode == 0
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its end")
