"""A pid 1 that does not act (here: stopped from the host): kill, deadline and the launcher's end act all the same."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from credgate.session import GRACE, INSIST
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
SLACK = 60.0  # seconds for a command to start and two processors to be shared


def kill(site: Site, run: str, _launcher: Any) -> None:
    assert site.credgate("kill", run).returncode == 0


def end_launcher(_site: Site, _run: str, launcher: Any) -> None:
    launcher.kill()


WAYS: dict[str, tuple[str, Callable[..., None], float, str]] = {
    "kill": ("", kill, GRACE, "killed"),
    "launcher": ("", end_launcher, 0, "killed"),
    "deadline": ('deadline = "6s"\n', lambda *_: None, 6 + GRACE, "timeout"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_end_comes_without_pid_1(site: Site, way: str) -> None:
    policy, act, due, reason = WAYS[way]
    site.policy(f'version = 1\n[role.dev]\nworkdir = "write"\n{policy}')
    launcher = site.start("sh", "-c", "while :; do date > alive; sleep 0.2; done")
    proof = soon(lambda: site.ledger(ev="proof"))[0]
    soon(lambda: (site.work / "alive").exists())
    os.kill(proof["pid"], signal.SIGSTOP)
    began = time.monotonic()
    act(site, proof["run"], launcher)
    ended = soon(lambda: site.ledger(ev="run.end"), due + INSIST + SLACK)
    assert ended[0]["reason"] == reason
    assert time.monotonic() - began >= due - 3, "control: it was not over anyway"
    launcher.communicate(timeout=60)
    before = (site.work / "alive").stat().st_mtime_ns
    time.sleep(0.5)
    assert (site.work / "alive").stat().st_mtime_ns == before


def soon(look: Callable[[], Any], seconds: float = 90.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.1)
    return found
