"""What is wrong with the machine, the state, the policy or the target: one error with a hint, nothing passes."""

import contextlib
import ctypes.util
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import OrdinaryUser
from tests.e2e.place import Live, daemon_pid, module_site, one_error, running, wait_for
from tests.e2e.site import BIN, Site, bound, endpoint, make_site
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

READ = "version = 1\n[role.dev]\n"
BOUND = '[role.dev]\nbindings = ["api"]\nworkdir = "write"\n'
MARK = ["sh", "-c", "touch ran"]
CURL = ["curl", "-sS", "-i", "-m", "20", "--suppress-connect-headers"]


@pytest.fixture
def site(place: Site) -> Site:
    """The module's site; a run of MARK would leave `ran` in its work tree."""
    place.policy('version = 1\n[role.dev]\nworkdir = "write"\n')
    (place.work / "ran").unlink(missing_ok=True)
    return place


def refused(site: Site, done: "subprocess.CompletedProcess[str]", status: int = 125) -> tuple[str, str]:
    """The error and hint of a run of MARK that executed nothing."""
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert not (site.work / "ran").exists()
    return one_error(done.stderr)


def test_control_the_mark_is_left_by_a_run(site: Site) -> None:
    assert site.run(*MARK).returncode == 0
    assert (site.work / "ran").exists()


# Words


def test_an_unknown_role(site: Site) -> None:
    error, hint = refused(site, site.run(*MARK, flags=["--role", "nobody"]))
    assert "nobody" in error and "dev" in hint


def test_a_secret_whose_file_the_jail_would_read(site: Site) -> None:
    """By its own name, by a link to it, and in a tree that the role reads; not where it is hidden, or elsewhere."""
    work, away = site.work, site.home / "away"
    for folder in (work, away):
        folder.mkdir(exist_ok=True)
        for name in ("token", ".env"):
            (folder / name).write_text("a-value-of-the-secret-itself")
    (away / "link").unlink(missing_ok=True)
    (away / "link").symlink_to(work / "token")
    site.own(away)

    def run(path: Path, more: str = "") -> "subprocess.CompletedProcess[str]":
        (work / "ran").unlink(missing_ok=True)
        site.policy(f'version = 1\n[secret.s]\nsource = "file:{path}"\n[role.dev]\nworkdir = "write"\n{more}')
        return site.run(*MARK)

    for path, more in ((work / "token", ""), (away / "link", ""), (away / "token", 'read = ["~/away"]\n')):
        error, hint = refused(site, run(path, more))
        assert "where the jail reads it" in error and "credgate secret set s" in hint
    for path, more in ((work / ".env", ""), (away / "token", ""), (work / "token", 'hide = ["token"]\n')):
        assert run(path, more).returncode == 0


def test_no_role_where_there_are_two(site: Site) -> None:
    site.policy("version = 1\n[role.one]\n[role.two]\n")
    error, hint = refused(site, site.run(*MARK))
    assert "one" in error + hint and "two" in error + hint


def test_no_policy(site: Site) -> None:
    error, hint = refused(site, site.credgate("run", "--", *MARK))
    assert "no policy" in error
    assert all(step in hint for step in ("credgate init", "policy.toml", "credgate policy check"))


def test_a_policy_with_faults_names_them_all(site: Site) -> None:
    site.policy("version = 1\n[role.dev]\nwokdir = 'read'\nbindngs = []\n")
    error, hint = refused(site, site.run(*MARK))
    assert all(word in error + hint for word in ("wokdir", "bindngs"))


def test_a_policy_that_is_not_there(site: Site) -> None:
    error, _ = refused(site, site.credgate("run", "--policy", "/no/such/file", "--", *MARK))
    assert "/no/such/file" in error


def test_a_policy_that_others_may_write(site: Site) -> None:
    (site.home / "policy/policy.toml").chmod(0o666)
    error, _ = refused(site, site.run(*MARK))
    assert "policy.toml" in error


def test_a_command_that_is_not_there(site: Site) -> None:
    error, _ = refused(site, site.run("no-such-command-at-all"), 127)
    assert "no-such-command-at-all" in error


def test_no_command(site: Site) -> None:
    done = site.credgate("run")
    assert done.returncode == 125
    one_error("\n".join(done.stderr.splitlines()[-2:]))


@pytest.mark.parametrize("descriptor", ["77", "0"])
def test_a_status_descriptor_that_takes_nothing(site: Site, descriptor: str) -> None:
    assert descriptor in refused(site, site.run(*MARK, flags=["--status-fd", descriptor]))[0]


@pytest.mark.parametrize("what", ["HOME", "XDG_STATE_HOME"])
def test_places_that_are_not_absolute(site: Site, what: str) -> None:
    refused(site, site.run(*MARK, env={what: "relative"}))


# State files


# What a daemon's start looks at: one of each kind, for a start takes its time.
DIRECTORIES = ("", "ca", "ledger", "run", "sealed", "trust")
FILES = ("ca/ca.key", "ledger/seg-000001.jsonl", "run/daemon.lock", "run/start.lock")


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    before = path.stat().st_mode & 0o7777
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


def test_each_state_file_that_is_open_to_others(site: Site) -> None:
    assert site.run("true").returncode == 0
    site.secret("any", "value-of-any")
    site.credgate("gateway", "stop")
    for name in (*DIRECTORIES, *FILES):
        path = site.state / name
        with mode(path, 0o755 if name in DIRECTORIES else 0o644):
            error, hint = refused(site, site.run(*MARK))
        assert (str(path) in error, "mode" in error, "chmod" in hint) == (True, True, True), error
    assert site.run("true").returncode == 0


@pytest.mark.needs("root")
def test_state_files_of_another_owner(site: Site) -> None:
    assert site.run("true").returncode == 0
    site.credgate("gateway", "stop")
    for path in (site.state / name for name in ("ledger", "run/start.lock", *FILES[:3])):
        os.chown(path, 0, 0)
        try:
            error, _ = refused(site, site.run(*MARK))
        finally:
            site.own(path)
        assert str(path) in error
    assert site.run("true").returncode == 0


# Secrets


def fetch(site: Site, target: Target, **kw: str) -> "subprocess.CompletedProcess[str]":
    """One request inside, with its status line and its headers."""
    return site.run(*CURL, f"https://{target.host}{kw.get('path', '/private/x')}")


def unavailable(target: Target, done: "subprocess.CompletedProcess[str]") -> None:
    assert " 403" in done.stdout.splitlines()[0], done.stdout + done.stderr
    assert '"code": "secret_unavailable"' in done.stdout
    assert "keyring" not in done.stdout  # why is for the user, in the ledger, and not for the jail
    assert target.seen() == []


@pytest.mark.needs("curl")
def test_a_secret_that_was_never_set(site: Site, https_target: Target) -> None:
    site.credgate("secret", "rm", "api")
    site.policy("version = 1\n" + endpoint(https_target) + bound() + BOUND, https_target.ca)
    unavailable(https_target, fetch(site, https_target))
    assert "keyring" in site.ledger(ev="deny", reason="secret_unavailable")[-1]["detail"]
    site.secret("api", https_target.token)
    assert " 200" in fetch(site, https_target).stdout.splitlines()[0]  # control, and the same daemon


@pytest.mark.needs("curl")
@pytest.mark.parametrize("name", ["secrets.json", "sealed/key", "sealed/values.json"])
def test_a_secret_whose_files_are_open_to_others(site: Site, https_target: Target, name: str) -> None:
    site.policy("version = 1\n" + endpoint(https_target) + bound() + BOUND, https_target.ca)
    site.secret("api", https_target.token)
    path = site.state / name
    with mode(path, 0o644):
        unavailable(https_target, fetch(site, https_target))


@pytest.mark.needs("curl")
def test_a_backend_that_is_refused_by_name(site: Site, https_target: Target) -> None:
    site.policy("version = 1\n" + endpoint(https_target) + bound() + BOUND, https_target.ca)
    site.secret("api", https_target.token)
    index = site.state / "secrets.json"
    whole = index.read_text()
    assert "credgate.sealed.SealedKeyring" in whole
    try:
        index.write_text(whole.replace("credgate.sealed.SealedKeyring", "keyring.backends.null.Keyring"))
        unavailable(https_target, fetch(site, https_target))
    finally:
        index.write_text(whole)


@pytest.mark.needs("curl")
@pytest.mark.parametrize("backend", ["keyring.backends.null.Keyring", "keyrings.alt.file.PlaintextKeyring"])
def test_a_forced_backend_is_not_followed(site: Site, https_target: Target, backend: str) -> None:
    site.write(".config/python_keyring/keyringrc.cfg", f"[backend]\ndefault-keyring={backend}\n")
    site.policy("version = 1\n" + endpoint(https_target) + bound() + BOUND, https_target.ca)
    site.credgate("secret", "rm", "api")
    forced = {"PYTHON_KEYRING_BACKEND": backend}
    done = site.credgate("secret", "set", "api", stdin=https_target.token, env=forced)
    assert done.returncode == 0, done.stderr
    assert "credgate.sealed.SealedKeyring" in (site.state / "secrets.json").read_text()
    files = [path for path in site.home.rglob("*") if path.is_file()]
    assert not any(https_target.token.encode() in path.read_bytes() for path in files)
    assert " 200" in fetch(site, https_target).stdout.splitlines()[0]


@pytest.mark.parametrize("value", ["one\rtwo", "one\ntwo", "one\0two", ""])
def test_a_secret_that_no_header_can_carry(site: Site, value: str) -> None:
    site.credgate("secret", "rm", "odd")
    done = site.credgate("secret", "set", "odd", stdin=value)
    assert done.returncode != 0
    one_error(done.stderr)
    assert "odd" not in site.credgate("secret", "list").stdout


@pytest.mark.needs("curl")
def test_a_secret_of_the_environment_that_no_header_can_carry(site: Site, https_target: Target) -> None:
    text = endpoint(https_target) + bound().replace("keyring:credgate/api", "env:API_VALUE")
    site.policy("version = 1\n" + text + BOUND, https_target.ca)
    url = f"https://{https_target.host}/private/x"
    unavailable(https_target, site.run(*CURL, url, env={"API_VALUE": "one\r\nX-Evil: two"}))
    unavailable(https_target, site.run(*CURL, url))
    done = site.run(*CURL, url, env={"API_VALUE": https_target.token})
    assert " 200" in done.stdout.splitlines()[0]  # control


# The host


def without(site: Site, breaking: str, *words: str | Path, mounts: bool = False) -> list[str]:
    """`words` by the site's user in a user namespace in which `breaking` was done first, its rights then given up."""
    space = ["unshare", "--user", "--map-current-user", "--keep-caps", *(["--mount"] if mounts else [])]
    script = f'set -e\n{breaking}\nexec setpriv --inh-caps=-all --ambient-caps=-all -- "$@"'
    return site.as_user([*space, "sh", "-c", script, "sh", *words])


def broken_run(site: Site, breaking: str, *, mounts: bool = False) -> "subprocess.CompletedProcess[str]":
    site.credgate("gateway", "stop")
    words = [BIN / "credgate", "run", "-q", "--policy", site.home / "policy/policy.toml", "--", *MARK]
    argv = without(site, breaking, *words, mounts=mounts)
    done = subprocess.run(
        argv, env=site.environment(), cwd=site.work, capture_output=True, text=True, timeout=60, check=False
    )
    site.credgate("gateway", "stop")
    return done


def test_control_a_run_in_a_user_namespace_of_its_own(site: Site) -> None:
    done = broken_run(site, "true", mounts=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (site.work / "ran").exists()


def test_user_namespaces_off(site: Site) -> None:
    error, hint = refused(site, broken_run(site, "echo 0 > /proc/sys/user/max_user_namespaces"))
    assert "userns" in error
    assert "user.max_user_namespaces" in hint


def test_network_namespaces_off(site: Site) -> None:
    error, hint = refused(site, broken_run(site, "echo 0 > /proc/sys/user/max_net_namespaces"))
    assert "net" in error
    assert "max_net_namespaces" in hint or "doctor" in hint


def hide(paths: Sequence[str]) -> str:
    return "\n".join(f"mount --bind /dev/null {path}" for path in paths)


def nft_files() -> list[str]:
    """The library, by what the loader would find, and the program."""
    names = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()
    found = {os.path.realpath(line.rpartition(" => ")[2]) for line in names if "libnftables.so" in line}
    programs = {
        os.path.realpath(path) for path in ("/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft") if Path(path).exists()
    }
    assert ctypes.util.find_library("nftables") is None or found
    return [*found, *programs]


def test_neither_libnftables_nor_nft(site: Site) -> None:
    error, hint = refused(site, broken_run(site, hide(nft_files()), mounts=True))
    assert "nft" in error
    assert "install nftables" in hint


def test_no_bundle_of_certificates(site: Site) -> None:
    from credgate.trust import BUNDLES

    paths = {os.path.realpath(path) for path in BUNDLES if Path(path).exists()}
    error, hint = refused(site, broken_run(site, hide(sorted(paths)), mounts=True))
    assert "bundle" in error
    assert "ca-certificates" in hint


# The ledger's disk

REQUESTS = """
fetch() { curl -sS -m 20 -o answer -w '%{http_code}\\n' https://$1/private/x; }
fetch $1
read line
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do fetch $1; done
cat answer
"""

FILL = """
import contextlib, sys
with open(sys.argv[1], 'wb', buffering=0) as file:
    for size in (4096, 1):
        with contextlib.suppress(OSError):
            for _ in range(100_000): file.write(bytes(size))
"""

# Run, then judge the ledger where it still can be seen: in this mount namespace.
ON_SMALL_DISK = """
mount -t tmpfs -o size=512k,mode=700 none "$1"
shift
"$@" && status=0 || status=$?
echo "run $status"
set -- "$1" log verify
"$@" && status=0 || status=$?
echo "verify $status"
"$1" gateway stop
exit 0
"""


@pytest.mark.needs("curl")
def test_a_full_disk(ordinary_user: OrdinaryUser, https_target: Target) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    try:
        site.policy("version = 1\n" + endpoint(https_target) + bound() + BOUND, https_target.ca)
        site.secret("api", https_target.token)
        ledger = site.state / "ledger"
        ledger.mkdir(mode=0o700, exist_ok=True)
        site.own(ledger)
        policy = site.home / "policy/policy.toml"
        run = ["run", "-q", "--policy", policy, "--", "sh", "-c", REQUESTS, "sh", https_target.host]
        argv = without(site, ON_SMALL_DISK, ledger, BIN / "credgate", *run, mounts=True)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(argv, env=site.environment(), cwd=site.work, text=True, **pipes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "200\n"  # control: there is room
            filler = f"/proc/{process.pid}/root{ledger}/filler"  # by the user: root has no name in that file system
            subprocess.run(site.as_user([BIN / "python", "-I", "-c", FILL, filler]), check=True, timeout=90)
            out, err = process.communicate("go\n", timeout=90)
    finally:
        site.close()
    lines = out.splitlines()
    statuses = [line for line in lines if line in ("200", "403")]
    assert len(statuses) == 12, out + err
    passed = statuses.count("200")  # what the last page of the file still took
    assert statuses == ["200"] * passed + ["403"] * (12 - passed)
    assert passed < 12
    assert '"code": "ledger_unavailable"' in out
    assert len(https_target.seen(count=passed + 1)) == passed + 1  # and no more than what has a record
    assert "verify 0" in lines, out + err


# The daemon and the target


@pytest.mark.needs("curl")
def test_the_daemon_is_killed_in_the_middle_of_a_request(site: Site, https_target: Target) -> None:
    site.policy("version = 1\n" + endpoint(https_target) + bound() + BOUND, https_target.ca)
    site.secret("api", https_target.token)
    url = f"https://{https_target.host}/hang"
    mark = f"curl-{uuid.uuid4().hex}"
    with Live(site, "bash", "-c", '(exec -a "$2" curl -sS "$1"); sleep 300', "bash", url, mark) as run:
        (seen,) = https_target.seen(count=1, timeout=60)
        assert running(mark)  # control
        os.kill(daemon_pid(site), signal.SIGKILL)
        ended = run.end()
    assert (run.process.returncode, ended["status"], ended["reason"]) == (137, 137, "gateway")
    assert run.out == ""
    assert seen.authorization == f"Bearer {https_target.token}"
    assert [line["path"] for line in site.ledger(ev="intent", run=run.run)] == ["/hang"]
    assert running(mark) == []
    assert site.run("true").returncode == 0
    assert site.credgate("log", "verify").returncode == 0


@pytest.mark.needs("curl")
def test_a_target_of_another_authority(site: Site, https_target: Target, untrusted_target: Target) -> None:
    site.policy("version = 1\n" + endpoint(untrusted_target) + bound() + BOUND, https_target.ca)
    site.secret("api", untrusted_target.token)
    done = fetch(site, untrusted_target)
    assert " 502" in done.stdout.splitlines()[0], done.stdout + done.stderr
    assert untrusted_target.seen() == []


@pytest.mark.needs("curl")
@pytest.mark.parametrize(("path", "status", "curls"), [("/reset", 502, {0}), ("/truncated", 200, {18, 56})])
def test_a_target_that_breaks_off(site: Site, https_target: Target, path: str, status: int, curls: set[int]) -> None:
    site.policy("version = 1\n" + endpoint(https_target) + bound() + BOUND, https_target.ca)
    site.secret("api", https_target.token)
    done = fetch(site, https_target, path=path)
    assert f" {status}" in done.stdout.splitlines()[0], done.stdout + done.stderr
    assert done.returncode in curls
    outcome = wait_outcome(site, path)
    assert outcome["reason"], outcome


def wait_outcome(site: Site, path: str) -> dict[str, object]:
    def found() -> list[dict[str, object]]:
        intents = {line["seq"] for line in site.ledger(ev="intent", path=path)}
        return [line for line in site.ledger(ev="outcome") if line.get("intent_seq") in intents]

    wait_for(found, f"the outcome of {path}")
    return found()[-1]


def test_a_target_that_is_not_there(site: Site, https_target: Target) -> None:
    from tests.targets.served import free_port

    text = endpoint(https_target).replace(f"dial_port = {https_target.port}", f"dial_port = {free_port()}")
    site.policy("version = 1\n" + text + '[role.dev]\nendpoints = ["api"]\n', https_target.ca)
    assert " 502" in fetch(site, https_target).stdout.splitlines()[0]
