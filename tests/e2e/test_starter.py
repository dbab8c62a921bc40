"""A jail that the daemon's starter forks: it has what its launcher has, nothing of others, ends with each of them."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from credgate import lastresort
from jail import starter
from tests.conftest import OrdinaryUser
from tests.e2e.mutant import start_mutated
from tests.e2e.place import Live, daemon_pid, module_site, raw_run, wait_for
from tests.e2e.site import Site, make_site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

LOOK = """
import json, os, resource
mask = os.umask(0)
print(json.dumps([mask, os.nice(0), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0),
    resource.getrlimit(resource.RLIMIT_STACK), resource.getrlimit(resource.RLIMIT_SIGPENDING),
    open('/proc/self/oom_score_adj').read().strip(), os.getgroups()]))
"""
CORE = min(os.sched_getaffinity(0))
MANNER = f"umask 027; exec nice -n 3 taskset -c {CORE} chrt -b 0 prlimit --stack=1048576:2097152 --sigpending=99:99 "
MANNER += 'choom -n 300 -- "$@"'


@pytest.fixture
def site(place: Site) -> Site:
    place.policy("version = 1\n[role.dev]\n")
    daemon_pid(place)  # started by an ordinary launcher, which the starter can stand in for then
    return place


def parents(pid: int) -> list[int]:
    """A process's ancestors, its parent first."""
    found: list[int] = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def started_by(run: Live) -> tuple[int, int]:
    """The waiter and the process above it."""
    waiter, above, *_ = parents(run.ready["pid"])
    return waiter, above


def made_ahead(daemon: int) -> bool:
    """Whether a waiter of its starter has a child."""
    of = lastresort.parents()
    starters = [pid for pid, above in of.items() if above == daemon and "starter" in words(pid)]
    waiters = [pid for pid, above in of.items() if above in starters]
    return any(above in waiters for above in of.values())


def outside(site: Site, argv: list[str]) -> list[object]:
    words = [*site.as_user([]), "sh", "-c", MANNER, "sh", *argv]
    told: list[object] = json.loads(subprocess.run(words, check=True, capture_output=True, cwd=site.work).stdout)
    return told


def test_it_runs_with_what_its_launcher_runs_with(site: Site) -> None:
    argv = [site.python(), "-I", "-S", "-c", LOOK]
    expected = outside(site, argv)
    inside = raw_run(site, *argv, before=["sh", "-c", MANNER, "sh"])
    assert inside.status == 0, inside.err
    assert json.loads(inside.out) == expected
    assert expected[:4] == [0o027, 3, [CORE], os.SCHED_BATCH]
    plain = json.loads(raw_run(site, *argv).out)
    assert plain[1:3] == [0, sorted(os.sched_getaffinity(0))]  # nothing of the other run stayed with the starter


def test_nothing_of_daemon_and_launcher_is_in_it(site: Site) -> None:
    """Environment and command line of pid 1, descriptors of the waiter, and of the starter while the jail lives."""
    site.env["CREDGATE_TEST_MARK"] = "of-the-caller"
    with Live(site, "sh", "-c", "echo up; exec sleep 300") as run:
        assert run.line() == "up\n"
        waiter, above = started_by(run)
        assert Path(starter.__file__).name in words(above) and words(above) == words(waiter)
        assert words(run.ready["pid"]).rstrip("\0") == "credgate"  # written over: everybody inside reads it
        assert parents(above)[0] == daemon_pid(site)
        assert run.launcher not in parents(run.ready["pid"])
        if os.geteuid() == 0:  # pid 1 is not dumpable: its own user can't read it
            assert Path(f"/proc/{run.ready['pid']}/environ").read_bytes().rstrip(b"\0") == b"LC_ALL=C.UTF-8"
            held = [
                os.readlink(f"/proc/{run.ready['pid']}/fd/{name}")
                for name in os.listdir(f"/proc/{run.ready['pid']}/fd")
            ]
            assert sorted(each.split(":")[0] for each in held) == ["/dev/null"] * 3 + ["pipe"] * 2 + ["socket"] * 2
        else:
            with pytest.raises(PermissionError):
                Path(f"/proc/{run.ready['pid']}/environ").read_bytes()
        kept = [os.readlink(f"/proc/{waiter}/fd/{name}") for name in os.listdir(f"/proc/{waiter}/fd")]
        log = str(site.state / "run/daemon.log")  # of the starter, as the daemon's own
        assert len(kept) == 5 and set(kept) > {"/dev/null", log}, kept
        assert len(os.listdir(f"/proc/{above}/fd")) == 4  # 0, 1, 2 and the daemon's socket
        run.process.terminate()
    del site.env["CREDGATE_TEST_MARK"]


@pytest.mark.parametrize("who", ["launcher", "waiter", "starter"])
def test_it_ends_with(site: Site, who: str) -> None:
    with Live(site, "sh", "-c", "echo up; exec sleep 300") as run:
        assert run.line() == "up\n"
        waiter, above = started_by(run)
        os.kill({"launcher": run.launcher, "waiter": waiter, "starter": above}[who], signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{run.ready['pid']}").exists(), "the end of the jail")
        run.end()
    if who == "starter":
        wait_for(lambda: not Path(f"/proc/{above}").exists(), "the end of the daemon")
    assert site.run("true").returncode == 0
    assert site.ledger(ev="run.end", run=run.run)[0]["reason"] in ("killed", "gateway")


def test_a_stopped_pid_1_does_not_outlive_its_launcher(site: Site) -> None:
    """The waiter needs nothing of pid 1's own code for that."""
    with Live(site, "sh", "-c", "echo up; exec sleep 300") as run:
        assert run.line() == "up\n"
        os.kill(run.ready["pid"], signal.SIGSTOP)
        os.kill(run.launcher, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{run.ready['pid']}").exists(), "the end of the jail")
        run.end()


@pytest.mark.parametrize("before", [["setpriv", "--no-new-privs"], ["unshare", "-Ur", "--map-current-user", "-m"]])
def test_a_launcher_in_an_outer_sandbox_starts_its_jail_itself(site: Site, before: list[str]) -> None:
    """Its confinement is the jail's too, as it was before there was a starter; or the run is refused."""
    script = "grep NoNewPrivs /proc/self/status; readlink /proc/self/ns/mnt"
    done = raw_run(site, "sh", "-c", script, before=before)
    if before[0] == "setpriv":
        assert done.status == 0, done.err
        assert site.ledger(ev="proof")[-1]["verdict"] == "shown"
    else:
        assert done.status == 125


# What each takes out of a jail that a starter forks, and the words of the refusal.
MUTATIONS = {
    "dumpable": "pid 1: owner: expected not dumpable",
    "workload_dumpable": "workload: owner: expected not dumpable",
    "unsealed_go": "pid1_environ: the attempt succeeded inside",
    "waiters_descriptor": "pid 1: descriptor",
    "hosts_ipc": "namespaces.ipc: expected not the host's",
    "capabilities_kept": "pid 1: capabilities",
    "keyring_kept": "session keyring: expected a new one",
    "begun_unmasked": "proc_masks",
    "begun_writable": "mounts./usr: expected ro",
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_guard_taken_out_is_noticed(ordinary_user: OrdinaryUser, name: str) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    process = start_mutated(site, name)
    try:
        if name.startswith("begun"):
            wait_for(lambda: made_ahead(process.pid), "a jail that is made ahead")
            time.sleep(1)  # it stands by then
        done = site.run("touch", "marker")
        assert done.returncode == 125, done.stderr
        assert MUTATIONS[name] in done.stderr, done.stderr
        assert not site.ledger(ev="proof")
        assert site.ledger(ev="run.end")[-1]["reason"] == "proof_failed"
    finally:
        site.close()
        process.wait(90)
