"""The share of a warm launch that proof costs: read-back, attempts, judging and their record.

Pairs of `credgate run -- true`, interleaved: one under a daemon as installed, one under a daemon in which those steps
were patched out by this file. The installed package has no such switch.
"""

import os
import subprocess
import time

from tests.bench.figures import Absent, Row
from tests.conftest import CHECKOUT
from tests.e2e.mutant import start_patched
from tests.e2e.site import BIN, Site, make_site

PAIRS = 30
MOST = 0.40  # of the launch with proof
UNPROVEN = f"""import sys
sys.path.insert(0, {str(CHECKOUT / "src")!r})
import asyncio, os
from credgate import daemon, session
from credgate.session import together
from credgate.mountwatch import MountWatch
from credgate.proof import Shown

async def stand(self):
    await together(self.hand_over(), self.serve())
    first = await self.expect(self.pid1, "pid1")
    self.pid, self.pidfd = first.pid, os.pidfd_open(first.pid)
    armed = await self.expect(self.work, "armed")
    self.workload, self.mounts = armed.pid, MountWatch.of(first.pid)
    if not self.limits.hold((first.pid, armed.pid)):
        await asyncio.to_thread(self.limits.confine, (first.pid, armed.pid))
    await self._seal()
    self.shown = Shown(id="unproven", groups={{}})

async def prove(self, *, ahead):
    await self._look_around()
    self.run.proof = "unproven"

session.Session.stand, session.Session._prove = stand, prove
sys.exit(daemon.main(sys.argv[1:]))
"""


def account() -> tuple[int, int]:
    """Uid and gid that the launches belong to: the caller's, or by root those of the suite's ordinary account."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    make = ["bash", "-euc", ". scripts/lib/say.sh; . scripts/lib/account.sh; make_test_account; id -u credgate-test"]
    done = subprocess.run(make, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    uid = int(done.stdout.split()[-1])
    return uid, int(subprocess.run(["id", "-g", str(uid)], check=True, capture_output=True, text=True).stdout)


def start_unproven(site: Site) -> subprocess.Popen[bytes]:
    """The patched daemon, for the site's user."""
    return start_patched(site, UNPROVEN)


def launch(site: Site) -> float:
    """Milliseconds of one launch of `true`."""
    argv = site.as_user([BIN / "credgate", "run", "-q", "--policy", site.home / "policy/policy.toml", "--", "true"])
    began = time.perf_counter()
    subprocess.run(argv, env=site.environment(), cwd=site.work, check=True)
    return (time.perf_counter() - began) * 1000


def measure() -> list[Row | Absent]:
    """Launches with proof against those without; the most that the ratio may be follows from the share."""
    uid, gid = account()
    proven, bare = make_site(uid, gid), make_site(uid, gid)
    try:
        process = start_unproven(bare)
        launch(proven), launch(bare)  # the first starts a daemon, and runs the controls
        pairs = [(launch(proven), launch(bare)) for _ in range(PAIRS)]
        if len(proven.ledger(ev="proof")) != PAIRS + 1 or bare.ledger(ev="proof"):
            raise RuntimeError("the launches are not what they should be: one proof each, and none")
    finally:
        for site in (proven, bare):
            site.close()
        process.wait()
    with_proof, without = zip(*pairs, strict=True)
    most = 1 / (1 - MOST)
    return [Row(name="proof_share", peer="no proof", unit="ms", ours=with_proof, theirs=without, bar=round(most, 3))]
