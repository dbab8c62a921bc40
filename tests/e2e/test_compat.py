"""Programs that people and agents use, in the jail: what the guards must not break."""

import textwrap

import pytest

from tests.e2e.place import module_site
from tests.e2e.site import Site
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

READ = "version = 1\n[role.dev]\n"
POLICY = 'version = 1\n[role.dev]\nworkdir = "write"\nenv = ["TERM"]\n'
HEADLESS = (
    *("chromium", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--user-data-dir=/tmp/profile"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"),
    "data:text/html,<p id=x></p><script>document.getElementById('x').textContent=6*7</script>",
)
# (module (func (export "f") (result i32) i32.const 42))
WASM = "0061736d010000000105016000017f03020100070501016600000a06010400412a0b"


@pytest.fixture
def site(place: Site) -> Site:
    place.policy(POLICY)
    return place


@pytest.mark.needs("vim")
def test_vim_edits_a_file_of_the_work_tree(site: Site) -> None:
    with Terminal(site, "vim.tiny", "-u", "NONE", "-i", "NONE", "note.txt") as screen:
        screen.expect("note.txt")
        screen.type("ihello from the jail\x1b:wq\r")
        assert screen.end() == 0
    assert (site.work / "note.txt").read_text() == "hello from the jail\n"


@pytest.mark.needs("less")
def test_less_pages_to_the_end_and_leaves(site: Site) -> None:
    site.write("work/lines.txt", "".join(f"line {n}\n" for n in range(1, 201)))
    with Terminal(site, "less", "lines.txt") as screen:
        screen.expect("line 3\\b")
        screen.type("G")
        screen.expect("line 200\\b")
        screen.type("q")
        assert screen.end() == 0


@pytest.mark.needs("top")
def test_top_shows_the_jail_alone(site: Site) -> None:
    with Terminal(site, "top") as screen:
        total = int(screen.expect(r"Tasks:(?:\x1b[^a-zA-Z]*[a-zA-Z]|[^0-9\x1b])*([0-9]+)")[1])  # with its colours
        screen.expect("PID")
        assert screen.end_by("q") == 0
    assert total < 6  # pid 1, top, and what they start; the host has many more


@pytest.mark.needs("bash")
def test_a_shell_has_job_control(site: Site) -> None:
    with Terminal(site, "bash", "--norc", "--noprofile", "-i", term="dumb") as shell:
        shell.type("PS1='ready> '\r")
        shell.expect("\nready> ")
        shell.type("sh -c 'echo up; exec sleep 301'\r")
        shell.expect("\nup\r\n")
        shell.type("\x1a")
        shell.expect("Stopped.*sleep 301")
        shell.type("bg; jobs\r")
        shell.expect("Running.*sleep 301")
        shell.type("fg\r")
        shell.expect("\nsh -c 'echo up; exec sleep 301'")
        shell.type_until("\x03", "\nready> ")
        shell.type("exit 7\r")
        assert shell.end() == 7


SERVE_AND_ASK = """
import http.client, subprocess, sys, time
server = subprocess.Popen([sys.executable, "-I", "-m", "http.server", "8123", "--bind", "127.0.0.1"])
for _ in range(100):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", 8123)
        connection.request("GET", "/page.txt")
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
print(connection.getresponse().read().decode(), end="")
server.kill()
"""


def test_a_server_inside_is_reached_from_inside(site: Site) -> None:
    site.write("work/page.txt", "served inside")
    done = site.run(site.python(), "-I", "-c", SERVE_AND_ASK)
    assert (done.returncode, done.stdout) == (0, "served inside"), done.stderr


@pytest.mark.needs("node")
def test_node_runs_webassembly(site: Site) -> None:
    # `maximum` reserves address space, which RLIMIT_AS would refuse; node 20 does that for every memory.
    code = (
        "new WebAssembly.Memory({initial: 1, maximum: 65536});"
        f"WebAssembly.instantiate(Buffer.from('{WASM}', 'hex')).then(m => console.log(m.instance.exports.f()))"
    )
    done = site.run("node", "-e", code)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


@pytest.mark.needs("compiler", "git")
def test_make_builds_with_gcc_and_git_keeps_it(site: Site) -> None:
    site.write("work/hello.c", '#include <stdio.h>\nint main(void) { return puts("built inside") < 0; }\n')
    site.write("work/Makefile", "hello: hello.c\n\tgcc -O1 -o hello hello.c\n")
    script = textwrap.dedent("""
        set -e
        make -s -j2 hello
        ./hello
        git init -q -b main . && git add hello.c Makefile
        git -c user.name=a -c user.email=a@example.org commit -q -m one
        git log --format=%s
        """)
    done = site.run("sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "built inside\none\n"), done.stderr


@pytest.mark.needs("chromium")
def test_chromium_brings_its_own_sandbox_where_the_role_lets_it(site: Site) -> None:
    # It makes a socket in /tmp, where none can be made while a writable work tree lies below it (as this site's does).
    site.policy(READ)
    done = site.run(*HEADLESS)
    assert done.returncode != 0  # control: closed by default, and Chromium does not go on without one
    assert "No usable sandbox" in done.stderr
    site.policy(READ + "allow_userns = true\n")
    done = site.run(*HEADLESS)
    assert (done.returncode, '<p id="x">42</p>' in done.stdout) == (0, True), done.stderr[-2000:]
