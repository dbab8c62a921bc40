"""A flame graph of the daemon at work: sampled by py-spy from outside, while sixteen connections ask."""

import re
import subprocess
from pathlib import Path

from tests.bench.peers import installed
from tests.bench.world import contestants

SECONDS, RATE, LINKS, NUMBER = 20, 250, 16, 2000


def record(svg: Path) -> None:
    """Write it. Raises RuntimeError where py-spy is not installed, or may not look at the daemon (root may)."""
    spy = installed("bin/py-spy")
    if spy is None:
        raise RuntimeError("py-spy could not be installed")
    with contestants() as racing:
        asked = racing["credgate"]
        argv = [str(spy), "record", "-p", str(asked.pids[0]), "-d", str(SECONDS), "-r", str(RATE), "-o", str(svg)]
        with subprocess.Popen([*argv, "-f", "flamegraph", "--function", "--gil"], stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                asked.ask(f"requests {LINKS} {NUMBER}")
            if process.returncode:
                raise RuntimeError(f"py-spy ended with {process.returncode}")
    # py-spy's title is its command line, with places of this machine.
    title = f"Credgate's daemon, {LINKS} connections, {SECONDS} s at {RATE} Hz, threads that hold the interpreter"
    svg.write_text(re.sub(r"[^<>]*py-spy record[^<>]*", title, svg.read_text()))
