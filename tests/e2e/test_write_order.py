"""An intent is on the disk before the first byte of its request leaves: by the daemon's own system calls, and by a disk
that fails.

strace is attached to the daemon that the test itself started. Of its calls three count: a write of an `intent` line, a
sync of the ledger by the kernel (io_submit to io_getevents), and whatever goes out on a connection to the target.
"""

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from credgate.ledger.note import parse_notes
from tests.e2e.place import Live, daemon_pid, wait_for
from tests.e2e.site import Site, bound
from tests.features import find
from tests.targets.served import Target

# The daemon is not dumpable, so that nobody but root may trace it.
pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "root", "strace")

POLICY = """\
version = 1
[endpoint.api]
host = "{host}"
dial_port = {port}
address = ["127.0.0.1"]
ca = "ca.pem"
[[endpoint.api.allow]]
id = "all"
methods = ["POST"]
paths = ["/echo"]
[[endpoint.api.allow]]
id = "free"
methods = ["POST"]
paths = ["/echo/free"]
{bound}
[role.dev]
bindings = ["api"]
"""
# Once it is told to: five requests with the secret, then five that get none, on one connection of its own.
AGENT = """
import http.client, os, sys, time
while not os.path.exists("go"): time.sleep(0.02)
client = http.client.HTTPSConnection(sys.argv[1], timeout=30)
for path in ["/echo"] * 5 + ["/echo/free"] * 5:
    client.request("POST", path, body=b"x" * 20000)
    answer = client.getresponse()
    answer.read()
    print(path, answer.status, flush=True)
"""
CALLS = "write,pwrite64,writev,sendto,sendmsg,sendfile,splice,connect,fdatasync,fsync,io_submit,io_getevents"
LEDGER = r"<\S*/ledger/seg-\d+\.jsonl>"
SUBMITTED = re.compile(
    rf"io_submit\(.*aio_data=(0x[0-9a-f]+), aio_lio_opcode=IOCB_CMD_FDSYNC, aio_fildes=\d+{LEDGER}.*= 1$"
)
ENDED = re.compile(r"io_getevents\(.*\[{data=(0x[0-9a-f]+), [^}]*res=0, .*= 1$")
# What the kernel says of the sync is written over: mark 1, -EIO.
FAILED = "io_getevents:poke_exit=@arg4=01000000000000000000000000000000fbffffffffffffff"


@contextlib.contextmanager
def traced(pid: int, out: Path, *more: str) -> Iterator[None]:
    """strace on every thread of a process, for as long as the block lasts."""
    program = find("strace")
    assert program
    argv = [program, "-f", "-yy", "-s", "400", "-o", str(out), f"--trace={CALLS}", *more, "-p", str(pid)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "attached" in process.stderr.readline()
        yield
    finally:
        process.send_signal(signal.SIGINT)  # it lets go of the process, and says nothing to it
        process.communicate(timeout=90)


def events(trace: str, port: int) -> str:
    """The calls that count, a letter each: I intent written, F all so far is on the disk, S sent to the target.

    I and F stand where the call returned, S where it began. A sync counts only if no intent was written since it
    began: what was written meanwhile need not be in it.
    """
    found: list[str] = []
    asked: dict[str, int] = {}
    begun: dict[str, tuple[str, int]] = {}
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        call, at = call.strip(), len(found)
        if call.startswith("<... "):
            first, at = begun.pop(thread, ("", 0))
            call = first.removesuffix("<unfinished ...>") + call.partition(" resumed>")[2]
        elif f"->127.0.0.1:{port}]" in call or f"htons({port})" in call:
            found.append("S")
            at = len(found)
        if call.endswith("<unfinished ...>"):
            begun[thread] = (call, at)
        elif re.match(r'write\(\d+<\S*/ledger/seg-\d+\.jsonl>.*\\"ev\\":\\"intent\\"', call):
            found.append("I")
        elif sync := SUBMITTED.match(call):
            asked[sync[1]] = at
        elif (sync := ENDED.match(call)) and "I" not in found[asked[sync[1]] :]:
            found.append("F")
    return "".join(found)


@pytest.fixture
def api(site: Site, https_target: Target) -> Target:
    """The policy in place, and the daemon up."""
    site.policy(POLICY.format(host=https_target.host, port=https_target.port, bound=bound()), https_target.ca)
    site.secret("api", https_target.token)
    return https_target


def signed(ledger: Path) -> int:
    """The size of the last checkpoint."""
    notes = [note for path in sorted(ledger.glob("*.notes")) for note in parse_notes(path.read_bytes())[0]]
    return notes[-1].checkpoint.size if notes else 0


def run_traced(site: Site, api: Target, trace: Path, *more: str) -> list[str]:
    """A run whose requests are made while its daemon is traced; what the agent printed."""
    with Live(site, site.python(), "-I", "-c", AGENT, api.host) as run:
        ledger = site.state / "ledger"
        wait_for(lambda: signed(ledger) == len(site.ledger()), "the checkpoint of the start: no other sync is due then")
        with traced(daemon_pid(site), trace, *more):
            site.write("work/go", "")
            run.end()
    return run.out.splitlines()


def test_the_intent_is_on_the_disk_before_a_byte_leaves(site: Site, api: Target, tmp_path: Path) -> None:
    said = run_traced(site, api, tmp_path / "trace")
    assert said == ["/echo 200"] * 5 + ["/echo/free 200"] * 5
    found = events((tmp_path / "trace").read_text(), api.port)
    assert found.count("I") == 10
    fifth = [m.start() for m in re.finditer("I", found)][5]
    assert re.fullmatch(r"F*(IF+S[SF]*){5}", found[:fifth]), found
    # the control: a request without a secret waits for no disk, so the reader does see another order
    assert re.fullmatch(r"(IF*S[SF]*){5}", found[fifth:]), found
    assert "IS" in found[fifth:], found


@pytest.mark.parametrize("fault", ["io_submit,fdatasync:error=EIO", FAILED, "write:error=ENOSPC"])
def test_with_a_failing_disk_no_byte_leaves(site: Site, api: Target, tmp_path: Path, fault: str) -> None:
    """The target sees no connection, the agent why, and the ledger says nothing that was not so."""
    inject = [f"--inject={fault}"]
    if fault.startswith("write"):
        inject += ["-P", str(site.state / "ledger/seg-000001.jsonl")]
    before = api.connections()
    said = run_traced(site, api, tmp_path / "trace", *inject)
    assert said == [f"{path} 403" for path in ["/echo"] * 5 + ["/echo/free"] * 5]
    assert api.connections() == before
    assert ("res=-5," if fault == FAILED else "(INJECTED)") in (tmp_path / "trace").read_text()
    assert site.ledger(ev="outcome", status=200) == []
