"""Memory (PSS: shared pages by their share) of all our processes while nothing happens, and of a further run."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.bench import kernel
from tests.bench.figures import Absent, Row
from tests.bench.world import daemon, jailed, site
from tests.e2e.site import Site

ROUNDS, RUNS = 5, 5
MEGA = 1e6
SETTLED = 1.0  # seconds: a berth is let go after the launcher has returned, and the next one is made


@contextmanager
def run(of: Site) -> Iterator[int]:
    """The pid of the launcher of a run whose command has begun, and waits for its stdin to end."""
    argv = jailed(of, "sh", "-c", "echo up; exec cat")
    with subprocess.Popen(
        argv, env=of.environment(), cwd=of.work, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        if process.stdout.readline() != b"up\n":
            raise RuntimeError(f"the run ended with {process.wait()}")
        yield process.pid
        process.stdin.close()


def ours(gateway: int, launchers: list[int]) -> float:
    """MB of PSS of the daemon's processes and of each run's, without the workload."""
    return sum(kernel.memory(pid, "Pss") for pid in [*kernel.ours(gateway), *launchers]) / MEGA


def measure() -> list[Row | Absent]:
    """Of a new daemon each round: after one run, then with one and with six."""
    idle, further = [], []
    for _ in range(ROUNDS):
        with site() as place, ExitStack() as stack:
            gateway = daemon(place)
            with run(place):
                pass
            time.sleep(SETTLED)
            idle.append(ours(gateway, []))
            launchers = [stack.enter_context(run(place))]
            one = ours(gateway, launchers)
            launchers += [stack.enter_context(run(place)) for _ in range(RUNS)]
            further.append((ours(gateway, launchers) - one) / RUNS)
    return [
        Row.absolute("footprint idle", "MB PSS", idle, goal=120, bar=140),
        Row.absolute("footprint of a further run", "MB PSS", further, goal=5, bar=6),
    ]
