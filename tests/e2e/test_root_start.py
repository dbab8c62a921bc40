"""Started by root: the run, the daemon and everything else belong to an ordinary user, and say so where they can't."""

import grp
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import OrdinaryUser, accounts_own_daemon
from tests.e2e.place import one_error
from tests.e2e.site import BIN, TIMEOUT, Site, make_site

pytestmark = pytest.mark.needs("root", "userns", "netns", "nftables", "landlock", "seccomp")

WRITE = 'version = 1\n[role.dev]\nworkdir = "write"\n'
READ = "version = 1\n[role.dev]\n"


@pytest.fixture(scope="module")
def place(ordinary_user: OrdinaryUser) -> Iterator[Site]:
    """A site for policy and work tree; state lies in the account's own home, which is what `--user` leads to."""
    with accounts_own_daemon():
        made = make_site(ordinary_user.uid, ordinary_user.gid)
        yield made
        stop = made.as_user([BIN / "credgate", "gateway", "stop"])
        env = {"HOME": str(ordinary_user.home), "PATH": "/usr/bin:/bin"}
        subprocess.run(stop, env=env, capture_output=True, check=False, timeout=TIMEOUT)
        made.close()


@pytest.fixture
def site(place: Site) -> Site:
    """The module's site, its policy as at the start."""
    place.policy(READ)
    (place.work / "ran").unlink(missing_ok=True)
    return place


def by_root(
    site: Site, *command: str, flags: tuple[str, ...] = (), env: dict[str, str] | None = None, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    policy = site.home / "policy/policy.toml"
    return subprocess.run(
        [BIN / "credgate", "run", "-q", *flags, "--policy", policy, "--", *command],
        env={"HOME": "/root", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **(env or {})},
        cwd=cwd or site.work,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        extra_groups=[0, 1, 4],  # what a root's shell may bring along
    )


SHOW = 'grep -E "^(Uid|Gid|Groups)" /proc/self/status; id -un; echo "$HOME $USER $LOGNAME"; env'


@pytest.mark.parametrize("way", ["flag", "flag=", "sudo"])
def test_the_jail_is_the_ordinary_users(site: Site, ordinary_user: OrdinaryUser, way: str) -> None:
    name, uid, gid = ordinary_user.name, ordinary_user.uid, ordinary_user.gid
    flags = {"flag": ("--user", name), "flag=": (f"--user={name}",), "sudo": ()}[way]
    sudo = {"SUDO_UID": str(uid), "SUDO_GID": str(gid), "SUDO_USER": name, "XDG_STATE_HOME": "/root/.state"}
    done = by_root(site, "sh", "-c", SHOW, flags=flags, env=sudo if way == "sudo" else {})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["Uid:", *[str(uid)] * 4]
    assert lines[1].split() == ["Gid:", *[str(gid)] * 4]
    assert lines[2].split() == ["Groups:"]
    assert lines[3] == name
    assert lines[4] == f"{ordinary_user.home} {name} {name}"
    assert "SUDO_" not in done.stdout


def test_state_and_daemon_are_that_users(site: Site, ordinary_user: OrdinaryUser) -> None:
    assert by_root(site, "true", flags=("--user", ordinary_user.name)).returncode == 0
    state = ordinary_user.home / ".local/state/credgate"
    assert {path.lstat().st_uid for path in [state, *state.rglob("*")]} == {ordinary_user.uid}
    daemons = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_daemon(pid)]
    theirs = [pid for pid in daemons if f"HOME={ordinary_user.home}\0".encode() in environ(pid)]
    assert len(theirs) == 1
    status = Path(f"/proc/{theirs[0]}/status").read_text()
    assert f"Uid:\t{ordinary_user.uid}\t{ordinary_user.uid}" in status
    assert "Groups:\t \n" in status


def environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def is_daemon(pid: int) -> bool:
    try:
        return b"credgate.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_neither_flag_nor_sudo(site: Site) -> None:
    done = by_root(site, "touch", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert "--user" in one_error(done.stderr)[1]
    assert not (site.work / "ran").exists()


@pytest.mark.parametrize(
    ("flags", "env"),
    [(("--user", "root"), {}), ((), {"SUDO_UID": "0"}), (("--user", "no-such-account"), {}), ((), {"SUDO_UID": "x"})],
)
def test_who_no_run_may_belong_to(site: Site, flags: tuple[str, ...], env: dict[str, str]) -> None:
    done = by_root(site, "touch", "ran", flags=flags, env=env)
    assert (done.returncode, done.stdout) == (125, "")
    one_error(done.stderr)
    assert not (site.work / "ran").exists()


def test_another_account_of_uid_zero(site: Site) -> None:
    """An account of another name is root all the same: what counts is the number."""
    named = [entry for entry in pwd.getpwall() if entry.pw_uid == 0 and entry.pw_name != "root"]
    done = by_root(site, "true", flags=("--user", named[0].pw_name if named else "root"))
    assert done.returncode == 125


def test_user_is_for_root_alone(site: Site, ordinary_user: OrdinaryUser) -> None:
    done = site.run("true", flags=["--user", ordinary_user.name])
    assert done.returncode == 125
    assert "root" in one_error(done.stderr)[0]


def test_words_of_the_command_are_not_flags(site: Site, ordinary_user: OrdinaryUser) -> None:
    done = by_root(site, "echo", "--user", "x", "--", "--user=y", flags=("--user", ordinary_user.name, "--role", "dev"))
    assert done.stdout == "--user x -- --user=y\n", done.stderr


@pytest.fixture
def roots_tree(site: Site) -> Iterator[Path]:
    """A tree that everybody may read and root alone may write."""
    tree = site.home / "roots"
    tree.mkdir(mode=0o755)
    (tree / "note").write_text("read me\n")
    yield tree
    for path in tree.iterdir():
        path.unlink()
    tree.rmdir()


def test_a_tree_that_the_user_cannot_write(site: Site, ordinary_user: OrdinaryUser, roots_tree: Path) -> None:
    flags = ("--user", ordinary_user.name)
    read = by_root(site, "cat", "note", flags=flags, cwd=roots_tree)
    assert (read.returncode, read.stdout) == (0, "read me\n"), read.stderr
    site.policy(WRITE)
    write = by_root(site, "touch", "ran", flags=flags, cwd=roots_tree)
    assert (write.returncode, write.stdout) == (125, "")
    assert str(roots_tree) in one_error(write.stderr)[0]
    assert not (roots_tree / "ran").exists()
    assert by_root(site, "cat", "note", flags=(*flags, "--read-only"), cwd=roots_tree).returncode == 0
    assert by_root(site, "touch", "ran", flags=flags).returncode == 0  # control: its own tree


def test_a_tree_that_the_user_cannot_read(site: Site, ordinary_user: OrdinaryUser, roots_tree: Path) -> None:
    roots_tree.chmod(0o700)
    done = by_root(site, "cat", "note", flags=("--user", ordinary_user.name), cwd=roots_tree)
    assert (done.returncode, done.stdout) == (125, "")
    assert str(roots_tree) in one_error(done.stderr)[0]


def test_groups_that_the_account_is_in_are_dropped_too(site: Site, ordinary_user: OrdinaryUser) -> None:
    """By root all can be dropped; what such a group alone opens is then closed."""
    other = next(group for group in grp.getgrall() if group.gr_gid not in (0, ordinary_user.gid))
    note = site.write("work/of-a-group", "x\n")
    os.chown(note, 0, other.gr_gid)
    note.chmod(0o640)
    try:
        assert by_root(site, "cat", "of-a-group", flags=("--user", ordinary_user.name)).returncode == 1
    finally:
        note.unlink()
