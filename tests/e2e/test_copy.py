"""`workdir = "copy"`: what a run does to its work tree waits for a review, and is undone by one word."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from credgate.room import FLOOR
from tests.conftest import OrdinaryUser, accounts_own_daemon
from tests.e2e.place import Live, Site, daemon_pid, module_site, one_error
from tests.e2e.site import BIN, TIMEOUT, make_site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "git")
place = pytest.fixture(scope="module")(module_site)

COPY = 'version = 1\n[role.dev]\nworkdir = "copy"\nreadonly = ["deploy/"]\n'
FILES = {
    "src/main.py": "print()\n",
    "src/data.bin": "\0\1",
    "old/a": "a\n",
    "old/deep/b": "b\n",
    "keep": "kept\n",
    ".env": "PASSWORD=hunter2-of-the-test\n",
    ".envrc": "export A=1\n",
    "tool.sh": "#!/bin/sh\n",
}


@pytest.fixture
def site(place: Site) -> Site:
    shutil.rmtree(place.work)
    place.work.mkdir()
    place.own(place.work)
    place.policy(COPY)
    for name, text in FILES.items():
        place.write(f"work/{name}", text)
    done = subprocess.run(
        place.as_user(
            [
                "sh",
                "-euc",
                "git init -q -b main; ln -s keep link; ln keep second; chmod 755 tool.sh; mkdir -m 700 empty;"
                "touch -d 2002-02-02 old/a; git add -A; git -c user.name=T -c user.email=t@acme.example commit -qm all;"
                "mkfifo pipe; git status --porcelain >/dev/null",
            ]
        ),
        cwd=place.work,
        env=place.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    os.setxattr(place.work / "keep", "user.note", b"of the host's")
    return place


def status(site: Site) -> str:
    """What git says of the tree: nothing where all is as it was committed."""
    git = site.as_user(["git", "--no-optional-locks", "status", "--porcelain"])
    return subprocess.check_output(git, cwd=site.work, env=site.environment(), text=True)


def digest(tree: Path) -> str:
    """Of everything in a tree: names, kinds, owners, modes, times, links, attributes, contents, and the inodes."""
    total = hashlib.sha256()
    for folder, directories, files in os.walk(tree):
        directories.sort()
        for name in [".", *sorted(directories), *sorted(files)]:
            path = Path(folder, name)
            facts = path.lstat()
            body = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            kept = (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            names = os.listxattr(path, follow_symlinks=False)
            more = [(each, os.getxattr(path, each, follow_symlinks=False)) for each in sorted(names)]
            total.update(repr((str(path), kept, facts.st_ino, facts.st_nlink, more, body)).encode())
    return total.hexdigest()


# Everything that an agent may do to a tree, at its worst. What is held fast stays in the jail too.
HAVOC = """
rm -rf src old keep link tool.sh empty second pipe .git/objects .git/index .git/refs 2>/dev/null
printf 'rewritten\\n' > keep; mkdir src; printf 'evil\\n' > src/main.py; ln -s /etc/passwd link
find . -type f -exec sh -c 'echo x >> "$1"' _ {} \\; 2>/dev/null
chmod -R 700 . 2>/dev/null; touch -d 2001-01-01 . 2>/dev/null; mkdir closed; echo x > closed/x; chmod 0 closed
cat keep src/main.py
"""


def havoc(site: Site) -> str:
    """Run it and return the run's id; what was done was seen inside."""
    with Live(site, "sh", "-c", HAVOC) as live:
        ended = live.end()
        assert ended["copy"]["changed"] > 5, (ended, live.err)
        assert "rewritten\nx\nevil\nx\n" in live.out
    return live.run


def test_havoc_is_undone_by_one_command(site: Site) -> None:
    before = digest(site.work)
    assert status(site) == ""
    run = havoc(site)
    assert digest(site.work) == before
    changed = json.loads(site.credgate("diff", run, "--json").stdout)["changes"]
    assert {("keep", "modified"), ("old/deep/b", "deleted"), ("link", "modified")} <= {
        (c["path"], c["kind"]) for c in changed
    }
    assert not {c["path"] for c in changed} & {".vscode", ".github", "deploy", ".git/commondir", ".envrc"}
    assert run in site.credgate("ps").stdout
    done = site.credgate("discard", run)
    assert done.returncode == 0, done.stderr
    assert digest(site.work) == before
    assert status(site) == ""
    assert not (site.state / "copies" / run).exists()
    one_error(site.credgate("diff", run).stderr)


def test_the_same_where_the_tree_is_written(site: Site) -> None:
    """The control: with `write` the same program changes the host's tree."""
    site.policy(COPY.replace('"copy"', '"write"'))
    before = digest(site.work)
    site.run("sh", "-c", HAVOC)
    assert digest(site.work) != before
    (site.work / "closed").chmod(0o700)


def test_some_paths_a_conflict_and_what_must_be_named(site: Site) -> None:
    code = (
        "echo new > src/main.py; echo two > keep; rm -r old; mkdir -p sub/.vscode; echo '{}' > sub/.vscode/tasks.json; "
        "echo mine > conflict; echo A=1 > x.env; echo t >> tool.sh; chmod 700 tool.sh; ln -s ../../etc out; true"
    )
    with Live(site, "sh", "-c", code) as live:
        run = live.run
        assert live.end()["copy"]["changed"], live.err
    (site.work / "keep").write_text("the host's\n")
    (site.work / "conflict").write_text("the host's too\n")
    shown = site.credgate("diff", run).stdout
    assert "-print()" in shown and "+new" in shown and "D old/deep/b" in shown
    done = site.credgate("apply", run, "src")
    assert (done.returncode, done.stdout) == (0, "M src/main.py\n"), done.stderr
    assert (site.work / "src/main.py").read_text() == "new\n" and (site.work / "old/a").exists()
    done = site.credgate("apply", run)
    assert done.returncode == 1
    left = {line.split(":")[1].strip() for line in done.stderr.splitlines()}
    assert left == {"keep", "conflict", "sub/.vscode", "sub/.vscode/tasks.json", "x.env", "out"}, done.stderr
    assert (site.work / "keep").read_text() == "the host's\n"
    assert (site.work / "conflict").read_text() == "the host's too\n"
    assert not (site.work / "old").exists() and not (site.work / "out").is_symlink()
    assert (site.work / "tool.sh").read_text() == "#!/bin/sh\nt\n" and (
        site.work / "tool.sh"
    ).stat().st_mode & 0o777 == 0o700
    done = site.credgate("apply", run, "sub/.vscode/tasks.json", "x.env", "out")
    assert done.returncode == 0, done.stderr
    assert (site.work / "sub/.vscode/tasks.json").read_text() == "{}\n" and (site.work / "x.env").exists()
    assert not [name for name in os.listdir(site.work) if name.startswith(".credgate-")]
    assert {c["path"] for c in json.loads(site.credgate("diff", run, "--json").stdout)["changes"]} == {
        "keep",
        "conflict",
    }
    assert site.credgate("discard", run).returncode == 0


def test_a_run_that_lives_and_one_that_changes_nothing(site: Site) -> None:
    daemon_pid(site)
    with Live(site, "sh", "-c", "echo up; echo x > new; sleep 60") as live:
        assert live.line() == "up\n"
        for command in ("diff", "apply", "discard"):
            done = site.credgate(command, live.run)
            assert done.returncode == 1 and "has not ended" in one_error(done.stderr)[0]
        assert not (site.work / "new").exists()
    with Live(site, "cat", "keep") as live:
        assert live.end()["copy"] == {"changed": 0}
    assert not (site.state / "copies" / live.run).exists()


@pytest.fixture
def turn() -> Iterator[None]:
    """The account's own daemon, in turn."""
    with accounts_own_daemon():
        yield


@pytest.mark.needs("root")
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("turn")
def test_started_by_root(site: Site, ordinary_user: OrdinaryUser) -> None:
    before = digest(site.work)
    env = {"HOME": "/root", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    policy = site.home / "policy/policy.toml"
    argv = [BIN / "credgate", "run", "--user", ordinary_user.name, "--policy", policy, "--", "sh", "-c", HAVOC]
    kept = {"cwd": site.work, "capture_output": True, "text": True, "timeout": TIMEOUT}
    mine = {"HOME": str(ordinary_user.home), "PATH": "/usr/bin:/bin"}
    try:
        done = subprocess.run(argv, env=env, check=False, **kept)
        assert "rewritten" in done.stdout, done.stderr
        run = done.stderr.partition("credgate diff ")[2].split(",")[0]
        assert digest(site.work) == before
        gone = subprocess.run(site.as_user([BIN / "credgate", "discard", run]), env=mine, check=False, **kept)
        assert gone.returncode == 0, gone.stderr
        assert digest(site.work) == before
        assert not (ordinary_user.home / ".local/state/credgate/copies" / run).exists()
    finally:
        subprocess.run(site.as_user([BIN / "credgate", "gateway", "stop"]), env=mine, check=False, **kept)


def test_odd_names_hidden_files_and_a_child(site: Site) -> None:
    """A tree whose name has the characters that overlayfs and its options separate by."""
    odd = site.work / "a:b,c\\d é\n"
    odd.mkdir()
    (odd / ".env").write_text("PASSWORD=hunter2-of-the-test\n")
    site.own(odd)
    kid = 'children = ["kid"]\n[role.kid]\nworkdir = "write"\n'
    site.policy('version = 1\ndefault_role = "dev"\n[role.dev]\nworkdir = "copy"\n' + kid)
    ask = "/run/credgate/credgate-child --role kid -- sh -c 'ls; echo z > theirs'"
    code = f"cat .env; echo x > made; mv .env y; {ask}; ls -A"
    done = site.credgate("run", "--policy", site.home / "policy/policy.toml", "--", "sh", "-c", code, cwd=odd)
    assert sorted(os.listdir(odd)) == [".env"], done.stderr
    assert "hunter2" not in done.stdout and "made" in done.stdout and "theirs" not in done.stdout, done.stderr
    run = done.stderr.rpartition("credgate diff ")[2].split(",")[0]
    assert [c["path"] for c in json.loads(site.credgate("diff", run, "--json").stdout)["changes"]] == ["made"]
    copies = json.loads(site.credgate("ps", "--json").stdout)["copies"]
    kept = {copy["run"] for copy in copies if copy["workdir"] == str(odd)}
    assert len(kept - {run}) == 1  # the child's own
    for each in kept:
        assert site.credgate("discard", each).returncode == 0


# Written into a file that has no name any more: a sum over the layer would not see it.
FILLS = """
import os, sys, time
file = os.open("filled", os.O_CREAT | os.O_WRONLY)
os.unlink("filled")
for _ in range(int(sys.argv[1])): os.write(file, bytes(1 << 20))
print("wrote", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.needs("root")
def test_a_run_is_ended_before_it_has_filled_the_disk(ordinary_user: OrdinaryUser) -> None:
    site = make_site(ordinary_user.uid, ordinary_user.gid)
    site.policy(COPY)
    copies = site.write(".local/state/credgate/copies/none", "").parent
    for folder in (copies, copies.parent):
        folder.chmod(0o700)
    owner = f"uid={site.uid},gid={site.gid},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={(FLOOR >> 20) + 64}m,{owner}", "tmpfs", copies], check=True)
    try:
        for mebibytes, stays, status, reason, said in ((16, 3, 0, "exited", "wrote\n"), (96, 60, 137, "disk", None)):
            done = site.run(site.python(), "-I", "-S", "-c", FILLS, str(mebibytes), str(stays))
            assert done.returncode == status, done.stderr
            assert site.ledger(ev="run.end")[-1]["reason"] == reason
            assert said is None or done.stdout == said
        assert "credgate: the run was ended: disk\n" in done.stderr
        (copies / "other").write_bytes(bytes(96 << 20))
        refused = site.run("true")
        assert refused.returncode == 125
        assert "room for a copy" in one_error(refused.stderr)[0]
        (copies / "other").unlink()
        assert site.run("true").returncode == 0
    finally:
        site.credgate("gateway", "stop")
        subprocess.run(["umount", copies], check=True)
        site.close()
