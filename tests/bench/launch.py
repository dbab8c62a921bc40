"""What a jail costs before its command runs, against bubblewrap's namespaces alone and the sandbox of an agent CLI."""

import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.bench.figures import Absent, Row
from tests.bench.peers import codex_binary
from tests.bench.world import jailed, site
from tests.e2e.site import Site

ROUNDS = 25
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]


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
        _row(times, "no jail"),
    ]


def _row(
    times: Mapping[str, list[float]], peer: str, goal: float | None = None, bar: float | None = None
) -> Row | Absent:
    if peer not in times:
        return Absent(name="launch", peer=peer)
    return Row(name="launch", peer=peer, unit="ms", ours=times["ours"], theirs=times[peer], goal=goal, bar=bar)
