"""What a jail costs before its command runs, against bubblewrap's namespaces alone and the sandbox of an agent CLI."""

import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.bench.figures import Absent, Row
from tests.bench.peers import codex_binary, installed
from tests.bench.world import jailed, site
from tests.e2e.site import Site

ROUNDS = 25
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
SANDLOCK = """import sys
sys.path.insert(0, sys.argv[1])
from sandlock import Sandbox
sys.exit(not Sandbox(fs_readable=["/"]).run(["/bin/true"], timeout=10).success)
"""
NONO = """import sys
sys.path.insert(0, sys.argv[1])
from nono_py import AccessMode, CapabilitySet, sandboxed_exec
allowed = CapabilitySet()
allowed.allow_path("/", AccessMode.READ)
allowed.block_network()
sys.exit(sandboxed_exec(allowed, ["/bin/true"], cwd="/", timeout_secs=10.0).exit_code)
"""
TOLD = ("sandlock", "nono-py", "sandbox-runtime", "no jail")  # nothing is promised against these


def milliseconds(of: Site, argv: list[str], env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=of.environment(env), cwd=of.work, check=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


@contextmanager
def home(of: Site) -> Iterator[dict[str, str]]:
    """Where codex keeps what is its own: it takes nothing below /tmp."""
    with tempfile.TemporaryDirectory(prefix=".codex-bench-", dir=pwd.getpwuid(of.uid).pw_dir) as made:
        of.own(Path(made))
        yield {"CODEX_HOME": made}


def contestants(of: Site) -> dict[str, list[str]]:
    """Command lines by name: ours, bare /bin/true, and the peers that are here."""
    argv = {"ours": jailed(of, "/bin/true"), "no jail": of.as_user(["/bin/true"])}
    if shutil.which("bwrap"):
        argv["bubblewrap"] = of.as_user([*BWRAP, "/bin/true"])
    codex = codex_binary()
    if codex is not None:
        argv["codex sandbox"] = of.as_user([codex, "sandbox", "/bin/true"])
    for name, package, script in (("sandlock", "sandlock", SANDLOCK), ("nono-py", "nono_py", NONO)):
        found = installed(package)
        if found is not None:
            argv[name] = of.as_user([sys.executable, "-I", "-c", script, found.parent])
    runtime = installed("node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js")
    if runtime is not None:
        argv["sandbox-runtime"] = of.as_user(["node", runtime, "/bin/true"])
    return argv


def measure() -> list[Row | Absent]:
    """`credgate run -- /bin/true` with the daemon up and the proof in it."""
    with site() as place, home(place) as env:
        argv = contestants(place)
        for words in argv.values():
            milliseconds(place, words, env)
        times: dict[str, list[float]] = {name: [] for name in argv}
        for _ in range(ROUNDS):
            for name, words in argv.items():
                times[name].append(milliseconds(place, words, env))
        if len(place.ledger(ev="proof", verdict="shown")) != ROUNDS + 1:
            raise RuntimeError("not each launch was proven")
    return [
        _row(times, "bubblewrap", goal=5, bar=8),
        _row(times, "codex sandbox", bar=1),
        *(_row(times, peer) for peer in TOLD),
    ]


def _row(
    times: Mapping[str, list[float]], peer: str, goal: float | None = None, bar: float | None = None
) -> Row | Absent:
    if peer not in times:
        return Absent(name="launch", peer=peer)
    return Row(name="launch", peer=peer, unit="ms", ours=times["ours"], theirs=times[peer], goal=goal, bar=bar)
