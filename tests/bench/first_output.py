"""From a start to the first byte of a CLI: in a jail, against the same program alone and a jail that runs /bin/true.

To be read beside it: the same with the program alone told of the same CA by NODE_EXTRA_CA_CERTS. Node.js up to 22 then
reads its own 146 certificates at its start, where it else does at its first TLS connection.
"""

import subprocess
import time
from collections.abc import Mapping
from typing import Any

from tests.bench.figures import Absent, Row
from tests.bench.launch import milliseconds
from tests.bench.world import jailed, site
from tests.e2e.site import Site

ROUNDS = 30
PAUSE = (
    0.1  # seconds before each start, as the launch figure has its peers between two of ours: half a jail is made then
)
# What an agent CLI does first: a runtime starts, reads modules and files, and draws its prompt.
STUB = """
const fs = require("fs"), https = require("https"), child = require("child_process"), crypto = require("crypto");
for (const name of fs.readdirSync(".")) fs.statSync(name);
process.stdout.write("> ");
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
"""


def first_byte(of: Site, argv: list[str], env: Mapping[str, str] | None = None) -> float:
    """Milliseconds until the program has said something. It ends when its input does."""
    began = time.perf_counter()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, env=of.environment(env), cwd=of.work, **pipes) as run:
        if run.stdout is None or run.stdin is None:
            raise RuntimeError("no pipes")
        if not run.stdout.read(1):
            raise RuntimeError("it said nothing")
        took = time.perf_counter() - began
        run.stdin.close()
    if run.returncode:
        raise RuntimeError(f"it ended with {run.returncode}")
    return took * 1000


def measure() -> list[Row | Absent]:
    """All with the daemon up, one after the other."""
    with site() as place:
        stub = str(place.write("work/stub.js", STUB))
        inside, alone, empty = jailed(place, "node", stub), place.as_user(["node", stub]), jailed(place, "/bin/true")
        milliseconds(place, empty, {})
        (ca,) = place.state.glob("trust/*/ssl/certs/credgate-ca.pem")
        told_of = {"NODE_EXTRA_CA_CERTS": str(ca)}
        ours, theirs, told = [], [], []
        for _ in range(ROUNDS):
            time.sleep(PAUSE)
            ours.append(first_byte(place, inside))
            time.sleep(PAUSE)
            program, with_ca = first_byte(place, alone), first_byte(place, alone, told_of)
            time.sleep(PAUSE)
            launch = milliseconds(place, empty, {})
            theirs.append(program + launch)
            told.append(with_ca + launch)
    named: dict[str, Any] = {"name": "first_output", "unit": "ms", "ours": ours}
    return [
        Row(**named, peer="alone + launch", theirs=theirs, bar=1.3),
        Row(**named, peer="same, told of a CA", theirs=told),
    ]
