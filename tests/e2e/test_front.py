"""A run that a front starts, beside one whose launcher is Python: what the user gets is the same."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from credgate import buildfront, start
from tests.bench import kernel
from tests.e2e.place import children, daemon_pid, module_site, wait_for
from tests.e2e.site import BIN, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "compiler")
place = pytest.fixture(scope="module")(module_site)
PYTHON = (BIN / "python", "-I", "-S", start.__file__)


@pytest.fixture
def site(place: Site) -> Site:
    place.policy("version = 1\n[role.dev]\n")
    daemon_pid(place)
    return place


def launched(
    site: Site, words: tuple[str | Path, ...], *command: str, flags: tuple[str, ...] = ()
) -> "subprocess.Popen[bytes]":
    argv = [*words, "run", "--policy", site.home / "policy/policy.toml", *flags, "--", *command]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(site.as_user(argv), env=site.environment(), cwd=site.work, **pipes)


def test_the_installed_command_is_one() -> None:
    assert buildfront.is_current()


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ((), ("sh", "-c", "echo out; exit 41")),
        ((), ("sh", "-c", "kill -9 $$")),
        (("-q",), ("sh", "-c", "echo out")),
        ((), ("no-such-program",)),
        (("--role", "none"), ("true",)),
        (("--role=dev", "--env", "NO_SUCH"), ("true",)),
        (("--read-only",), ("sh", "-c", "touch file 2>/dev/null || exit 7")),
        (("--warm",), ("echo", "warm")),
    ],
)
def test_it_says_and_ends_as_python_does(site: Site, flags: tuple[str, ...], command: tuple[str, ...]) -> None:
    ends = []
    for words in (PYTHON, (BIN / "credgate",)):
        process = launched(site, words, *command, flags=flags)
        out, err = process.communicate(timeout=90)
        ends.append((process.returncode, out, re.sub(rb"r[0-9a-f]{12}", b"RUN", err)))
    assert ends[0] == ends[1]


def test_no_interpreter_stays_beside_the_jail(site: Site) -> None:
    process = launched(site, (BIN / "credgate",), "sh", "-c", "echo up; exec sleep 300")
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    assert os.path.samefile(f"/proc/{process.pid}/exe", buildfront.COMMAND)
    assert kernel.memory(process.pid, "Private_Dirty") < 200_000  # the rest is one file for all of them
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=90) is not None and process.returncode == 143


@pytest.mark.parametrize("words", [PYTHON, (BIN / "credgate",)], ids=["python", "front"])
def test_the_jail_ends_with_its_launcher(site: Site, words: tuple[str | Path, ...]) -> None:
    process = launched(site, words, "sh", "-c", "echo up; exec sleep 300")
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    run = site.ledger(ev="run.start")[-1]["run"]
    process.kill()
    wait_for(lambda: site.ledger(ev="run.end", run=run), "the end of the run")
    assert site.ledger(ev="run.end", run=run)[0]["reason"] == "killed"
    process.communicate(timeout=90)


@pytest.mark.parametrize("words", [PYTHON, (BIN / "credgate",)], ids=["python", "front"])
def test_a_daemon_that_dies_is_told(site: Site, words: tuple[str | Path, ...]) -> None:
    process = launched(site, words, "sh", "-c", "echo up; exec sleep 299.25", flags=("-q",))
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    os.kill(daemon_pid(site), signal.SIGKILL)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 137
    assert err.decode().splitlines()[0] == "error: the gateway daemon ended; the run was ended with it"


@pytest.mark.parametrize("words", [PYTHON, (BIN / "credgate",)], ids=["python", "front"])
def test_a_question_that_an_ending_daemon_leaves_unread_starts_the_next_one(
    site: Site, words: tuple[str | Path, ...]
) -> None:
    """The daemon is stopped until the question lies before it and its keeper is dead: it hears of both at once."""
    daemon, begun = daemon_pid(site), len(site.ledger(ev="run.start"))
    (keeper,) = children(daemon, "jail.keeper")
    os.kill(daemon, signal.SIGSTOP)
    try:
        process = launched(site, words, "echo", "ran", flags=("-q",))
        wait_for(lambda: connections(site.state / "run/control") == 1, "the question")
        os.kill(keeper, signal.SIGKILL)
        wait_for(lambda: " Z " in Path(f"/proc/{keeper}/stat").read_text(), "the keeper's end")
    finally:
        os.kill(daemon, signal.SIGCONT)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out.decode(), err.decode()) == (0, "ran\n", "")
    assert daemon_pid(site) != daemon
    assert len(site.ledger(ev="run.start")) == begun + 1


HASTY = """
import sys
from credgate import cli, thinclient
thinclient.PATIENCE = 0.2
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("way", ["python", "front"])
def test_a_run_that_gave_up_a_stopped_daemon_never_begins(site: Site, way: str) -> None:
    daemon, front = daemon_pid(site), site.home / "hasty"
    assert not buildfront.compile_to(front, ["-DPATIENCE=200"])
    hasty = (BIN / "python", "-I", "-c", HASTY) if way == "python" else (front,)
    os.kill(daemon, signal.SIGSTOP)
    try:
        process = launched(site, hasty, "echo", "ran", flags=("-q",))
        assert process.wait(90) == 125
    finally:
        os.kill(daemon, signal.SIGCONT)
    out, err = process.communicate(timeout=90)  # until nobody has what was lent
    assert (out, err.decode()) == (
        b"", f"error: the daemon, pid {daemon}, is stopped\nhint: kill -CONT {daemon}\n"
    )  # fmt: skip
    assert launched(site, hasty, "echo", "ran").communicate(timeout=90)[0] == b"ran\n"
    assert daemon_pid(site) == daemon


def connections(path: Path) -> int:
    """Of a listening socket that doesn't accept: proc_net_unix has a line for itself and for each of them."""
    return sum(line.endswith(f" {path}") for line in Path("/proc/net/unix").read_text().splitlines()) - 1
