"""What open() costs inside a jail against outside, in CPU time of the process that calls it."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.bench.figures import Absent, Row
from tests.bench.world import client, jailed, site

if TYPE_CHECKING:
    import subprocess

ROUNDS, OPENS = 15, 20000
MICRO = 1e6
SCRIPT = """import os, sys, time
for line in sys.stdin:
    began = time.process_time()
    for _ in range(int(line)):
        os.close(os.open("opens.py", os.O_RDONLY))
    print(time.process_time() - began, flush=True)
"""


def once(process: "subprocess.Popen[str]") -> float:
    """Microseconds of one open and close."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{OPENS}\n")
    process.stdin.flush()
    return float(process.stdout.readline()) / OPENS * MICRO


def measure() -> list[Row | Absent]:
    """The same file of the work tree, by the same interpreter and user."""
    with site() as place, ExitStack() as stack:
        place.write("work/opens.py", SCRIPT)
        words = [place.python(), "-I", "opens.py"]
        argvs = [jailed(place, *words), place.as_user(words)]
        both = [stack.enter_context(client(argv, env=place.environment(), cwd=place.work)) for argv in argvs]
        times = [[once(process) for process in both] for _ in range(ROUNDS + 1)][1:]
    inside, outside = zip(*times, strict=True)
    return [Row(name="open_inside", peer="outside", unit="us CPU", ours=inside, theirs=outside, bar=1.05)]
