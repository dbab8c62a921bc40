"""Fixtures of the whole suite."""

import fcntl
import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = [
    "pytester", "tests.parallel", "tests.needs", "tests.again", "tests.targets.fixtures", "tests.e2e.told",
]  # fmt: skip

CHECKOUT = Path(__file__).parent.parent

# The example database would be written into the checkout, which an ordinary user may not be able to.
settings.register_profile("suite", database=None, deadline=None)
settings.load_profile("suite")

# Started in the background of a shell, or by nohup, the suite would ignore these, and so would every program that it
# starts; a jail's would not, and Ctrl-C and hang-ups are tested from without.
for _signal in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryUser:
    """An account without rights: who runs the suite, or the one that root's suite starts runs for."""

    name: str
    uid: int
    gid: int
    home: Path


@pytest.fixture(scope="session")
def ordinary_user() -> OrdinaryUser:
    """Whom a run belongs to: the caller, or (by root) the account `credgate-test`, made when it is missing."""
    if os.geteuid() != 0:
        entry = pwd.getpwuid(os.geteuid())
    else:
        make = ["bash", "-euc", ". scripts/lib/say.sh; . scripts/lib/account.sh; make_test_account"]
        subprocess.run(make, cwd=CHECKOUT, check=True, capture_output=True)
        entry = pwd.getpwnam("credgate-test")
    return OrdinaryUser(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, home=Path(entry.pw_dir))


@contextmanager
def accounts_own_daemon() -> Iterator[None]:
    """Hold what there is one of: the daemon in the home of `credgate-test`. Workers take turns."""
    with open(Path(tempfile.gettempdir(), f"credgate-test-daemon.{os.geteuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
