"""Real clients in the jail, each once with the secret bound and once for an endpoint that is not allowed.

The target is the witness: it saw the real credential, which a scan of the jail did not.
"""

import base64
import shutil
from pathlib import Path

import pytest

from tests.e2e.place import module_site
from tests.e2e.site import Site, bound, endpoint
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

ROLE = '[role.dev]\nbindings = ["api"]\nworkdir = "write"\n'


@pytest.fixture
def site(place: Site) -> Site:
    """The module's site, its work tree empty."""
    for path in place.work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return place


def allow(site: Site, target: Target, **kw: str) -> None:
    """A policy that reaches `target` with its credential, and nothing else."""
    site.policy("version = 1\n" + endpoint(target) + bound(**kw) + ROLE, target.ca)
    site.secret("api", target.token)


def refuse(site: Site) -> None:
    """A policy that reaches nothing."""
    site.policy('version = 1\n[role.dev]\nworkdir = "write"\n')


def basic(target: Target) -> str:
    """The header of Basic authentication with the target's user and token."""
    return "Basic " + base64.b64encode(f"{target.user}:{target.token}".encode()).decode()


def saw(target: Target) -> set[str]:
    """The Authorization values that arrived."""
    return {request.authorization for request in target.seen()}


@pytest.mark.needs("curl")
def test_curl(site: Site, https_target: Target) -> None:
    allow(site, https_target)
    done = site.run("curl", "-sS", f"https://{https_target.host}/private/x")
    assert done.returncode == 0, done.stderr
    assert saw(https_target) == {f"Bearer {https_target.token}"}
    assert https_target.token not in done.stdout + done.stderr


@pytest.mark.needs("curl")
def test_curl_refused(site: Site, https_target: Target) -> None:
    refuse(site)
    done = site.run("curl", "-sS", "-i", f"https://{https_target.host}/private/x")
    assert "403" in done.stdout
    assert "credgate-verdict: deny" in done.stdout
    assert '"code": "host_unlisted"' in done.stdout
    assert https_target.seen() == []


@pytest.mark.needs("curl")
def test_curl_without_proxy_variables(site: Site, https_target: Target) -> None:
    allow(site, https_target)
    done = site.run("curl", "-sS", "--noproxy", "*", f"https://{https_target.host}/private/x")
    assert done.returncode == 0, done.stderr
    assert saw(https_target) == {f"Bearer {https_target.token}"}


@pytest.mark.needs("curl", "nginx")
def test_curl_http2_where_alpn_says_so(site: Site, h2_target: Target) -> None:
    text = endpoint(h2_target, extra='alpn = ["h2"]')
    site.policy("version = 1\n" + text + bound() + ROLE, h2_target.ca)
    site.secret("api", h2_target.token)
    done = site.run(
        "curl", "-sS", "--http2", "-w", "%{http_version} %{http_code}", "-o", "/dev/null", f"https://{h2_target.host}/x"
    )
    assert done.stdout == "2 200", done.stdout + done.stderr
    assert [r.protocol for r in h2_target.seen()] == ["HTTP/2.0"]
    assert saw(h2_target) == {f"Bearer {h2_target.token}"}


@pytest.mark.needs("curl", "nginx")
def test_curl_http1_where_alpn_does_not_say_so(site: Site, h2_target: Target) -> None:
    allow(site, h2_target)
    done = site.run(
        "curl", "-sS", "--http2", "-w", "%{http_version} %{http_code}", "-o", "/dev/null", f"https://{h2_target.host}/x"
    )
    assert done.stdout == "1.1 200", done.stdout + done.stderr


GIT = """
set -e
git clone -q https://git.acme.example/acme/app.git app
cd app
echo more >> README
git -c user.name=T -c user.email=t@acme.example commit -q -a -m more
git push -q origin main
git rev-parse HEAD
"""


@pytest.mark.needs("git", "nginx")
def test_git_clone_and_push(site: Site, git_target: Target, git_repository: Path) -> None:
    allow(site, git_target, place="basic", fmt="x-access-token:{secret}")
    done = site.run("sh", "-c", GIT)
    assert done.returncode == 0, done.stderr
    head = (git_repository / "refs/heads/main").read_text().strip()
    assert done.stdout.strip() == head
    assert all(git_target.token not in text for text in (done.stdout, done.stderr))
    assert basic(git_target) in saw(git_target)


GIT_DECOY = r"""
set -e
printf '#!/bin/sh\ncase "$1" in Username*) echo agent;; *) echo "$GH_TOKEN";; esac\n' > askpass
chmod +x askpass
export GIT_ASKPASS="$PWD/askpass"
echo "$GH_TOKEN"
"""


@pytest.mark.needs("git", "nginx")
def test_git_sends_a_decoy_where_it_is_asked_for_a_password(
    site: Site, git_target: Target, git_repository: Path
) -> None:
    """Git sends none at first; the target's 401 reaches it, and what it then asks for is a decoy."""
    swap = 'mode = "placeholder"\nplaceholder = { env = "GH_TOKEN", shape = "ghp_{30}{crc32}" }\n'
    text = endpoint(git_target) + bound(place="basic", fmt="x-access-token:{secret}") + swap
    site.policy("version = 1\n" + text + ROLE, git_target.ca)
    site.secret("api", git_target.token)
    done = site.run("sh", "-c", GIT_DECOY + GIT)
    assert done.returncode == 0, done.stderr
    decoy, head = done.stdout.split()
    assert decoy.startswith("ghp_")
    assert head == (git_repository / "refs/heads/main").read_text().strip()
    assert saw(git_target) == {"", basic(git_target)}
    assert {(r.status, r.authorization) for r in git_target.seen() if r.authorization == ""} == {(401, "")}


GIT_BIG = """
set -e
git clone -q https://git.acme.example/acme/app.git app
cd app
head -c 50000000 /dev/urandom > big
git add big
git -c user.name=T -c user.email=t@acme.example commit -q -m big
git push -q origin main
git rev-parse HEAD
"""


@pytest.mark.needs("git", "nginx")
def test_git_push_of_50_mb_with_the_default_post_buffer(site: Site, git_target: Target, git_repository: Path) -> None:
    """Over http.postBuffer (1 MiB) git sends its pack in chunks, of which it can repeat none."""
    allow(site, git_target, place="basic", fmt="x-access-token:{secret}")
    done = site.run("sh", "-c", GIT_BIG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (git_repository / "refs/heads/main").read_text().strip()
    (sent,) = [o for o in site.ledger(ev="outcome") if (o.get("req_bytes") or 0) > 1 << 20]
    assert sent["req_bytes"] > 50_000_000
    assert sent["status"] == 200


@pytest.mark.needs("git", "nginx")
def test_git_refused(site: Site, git_target: Target) -> None:
    refuse(site)
    done = site.run("sh", "-c", GIT)
    assert done.returncode == 128
    assert "403" in done.stderr
    assert "remote: credgate: The policy does not list this host for this role. To pass:" in done.stderr
    assert git_target.seen() == []


@pytest.mark.needs("git", "nginx")
def test_git_ssh_urls_go_over_https(site: Site, git_target: Target) -> None:
    allow(site, git_target, place="basic", fmt="x-access-token:{secret}")
    done = site.run("git", "ls-remote", f"git@{git_target.host}:acme/app.git")
    assert done.returncode == 0, done.stderr
    assert "refs/heads/main" in done.stdout


PIP = ["-I", "-m", "pip", "--disable-pip-version-check", "download", "--no-cache-dir", "-d", "wheels", "-i"]


@pytest.mark.needs("nginx")
def test_pip_download(site: Site, pypi_target: Target) -> None:
    allow(site, pypi_target, place="basic", fmt="__token__:{secret}")
    done = site.run(site.python(), *PIP, f"https://{pypi_target.host}/simple/", "acme-greeting")
    assert done.returncode == 0, done.stderr
    assert len(list((site.work / "wheels").glob("*.whl"))) == 2
    assert saw(pypi_target) == {basic(pypi_target)}


@pytest.mark.needs("nginx")
def test_pip_refused(site: Site, pypi_target: Target) -> None:
    refuse(site)
    done = site.run(site.python(), *PIP, f"https://{pypi_target.host}/simple/", "acme-greeting")
    assert done.returncode == 1  # pip says "no matching distribution"; the reason is in the ledger
    assert site.ledger(ev="deny", host=pypi_target.host, reason="host_unlisted")
    assert pypi_target.seen() == []


@pytest.mark.needs("npm", "nginx")
def test_npm_install(site: Site, npm_target: Target) -> None:
    extra = "encoded_slash = true"
    text = endpoint(npm_target, allow=f'methods = ["GET"]\npaths = ["/**"]\n{extra}')
    site.policy("version = 1\n" + text + bound() + ROLE, npm_target.ca)
    site.secret("api", npm_target.token)
    done = site.run(
        "npm", "install", "--no-audit", "--no-fund", f"--registry=https://{npm_target.host}/", "@acme/greeting"
    )
    assert done.returncode == 0, done.stderr
    assert (site.work / "node_modules/@acme/greeting/package.json").exists()
    assert (site.work / "node_modules/acme-words/package.json").exists()
    assert saw(npm_target) == {f"Bearer {npm_target.token}"}


@pytest.mark.needs("npm", "nginx")
def test_npm_refused(site: Site, npm_target: Target) -> None:
    refuse(site)
    done = site.run(
        "npm", "install", "--no-audit", "--no-fund", f"--registry=https://{npm_target.host}/", "@acme/greeting"
    )
    assert done.returncode != 0
    assert "403" in done.stderr
    assert npm_target.seen() == []


REQUESTS = "import requests; r = requests.get('https://{host}/private/x'); print(r.status_code)"
URLLIB = """
import urllib.request, urllib.error
try:
    print(urllib.request.urlopen('https://{host}/private/x').status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
FETCH = "fetch('https://{host}/private/x').then(r => console.log(r.status))"
HTTPS = "require('https').get('https://{host}/private/x', r => { console.log(r.statusCode); r.resume() })"
# Node 20 heeds no proxy variable: it looks the name up and dials the gateway as if it were the target.
PROGRAMS = [
    pytest.param("python", REQUESTS, id="requests"),
    pytest.param("python", URLLIB, id="urllib"),
    pytest.param("node", FETCH, id="node fetch", marks=pytest.mark.needs("node")),
    pytest.param("node", HTTPS, id="node https", marks=pytest.mark.needs("node")),
]


@pytest.mark.parametrize(("runtime", "code"), PROGRAMS)
def test_program(site: Site, https_target: Target, runtime: str, code: str) -> None:
    allow(site, https_target)
    program = [site.python(), "-I", "-c"] if runtime == "python" else ["node", "-e"]
    done = site.run(*program, code.replace("{host}", https_target.host))
    assert done.stdout.strip() == "200", done.stderr
    assert saw(https_target) == {f"Bearer {https_target.token}"}


@pytest.mark.parametrize(("runtime", "code"), PROGRAMS)
def test_program_refused(site: Site, https_target: Target, runtime: str, code: str) -> None:
    refuse(site)
    program = [site.python(), "-I", "-c"] if runtime == "python" else ["node", "-e"]
    done = site.run(*program, code.replace("{host}", https_target.host))
    assert done.stdout.strip() == "403", done.stderr
    assert https_target.seen() == []
