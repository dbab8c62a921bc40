"""Clients that know of no proxy, by an ordinary user (endpoints on free ports by dial_port); names; own servers."""

import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.place import module_site
from tests.e2e.site import Site, bound, endpoint
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "curl")
place = pytest.fixture(scope="module")(module_site)

CURL = ["curl", "-sS", "--noproxy", "*"]


@pytest.fixture
def site(place: Site, https_target: Target) -> Site:
    """The module's site, the target's token in its keyring."""
    place.secret("api", https_target.token)
    return place


def policy(site: Site, text: str, target: Target, *, head: str = "", role: str = "") -> None:
    site.policy(f"version = 1\n{head}{text}[role.dev]\n{role}", target.ca)


def test_tls_by_its_server_name(site: Site, https_target: Target) -> None:
    policy(site, endpoint(https_target) + bound(), https_target, role='bindings = ["api"]\n')
    done = site.run(*CURL, f"https://{https_target.host}/private/x")
    assert done.stdout == "welcome\n", done.stderr
    (seen,) = https_target.seen(count=1)
    assert (seen.host, seen.authorization) == (https_target.host, f"Bearer {https_target.token}")


def test_plain_http_by_its_host(site: Site, http_target: Target) -> None:
    policy(site, endpoint(http_target), http_target, role='endpoints = ["api"]\n')
    done = site.run(*CURL, "-o", "/dev/null", "-w", "%{http_code}", f"http://{http_target.host}/echo")
    assert done.stdout == "200", done.stderr
    assert [seen.host for seen in http_target.seen(count=1)] == [http_target.host]


def test_a_host_that_contradicts_the_server_name(site: Site, https_target: Target) -> None:
    policy(site, endpoint(https_target) + bound(), https_target, role='bindings = ["api"]\n')
    done = site.run(*CURL, "-H", "Host: evil.example", f"https://{https_target.host}/private/x")
    assert '"code": "identity_mismatch"' in done.stdout, done.stderr
    assert https_target.seen() == []


def test_the_targets_own_port_is_not_the_clients(site: Site, https_target: Target) -> None:
    """Listed is 443; the port that is dialled outside means nothing inside."""
    policy(site, endpoint(https_target), https_target, role='endpoints = ["api"]\n')
    done = site.run(*CURL, f"https://{https_target.host}:{https_target.port}/echo")
    assert (done.returncode, "Connection refused" in done.stderr or "connect" in done.stderr) == (7, True)
    assert https_target.seen() == []


# dns.unlisted, with its effect on a client that looks names up itself


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_an_unlisted_name_is_the_gateways_to_refuse(site: Site, https_target: Target, scheme: str) -> None:
    policy(site, endpoint(https_target), https_target, role='endpoints = ["api"]\n')
    name = f"data-{scheme}.unlisted.example"
    done = site.run(*CURL, "-i", f"{scheme}://{name}/")
    assert done.returncode == 0, done.stderr
    assert "403" in done.stdout.splitlines()[0]
    assert '"code": "host_unlisted"' in done.stdout
    assert site.ledger(ev="dns", host=name, reason="dns.deny", qtype="A")
    assert site.ledger(ev="deny", host=name, reason="host_unlisted")


def test_an_unlisted_name_does_not_exist_where_the_policy_says_so(site: Site, https_target: Target) -> None:
    head = '[dns]\nunlisted = "nxdomain"\n'
    policy(site, endpoint(https_target) + bound(), https_target, head=head, role='bindings = ["api"]\n')
    done = site.run(*CURL, "https://data.unlisted.example/")
    assert (done.returncode, "Could not resolve" in done.stderr) == (6, True)
    assert site.run(*CURL, f"https://{https_target.host}/private/x").stdout == "welcome\n"  # control


@pytest.mark.parametrize("unlisted", ["gateway", "nxdomain"])
def test_the_metadata_name_exists_in_neither(site: Site, https_target: Target, unlisted: str) -> None:
    head = f'[dns]\nunlisted = "{unlisted}"\n'
    policy(site, endpoint(https_target), https_target, head=head, role='endpoints = ["api"]\n')
    assert site.run(*CURL, "http://metadata.google.internal/").returncode == 6


# Loopback

SERVE = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f'http://localhost:{server.server_port}/').status)
"""


def test_a_server_of_the_jails_own_on_localhost(site: Site) -> None:
    site.policy("version = 1\n[role.dev]\n")
    done = site.run(site.python(), "-I", "-c", SERVE)
    assert done.stdout == "200\n", done.stderr


@pytest.fixture
def listener() -> Iterator[int]:
    """A server on the host's loopback; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


CONNECT = """
import os, socket, sys
for address in ('127.0.0.1', '10.213.0.1', '::1'):
    with socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET) as sock:
        print(address, sock.connect_ex((address, int(sys.argv[1]))))
"""


def test_the_hosts_loopback_is_another(site: Site, listener: int) -> None:
    site.policy("version = 1\n[role.dev]\n")
    argv = [site.python(), "-I", "-c", CONNECT, str(listener)]
    outside = subprocess.run(
        site.as_user([argv[0], "-I", "-c", CONNECT.replace("'10.213.0.1', ", ""), argv[-1]]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "127.0.0.1 0" in outside.stdout  # control
    done = site.run(*argv)
    assert done.returncode == 0, done.stderr
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert answers["127.0.0.1"] == answers["10.213.0.1"] == "111"  # ECONNREFUSED: nobody listens there
    assert answers["::1"] == "99"  # EADDRNOTAVAIL: no IPv6
