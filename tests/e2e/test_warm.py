"""Jails that were made before their command was asked for: by `credgate.api` and by `credgate run --warm`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHECKOUT, OrdinaryUser
from tests.e2e.mutant import start_patched
from tests.e2e.place import daemon_pid, module_site, wait_for
from tests.e2e.site import Site, make_site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

WRITE = 'version = 1\n[role.dev]\nworkdir = "write"\n'
CALLS = f"""
import json, sys, time
sys.path.insert(0, {str(CHECKOUT / "src")!r})
from credgate.api import CredgateError, Launcher
launcher = Launcher(**json.loads(sys.argv[1]))
for line in sys.stdin:
    argv, more = json.loads(line)
    try:
        done = launcher.run(argv, **more)
        said = [done.status, done.reason, done.stdout.decode(), done.stderr.decode(), done.run]
    except CredgateError as error:
        said = [error.code, error.detail]
    print(json.dumps(said), flush=True)
"""


class Caller:
    """A process that lives and launches."""

    def __init__(self, site: Site, **kw: Any) -> None:
        self.site = site
        wanted = {"policy": str(site.home / "policy/policy.toml"), "workdir": str(site.work), **kw}
        argv = site.as_user([sys.executable, "-I", site.write("calls.py", CALLS), json.dumps(wanted)])
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(argv, env=site.environment(), cwd=site.work, **pipes)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)

    def run(self, *argv: str, **more: object) -> list[Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([argv, {"capture": True, **more}]) + "\n")
        self.process.stdin.flush()
        said: list[Any] = json.loads(self.process.stdout.readline())
        return said

    def warmed(self, *argv: str) -> list[Any]:
        """Once a jail waits for it: the daemon has as many jails as there are live ones, and one more."""
        wait_for(lambda: waiting(self.site) == 1, "a jail that waits")
        return self.run(*argv)


def waiting(site: Site) -> int:
    """Jails of the site's daemon: each is a waiter below its starter."""
    daemon = daemon_pid(site)
    lines = {pid: (parent, line) for pid, parent, line in _processes()}
    starters = [pid for pid, (parent, line) in lines.items() if parent == daemon and "starter.py" in line]
    armed = [pid for pid, (parent, _) in lines.items() if parent in starters]
    return sum(any(lines[p][0] == a and _children(lines, p) for p in lines) for a in armed)


def _children(lines: dict[int, tuple[int, str]], of: int) -> list[int]:
    return [pid for pid, (parent, _) in lines.items() if parent == of]


def _processes() -> list[tuple[int, int, str]]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            found.append((int(name), parent, Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def ahead(site: Site, run: str) -> bool:
    """Whether the proof of a run was shown before its command was asked for."""
    (proof,) = site.ledger(ev="proof", run=run)
    return "before its command was asked for" in (proof.get("detail") or "")


@pytest.fixture
def site(place: Site) -> Site:
    """With a daemon of its own: none of another test's jails waits."""
    place.policy(WRITE)
    place.credgate("gateway", "stop")
    daemon_pid(place)
    return place


def test_a_jail_waits_for_one_command_and_no_other(site: Site) -> None:
    starts = len(site.ledger(ev="run.start"))
    with Caller(site) as caller:
        first = caller.run("sh", "-c", "echo one >/tmp/left; echo out; echo err >&2; exit 3")
        assert first[:4] == [3, "exited", "out\n", "err\n"] and not ahead(site, first[4])
        second = caller.warmed("sh", "-c", "cat /tmp/left; echo $$; pwd; echo made >here")
        assert second[0] == 0 and ahead(site, second[4])
        assert second[2] == f"2\n{site.work}\n"  # pid 2 of a jail of its own, in which nothing was left
        third = caller.warmed("cat", "here")
        assert third[:3] == [0, "exited", "made\n"] and ahead(site, third[4])
        (start,) = site.ledger(ev="run.start", run=third[4])
        assert start["program"].endswith("/cat")
        assert caller.warmed("sh", "-c", "kill -9 $$")[:2] == [137, "signaled"]
        assert caller.run("echo", "ghp_" + "a1B2" * 9)[0] == "argument_credential"
        missing = caller.warmed("no-such-command")
        assert missing[0] == "not_found"
        killed = caller.run("sleep", "300", timeout=5)
        assert killed[:2] == [137, "killed"]
    assert {first[4], second[4], third[4]} == {line["run"] for line in site.ledger(ev="run.start")[starts:][:3]}
    ended = {line["run"] for line in site.ledger(ev="run.end")}
    assert ended >= {line["run"] for line in site.ledger(ev="run.start")[starts:]}
    assert site.credgate("log", "verify").returncode == 0


def test_what_was_changed_meanwhile_counts(site: Site) -> None:
    """A file to be hidden, the policy, the environment: the jail that waited is not used."""
    with Caller(site) as caller:
        caller.run("true")
        wait_for(lambda: waiting(site) == 1, "a jail that waits")  # its plan is made by now
        site.write("work/.env", "SECRET=1\n")
        hidden = caller.run("cat", ".env")
        assert hidden[0] == 1 and "Permission denied" in hidden[3] and not ahead(site, hidden[4])
        wait_for(lambda: waiting(site) == 1, "a jail that waits")
        site.policy(WRITE.replace("write", "read"))
        read = caller.run("sh", "-c", "echo x >there")
        assert read[0] != 0 and not ahead(site, read[4])
        assert ahead(site, caller.warmed("true")[4])  # the control: unchanged, it is used
        (site.work / ".env").unlink()
    with Caller(site, env={"HOME": str(site.home), "MORE": "1"}) as caller:
        assert not ahead(site, caller.run("true")[4])


def test_the_command_line_has_it_too(site: Site) -> None:
    done = site.run("cat", flags=["--warm"], stdin="one")
    assert (done.returncode, done.stdout) == (0, "one")
    wait_for(lambda: waiting(site) == 1, "a jail that waits")
    done = site.run("sh", "-c", "cat; exit 4", flags=["--warm"], stdin="two")
    assert (done.returncode, done.stdout) == (4, "two"), done.stderr
    assert ahead(site, site.ledger(ev="run.start")[-1]["run"])


def test_it_ends_with_its_launcher(site: Site) -> None:
    site.run("true", flags=["--warm"])
    wait_for(lambda: waiting(site) == 1, "a jail that waits")
    reader, writer = os.pipe()
    process = site.start(
        "sh", "-c", "echo up; exec sleep 300", flags=["--warm", "--status-fd", str(writer)], pass_fds=[writer]
    )
    os.close(writer)
    with os.fdopen(reader) as lines:
        pid = json.loads(lines.readline())["pid"]
        assert Path(f"/proc/{pid}").exists()
        process.send_signal(signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the jail")
        process.communicate(timeout=90)


def test_none_outlives_the_daemon(ordinary_user: OrdinaryUser) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    site.run("true", flags=["--warm"])
    wait_for(lambda: waiting(site) == 1, "a jail that waits")
    home = str(site.home)
    started = time.monotonic()
    site.close()
    assert time.monotonic() - started < 60
    assert not [line for _, _, line in _processes() if home in line]


# Its time begins once the test has seen it: a jail that waits for a second is missed on a busy machine.
IDLE = f"""import asyncio, os, sys
sys.path.insert(0, {str(CHECKOUT / "src")!r})
from credgate import daemon, warm
warm.IDLE = 0.5
kept, seen = warm.Pool._kept, os.path.expanduser("~/seen")
async def keep(self, wanted):
    waiting = await kept(self, wanted)
    while not os.path.exists(seen):
        await asyncio.sleep(0.05)
    return waiting
warm.Pool._kept = keep
sys.exit(daemon.main(sys.argv[1:]))
"""


def test_nobody_asks_and_it_is_thrown_away(ordinary_user: OrdinaryUser) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    process = start_patched(site, IDLE)
    try:
        site.run("true", flags=["--warm"])
        wait_for(lambda: waiting(site) == 1, "a jail that waits")
        site.write("seen", "")
        wait_for(lambda: waiting(site) == 0, "its end")
        assert len(site.ledger(ev="run.start")) == len(site.ledger(ev="run.end")) == len(site.ledger(ev="proof")) == 1
    finally:
        site.close()
        process.wait(90)
