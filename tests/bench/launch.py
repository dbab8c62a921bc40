"""What a jail costs before its command runs, against bubblewrap's namespaces alone."""

import shutil
import subprocess
import time

from tests.bench.figures import Absent, Row
from tests.bench.world import jailed, site
from tests.e2e.site import Site

ROUNDS = 31
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]


def milliseconds(of: Site, argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=of.environment(), cwd=of.work, check=True)
    return (time.perf_counter() - began) * 1000


def measure() -> list[Row | Absent]:
    """`credgate run -- /bin/true` with the daemon up and the proof in it; the control is bare /bin/true."""
    if shutil.which("bwrap") is None:
        return [Absent(name="launch", peer="bubblewrap")]
    with site() as place:
        argv = {
            "ours": jailed(place, "/bin/true"),
            "bwrap": place.as_user([*BWRAP, "/bin/true"]),
            "bare": place.as_user(["/bin/true"]),
        }
        for words in argv.values():
            milliseconds(place, words)
        times: dict[str, list[float]] = {name: [] for name in argv}
        for _ in range(ROUNDS):
            for name, words in argv.items():
                times[name].append(milliseconds(place, words))
        if len(place.ledger(ev="proof", verdict="shown")) != ROUNDS + 1:
            raise RuntimeError("not each launch was proven")
    return [
        Row(name="launch", peer="bubblewrap", unit="ms", ours=times["ours"], theirs=times["bwrap"], goal=5, bar=8),
        Row(name="launch: /bin/true alone", peer="bubblewrap", unit="ms", ours=times["bare"], theirs=times["bwrap"]),
    ]
