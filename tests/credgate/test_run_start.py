"""What `credgate run` loads before it has asked the daemon, and its short way of reading a command line."""

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from credgate import thinclient
from credgate.commands import run
from credgate.commands.runparser import parser
from credgate.paths import PlaceError, Places
from tests.conftest import CHECKOUT

# Of ours, and of the library beyond what the bare interpreter has. Each costs a third of a millisecond and more.
OURS = {
    "credgate", "credgate.cli", "credgate.commands", "credgate.commands.run", "credgate.errors", "credgate.hostlimits",
    "credgate.stdio", "credgate.text", "credgate.thinclient", "jail", "jail.errors", "jail.lent", "jail.ready",
    "jail.thinpass",
}  # fmt: skip
LIBRARY = {"_json", "_socket", "_struct", "errno", "importlib", "resource", "select", "struct"}
LISTED = """
import sys
bare = set(sys.modules) | {"os", "posixpath", "genericpath", "stat", "_stat", "_collections_abc", "linecache"}
bare |= {"os.path", "importlib._bootstrap", "importlib._bootstrap_external"}
sys.path.append(sys.argv[1])
sys.argv = ["credgate", "run", "-q", "--policy", "none.toml", "--", "true"]
from credgate import cli, thinclient
def connect(env):
    print(*sorted(set(sys.modules) - bare))
    raise SystemExit(0)
thinclient.connect = connect
cli.main(sys.argv[1:])
"""


def ordinary(argv: list[str]) -> list[str]:
    """As a user who is not root: that one begins anew as another."""
    if os.geteuid() != 0:
        return argv
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", *argv]


def test_what_a_run_loads_before_it_asks_the_daemon() -> None:
    argv = [sys.executable, "-I", "-S", "-c", LISTED, str(CHECKOUT / "src")]
    done = subprocess.run(ordinary(argv), capture_output=True, text=True, check=True, cwd="/")
    assert set(done.stdout.split()) - LIBRARY == OURS, done.stdout


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace counts the calls")
def test_it_makes_few_system_calls_before_that() -> None:
    """Of 240 that the interpreter needs by itself; a loop over descriptors, modules or the environment would show."""
    argv = ["strace", "-f", "-c", sys.executable, "-I", "-S", "-c", LISTED, str(CHECKOUT / "src")]
    told = subprocess.run(ordinary(argv), capture_output=True, text=True, check=True, cwd="/").stderr
    calls = {row.split()[-1]: int(row.split()[3]) for row in told.splitlines() if row.strip()[:1].isdigit()}
    assert calls["newfstatat"] < 350 and calls["total"] < 1200, told


TEXT = """-- -q --quiet --policy --policy=p --role --role= r --workdir --workdir=/d --env A --env=B --status-fd 3
--status-fd=x --status-fd=-1 --status-fd=٣ --read-only --read-only=1 --user -x --no true - -qq --pol --help
--policy=--x --env="""
words = st.sampled_from([*TEXT.split(), ""])


@given(argv=st.lists(words, max_size=7))
@example(argv=["-q", "--policy", "p", "--", "true", "--", "-q"])
@example(argv=["--", "--", "true"])
@example(argv=["true", "--", "x"])
def test_the_short_way_reads_as_argparse_does(argv: list[str]) -> None:
    short = run.plain(argv)
    if short is None:
        return
    with contextlib.redirect_stderr(io.StringIO()):
        long = parser().parse_args(argv, run.Options())
    command = long.command[1:] if long.command[:1] == ["--"] else long.command
    assert vars(short) | {"command": command} == vars(short)
    assert {**DEFAULTS, **vars(short)} == {**DEFAULTS, **vars(long), "command": command}


DEFAULTS = {name: value for name, value in vars(run.Options).items() if not name.startswith("_")}


def test_every_flag_has_its_default() -> None:
    said = {action.dest: action.default for action in parser()._actions if action.dest != "help"}
    assert {name: value for name, value in said.items() if value not in ([], None)} == DEFAULTS


@pytest.mark.parametrize("argv", [["-q", "--role", "r", "--", "x"], ["true"], ["--env", "A", "--env=B", "--", "x"]])
def test_the_usual_ways_are_short(argv: list[str]) -> None:
    assert run.plain(argv) is not None


ENVIRONMENTS = [
    {"HOME": "/h"}, {"HOME": "/h", "XDG_STATE_HOME": "/s"}, {"HOME": "h"}, {}, {"XDG_STATE_HOME": "s", "HOME": "/h"},
    {"HOME": "/" + "x" * 200}, {"HOME": "", "XDG_STATE_HOME": "/s/"}, {"HOME": "/h", "XDG_STATE_HOME": ""},
]  # fmt: skip


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_socket_is_where_the_daemon_makes_it(env: dict[str, str]) -> None:
    try:
        expected = os.fspath(Places.from_env(env).control)
    except PlaceError:
        assert thinclient.control(env) is None
    else:
        found = thinclient.control(env)
        assert found is None or os.path.normpath(found) == expected


def env_of(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "XDG_STATE_HOME": f"/proc/self/fd/{os.open(home, os.O_PATH)}/.local/state"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """HOME of a user whose daemon listens."""
    home = Path(os.path.realpath(tmp_path))
    directory = home / ".local/state/credgate/run"
    directory.mkdir(parents=True)
    directory.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    where = os.open(directory, os.O_PATH)
    listener.bind(f"/proc/self/fd/{where}/control")
    os.close(where)
    listener.listen()
    with listener:
        yield home


def test_a_daemon_that_is_up_is_reached(served: Path) -> None:
    sock = thinclient._running(env_of(served))
    assert sock is not None
    sock.close()


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_directory_that_others_can_enter_is_left_to_the_long_way(served: Path, mode: int) -> None:
    (served / ".local/state/credgate/run").chmod(mode)
    assert thinclient._running(env_of(served)) is None


def test_a_daemon_of_another_user_is_left_to_the_long_way(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jail.thinpass.peer", lambda _sock: (os.getpid(), os.geteuid() + 1))
    assert thinclient._running(env_of(served)) is None


def test_none_that_listens(tmp_path: Path) -> None:
    assert thinclient._running({"HOME": str(tmp_path)}) is None
