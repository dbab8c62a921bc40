"""`credgate run` as its contract says: what the jail is, what passes into it and out of it, and how it ends."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.place import module_site, one_error, raw_run
from tests.e2e.site import BIN, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

READ = "version = 1\n[role.dev]\n"
WRITE = 'version = 1\n[role.dev]\nworkdir = "write"\n'


@pytest.fixture
def site(place: Site) -> Site:
    """The module's site, its policy as at the start."""
    place.policy(READ)
    return place


# What the jail is

SHOW = 'cat /proc/net/route; grep -E "Seccomp|NoNewPrivs|Cap" /proc/self/status'


def facts(text: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines()) if value}


def test_one_route_filter_mode_and_no_capability(site: Site) -> None:
    done = site.run("sh", "-c", SHOW, flags=["--role", "dev"])
    assert done.returncode == 0, done.stderr
    routes = [line.split() for line in done.stdout.splitlines()[1:2]]
    assert [(r[0], r[1], r[7]) for r in routes] == [("jail0", "0100D50A", "FFFFFFFF")]  # 10.213.0.1/32
    assert sum(line.startswith("jail0") for line in done.stdout.splitlines()) == 1
    shown = facts(done.stdout)
    assert (shown["Seccomp"], shown["NoNewPrivs"]) == ("2", "1")
    sets = {name: int(value, 16) for name, value in shown.items() if name.startswith("Cap")}
    assert sets == dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0)


def test_control_outside_it_differs(site: Site) -> None:
    done = subprocess.run(site.as_user(["sh", "-c", SHOW]), capture_output=True, text=True, check=True)
    shown = facts(done.stdout)
    assert (int(shown["CapBnd"], 16) != 0, shown["NoNewPrivs"]) == (True, "0")


# Exit statuses


@pytest.mark.parametrize(("code", "status"), [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)])
def test_status_of_the_command(site: Site, code: str, status: int) -> None:
    done = site.run("sh", "-c", code)
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("TERM", 15), ("SEGV", 11)])
def test_status_of_a_signal(site: Site, name: str, number: int) -> None:
    assert site.run("sh", "-c", f"kill -{name} $$").returncode == 128 + number


def test_status_of_a_command_that_is_not_there(site: Site) -> None:
    done = site.run("no-such-command")
    assert done.returncode == 127
    assert "not found" in one_error(done.stderr)[0]


def test_status_of_a_file_that_is_no_program(site: Site) -> None:
    site.write("work/plain", "text\n")
    done = site.run("./plain")
    assert done.returncode == 126
    assert "not executable" in one_error(done.stderr)[0]


def test_status_of_a_program_that_the_kernel_refuses(site: Site) -> None:
    site.write("work/garbage", "\x7fnot an ELF\n").chmod(0o755)
    done = site.run("./garbage")
    assert done.returncode == 126
    assert "Exec format error" in one_error(done.stderr)[0]


def test_status_of_a_script_whose_interpreter_is_missing(site: Site) -> None:
    site.write("work/script", "#!/no/such/interpreter\n").chmod(0o755)
    done = site.run("./script")
    assert done.returncode == 127
    assert "/no/such/interpreter" in one_error(done.stderr)[0]


def test_a_command_that_is_a_link_in_the_work_tree(site: Site) -> None:
    link = site.work / "who"
    link.symlink_to("/usr/bin/id")
    try:
        done = site.run("./who", "-u")
    finally:
        link.unlink()
    assert (done.returncode, done.stdout) == (0, f"{site.uid}\n"), done.stderr


@pytest.mark.skipif(not Path("/etc/alternatives/awk").is_symlink(), reason="no awk among the alternatives here")
def test_a_command_that_the_host_chose_among_alternatives(site: Site) -> None:
    done = site.run("awk", "BEGIN { print 7 }")
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


# --status-fd


def with_status(site: Site, *command: str) -> tuple[int, list[dict[str, object]]]:
    reader, writer = os.pipe()
    try:
        done = site.run(*command, flags=["--status-fd", str(writer)], pass_fds=[writer])
    finally:
        os.close(writer)
    with os.fdopen(reader) as lines:
        return done.returncode, [json.loads(line) for line in lines]


def test_status_lines(site: Site) -> None:
    status, (ready, ended) = with_status(site, "sh", "-c", "exit 3")
    assert status == 3
    assert set(ready) == {"event", "run", "pid", "proof", "gateway", "ledger"}
    assert (ready["event"], ready["gateway"], ready["ledger"]) == ("ready", "10.213.0.1", str(site.state / "ledger"))
    counted = {"requests", "off_route", "counters", "filter_kills", "files", "refusals"}
    assert set(ended) == {"event", "run", "status", "reason", *counted}
    assert (ended["event"], ended["run"], ended["status"]) == ("exit", ready["run"], 3)
    assert (ended["reason"], ended["requests"], ended["off_route"]) == ("exited", {"allow": 0, "deny": 0}, 0)
    (proof,) = site.ledger(ev="proof", run=ready["run"])
    assert (proof["proof"], proof["verdict"]) == (ready["proof"], "shown")


def test_status_lines_of_a_signal(site: Site) -> None:
    _, lines = with_status(site, "sh", "-c", "kill -9 $$")
    assert (lines[1]["status"], lines[1]["reason"]) == (137, "signaled")


def test_status_lines_count_what_was_refused_and_what_has_no_route(site: Site) -> None:
    dial = "import socket, contextlib\nwith contextlib.suppress(OSError): socket.socket().connect(('192.0.2.1', 80))\n"
    ask = (
        "import urllib.request as u, contextlib\nwith contextlib.suppress(OSError): u.urlopen('https://no.example/')\n"
    )
    _, lines = with_status(site, site.python(), "-I", "-c", dial + ask)
    assert (lines[1]["requests"], lines[1]["off_route"]) == ({"allow": 0, "deny": 1}, 1)
    said = {"count": 1, "reason": "host_unlisted", "method": "GET", "host": "no.example", "port": 443, "path": "/"}
    assert lines[1]["refusals"] == [said | {"proposed": True}]


def test_no_status_line_of_a_run_that_was_refused(site: Site) -> None:
    status, lines = with_status(site, "no-such-command")
    assert (status, lines) == (127, [])


# Standard streams and descriptors


def test_pipes_are_passed_as_they_are(site: Site) -> None:
    data = bytes(range(256)) * 4096
    done = raw_run(site, "sh", "-c", "cat; printf apart >&2", stdin=data)
    assert (done.status, done.out == data, done.err) == (0, True, b"apart")


def test_a_closed_stdout_is_the_commands_to_notice(site: Site) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        process = site.start("sh", "-c", "trap '' PIPE; echo x || exit 9", stdout=out)
        process.communicate(timeout=60)
    assert process.returncode == 9


WITH_NINE = ["bash", "-c", 'exec 9</etc/passwd; exec "$@"', "bash"]


def test_inherited_descriptors_stay_outside(site: Site) -> None:
    done = raw_run(site, "sh", "-c", "ls /proc/$$/fd; cat <&9", before=WITH_NINE)
    assert (done.status != 0, done.out.split()) == (True, [b"0", b"1", b"2"])


def test_control_the_descriptor_is_inherited_without_a_jail() -> None:
    done = subprocess.run([*WITH_NINE, "sh", "-c", "cat <&9"], capture_output=True, check=True)
    assert b"root:" in done.stdout


# Environment

PRINT = ["env"]


def test_nothing_of_the_callers_environment_is_inside(site: Site) -> None:
    done = site.run(*PRINT, env={"CANARY": "bird-1749", "LD_LIBRARY_PATH": "/bird-1749", "HOME": str(site.home)})
    assert done.returncode == 0, done.stderr
    assert "bird-1749" not in done.stdout


def test_a_role_names_what_passes_and_env_narrows(site: Site) -> None:
    site.policy(READ + 'env = ["BIRD", "FISH"]\n')
    caller = {"BIRD": "wren", "FISH": "carp", "FROG": "toad"}
    passed = [line for line in site.run(*PRINT, env=caller).stdout.splitlines() if line.partition("=")[0] in caller]
    assert sorted(passed) == ["BIRD=wren", "FISH=carp"]
    done = site.run(*PRINT, env=caller, flags=["--env", "FISH"])
    assert [line for line in done.stdout.splitlines() if line.partition("=")[0] in caller] == ["FISH=carp"]
    refused = site.run(*PRINT, env=caller, flags=["--env", "FROG"])
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "FROG" in one_error(refused.stderr)[0]


def test_a_value_that_looks_like_a_credential_does_not_pass(site: Site) -> None:
    site.policy(READ + 'env = ["BIRD"]\n')
    done = site.run(*PRINT, env={"BIRD": "ghp_" + "a1B2" * 9})
    assert (done.returncode, done.stdout) == (125, "")
    error, _ = one_error(done.stderr)
    assert "BIRD" in error and "ghp_" not in error


# A hostile work tree

MODULES = ("rules", "jail", "json", "sitecustomize", "usercustomize", "socket", "credgate")
EARLY = ("os", "encodings", "codecs")  # they break an interpreter that takes them, before it could leave a mark
PROGRAMS = ("python", "python3", "readlink", "nft", "env", "credgate")


def hostile(site: Site, marker: Path, *, early: bool) -> None:
    """Names that an interpreter or a shell would pick up from the work tree; each leaves a mark when it is run."""
    for name in MODULES:
        site.write(f"work/{name}.py", f"open({str(marker)!r}, 'a').write({name!r})\n")
    for name in EARLY if early else ():
        site.write(f"work/{name}.py", "raise SystemExit(99)\n")
    site.write("work/evil.pth", f"import os; open({str(marker)!r}, 'a').write('pth')\n")
    site.write("work/evil.sh", f"echo shell >> {marker}\n")
    for name in PROGRAMS:
        site.write(f"work/{name}", f"#!/bin/sh\necho {name} >> {marker}\n").chmod(0o755)


HOSTILE_ENV = {"PYTHONSTARTUP": "evil.sh", "ENV": "evil.sh", "BASH_ENV": "evil.sh", "PYTHONINSPECT": "1"}


def hostile_environment(site: Site) -> dict[str, str]:
    return {**HOSTILE_ENV, "PATH": f".:{site.env.get('PATH', '/usr/bin:/bin')}", "PYTHONPATH": f".:{site.work}"}


@pytest.fixture
def fresh_work(site: Site) -> Site:
    """An empty work tree, and no daemon yet: the first run of a hostile tree starts it."""
    site.credgate("gateway", "stop")
    shutil.rmtree(site.work)
    site.work.mkdir()
    site.own(site.work)
    return site


def test_nothing_of_a_hostile_work_tree_is_executed(fresh_work: Site) -> None:
    site = fresh_work
    marker = site.home / "marker"
    hostile(site, marker, early=True)
    done = raw_run(site, "/bin/sh", "-c", "echo fine", env=hostile_environment(site))
    assert (done.status, done.out, done.err) == (0, b"fine\n", b"")
    assert not marker.exists(), marker.read_text()


def test_control_the_same_tree_is_executed_by_an_ordinary_interpreter(fresh_work: Site) -> None:
    site = fresh_work
    marker = site.home / "marker"
    hostile(site, marker, early=False)
    argv = site.as_user([BIN / "python", "-c", "import rules"])
    subprocess.run(argv, env=site.environment(hostile_environment(site)), cwd=site.work, check=False, timeout=30)
    assert "rules" in marker.read_text()
    marker.unlink()


def test_the_callers_preload_reaches_neither_daemon_nor_jail(site: Site) -> None:
    """The loader complains once for each program that is started with a library that isn't there."""
    site.credgate("gateway", "stop")
    env = {"LD_PRELOAD": "/nonexistent/evil-9f2c.so"}
    outside = site.credgate("--help", env=env).stderr.count("evil-9f2c")  # the same programs before the command
    done = site.run("/bin/sh", "-c", "env; exec /bin/true", env=env)
    assert (done.returncode, outside > 0) == (0, True)
    assert done.stderr.count("evil-9f2c") == outside
    assert "evil-9f2c" not in done.stdout + (site.state / "run/daemon.log").read_text()


# The work tree


def test_odd_names(site: Site) -> None:
    name = os.fsencode(site.work) + b"/two words\nand \xff"
    os.mkdir(name)
    site.own(Path(os.fsdecode(name)))
    try:
        done = raw_run(site, "sh", "-c", 'pwd; printf %s "$PWD"', cwd=name)
        assert (done.status, done.out) == (0, name + b"\n" + name), done.err
    finally:
        os.rmdir(name)


def test_a_work_tree_below_tmp(site: Site) -> None:
    """The jail's /tmp is its own; what lies in the host's is not there, but for the tree that was named."""
    assert str(site.work).startswith("/tmp/")
    done = site.run("sh", "-c", "ls -A /tmp; ls -A ..; cat ../policy/policy.toml")
    assert done.stdout.split() == [site.home.name, ".pki", "work"]
    assert done.returncode != 0


def test_read_only_unless_the_role_says_so(site: Site) -> None:
    write = ("sh", "-c", "echo mine > written")
    assert site.run(*write).returncode != 0
    assert not (site.work / "written").exists()
    site.policy(WRITE)
    assert site.run(*write, flags=["--read-only"]).returncode != 0
    assert not (site.work / "written").exists()
    assert site.run(*write).returncode == 0
    assert (site.work / "written").read_text() == "mine\n"
    (site.work / "written").unlink()


def test_a_cwd_below_the_work_tree(site: Site) -> None:
    site.write("work/deep/er/file", "x")
    done = site.run("pwd", flags=["--workdir", site.work], cwd=site.work / "deep/er")
    assert done.stdout == f"{site.work}/deep/er\n"


@pytest.mark.parametrize(
    "where", ["/", "/usr", "~", "~/.local", "~/.local/state/credgate/ledger", "~/.config/credgate"]
)
def test_trees_that_are_refused(site: Site, where: str) -> None:
    site.write(".config/credgate/policy.toml", READ)
    path = where.replace("~", str(site.home))
    done = site.run("sh", "-c", f"touch {site.work}/ran", flags=["--workdir", path])
    assert done.returncode == 125
    assert path in one_error(done.stderr)[0]
    assert not (site.work / "ran").exists()


def test_a_link_to_a_refused_tree_is_refused(site: Site) -> None:
    link = site.home / "innocent"
    link.symlink_to(site.state)
    try:
        done = site.run("true", flags=["--workdir", link])
    finally:
        link.unlink()
    assert done.returncode == 125
    one_error(done.stderr)


def test_a_tree_with_a_listening_socket_is_refused(site: Site) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(site.work / "sock"))
        site.own(site.work / "sock")
        try:
            bound = site.run("true")
            sock.listen()
            done = site.run("true")
            sock.close()
            left = site.run("true")
        finally:
            (site.work / "sock").unlink()
    for refused in (bound, done):  # who has bound it may start to listen
        assert refused.returncode == 125
        assert "listens" in one_error(refused.stderr)[0]
    assert left.returncode == 0  # control: the file alone


def test_a_planted_link_leads_nowhere(site: Site) -> None:
    outside = site.write("outside/note", "told\n")
    link = site.work / "planted"
    link.symlink_to(outside)
    try:
        assert link.read_text() == "told\n"  # control
        done = site.run("cat", "planted")
    finally:
        link.unlink()
    assert (done.returncode, done.stdout) == (1, "")


def test_a_named_tree_by_a_link(site: Site) -> None:
    site.write("real/note", "told\n")
    link = site.home / "by-link"
    link.symlink_to(site.home / "real")
    site.policy(READ + 'read = ["~/by-link"]\n')
    try:
        done = site.run("sh", "-c", "cat ~/by-link/note; echo x > ~/by-link/note")
    finally:
        link.unlink()
    assert (done.stdout, done.returncode != 0) == ("told\n", True)


def test_a_named_tree_that_shows_our_state_is_refused(site: Site) -> None:
    site.policy(READ + 'read = ["~/.local/state"]\n')
    done = site.run("true")
    assert done.returncode == 125
    one_error(done.stderr)
