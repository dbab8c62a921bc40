"""`credgate prove`, and the cheap part of it before every exec: every guard of the list, on this host."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from jail.guards import BY_ID, GUARDS
from jail.probes import stand as stand_script
from tests.conftest import accounts_own_daemon
from tests.e2e.place import daemon_pid, module_site, one_error, wait_for
from tests.e2e.site import BIN, TIMEOUT, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

KEYS = {"guard", "mechanism", "readback", "inside", "control", "state", "why"}
# What a kernel may lack for everybody. Anything else must be shown, wherever this suite runs.
MAY_BE_CLOSED = {guard.id for guard in GUARDS if guard.closed}

PLAIN = [guard.id for guard in GUARDS if not guard.copy]  # of a role whose work tree is no copy


@pytest.fixture
def site(place: Site) -> Site:
    place.policy("version = 1\n[role.dev]\n")
    return place


def checked(document: dict, guards: list[str] = PLAIN) -> None:
    rows = document["guards"]
    assert [row["guard"] for row in rows] == guards
    assert all(set(row) == KEYS for row in rows)
    assert [(row["guard"], row["why"]) for row in rows if row["state"] not in ("shown", "closed by host")] == []
    assert {row["guard"] for row in rows if row["state"] == "closed by host"} <= MAY_BE_CLOSED
    for row in rows:
        guard = BY_ID[row["guard"]]
        assert row["inside"] in guard.refused
        assert row["control"] == "done" or (row["state"] == "closed by host" and row["control"] in guard.closed)
        assert row["readback"] == ("as planned" if guard.readback else "none")


def test_every_guard_of_the_built_in_role(site: Site, tmp_path: Path) -> None:
    record = site.own(site.home / "record.json") if (site.home / "record.json").exists() else site.home / "record.json"
    done = site.credgate("prove", "--json", "--record", record)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    checked(document)
    assert document["role"] == "strictest"
    assert document["host"].startswith("Linux ")
    assert json.loads(record.read_text()) == document
    (line,) = site.ledger(ev="proof", proof=document["proof"])
    assert line["verdict"] == "shown"
    assert line["guards"] == [f"{row['guard']}={row['state']}" for row in document["guards"]]
    verified = site.credgate("log", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_every_guard_of_a_role_that_writes(site: Site) -> None:
    site.policy('version = 1\n[role.dev]\nworkdir = "write"\nlimits = { processes = 100 }\n')
    done = site.credgate("prove", "--policy", site.home / "policy/policy.toml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    checked(document)
    inside = {row["guard"]: row["inside"] for row in document["guards"]}
    assert (inside["tree_socket"], inside["tree_fifo"], inside["neighbour_tree"]) == ("EACCES", "EACCES", "ENOENT")


def test_every_guard_of_a_role_on_a_copy(site: Site) -> None:
    site.policy('version = 1\n[role.dev]\nworkdir = "copy"\nlimits = { processes = 100 }\n')
    done = site.credgate("prove", "--policy", site.home / "policy/policy.toml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    checked(document, [guard.id for guard in GUARDS])
    assert {row["guard"]: row["inside"] for row in document["guards"]}["copy_write"] == "copied"
    assert not [*(site.state / "copies").iterdir()]  # what was tried is no change


@pytest.mark.parametrize("switch", ["allow_debug", "allow_userns"])
def test_switch_takes_its_guards_out_and_leaves_the_others_shown(site: Site, switch: str) -> None:
    site.policy(f"version = 1\n[role.dev]\n{switch} = true\n")
    done = site.credgate("prove", "--policy", site.home / "policy/policy.toml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["guards"]
    assert set(PLAIN) - {row["guard"] for row in rows} == {guard.id for guard in GUARDS if guard.unless == switch}


def test_table_for_people(site: Site) -> None:
    done = site.credgate("prove")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["guard", "inside", "control", "state"]
    assert [line.split()[0] for line in lines[1 : 1 + len(PLAIN)]] == PLAIN
    assert lines[-1].startswith(f"{len(PLAIN)} guards of role strictest on Linux ")
    assert "0 not shown" in lines[-1]


def test_nothing_is_left_and_nothing_was_run(site: Site) -> None:
    before, theirs = len(site.ledger(ev="run.start")), trees()
    assert site.credgate("prove").returncode == 0
    started = site.ledger(ev="run.start")[before:]
    assert len(started) == 2
    ends = [line for line in site.ledger(ev="run.end") if line["run"] in {s["run"] for s in started}]
    assert len(ends) == 2
    ours = trees() - theirs  # or another suite's, whose proof ends as well
    wait_for(lambda: not trees() & ours, "the trees to go", 60)
    kept = [path for path in (site.state / "run").iterdir() if path.is_dir()]
    assert len(kept) == 1  # of the daemon's own stand
    assert not any((kept[0] / "tree").iterdir())
    assert not any((kept[0] / "scratch").iterdir())
    assert (kept[0] / "host/victim").read_bytes() == b""
    assert site.credgate("ps").stdout.count("\n") <= 1


def test_policy_that_is_wrong(site: Site) -> None:
    site.policy("version = 2\n")
    done = site.credgate("prove", "--policy", site.home / "policy/policy.toml")
    assert done.returncode == 2
    assert "version" in one_error(done.stderr)[0]
    site.policy("version = 1\n[role.dev]\n")
    done = site.credgate("prove", "--policy", site.home / "policy/policy.toml", "--role", "other")
    assert done.returncode == 2
    assert "other" in one_error(done.stderr)[0]


def test_killed_in_the_middle(site: Site) -> None:
    site.credgate("gateway", "start")  # or the daemon is a child of what is killed here
    assert any(_killed(site) for _ in range(20))
    wait_for(lambda: len(directories(site)) == 1, "the stand to go", 60)
    assert site.run("true").returncode == 0


def _killed(site: Site) -> bool:
    """Kill a proof while it goes on; False where it was over before, which is soon."""
    before, started = len(site.ledger(ev="run.end")), len(site.ledger(ev="run.start"))
    theirs = trees()
    process = subprocess.Popen(
        site.as_user([BIN / "credgate", "prove"]),
        env=site.environment(),
        cwd=site.work,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: len(site.ledger(ev="run.start")) == started + 2, "both jails")
    ours = trees() - theirs
    for pid in descendants(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = process.wait()
    wait_for(lambda: len(site.ledger(ev="run.end")) == before + 2, "the end of both", 60)
    wait_for(lambda: not trees() & ours, "the trees to go", 60)
    return ended == -signal.SIGKILL


def trees() -> set[Path]:
    """Those of proofs that are going on; another suite's may be among them."""
    return set(Path("/tmp").glob("credgate-prove-*"))


def descendants(pid: int) -> list[int]:
    """This process and its children's children: the launcher's child is in a session of its own."""
    found = [pid]
    for at in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = int(Path(f"/proc/{at}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            found += descendants(at)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="root's way to start it")
@pytest.mark.timeout(300)
def test_started_by_root(place: Site) -> None:
    def prove(*flags: str, **more: str) -> subprocess.CompletedProcess[str]:
        argv = [BIN / "credgate", "prove", "--json", *flags]
        env = place.environment(more)
        return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=TIMEOUT, check=False)

    with accounts_own_daemon():
        _proves_by_root(place, prove)


def _proves_by_root(place: Site, prove: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    bare = prove()
    assert bare.returncode != 0
    assert "root" in one_error(bare.stderr)[0]
    by_name = prove("--user", "credgate-test")
    assert by_name.returncode == 0, by_name.stdout + by_name.stderr
    checked(json.loads(by_name.stdout))
    stopped = subprocess.run(
        [
            "setpriv",
            f"--reuid={place.uid}",
            f"--regid={place.gid}",
            "--init-groups",
            BIN / "credgate",
            "gateway",
            "stop",
        ],
        env={"HOME": os.path.expanduser("~credgate-test"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
        cwd="/",
    )
    assert stopped.returncode == 0, stopped.stderr


# Before every exec


def test_each_run_proves_the_cheap_ones(site: Site) -> None:
    done = site.run("true")
    assert done.returncode == 0, done.stderr
    line = site.ledger(ev="proof")[-1]
    cheap = [name for name in PLAIN if BY_ID[name].per_run]
    assert [entry.partition("=")[0] for entry in line["guards"]] == cheap
    assert {entry.partition("=")[2] for entry in line["guards"]} <= {"shown", "closed by host"}


def test_attempts_of_ours_are_not_counted_as_the_jails(site: Site) -> None:
    assert site.run("true").returncode == 0
    assert site.ledger(ev="run.end")[-1].get("count", 0) == 0
    assert not [line for line in site.ledger(ev="off_route") if line["run"] == site.ledger(ev="run.end")[-1]["run"]]


def stand_of(daemon: int) -> int:
    """The stand that this daemon started, 0 for none."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == daemon and os.fsencode(stand_script.__file__) in words:
            return pid
    return 0


def directories(site: Site) -> list[Path]:
    return [path for path in (site.state / "run").iterdir() if path.is_dir()]


def test_without_its_controls_no_run_starts(site: Site) -> None:
    site.credgate("gateway", "stop")  # there may be none
    assert site.credgate("gateway", "start").returncode == 0
    daemon = daemon_pid(site)
    stand = stand_of(daemon)
    assert stand
    os.kill(stand, signal.SIGKILL)
    done = site.run("touch", site.work / "marker")
    assert done.returncode == 125
    assert "the process that controls run in" in one_error(done.stderr)[0]
    assert not (site.work / "marker").exists()
    assert site.credgate("gateway", "stop").returncode == 0
    wait_for(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon's end")
    assert len(directories(site)) == 1  # nobody was left to clear it away
    assert site.run("true").returncode == 0
    assert len(directories(site)) == 1  # the next daemon did, and has its own


def test_stand_ends_with_the_daemon(site: Site) -> None:
    assert site.run("true").returncode == 0
    daemon = daemon_pid(site)
    assert stand_of(daemon)
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: not directories(site), "the stand to clear its things away")
