"""The targets without a jail: each works with its credential, fails without, and its witness says which it was."""

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.features import find
from tests.targets import content
from tests.targets.served import Target, clean_env


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def run(argv: Sequence[str], home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=home, env=clean_env(home, **env), capture_output=True, text=True, timeout=60, check=False
    )


def curl(target: Target, path: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = ["curl", "-sS", "--max-time", "20", "--cacert", str(target.ca), *options, target.url(path)]
    return run(argv, home)


def bearer(target: Target) -> tuple[str, str]:
    return ("-H", f"Authorization: Bearer {target.token}")


def basic(target: Target) -> str:
    return "Basic " + base64.b64encode(f"{target.user}:{target.token}".encode()).decode()


@pytest.mark.needs("curl")
class TestHttps:
    def test_the_token_opens_what_is_private(self, https_target: Target, home: Path) -> None:
        assert curl(https_target, "/private/x", home, *bearer(https_target)).stdout == "welcome\n"
        (seen,) = https_target.seen(count=1)
        assert (seen.method, seen.path, seen.status) == ("GET", "/private/x", 200)
        assert seen.authorization == f"Bearer {https_target.token}"
        assert https_target.access_log.read_text().splitlines()[-1].startswith("127.0.0.1 - - [")

    def test_no_token_is_refused_and_seen(self, https_target: Target, home: Path) -> None:
        assert curl(https_target, "/private/x", home, "-w", "%{http_code}").stdout == "who are you\n401"
        (seen,) = https_target.seen(count=1)
        assert (seen.authorization, seen.status) == ("", 401)

    def test_a_client_that_does_not_trust_the_ca_sends_nothing(self, untrusted_target: Target, home: Path) -> None:
        assert curl(untrusted_target, "/echo", home).returncode == 0
        untrusted_target.forget()
        assert run(["curl", "-sS", untrusted_target.url("/echo")], home).returncode == 60
        assert untrusted_target.connections() == 1
        assert untrusted_target.seen() == []

    def test_echo_tells_headers_and_body(self, https_target: Target, home: Path) -> None:
        said = json.loads(curl(https_target, "/echo?a=b", home, "-H", "X-A: 1", "-d", "body").stdout)
        assert (said["method"], said["path"], said["size"]) == ("POST", "/echo?a=b", 4)
        assert ["X-A", "1"] in said["headers"]

    @pytest.mark.parametrize(
        ("path", "status"),
        [("/reset", 56), ("/truncated", 18), ("/hang", 28)],
    )
    def test_it_fails_as_asked(self, https_target: Target, home: Path, path: str, status: int) -> None:
        done = curl(https_target, path, home, "--max-time", "1")
        assert done.returncode == status, done.stderr
        assert len(https_target.seen(count=1)) == 1

    def test_events_come_one_by_one(self, https_target: Target, home: Path) -> None:
        done = curl(https_target, "/sse/3/50", home)
        stamps = [float(line.split()[2]) for line in done.stdout.split("\n\n") if line]
        assert len(stamps) == 3
        assert stamps[2] - stamps[0] >= 0.1

    def test_a_chunked_upload_is_read_whole(self, https_target: Target, home: Path) -> None:
        upload = home / "upload"
        upload.write_bytes(b"x" * 200_000)
        options = ("-H", "Transfer-Encoding: chunked", "--data-binary", f"@{upload}")
        assert json.loads(curl(https_target, "/echo", home, *options).stdout)["size"] == 200_000

    def test_the_rest_of_the_paths(self, https_target: Target, home: Path) -> None:
        assert len(curl(https_target, "/large/300000", home).stdout) == 300_000
        assert curl(https_target, "/slow/50", home).stdout == "at last\n"
        assert curl(https_target, "/status/503", home, "-w", "%{http_code}").stdout == "as asked\n503"
        assert https_target.token in curl(https_target, "/reflect", home, *bearer(https_target)).stdout
        assert "location: /x" in curl(https_target, "/redirect?/x", home, "-i").stdout.lower()
        assert curl(https_target, "/unread", home, "-d", "x", "-w", "%{http_code}").stdout == "not read\n401"
        assert curl(https_target, "/nowhere", home, "-w", "%{http_code}").stdout == "no such path\n404"

    def test_without_tls(self, http_target: Target, home: Path) -> None:
        assert json.loads(curl(http_target, "/echo", home).stdout)["method"] == "GET"


@pytest.mark.needs("curl")
@pytest.mark.parametrize(("option", "protocol"), [("--http2", "HTTP/2.0"), ("--http1.1", "HTTP/1.1")])
def test_http2_api(h2_target: Target, home: Path, option: str, protocol: str) -> None:
    assert curl(h2_target, "/v1", home, option, *bearer(h2_target)).stdout == f"welcome by {protocol}\n"
    assert curl(h2_target, "/v1", home, option).stdout == "who are you\n"
    right, wrong = h2_target.seen(count=2)
    assert (right.protocol, right.authorization, right.status) == (protocol, f"Bearer {h2_target.token}", 200)
    assert (wrong.authorization, wrong.status) == ("", 401)


def git(target: Target, home: Path, *argv: str, credential: bool = True) -> subprocess.CompletedProcess[str]:
    options = ["-c", f"http.sslCAInfo={target.ca}", "-c", "credential.helper="]
    if credential:
        options += ["-c", f"http.extraHeader=Authorization: {basic(target)}"]
    return run(["git", *options, *argv], home, GIT_CONFIG_GLOBAL="/dev/null")


@pytest.mark.parametrize(("fixture", "protocol"), [("git_target", "HTTP/1.1"), ("git_h2_target", "HTTP/2.0")])
def test_git_clones_and_pushes(
    request: pytest.FixtureRequest, home: Path, git_repository: Path, fixture: str, protocol: str
) -> None:
    target: Target = request.getfixturevalue(fixture)
    url = target.url(f"/{content.REPOSITORY}")
    assert git(target, home, "clone", "-q", url, "app").stderr == ""
    assert (home / "app/README").read_text() == content.README
    name = ["-c", "user.name=A", "-c", "user.email=a@acme.example"]
    branch = f"work-{fixture}"
    # Over the 1 MiB of http.postBuffer git first probes with four bytes, then sends chunks.
    (home / "app/big").write_bytes(bytes(range(256)) * 8192)
    git(target, home, "-C", "app", "add", "big")
    assert git(target, home, "-C", "app", *name, "-c", "core.compression=0", "commit", "-qm", "Big").returncode == 0
    push = git(target, home, "-C", "app", "-c", "core.compression=0", "push", "-q", "origin", f"HEAD:{branch}")
    assert push.returncode == 0, push.stderr
    tip = run(["git", "-C", str(git_repository), "rev-parse", branch], home).stdout
    assert tip == git(target, home, "-C", "app", "rev-parse", "HEAD").stdout
    seen = target.seen(count=5)
    assert {one.protocol for one in seen} == {protocol}
    assert {one.authorization for one in seen} == {basic(target)}
    assert ("POST", f"/{content.REPOSITORY}/git-receive-pack") in {(one.method, one.path) for one in seen}


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_finds_the_repository_as_new(git_target: Target, git_repository: Path, home: Path, turn: int) -> None:
    def in_repository(*argv: str) -> str:
        return run(["git", "-C", str(git_repository), *argv], home, GIT_CONFIG_GLOBAL="/dev/null").stdout

    assert in_repository("rev-list", "--count", "--all") == "1\n", turn
    url, name = git_target.url(f"/{content.REPOSITORY}"), ["-c", "user.name=A", "-c", "user.email=a@acme.example"]
    git(git_target, home, "clone", "-q", url, "app")
    git(git_target, home, "-C", "app", *name, "commit", "-q", "--allow-empty", "-m", "More")
    git(git_target, home, "-C", "app", "push", "-q", "origin", "HEAD:main", "HEAD:other")
    assert in_repository("rev-list", "--count", "main") == "2\n"


def test_git_without_a_credential_is_refused(git_target: Target, home: Path) -> None:
    done = git(git_target, home, "clone", "-q", git_target.url(f"/{content.REPOSITORY}"), "app", credential=False)
    assert done.returncode == 128
    assert {one.status for one in git_target.seen(count=1)} == {401}


def pip(target: Target, home: Path, index: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-m", "pip", "--isolated", "download", "-q", "--no-input", "--no-cache-dir"]
    argv += ["--disable-pip-version-check", "--retries", "0", "--cert", str(target.ca)]
    return run(
        [*argv, "--index-url", index, "-d", str(home / "got"), "acme-greeting"], home, PIP_CONFIG_FILE="/dev/null"
    )


def test_pip_downloads_with_its_requirement(pypi_target: Target, home: Path) -> None:
    index = pypi_target.url("/simple/").replace("://", f"://{pypi_target.user}:{pypi_target.token}@")
    done = pip(pypi_target, home, index)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (home / "got").iterdir()} == {
        "acme_greeting-1.0.0-py3-none-any.whl",
        "acme_words-1.0.0-py3-none-any.whl",
    }
    assert basic(pypi_target) in {one.authorization for one in pypi_target.seen(count=4)}


def test_pip_without_a_credential_is_refused(pypi_target: Target, home: Path) -> None:
    assert pip(pypi_target, home, pypi_target.url("/simple/")).returncode == 1
    assert {(one.authorization, one.status) for one in pypi_target.seen(count=1)} == {("", 401)}


def npm(target: Target, home: Path, *, credential: bool) -> subprocess.CompletedProcess[str]:
    (home / "package.json").write_text('{"name":"user","version":"1.0.0","private":true}')
    registry = target.url("/")
    lines = [f"registry={registry}", f"cafile={target.ca}", "fetch-retries=0", "update-notifier=false"]
    if credential:
        lines.append(f"{registry.removeprefix('https:')}:_authToken={target.token}")
    (home / ".npmrc").write_text("\n".join(lines) + "\n")
    program = find("npm")
    assert program
    return run(
        [program, "install", "--no-audit", "--no-fund", "@acme/greeting"], home, NPM_CONFIG_GLOBALCONFIG="/dev/null"
    )


def test_npm_installs_a_scoped_package_with_its_dependency(npm_target: Target, home: Path) -> None:
    done = npm(npm_target, home, credential=True)
    assert done.returncode == 0, done.stderr
    assert (home / "node_modules/@acme/greeting/index.js").exists()
    assert (home / "node_modules/acme-words/index.js").exists()
    seen = npm_target.seen(count=4)
    assert {one.authorization for one in seen} == {f"Bearer {npm_target.token}"}
    assert "/@acme%2fgreeting" in {one.path for one in seen}


def test_npm_without_a_credential_is_refused(npm_target: Target, home: Path) -> None:
    assert npm(npm_target, home, credential=False).returncode == 1
    assert {one.status for one in npm_target.seen(count=1)} <= {401, 403}


NODE = """
const https = require("node:https");
const [url, token] = process.argv.slice(1);
const headers = {authorization: `Bearer ${token}`};
fetch(url, {headers}).then(answer => answer.text()).then(text => {
    process.stdout.write(text);
    https.get(url, {headers}, answer => answer.pipe(process.stdout));
});
"""


@pytest.mark.needs("node")
def test_node_by_fetch_and_by_https(https_target: Target, home: Path) -> None:
    argv = ["node", "-e", NODE, https_target.url("/private/n"), https_target.token]
    done = run(argv, home, NODE_EXTRA_CA_CERTS=str(https_target.ca))
    assert done.stdout == "welcome\n" * 2, done.stderr
    assert {one.authorization for one in https_target.seen(count=2)} == {f"Bearer {https_target.token}"}


PYTHON = """
import sys, urllib.request, requests
url, token = sys.argv[1:]
headers = {"authorization": f"Bearer {token}"}
print(requests.get(url, headers=headers, timeout=10).text, end="")
print(urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10).read().decode(), end="")
"""


def test_python_by_requests_and_by_urllib(https_target: Target, home: Path) -> None:
    argv = [sys.executable, "-I", "-c", PYTHON, https_target.url("/private/p"), https_target.token]
    done = run(argv, home, REQUESTS_CA_BUNDLE=str(https_target.ca), SSL_CERT_FILE=str(https_target.ca))
    assert done.stdout == "welcome\n" * 2, done.stderr
    assert {one.authorization for one in https_target.seen(count=2)} == {f"Bearer {https_target.token}"}
