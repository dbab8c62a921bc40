"""A call of `credgate.api`, whose jail was made ahead, against a start of bubblewrap from the same living process."""

import json
import subprocess
import sys

from tests.bench.figures import Absent, Row
from tests.bench.launch import BWRAP
from tests.bench.world import daemon, site
from tests.conftest import CHECKOUT

ROUNDS = 25
PAUSE = 0.5  # seconds between two calls, in which the next jail is made
CALLS = f"""
import json, subprocess, sys, time
sys.path.insert(0, {str(CHECKOUT / "src")!r})
from credgate.api import Launcher
rounds, pause, policy, work, peer = json.loads(sys.argv[1])
tools = Launcher(policy=policy, workdir=work)
def ours():
    done = tools.run(["/bin/true"])
    assert done.status == 0, done
def theirs():
    subprocess.run(peer, check=True, stdin=subprocess.DEVNULL)
def milliseconds(call):
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
ours(), theirs()
pairs = []
for _ in range(rounds):
    time.sleep(pause)
    pairs.append((milliseconds(ours), milliseconds(theirs)))
print(json.dumps(pairs))
"""


def measure() -> list[Row | Absent]:
    """Each jail was proven before its command was asked for, and the ledger says so of all but the first."""
    with site() as place:
        daemon(place)
        script = place.write("calls.py", CALLS)
        asked = [ROUNDS, PAUSE, str(place.home / "policy/policy.toml"), str(place.work), [*BWRAP, "/bin/true"]]
        argv = place.as_user([sys.executable, "-I", script, json.dumps(asked)])
        try:
            done = subprocess.run(
                argv, env=place.environment(), cwd=place.work, check=True, capture_output=True, text=True
            )
        except subprocess.CalledProcessError as error:
            if "No such file or directory: 'bwrap'" in error.stderr:
                return [Absent(name="warm", peer="bubblewrap")]
            raise RuntimeError(error.stderr) from None
        proofs = place.ledger(ev="proof", verdict="shown")
        ahead = [proof for proof in proofs if "before its command" in (proof.get("detail") or "")]
        if (len(proofs), len(ahead)) != (ROUNDS + 1, ROUNDS):
            raise RuntimeError(f"{len(ahead)} of {len(proofs)} launches were warm, expected all but the first")
    ours, theirs = zip(*json.loads(done.stdout), strict=True)
    return [Row(name="warm", peer="bubblewrap", unit="ms", ours=ours, theirs=theirs, goal=1.5, bar=2)]
