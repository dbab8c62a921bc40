"""Two processes that accept, as `gateway.toml` says: both serve a run, which goes on when one of them is killed."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OrdinaryUser
from tests.e2e.place import Live, wait_for
from tests.e2e.site import Site, bound, endpoint, make_site
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

INSIDE = """
import socket, ssl, sys
gateway = socket.gethostbyname("HOST")
def link():
    plain = socket.create_connection((gateway, 443), timeout=60)
    return ssl.create_default_context().wrap_socket(plain, server_hostname="HOST")
def ask(sock):
    try:
        sock.sendall(b"GET /private/x HTTP/1.1\\r\\nHost: HOST\\r\\n\\r\\n")
        said = b""
        while not said.endswith(b"welcome\\n"):
            more = sock.recv(65536)
            if not more:
                return "gone"
            said += more
        return said.split(b" ")[1].decode()
    except OSError:
        return "gone"
links = [link() for _ in range(8)]
for line in sys.stdin:
    print(*(ask(sock) for sock in links), ask(link()), flush=True)
"""


def workers(site: Site) -> list[dict[str, Any]]:
    status = json.loads(site.credgate("gateway", "status", "--json").stdout)
    found: list[dict[str, Any]] = status["workers"]
    return found


def test_a_run_goes_on_when_a_worker_is_killed(https_target: Target, ordinary_user: OrdinaryUser) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    try:
        site.write(".config/credgate/gateway.toml", "workers = 2\n")
        secret, role = bound(), '[role.dev]\nbindings = ["api"]\n'
        site.policy(f"version = 1\n{secret}{endpoint(https_target)}{role}", https_target.ca)
        site.secret("api", https_target.token)
        with Live(site, site.python(), "-c", INSIDE.replace("HOST", https_target.host), stdin=subprocess.PIPE) as run:
            assert run.process.stdin is not None

            def asked() -> list[str]:
                run.process.stdin.write("\n")
                run.process.stdin.flush()
                return run.line().split()

            assert asked() == ["200"] * 9
            before = workers(site)
            assert min(row["connections"] for row in before) >= 2
            assert before[1]["requests"] >= 4
            pid = before[1]["pid"]
            look = site.as_user(["cat", f"/proc/{pid}/environ"])
            assert b"Permission denied" in subprocess.run(look, capture_output=True, check=False).stderr
            assert subprocess.run(site.as_user(["cat", "/proc/self/environ"]), capture_output=True, check=False).stdout
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: len(workers(site)) == 2 and workers(site)[1]["pid"] != pid, "another worker")
            after = asked()
            assert after.count("gone") == before[1]["connections"]
            assert after.count("200") == 9 - before[1]["connections"]
            run.process.stdin.close()
            run.process.stdin = None
            assert run.end()["status"] == 0
        assert "workers that died: 1" in site.credgate("gateway", "status").stdout
        (alarm,) = site.ledger(ev="alarm")
        assert (alarm["reason"], alarm["verdict"]) == ("worker_died", "notify")
        intents = {line["seq"] for line in site.ledger(ev="intent")}
        assert intents == {line["intent_seq"] for line in site.ledger(ev="outcome")}
        assert site.credgate("log", "verify").returncode == 0
        daemon, worker = (row["pid"] for row in workers(site))
        assert Path(f"/proc/{worker}").exists()
        os.kill(daemon, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{worker}").exists(), "the worker leaves with the daemon")
    finally:
        site.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers = 0\n", "workers: got 0, expected 1 to 32, or 'cores'"),
        ("workers = true\n", "workers: got True, expected 1 to 32, or 'cores'"),
        ("wrokers = 2\n", "wrokers: unknown, expected workers"),
        ("workers = \n", "gateway.toml"),
    ],
)
def test_settings_that_can_not_be_taken(text: str, said: str, site: Site) -> None:
    site.write(".config/credgate/gateway.toml", text)
    done = site.credgate("gateway", "start")
    assert done.returncode != 0
    assert said in done.stderr
    assert "hint: see docs/workers.md" in done.stderr


def test_another_number_than_the_running_ones(site: Site) -> None:
    assert site.credgate("gateway", "start", "--workers", "1").returncode == 0
    done = site.credgate("gateway", "start", "--workers", "2")
    assert done.returncode == 1
    assert "error: the gateway runs with 1 processes that accept, asked for 2" in done.stderr
    assert site.credgate("gateway", "start", "--workers", "many").returncode == 2
