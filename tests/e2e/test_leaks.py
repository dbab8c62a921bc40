"""What a program in the jail can find of what it must not have: secrets, pid 1, and sockets of the host."""

import base64
import json
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rules.needles import needles
from tests.e2e.place import Live, daemon_pid, module_site
from tests.e2e.site import Site, bound, endpoint
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

# Reads all that it can: its environment, every file below the trees named, what /proc shows of every process, and the
# memory of each that lets it. Prints where a spelling of the secret is; it is told their halves, and looks with a
# pattern that holds none of them, so as not to find itself.
SCANNER = r"""
import json, os, re, stat, sys, urllib.request
url, halves, *roots = sys.argv[1:]
spelt = (first.encode() + b' ' + second.encode() for first, second in json.loads(halves))
needle = re.compile(b'|'.join(b''.join(b'[\\x%02x]' % c for c in text if c != 32) for text in spelt))
found, read = [], {'files': 0, 'maps': 0, 'bytes': 0}

def look(where, data):
    read['bytes'] += len(data)
    if needle.search(data):
        found.append(where)

def whole(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        kind = os.fstat(descriptor).st_mode
        tail = b''
        while stat.S_ISREG(kind):
            data = os.read(descriptor, 1 << 20)
            if not data: break
            look(path, tail + data)
            tail = data[-200:]
        read['files'] += 1
    finally:
        os.close(descriptor)

def attempt(action, *args):
    try: action(*args)
    except OSError: pass

def memory(pid):
    with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb', 0) as mem:
        for line in maps:
            span, mode = line.split()[:2]
            start, end = (int(part, 16) for part in span.split('-'))
            if mode[0] != 'r' or end - start > 1 << 28: continue
            def region():
                mem.seek(start)
                look(f'/proc/{pid}/mem', mem.read(end - start))
            attempt(region)
            read['maps'] += 1

def process(pid):
    for name in ('environ', 'cmdline', 'status', 'mountinfo', 'net/tcp', 'net/unix'):
        attempt(whole, f'/proc/{pid}/{name}')
    def descriptors():
        for number in os.listdir(f'/proc/{pid}/fd'):
            attempt(whole, f'/proc/{pid}/fd/{number}')
    attempt(descriptors)
    attempt(memory, pid)

token = os.environ.get('API_TOKEN')
headers = {'Authorization': f'Bearer {token}'} if token else {}
status = urllib.request.urlopen(urllib.request.Request(url, headers=headers)).status if url else 0
look('environment', json.dumps(dict(os.environ)).encode())
for pid in filter(str.isdigit, os.listdir('/proc')):
    process(pid)
for root in roots:
    for top, folders, files in os.walk(root):
        folders[:] = [f for f in folders if os.path.join(top, f) != '/proc']
        for name in files:
            attempt(whole, os.path.join(top, name))
for name in os.listdir('/'):  # what is left besides the big trees, which hold the distribution's files alone
    attempt(whole, '/' + name)
print(json.dumps({'found': sorted(set(found)), 'status': status, **read}))
"""
ROOTS = ["/etc", "/tmp", "/var", "/run", "/dev", "/home", "/root", "/opt", "/srv", "/usr/local", "/proc/sys/kernel"]


URL = "https://api.acme.example/private/x"


def scan(site: Site, needle: str, url: str = URL, env: dict[str, str] | None = None) -> dict[str, object]:
    """The scanner's report; it makes a request with the secret first."""
    texts = [form.decode("latin-1") for form in needles(needle)]
    halves = json.dumps([(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts])
    done = site.run(site.python(), "-I", "-S", "-c", SCANNER, url, halves, *ROOTS, site.home, env=env)
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.fixture
def site(place: Site, https_target: Target) -> Site:
    """The module's site with the target's own token in its keyring."""
    place.secret("api", https_target.token)
    return place


def read_enough(report: dict[str, object]) -> bool:
    """It has read files and memory, its own at least."""
    return all(int(str(report[key])) > least for key, least in (("files", 100), ("maps", 10), ("bytes", 1 << 20)))


def test_the_secret_is_nowhere_in_the_jail(site: Site, https_target: Target) -> None:
    site.policy(
        "version = 1\n" + endpoint(https_target) + bound() + '[role.dev]\nbindings = ["api"]\n', https_target.ca
    )
    report = scan(site, https_target.token)
    assert [seen.status for seen in https_target.seen(count=1)] == [200]  # it was used, by this very run
    assert (report["status"], report["found"], read_enough(report)) == (200, [], True)


@pytest.mark.needs("curl")
def test_a_placeholder_is_all_that_is_in_the_jail(site: Site, https_target: Target) -> None:
    placeholder = 'mode = "placeholder"\nplaceholder = { env = "API_TOKEN", shape = "decoy-{36}" }\n'
    role = '[role.dev]\nbindings = ["api"]\n'
    site.policy("version = 1\n" + endpoint(https_target) + bound() + placeholder + role, https_target.ca)
    with_decoy = (
        'curl -sS -o /dev/null -w "%{http_code} " -H "Authorization: Bearer $API_TOKEN" "$1"; echo "$API_TOKEN"'
    )
    done = site.run("sh", "-c", with_decoy, "sh", f"https://{https_target.host}/private/x")
    status, decoy = done.stdout.split()
    assert (status, decoy.startswith("decoy-"), https_target.token not in done.stdout) == ("200", True, True)
    assert [seen.authorization for seen in https_target.seen(count=1)] == [f"Bearer {https_target.token}"]
    report = scan(site, https_target.token)
    assert (report["status"], report["found"], read_enough(report)) == (200, [], True)


def test_control_the_scanner_finds_what_was_planted(site: Site, https_target: Target) -> None:
    needle = f"planted-{uuid.uuid4().hex}"
    site.policy('version = 1\n[role.dev]\nenv = ["NOTE"]\nworkdir = "write"\n', https_target.ca)
    planted = [
        site.write("work/deep/note", f"x{needle}y"),
        site.write("work/deep/coded", base64.b64encode(f"ab{needle}".encode()).decode()),
        site.write("work/deep/hex", needle.encode().hex().upper()),
    ]
    found = scan(site, needle, "", env={"NOTE": needle})["found"]
    for path in planted:
        path.unlink()
    assert isinstance(found, list)
    assert {"environment", *map(str, planted)} <= set(found)
    assert any(where.endswith("/environ") for where in found)
    assert any(where.endswith("/mem") for where in found)


# pid 1

OPEN = """
import os, signal, sys
pid = sys.argv[1]
if pid == 'child':
    pid = os.fork()
    if pid == 0: signal.pause()
for name in ('environ', 'mem', 'maps', 'fd', 'root', 'cwd', 'exe', 'ns/net'):
    path = f'/proc/{pid}/{name}'
    try:
        if name == 'fd': os.listdir(path)
        elif name in ('root', 'cwd', 'exe', 'ns/net'): os.readlink(path)
        else: os.read(os.open(path, os.O_RDONLY), 1)
    except OSError as error:
        print(name, error.errno)
    else:
        print(name, 'open')
"""
CLOSED = {
    "environ": "13",
    "mem": "13",
    "maps": "13",
    "fd": "13",
    "root": "13",
    "cwd": "13",
    "exe": "13",
    "ns/net": "13",
}


def test_pid_1_is_closed(site: Site) -> None:
    site.policy("version = 1\n[role.dev]\n")
    done = site.run(site.python(), "-I", "-S", "-c", OPEN, "1")
    assert dict(line.split() for line in done.stdout.splitlines()) == CLOSED


def test_control_an_ordinary_process_of_the_jail_is_not(site: Site) -> None:
    site.policy("version = 1\n[role.dev]\n")
    done = site.run(site.python(), "-I", "-S", "-c", OPEN, "child")
    said = dict(line.split() for line in done.stdout.splitlines())
    assert (said["environ"], said["fd"], said["exe"]) == ("open", "open", "open")


# What holds secrets outside


def test_the_daemon_is_closed_to_its_own_user(site: Site) -> None:
    pid = daemon_pid(site)
    argv = site.as_user([site.python(), "-I", "-S", "-c", OPEN, str(pid)])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    said = dict(line.split() for line in done.stdout.splitlines())
    assert (said["environ"], said["mem"], said["fd"]) == ("13", "13", "13")
    assert said["exe"] == "13"


def test_the_jail_sees_no_process_of_the_host(site: Site) -> None:
    site.policy("version = 1\n[role.dev]\n")
    done = site.run("sh", "-c", f"ls -d /proc/[0-9]*; kill -0 {daemon_pid(site)}")
    assert (done.returncode != 0, len(done.stdout.split()) < 6) == (True, True)


# Sockets of the host

DIAL = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as sock:
        print(sock.connect_ex(path.replace('@', chr(0), 1)))
"""


@pytest.fixture
def listeners(site: Site) -> Iterator[list[str]]:
    """An abstract socket, a path socket below the home, one below /tmp; all accept from anybody."""
    folder = site.home / "sockets"
    folder.mkdir(exist_ok=True)
    name = uuid.uuid4().hex
    paths = [f"@credgate-{name}", str(folder / name), f"/tmp/credgate-{name}"]
    opened = []
    for path in paths:
        opened.append(socket.socket(socket.AF_UNIX))
        opened[-1].bind(path.replace("@", "\0", 1))
        opened[-1].listen()
        if path.startswith("/"):
            os.chmod(path, 0o777)
    yield paths
    for sock in opened:
        sock.close()
    for path in paths[1:]:
        Path(path).unlink()


def test_no_socket_of_the_host_is_reachable(site: Site, listeners: list[str]) -> None:
    site.policy("version = 1\n[role.dev]\n")
    argv = [site.python(), "-I", "-S", "-c", DIAL, *listeners]
    outside = subprocess.run(site.as_user(argv), capture_output=True, text=True, check=True)
    assert outside.stdout.split() == ["0", "0", "0"]  # control
    inside = site.run(*argv)
    answers = inside.stdout.split()
    assert (len(answers), "0" in answers) == (3, False), inside.stdout + inside.stderr
    assert answers[1:] == ["2", "2"]  # ENOENT


def test_the_control_socket_is_not_reachable(site: Site) -> None:
    control = site.state / "run/control"
    site.policy("version = 1\n[role.dev]\n")
    with Live(site, "sleep", "60"):
        assert control.is_socket()
        done = site.run(site.python(), "-I", "-S", "-c", DIAL, control)
    assert done.stdout.split() == ["2"]


def test_sockets_of_the_jails_own_work(site: Site) -> None:
    site.policy("version = 1\n[role.dev]\n")
    code = """
import socket
for name in (chr(0) + 'own', '/tmp/own'):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen()
        print(client.connect_ex(name))
"""
    assert site.run(site.python(), "-I", "-S", "-c", code).stdout.split() == ["0", "0"]
