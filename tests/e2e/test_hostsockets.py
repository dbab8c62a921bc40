"""A socket that the host binds in a work tree, before a run and while it is there."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

SERVER = """
import os, socket, sys
os.chdir(sys.argv[1])
sock = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2]))
sock.bind(sys.argv[3])
if sys.argv[2] != "SOCK_DGRAM":
    sock.listen()
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def server(site: Site, kind: str, name: str, around: Sequence[str] = ()) -> Iterator[None]:
    argv = site.as_user([*around, "/usr/bin/python3", "-c", SERVER, str(site.work), kind, name])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        try:
            yield
        finally:
            process.kill()


HOW = {
    "absolute": ("SOCK_STREAM", "{work}/s", ()),
    "relative": ("SOCK_STREAM", "s", ()),
    "datagrams": ("SOCK_DGRAM", "s", ()),
    "another network namespace": ("SOCK_STREAM", "s", ("unshare", "-Urn")),
}


@pytest.mark.parametrize("how", HOW)
def test_a_run_does_not_start_beside_a_hosts_socket(site: Site, how: str) -> None:
    kind, name, around = HOW[how]
    with server(site, kind, name.format(work=site.work), around):
        done = site.run("true")
        assert done.returncode == 125
        assert "the host listens at" in done.stderr
    assert site.run("true").returncode == 0, "control: the file that is left over harms nobody"


def test_a_run_ends_when_the_host_binds_a_socket(site: Site) -> None:
    site.policy('version = 1\n[role.dev]\nworkdir = "write"\n')
    launcher = site.start("sh", "-c", "touch up; sleep 300")
    until = time.monotonic() + 90
    while not (site.work / "up").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    with server(site, "SOCK_STREAM", "late"):
        assert launcher.wait(timeout=90) != 0
    (alarm,) = site.ledger(ev="alarm", reason="host_socket")
    assert alarm["detail"] == str(site.work / "late")
    assert site.ledger(ev="run.end")[-1]["reason"] == "alarm"
    launcher.communicate()
