"""Child runs: a program in the jail asks for a jail of a lesser role. What both roles give it has, and no more."""

import json
import os
import shlex
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from tests.e2e.place import Live, module_site, running, wait_for
from tests.e2e.site import Site, bound, endpoint
from tests.e2e.terminal import Terminal
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

# `dev` writes and may ask for the others; `reviewer` reads; `tester` asks for more than dev has.
ROLES = """version = 1
default_role = "dev"
[role.dev]
workdir = "write"
env = ["LANG", "KEPT"]
children = ["reviewer", "tester", "dev"]
[role.reviewer]
env = ["KEPT", "MORE"]
[role.tester]
workdir = "write"
read = ["~/private"]
env = ["MORE"]
deadline = "1h"
limits = { processes = 64 }
[role.stranger]
"""
ASK = "/run/credgate/credgate-child"


@pytest.fixture
def site(place: Site) -> Site:
    """The module's site, its policy as at the start."""
    place.policy(ROLES)
    return place


def child(site: Site, role: str, *command: str, flags: tuple[str, ...] = (), **kw) -> subprocess.CompletedProcess[str]:
    """Run `command` in a child of `role`, of a parent whose only work is to ask for it."""
    words = shlex.join([ASK, "--role", role, "--", *command])
    return site.run("sh", "-c", f"exec {words}", flags=flags, **kw)  # it is a command of the jail's, not of the host's


def from_parent(site: Site, script: str, **kw) -> subprocess.CompletedProcess[str]:
    return site.run("sh", "-c", script, **kw)


# Status and streams


@pytest.mark.parametrize(("code", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_childs_status_comes_back(site: Site, code: str, status: int) -> None:
    done = from_parent(site, f"{ASK} --role reviewer -- sh -c '{code}'")
    assert (done.returncode, done.stderr) == (status, "")


def test_pipes_and_files_are_passed_as_they_are(site: Site) -> None:
    site.write("work/in", "from a file\n")
    script = f"{ASK} --role reviewer -- sh -c 'cat; echo apart >&2' < in > out; cat out"
    done = from_parent(site, script)
    assert (done.stdout, done.stderr) == ("from a file\n", "apart\n")
    done = from_parent(site, f"printf piped | {ASK} --role reviewer -- cat | tr a-z A-Z")
    assert done.stdout == "PIPED"


def test_a_socket_is_bridged_and_its_own_is_not_passed(site: Site) -> None:
    """As node starts its children: the ends of socket pairs for 0, 1 and 2."""
    code = (
        "import socket, subprocess\n"
        "ours, theirs = socket.socketpair()\n"
        f"p = subprocess.Popen(['{ASK}', '--role', 'reviewer', '--', 'sh', '-c',"
        " 'cat; stat -Lc %F /dev/stdin /dev/stdout'], stdin=theirs, stdout=theirs)\n"
        "theirs.close(); ours.sendall(b'over a socket\\n'); ours.shutdown(socket.SHUT_WR)\n"
        "print(b''.join(iter(lambda: ours.recv(100), b'')).decode(), end='')\n"
        "print(p.wait())\n"
    )
    done = site.run(site.python(), "-I", "-c", code)
    assert done.stdout == "over a socket\nfifo\nfifo\n0\n", done.stderr


RAW = """
import array, json, os, socket, sys
kind = sys.argv[1]
ends = socket.socketpair()
odd = {
    "socket": lambda: ends[0].fileno(),
    "directory": lambda: os.open("/", os.O_RDONLY),
    "memory": lambda: os.open("/proc/self/mem", os.O_RDONLY),
    "file": lambda: os.open("/etc/passwd", os.O_RDONLY),
}[kind]()
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect("/run/credgate/children")
body = json.dumps({"op": "child", "role": "reviewer", "argv": ["true"], "cwd": "/"}).encode()
sock.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [odd, 1, 2]))])
answer = json.loads(sock.recv(65536))
print(answer["ev"], answer.get("code", ""))
"""


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("file", "exit "),  # the controls: the same request with what carries bytes alone
        ("socket", "refused child_descriptor"),
        ("directory", "refused child_descriptor"),
        ("memory", "refused child_descriptor"),
    ],
)
def test_what_could_carry_more_than_bytes_is_not_passed(site: Site, kind: str, answer: str) -> None:
    done = site.run(site.python(), "-I", "-c", RAW, kind)
    assert done.stdout.rstrip("\n") == answer, done.stderr


def test_the_jails_terminal_is_passed_and_ctrl_c_reaches_the_child(site: Site) -> None:
    trap = "trap 'echo caught; exit 9' INT; test -t 0 && echo at a terminal; read word; echo got $word; "
    inside = shlex.join([ASK, "--role", "reviewer", "--", "sh", "-c", trap + "while :; do sleep 0.1; done"])
    with Terminal(site, "sh", "-c", f"trap : INT; {inside}; echo status $?") as user:
        user.expect("at a terminal")
        user.type("typed\r")
        user.expect("got typed")
        user.type("\x03")
        user.expect("caught")
        user.expect("status 9")
        assert user.end() == 0


# Rights


def test_a_role_that_the_parents_does_not_list_is_refused(site: Site) -> None:
    done = child(site, "stranger", "touch", "marker")
    assert done.returncode == 125
    assert done.stderr.splitlines() == [
        "error: this run's role does not list that role",
        "hint: `children` of the role in the policy names them",
    ]
    assert not (site.work / "marker").exists()
    (record,) = site.ledger(ev="run.refused", role="stranger")
    assert (record["reason"], record["parent"]) == ("child_role", site.ledger(ev="run.start")[-1]["run"])


def test_a_run_whose_role_has_no_children_has_no_socket(site: Site) -> None:
    shown = 'ls /run/credgate 2>&1; echo "$PATH" | tr : "\\n" | grep -c credgate'
    assert "children" in from_parent(site, shown).stdout  # the control
    without = from_parent(site, shown, flags=["--role", "reviewer"])
    assert ("No such file" in without.stdout, without.stdout.splitlines()[-1]) == (True, "0")


def test_the_work_tree_is_written_where_both_roles_write(site: Site) -> None:
    assert child(site, "tester", "sh", "-c", "echo x > both").returncode == 0
    assert (site.work / "both").exists()
    assert child(site, "reviewer", "sh", "-c", "echo x > one").returncode != 0
    assert not (site.work / "one").exists()
    assert child(site, "tester", "sh", "-c", "echo x > flag", flags=("--read-only",)).returncode != 0
    assert not (site.work / "flag").exists()


def test_a_file_that_was_opened_to_read_is_not_opened_again_to_write(site: Site) -> None:
    """The parent's descriptor lies on the parent's writable mount: Landlock closes what the mount does not."""
    site.write("work/data", "as it was\n")
    again = "sh -c 'echo changed > /proc/self/fd/0' < data"
    assert from_parent(site, again).returncode == 0  # the control: the parent may
    assert (site.work / "data").read_text() == "changed\n"
    site.write("work/data", "as it was\n")
    assert from_parent(site, f"{ASK} --role reviewer -- {again}").returncode != 0
    assert (site.work / "data").read_text() == "as it was\n"


def test_trees_and_variables_are_those_of_both(site: Site) -> None:
    site.write("private/note", "tester's own\n")
    env = {"KEPT": "k", "MORE": "m", "LANG": "C.UTF-8"}
    look = f"cat {site.home}/private/note; echo $KEPT $MORE"
    alone = site.run("sh", "-c", look, flags=["--role", "tester"], env=env)
    assert alone.stdout == "tester's own\nm\n"  # the control: by itself the role has them
    below = child(site, "tester", "sh", "-c", look, env=env)
    assert below.stdout == "\n"
    assert child(site, "reviewer", "sh", "-c", "echo $KEPT $MORE", env=env).stdout == "k\n"
    narrowed = child(site, "reviewer", "sh", "-c", "echo [$KEPT]", env=env, flags=("--env", "LANG"))
    assert narrowed.stdout == "[]\n"


def test_limits_are_the_smaller_ones(site: Site) -> None:
    assert child(site, "tester", "sh", "-c", "ulimit -n").stdout == from_parent(site, "ulimit -n").stdout
    (start,) = [line for line in site.ledger(ev="run.start") if line.get("role") == "tester"][-1:]
    assert start["parent"]


def test_a_command_that_the_parent_can_not_see_is_not_found(site: Site) -> None:
    hidden = site.write("private/tool", "#!/bin/sh\necho hidden\n")
    hidden.chmod(0o755)
    assert site.run(str(hidden), flags=["--role", "reviewer"]).stdout == "hidden\n"  # the control: a user's run may
    answers = []
    for path in (hidden, site.home / "private/absent"):
        done = child(site, "reviewer", str(path))
        answers.append((done.returncode, done.stdout, done.stderr))
    assert answers[0] == answers[1]  # no word about what exists on the host
    assert (answers[0][0], answers[0][1]) == (127, "")


SECRET = "CHILDREN-canary-6f1e2d3c4b5a"


@pytest.fixture
def api(site: Site, https_target: Target) -> Target:
    """Two endpoints of one target: dev has its secret on both paths' rule, reviewer reaches it without."""
    roles = ROLES.replace("[role.dev]\n", '[role.dev]\nbindings = ["api"]\n')
    roles = roles.replace("[role.reviewer]\n", '[role.reviewer]\nendpoints = ["api"]\n')
    roles = roles.replace("[role.tester]\n", '[role.tester]\nbindings = ["api"]\n')
    site.policy(roles + endpoint(https_target) + bound(), https_target.ca)
    site.secret("api", SECRET)
    https_target.forget()
    return https_target


def test_a_secret_goes_where_both_roles_have_it(site: Site, api: Target) -> None:
    url = f"https://{api.host}/echo"
    ask = ("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", url)
    assert child(site, "tester", *ask).stdout == "200"
    assert child(site, "reviewer", *ask).stdout == "200"
    sent = [request.authorization for request in api.seen(count=2)]
    assert sent == [f"Bearer {SECRET}", ""]


def test_a_childs_requests_count_for_its_parent(site: Site, api: Target) -> None:
    reader, writer = os.pipe()
    url = f"https://{api.host}/echo"
    script = f"curl -sS -o /dev/null {url}; {ASK} --role tester -- curl -sS -o /dev/null {url} https://no.example/"
    try:
        from_parent(site, script, flags=["--status-fd", str(writer)], pass_fds=[writer])
    finally:
        os.close(writer)
    with os.fdopen(reader) as lines:
        line = json.loads(lines.readlines()[-1])
    assert line["requests"] == {"allow": 2, "deny": 1}


# Depth, number, end


def nested(depth: int, command: str) -> str:
    """A shell command that asks for a child that asks for a child ..."""
    for _ in range(depth):
        command = shlex.join([ASK, "--role", "dev", "--", "sh", "-c", command])
    return command


def test_children_of_children_have_a_bound(site: Site) -> None:
    within = from_parent(site, nested(2, "echo deep"))
    assert (within.returncode, within.stdout) == (0, "deep\n")
    beyond = from_parent(site, nested(3, "echo deeper"))
    assert (beyond.returncode, beyond.stdout) == (125, "")
    assert "at most 3 deep" in beyond.stderr


def test_children_at_a_time_have_a_bound(site: Site) -> None:
    script = f"for n in 1 2 3 4 5; do {ASK} --role reviewer -- sleep 2 & done; wait"
    done = from_parent(site, script)
    assert done.stderr.count("error: at most 4 child runs of one run at a time") == 1


@pytest.mark.parametrize("how", ["parent exits", "launcher killed", "client killed", "run killed"])
def test_a_child_dies_with_its_parent(site: Site, how: str) -> None:
    mark = f"child-{uuid.uuid4().hex}"
    inside = f"exec -a {mark} sleep 300"
    script = f"{ASK} --role reviewer -- bash -c '{inside}' & echo $!; read _ < go; [ -e leave ] || sleep 300"
    (site.work / "leave").unlink(missing_ok=True)
    fifo = site.work / "go"
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    site.own(fifo)
    with Live(site, "bash", "-c", script) as run:
        wait_for(lambda: running(mark), "the child's command")
        if how == "parent exits":
            site.write("work/leave", "")
            fifo.write_text("\n")
        elif how == "launcher killed":
            os.kill(run.launcher, signal.SIGKILL)
        elif how == "client killed":
            (client,) = [p for p in running("python3") if b"credgate-child" in Path(f"/proc/{p}/cmdline").read_bytes()]
            os.kill(client, signal.SIGKILL)
        else:
            site.credgate("kill", run.run)
        wait_for(lambda: not running(mark), "the child's end")
        if how == "client killed":
            assert run.process.poll() is None  # the parent goes on
    wait_for(lambda: _rows(site) == [], "the daemon's end of both")
    ends = [line["run"] for line in site.ledger(ev="run.end", role="reviewer")]
    assert site.ledger(ev="run.start", role="reviewer")[-1]["run"] == ends[-1]


def test_the_parents_deadline_ends_the_child(site: Site) -> None:
    site.policy(ROLES.replace("[role.dev]\n", '[role.dev]\ndeadline = "3s"\n'))
    begun = time.monotonic()
    done = child(site, "tester", "sleep", "300")
    assert done.returncode != 0
    assert time.monotonic() - begun < 80


def test_a_signal_to_the_client_reaches_the_child(site: Site) -> None:
    trap = "trap 'echo caught; exit 9' TERM; echo up; while :; do sleep 0.1; done"
    script = f"{shlex.join([ASK, '--role', 'reviewer', '--', 'sh', '-c', trap])} > said & pid=$!; "
    script += "until grep -q up said 2>/dev/null; do sleep 0.05; done; kill -TERM $pid; wait $pid; echo $?; cat said"
    done = from_parent(site, script)
    assert done.stdout == "9\nup\ncaught\n", done.stderr


def test_each_child_is_proven_and_named_in_the_ledger(site: Site) -> None:
    from_parent(site, f"{ASK} --role reviewer -- true; {ASK} --role tester -- true")
    parent, first, second = site.ledger(ev="run.start")[-3:]
    assert "parent" not in parent
    assert [line["parent"] for line in (first, second)] == [parent["run"]] * 2
    for line in (first, second):
        (proven,) = site.ledger(ev="proof", run=line["run"])
        assert proven["verdict"] == "shown"


def test_ps_shows_whose_child_a_run_is(site: Site) -> None:
    with Live(site, "sh", "-c", f"{ASK} --role reviewer -- sleep 300") as run:
        wait_for(lambda: len(_rows(site)) == 2, "two runs")
        rows = {row["role"]: row for row in _rows(site)}
        assert rows["reviewer"]["parent"] == run.run


def _rows(site: Site) -> list[dict[str, object]]:
    rows = json.loads(site.credgate("ps", "--json").stdout)["runs"]
    assert isinstance(rows, list)
    return rows


def test_without_an_interpreter_the_client_says_so() -> None:
    client = Path(__file__).parents[2] / "src/jail/inside/credgate-child"
    text = (
        client.read_text().replace("/usr/bin/python3", "/no/python3").replace("/usr/local/bin/python3", "/no/python3")
    )
    done = subprocess.run(
        ["/bin/sh", "-s"], input=text, env={"PATH": "/nonexistent"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert done.stderr.splitlines()[0] == "error: credgate-child needs python3, and there is none in this jail"
