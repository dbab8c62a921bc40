"""Beginning and end of runs and of the daemon: nothing outlives its run, and whatever dies, the run ends closed."""

import json
import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.conftest import OrdinaryUser
from tests.e2e.place import Live, children, daemon_pid, module_site, one_error, running, wait_for
from tests.e2e.site import Site, endpoint, make_site
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

READ = "version = 1\n[role.dev]\n"


@pytest.fixture
def site(place: Site) -> Site:
    """The module's site, its policy as at the start, and a daemon that lives (some tests here kill it)."""
    place.policy(READ)
    return place


# Two hundred processes that daemonise themselves; every second one ignores TERM.
DAEMONS = """
import os, signal, sys
mark, then = sys.argv[1:]
for number in range(200):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if number % 2: signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for descriptor in (0, 1, 2): os.close(descriptor)
            os.execv('/usr/bin/sleep', [mark, '300'])
        os._exit(0)
    os.wait()
def count():
    names = [n for n in os.listdir('/proc') if n.isdigit()]
    return sum(open(f'/proc/{n}/cmdline').read().startswith(mark) for n in names)
while count() < 200: pass
print('up', flush=True)
if then == 'stay': signal.pause()
"""


def daemons(site: Site, then: str) -> tuple[Live, str]:
    mark = f"daemon-{uuid.uuid4().hex}"
    run = Live(site, site.python(), "-I", "-S", "-c", DAEMONS, mark, then)
    assert run.line() == "up\n"
    return run, mark


def test_daemonised_processes_end_with_the_command(site: Site) -> None:
    run, mark = daemons(site, "leave")
    with run:
        ended = run.end()
    assert running(mark) == []  # at once: `run` returns when the kernel has shown their death
    assert (ended["status"], ended["reason"]) == (0, "exited")


def test_daemonised_processes_end_with_the_launcher(site: Site) -> None:
    run, mark = daemons(site, "stay")
    with run:
        assert len(running(mark)) == 200  # control: they are seen from here
        os.kill(run.launcher, signal.SIGKILL)
        run.end()
    wait_for(lambda: running(mark) == [], "the end of the jail")
    wait_for(lambda: site.ledger(ev="run.end", run=run.run), "the record of the end")
    assert site.ledger(ev="run.end", run=run.run)[0]["reason"] == "killed"


def test_daemonised_processes_end_with_the_daemon(site: Site) -> None:
    run, mark = daemons(site, "stay")
    with run:
        os.kill(daemon_pid(site), signal.SIGKILL)
        ended = run.end()
    assert running(mark) == []
    assert (run.process.returncode, ended["status"], ended["reason"]) == (137, 137, "gateway")
    assert ended["run"] == run.run
    assert "daemon" in one_error(run.err)[0]
    assert site.run("true").returncode == 0  # the next run starts a new one
    assert site.credgate("log", "verify").returncode == 0


# Signals to the launcher


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_to_the_command(site: Site, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    code = f"trap 'echo got {name}; exit 4' {name}; echo up; while :; do sleep 0.05; done"
    with Live(site, "sh", "-c", code) as run:
        assert run.line() == "up\n"
        os.kill(run.launcher, number)
        ended = run.end()
    assert (run.out, ended["status"], ended["reason"]) == (f"got {name}\n", 4, "exited")


def test_a_command_without_a_handler_dies_of_it(site: Site) -> None:
    with Live(site, "sleep", "300") as run:
        os.kill(run.launcher, signal.SIGTERM)
        ended = run.end()
    assert (run.process.returncode, ended["status"], ended["reason"]) == (143, 143, "signaled")


# ps and kill


def test_ps_and_kill(site: Site) -> None:
    assert json.loads(site.credgate("ps", "--json").stdout)["runs"] == []
    stubborn = "trap '' TERM; echo up; while :; do sleep 1; done"
    with Live(site, "sh", "-c", stubborn) as run:
        (shown,) = json.loads(site.credgate("ps", "--json").stdout)["runs"]
        assert (shown["run"], shown["role"], shown["workdir"]) == (run.run, "dev", str(site.work))
        assert run.run in site.credgate("ps").stdout
        assert site.credgate("kill", run.run).returncode == 0
        ended = run.end()
    assert (ended["status"], ended["reason"]) == (137, "killed")
    assert "killed" in run.err
    assert json.loads(site.credgate("ps", "--json").stdout)["runs"] == []
    again = site.credgate("kill", run.run)
    assert (again.returncode, run.run in one_error(again.stderr)[0]) == (1, True)


# Limits


def test_the_deadline(site: Site) -> None:
    site.policy(READ + 'deadline = "1s"\n')
    with Live(site, "sleep", "300") as run:
        ended = run.end()
    assert (ended["reason"], ended["status"]) == ("timeout", 143)
    assert site.ledger(ev="run.end", run=run.run)[0]["reason"] == "timeout"


# Shared pages, which RLIMIT_DATA does not count (getrlimit(2)); 8 MiB a step, 256 MiB at most.
EAT = """
import mmap, sys, time
held = []
for _ in range(32):
    held.append(mmap.mmap(-1, 8 << 20))
    for page in range(0, 8 << 20, 4096): held[-1][page] = 1
    time.sleep(0.02)
time.sleep(float(sys.argv[1]))
print('ate', flush=True)
"""


def test_the_memory_limit(site: Site) -> None:
    argv = (site.python(), "-I", "-S", "-c", EAT)
    site.policy(READ + 'limits = { memory = "64MiB" }\n')
    with Live(site, *argv, "60") as run:  # without a control group the next look of pid 1's ends it
        ended = run.end()
    assert (ended["reason"], ended["status"], run.out) == ("oom", 137, "")
    site.policy(READ + 'limits = { memory = "1GiB" }\n')
    with Live(site, *argv, "0") as run:  # control: the same program where there is room
        ended = run.end()
    assert (ended["reason"], run.out) == ("exited", "ate\n")


FORK = """
import os, signal
made = 0
try:
    for _ in range(100):
        if os.fork() == 0: signal.pause()
        made += 1
except BlockingIOError:
    print('refused', made)
else:
    print('made', made)
"""


def test_the_process_limit_holds_inside_and_leaves_the_host_alone(site: Site) -> None:
    argv = (site.python(), "-I", "-S", "-c", FORK)
    site.policy(READ + "limits = { processes = 20 }\n")
    with Live(site, "sleep", "300"):  # another run of the same user's
        outside = [subprocess.Popen(site.as_user(["sleep", "300"])) for _ in range(30)]
        try:
            done = site.run(*argv)
        finally:
            for process in outside:
                process.kill()
                process.wait()
    word, made = done.stdout.split()
    assert (word, 10 <= int(made) < 20) == ("refused", True)
    site.policy(READ + "limits = { processes = 200 }\n")
    assert site.run(*argv).stdout == "made 100\n"  # control


def test_a_file_larger_than_the_limit(site: Site) -> None:
    site.policy(READ + 'limits = { file_size = "1MiB" }\n')
    assert site.run("sh", "-c", "head -c 2000000 /dev/zero > /tmp/f").returncode != 0
    site.policy(READ)
    assert site.run("sh", "-c", "head -c 2000000 /dev/zero > /tmp/f").returncode == 0


# Several runs


def test_two_runs_at_once_do_not_meet(site: Site) -> None:
    with Live(site, "sh", "-c", "echo mine > /tmp/note; hostname; sleep 300") as first:
        done = site.run("sh", "-c", "cat /tmp/note; ls /proc | grep -c '^[0-9]'")
        assert "No such file" in done.stderr
        assert int(done.stdout) < 8  # its own processes alone
        assert first.process.poll() is None


def test_runs_of_different_roles_do_not_share_a_writable_tree(site: Site) -> None:
    site.policy('version = 1\ndefault_role = "dev"\n[role.dev]\nworkdir = "write"\n[role.other]\n')
    (site.work / "part").mkdir(exist_ok=True)
    site.own(site.work / "part")
    with Live(site, "sleep", "300") as first:
        for tree in (site.work, site.work / "part"):
            done = site.run("true", flags=["--role", "other", "--workdir", tree])
            assert done.returncode == 125
            assert first.run in one_error(done.stderr)[0]
        assert site.run("true").returncode == 0  # the same role may
    assert site.run("true", flags=["--role", "other"]).returncode == 0  # and this one when the first has ended


def test_two_first_runs_start_one_daemon(ordinary_user: OrdinaryUser) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    try:
        runs = [site.start("true") for _ in range(2)]
        ends = [(run.communicate(timeout=60)[1], run.returncode) for run in runs]
        assert ends == [("", 0), ("", 0)]  # a second daemon would have found the first one's lock, and said so
        assert len(site.ledger(ev="run.end")) == 2
        assert site.credgate("gateway", "status").returncode == 0
    finally:
        site.close()


# The mount table


@pytest.mark.needs("root")
def test_a_run_whose_mounts_change_is_ended(site: Site) -> None:
    """By root from outside: it stands for a rename on the host that detaches a mount inside."""
    with Live(site, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done") as run:
        assert run.line() == "up\n"
        inside = ["nsenter", "-t", str(run.ready["pid"]), "-m", "--", "mount", "-t", "tmpfs", "none", "/var/tmp"]
        subprocess.run(inside, check=True, timeout=30)
        ended = run.end()
    assert (ended["reason"], ended["status"]) == ("alarm", 137)
    assert site.ledger(ev="alarm", run=run.run, reason="mount_changed")


# The daemon and what it starts


def test_an_idle_daemon_leaves(ordinary_user: OrdinaryUser) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    try:
        # On a busy machine the next command may begin seconds later.
        pid = json.loads(site.credgate("gateway", "start", "--idle", "5", "--json").stdout)["pid"]
        with Live(site, "sleep", "300"):
            pass
        with Live(site, "sleep", "7") as run:
            assert run.end()["reason"] == "exited"  # a live run is no idleness
        assert daemon_pid(site) == pid
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the daemon's end")
        assert site.credgate("gateway", "status").returncode == 1
        assert not (site.state / "run/control").exists()
    finally:
        site.close()


def test_runs_end_closed_when_the_keeper_dies(site: Site) -> None:
    mark = f"work-{uuid.uuid4().hex}"
    with Live(site, "sh", "-c", "exec sleep 300", mark) as run:
        daemon = daemon_pid(site)
        (keeper,) = children(daemon, "jail.keeper")
        os.kill(keeper, signal.SIGKILL)
        ended = run.end()
    wait_for(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon's end")
    assert (ended["reason"], run.process.returncode) == ("gateway", ended["status"])
    assert run.process.returncode >= 128
    assert site.ledger(ev="run.end", run=run.run)
    assert site.run("true").returncode == 0


@pytest.mark.needs("curl")
def test_a_dead_resolver_is_started_again_and_the_run_goes_on(site: Site, http_target: Target) -> None:
    site.policy(READ + 'endpoints = ["api"]\n' + endpoint(http_target))
    fetch = f"curl -sS --noproxy '*' -o /dev/null -w '%{{http_code}}' http://{http_target.host}/echo"
    code = f"{fetch}; echo; read line; for i in 1 2 3 4 5 6 7 8; do {fetch} && exit 0; sleep 0.5; done; exit 9"
    process = site.start("sh", "-c", code, stdin=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "200\n"
        (resolver,) = children(daemon_pid(site), "resolver")
        os.kill(resolver, signal.SIGKILL)
        out, err = process.communicate("go\n", timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "200"), err
    assert children(daemon_pid(site), "resolver") not in ([], [resolver])


def test_stop_ends_what_runs(site: Site) -> None:
    with Live(site, "sleep", "300") as run:
        assert site.credgate("gateway", "stop").returncode == 0
        ended = run.end()
    assert (ended["reason"], ended["run"]) == ("gateway", run.run)
    assert site.ledger(ev="run.end", run=run.run)[0]["reason"] == "gateway"
